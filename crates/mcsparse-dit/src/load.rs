//! Weights from files of diffusers, and back.

mod error;
mod shards;

use std::collections::HashMap;
use std::path::Path;

use burn::tensor::{DType, Device};
use burn_store::burn_pack::Tensor as StoredTensor;
use burn_store::{
    ApplyError, ApplyResult, BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, ModuleContext, ModuleSnapshot,
    PyTorchToBurnAdapter, SafetensorsStore,
};

pub use error::{LoadError, Mismatch, Misshaped};

use crate::check;
use crate::wan::{WanConfig, WanTransformer};

/// Parts of names that differ: in files, in this crate.
const RENAMED: [(&str, &str); 3] =
    [(".to_out.0.", ".to_out."), (".ffn.net.0.proj.", ".ffn.up."), (".ffn.net.2.", ".ffn.down.")];

/// Parameters that stay in f32 whatever the dtype of the model, as in diffusers: they shape every value of a block
/// and cost next to nothing.
const KEPT_IN_F32: [&str; 3] = ["time_embedder.", "scale_shift_table", ".norm2."];

impl WanTransformer {
    /// Loads weights in safetensors format under the names that diffusers gives them.
    ///
    /// `path` is one file, a `*.safetensors.index.json` that lists shards, or a folder. In a folder the index counts
    /// if there is one, else `diffusion_pytorch_model.safetensors` or `model.safetensors`, else every `*.safetensors`
    /// file. Weights of any float dtype become `dtype` (f32, f16 or bf16), but for the time embedder, the modulation
    /// tables and `norm2`, which become f32.
    ///
    /// # Errors
    ///
    /// [`LoadError`]; for weights that do not fit `config`, [`LoadError::Mismatch`] with the name of every tensor that
    /// is missing, not expected or of another shape. Nothing half-loaded is ever returned.
    pub fn load(path: impl AsRef<Path>, config: &WanConfig, dtype: DType, device: &Device) -> Result<Self, LoadError> {
        let path = path.as_ref();
        config.validate()?;
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(check::config("dtype", "F32, F16 or BF16", format!("{dtype:?}")).into());
        }
        let mut tensors = shards::read(path)?;
        let mut names = HashMap::new();
        for tensor in &mut tensors {
            let own = renamed(&tensor.name, |(file, own)| (file, own));
            names.insert(own.clone(), std::mem::replace(&mut tensor.name, own));
        }
        let mut model = config.init(device);
        let adapter = PyTorchToBurnAdapter.chain(CastWeights { dtype });
        let result = model.apply(tensors, None, Some(Box::new(adapter)), false);
        match mismatch(result, &names) {
            mismatch if mismatch.is_empty() => Ok(model),
            mismatch => Err(LoadError::Mismatch { path: path.into(), mismatch }),
        }
    }

    /// Loads `config.json` and the weights beside it from a folder, as [`WanTransformer::load`] does.
    ///
    /// # Errors
    ///
    /// Those of [`WanConfig::from_file`] and [`WanTransformer::load`].
    pub fn from_folder(folder: impl AsRef<Path>, dtype: DType, device: &Device) -> Result<Self, LoadError> {
        let folder = folder.as_ref();
        Self::load(folder, &WanConfig::from_file(folder.join("config.json"))?, dtype, device)
    }

    /// Writes the weights to one safetensors file under the names and in the layout of diffusers.
    ///
    /// # Errors
    ///
    /// [`LoadError::Format`] if the file exists already or cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), LoadError> {
        let path = path.as_ref();
        let mut store = SafetensorsStore::from_file(path).with_to_adapter(BurnToPyTorchAdapter);
        for (file, own) in RENAMED {
            store = store.with_key_remapping(own.replace('.', r"\."), file);
        }
        self.save_into(&mut store).map_err(|error| LoadError::format(path, error))
    }
}

/// Casts on load, all but [`KEPT_IN_F32`].
#[derive(Clone)]
struct CastWeights {
    dtype: DType,
}

impl ModuleAdapter for CastWeights {
    fn adapt(&self, tensor: StoredTensor, context: ModuleContext<'_>) -> StoredTensor {
        let kept = KEPT_IN_F32.iter().any(|part| tensor.name.contains(part));
        FloatCastAdapter::to(if kept { DType::F32 } else { self.dtype }).adapt(tensor, context)
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

/// `name` with the first part that has another one replaced; `direction` puts old before new.
fn renamed(name: &str, direction: fn((&'static str, &'static str)) -> (&'static str, &'static str)) -> String {
    match RENAMED.into_iter().map(direction).find(|(old, _)| name.contains(old)) {
        Some((old, new)) => name.replacen(old, new, 1),
        None => name.to_owned(),
    }
}

/// The name in files of a parameter of this crate.
fn file_name(own: &str) -> String {
    let name = renamed(own, |(file, own)| (own, file));
    match name.rsplit_once('.') {
        Some((module, "gamma")) => format!("{module}.weight"),
        Some((module, "beta")) => format!("{module}.bias"),
        _ => name,
    }
}

/// What did not fit, in the names and shapes of the file; `names` has the file's by this crate's.
fn mismatch(result: ApplyResult, names: &HashMap<String, String>) -> Mismatch {
    let mut mismatch = Mismatch {
        missing: result.missing.iter().map(|(path, _)| file_name(path)).collect(),
        unexpected: result.unused.iter().map(|path| names.get(path).unwrap_or(path).clone()).collect(),
        ..Mismatch::default()
    };
    for error in result.errors {
        match error {
            ApplyError::ShapeMismatch { path, expected, found } => {
                let (mut expected, mut got) = (expected.to_vec(), found.to_vec());
                if expected.len() == 2 {
                    // Only linear layers have matrices, and files hold them the other way round.
                    expected.reverse();
                    if got.len() == 2 {
                        got.reverse();
                    }
                }
                mismatch.misshaped.push(Misshaped { name: file_name(&path), expected, got });
            }
            ApplyError::DTypeMismatch { path, found, .. } => {
                mismatch.unreadable.push(format!("{}: {found:?} is no float", file_name(&path)));
            }
            ApplyError::AdapterError { path, message } | ApplyError::LoadError { path, message } => {
                mismatch.unreadable.push(format!("{}: {message}", file_name(&path)));
            }
        }
    }
    mismatch
}
