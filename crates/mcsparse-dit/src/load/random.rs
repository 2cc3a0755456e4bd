//! Weights without a file, and files without a training.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Distribution, Tensor, bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use safetensors::tensor::{Dtype, View, serialize_to_file};

use super::format::{Format, is_kept};
use super::spec::{Spec, specs};
use super::{LoadError, check_dtype};
use crate::check;

/// Values that are drawn for a checkpoint; every tensor takes them over and over, which is as fast as a disk. A prime number,
/// so that the rows of a matrix do not repeat.
const BLOCK: usize = 1_048_573;

/// Standard deviation of what is no matrix: biases, tables, and norms around 1.
const SMALL: f64 = 0.1;

/// Mean and standard deviation of a parameter, such that values stay of the order of 1 from layer to layer.
fn distribution(spec: &Spec) -> (f64, f64) {
    let is_norm = spec.file.contains("norm") && spec.file.ends_with(".weight");
    match spec.shape.len() {
        1 if is_norm => (1.0, SMALL),
        0 | 1 => (0.0, SMALL),
        _ if spec.file.contains("table") => (0.0, SMALL),
        _ => (0.0, (spec.shape[1..].iter().product::<usize>() as f64).powf(-0.5)),
    }
}

/// Draws every parameter of `model` on `device`.
pub(crate) fn randomise<M: Module>(
    model: M,
    format: &Format,
    dtype: DType,
    seed: u64,
    device: &Device,
) -> Result<M, LoadError> {
    check_dtype(dtype)?;
    let specs = specs(&model).into_iter();
    device.seed(seed);
    Ok(model.map(&mut Randomiser { specs, kept: format.kept_in_f32, dtype, device: device.clone() }))
}

struct Randomiser {
    specs: std::vec::IntoIter<Spec>,
    kept: &'static [&'static str],
    dtype: DType,
    device: Device,
}

impl ModuleMapper for Randomiser {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let spec = self.specs.next().expect("mapped in the order in which it was visited");
        let (mean, deviation) = distribution(&spec);
        let dtype = if is_kept(self.kept, &spec.own) { DType::F32 } else { self.dtype };
        let normal = Distribution::Normal(mean, deviation);
        let values = Tensor::<D>::random(param.lazy_shape(), normal, (&self.device, DType::F32)).cast(dtype);
        Param::initialized(param.id, values)
    }
}

/// How [`write_random`](crate::wan::WanConfig::write_random) writes.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointOptions {
    /// Dtype of the values: f32, f16 or bf16. What a model keeps in f32 is f32 all the same.
    pub dtype: DType,
    /// Seed of the values.
    pub seed: u64,
    /// The most bytes of one shard; a tensor is never split.
    pub shard_bytes: u64,
}

impl Default for CheckpointOptions {
    /// bf16, seed 0, shards of 2 GiB.
    fn default() -> Self {
        Self { dtype: DType::BF16, seed: 0, shard_bytes: 2 << 30 }
    }
}

/// Writes a checkpoint of the form of `model` to `folder`, index last.
pub(crate) fn write_checkpoint<M: Module>(
    model: &M,
    config: &serde_json::Value,
    folder: &Path,
    format: &Format,
    options: &CheckpointOptions,
) -> Result<(), LoadError> {
    check_dtype(options.dtype)?;
    if options.shard_bytes == 0 {
        return Err(check::config("shard_bytes", "at least 1", 0).into());
    }
    std::fs::create_dir_all(folder).map_err(|source| LoadError::io(folder, source))?;
    let mut entries = std::fs::read_dir(folder).map_err(|source| LoadError::io(folder, source))?;
    if let Some(entry) = entries.next() {
        let name = entry.map_err(|source| LoadError::io(folder, source))?.file_name();
        return Err(LoadError::format(folder, format!("expected an empty folder, found {}", name.display())));
    }
    let mut written = Vec::new();
    let result = write_shards(model, config, folder, format, options, &mut written);
    if result.is_err() {
        for file in written {
            // The error that is reported is the first.
            let _ = std::fs::remove_file(file);
        }
    }
    result
}

