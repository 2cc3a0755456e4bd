//! Which files hold the weights, and what is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use burn_store::burn_pack::Tensor as StoredTensor;
use burn_store::{ModuleStore, SafetensorsStore};
use serde::Deserialize;

use super::LoadError;

/// One file that a folder of weights may hold.
const SINGLE: [&str; 2] = ["diffusion_pytorch_model.safetensors", "model.safetensors"];

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Every tensor of the file, the index or the folder at `path`. The values stay on disk until they are asked for.
pub(super) fn read(path: &Path) -> Result<Vec<StoredTensor>, LoadError> {
    let mut tensors: BTreeMap<String, StoredTensor> = BTreeMap::new();
    for file in files(path)? {
        let mut store = SafetensorsStore::from_file(&file);
        // Opened here for an error that says what the system said.
        std::fs::File::open(&file).map_err(|source| LoadError::io(&file, source))?;
        let stored = store.get_all_tensors().map_err(|error| LoadError::format(&file, error))?;
        for (name, tensor) in stored {
            if tensors.insert(name.clone(), tensor.clone()).is_some() {
                return Err(LoadError::format(&file, format!("{name} is in another shard too")));
            }
        }
    }
    Ok(tensors.into_values().collect())
}

fn files(path: &Path) -> Result<Vec<PathBuf>, LoadError> {
    if !path.is_dir() {
        return if path.extension().is_some_and(|extension| extension == "json") {
            shards_of(path)
        } else {
            Ok(vec![path.into()])
        };
    }
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(path).map_err(|source| LoadError::io(path, source))? {
        found.insert(entry.map_err(|source| LoadError::io(path, source))?.path());
    }
    let ending = |ending: &str| -> Vec<PathBuf> {
        found.iter().filter(|file| file.to_string_lossy().ends_with(ending)).cloned().collect()
    };
    match &ending(".safetensors.index.json")[..] {
        [index] => return shards_of(index),
        [] => {}
        several => {
            let reason = format!("{} indexes of shards; name the one to load", several.len());
            return Err(LoadError::NoWeights { path: path.into(), reason });
        }
    }
    if let Some(single) = SINGLE.into_iter().map(|name| path.join(name)).find(|file| found.contains(file)) {
        return Ok(vec![single]);
    }
    let all = ending(".safetensors");
    if all.is_empty() {
        return Err(LoadError::NoWeights { path: path.into(), reason: "no *.safetensors file".into() });
    }
    Ok(all)
}

/// The files that an index names, beside it.
fn shards_of(index: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let text = std::fs::read_to_string(index).map_err(|source| LoadError::io(index, source))?;
    let Index { weight_map } = serde_json::from_str(&text).map_err(|error| LoadError::format(index, error))?;
    let names: BTreeSet<String> = weight_map.into_values().collect();
    if names.is_empty() {
        return Err(LoadError::format(index, "weight_map names no file"));
    }
    names
        .into_iter()
        .map(|name| match Path::new(&name).file_name() {
            Some(file) if file == name.as_str() => Ok(index.with_file_name(name)),
            // An index has no business outside its folder.
            _ => Err(LoadError::format(index, format!("weight_map names {name}, which is not a file beside it"))),
        })
        .collect()
}