fn write_shards<M: Module>(
    model: &M,
    config: &serde_json::Value,
    folder: &Path,
    format: &Format,
    options: &CheckpointOptions,
    written: &mut Vec<PathBuf>,
) -> Result<(), LoadError> {
    let mut random = StdRng::seed_from_u64(options.seed);
    // Uniform with deviation 1: cheaper to draw than normal values, and as good for the purpose.
    let block: Arc<[f32]> = (0..BLOCK).map(|_| 3f32.sqrt() * (2.0 * random.random::<f32>() - 1.0)).collect();
    let drawn: Vec<Drawn> = specs(model)
        .into_iter()
        .enumerate()
        .map(|(index, spec)| {
            let kept = is_kept(format.kept_in_f32, &spec.own);
            let dtype = if kept { DType::F32 } else { options.dtype };
            let seed = options.seed.wrapping_mul(1 << 20).wrapping_add(index as u64);
            Drawn { dtype, seed, spec, block: block.clone() }
        })
        .collect();
    let total: u64 = drawn.iter().map(|tensor| tensor.bytes() as u64).sum();
    let shards = cut(drawn, options.shard_bytes);
    let mut map = BTreeMap::new();
    for (number, shard) in shards.iter().enumerate() {
        let name = format!("diffusion_pytorch_model-{:05}-of-{:05}.safetensors", number + 1, shards.len());
        let path = folder.join(&name);
        written.push(path.clone());
        let tensors = shard.iter().map(|tensor| (tensor.spec.file.as_str(), tensor));
        serialize_to_file(tensors, None, &path).map_err(|error| LoadError::format(&path, error))?;
        map.extend(shard.iter().map(|tensor| (tensor.spec.file.clone(), name.clone())));
    }
    let index = serde_json::json!({ "metadata": { "total_size": total }, "weight_map": map });
    for (name, json) in [("config.json", config), ("diffusion_pytorch_model.safetensors.index.json", &index)] {
        let path = folder.join(name);
        written.push(path.clone());
        let text = serde_json::to_string_pretty(json).expect("plain data");
        std::fs::write(&path, text).map_err(|source| LoadError::io(&path, source))?;
    }
    Ok(())
}

/// Fills one shard after the other.
fn cut(tensors: Vec<Drawn>, most: u64) -> Vec<Vec<Drawn>> {
    let mut shards: Vec<Vec<Drawn>> = vec![Vec::new()];
    let mut bytes = 0;
    for tensor in tensors {
        let len = tensor.bytes() as u64;
        if bytes + len > most && bytes > 0 {
            shards.push(Vec::new());
            bytes = 0;
        }
        bytes += len;
        shards.last_mut().expect("one at least").push(tensor);
    }
    shards
}

/// A tensor whose values are put together when they are written.
struct Drawn {
    spec: Spec,
    dtype: DType,
    seed: u64,
    block: Arc<[f32]>,
}

impl Drawn {
    fn bytes(&self) -> usize {
        self.spec.values() * self.dtype.size()
    }
}

impl View for &Drawn {
    fn dtype(&self) -> Dtype {
        match self.dtype {
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::BF16,
            _ => Dtype::F32,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.spec.shape
    }

    /// The values of the block from a place that depends on the seed, over and over, with this tensor's mean and deviation.
    fn data(&self) -> Cow<'_, [u8]> {
        let (mean, deviation) = distribution(&self.spec);
        let (before, behind) = self.block.split_at(StdRng::seed_from_u64(self.seed).random_range(0..BLOCK));
        let values = behind.iter().chain(before).take(self.spec.values());
        let values = values.map(|&unit| (mean + deviation * f64::from(unit)) as f32);
        let (mut bytes, len) = (Vec::with_capacity(self.bytes()), self.bytes());
        match self.dtype {
            DType::F16 => bytes.extend(values.flat_map(|value| f16::from_f32(value).to_le_bytes())),
            DType::BF16 => bytes.extend(values.flat_map(|value| bf16::from_f32(value).to_le_bytes())),
            _ => bytes.extend(values.flat_map(f32::to_le_bytes)),
        }
        let block = bytes.len();
        while bytes.len() < len {
            bytes.extend_from_within(..block.min(len - bytes.len()));
        }
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes()
    }
}
