//! Weights from files of diffusers or of a model's authors, and back; random weights where there is no file.

mod error;
mod format;
mod layout;
mod random;
mod shards;
mod spec;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use burn::tensor::DType;
use burn_store::burn_pack::Tensor as StoredTensor;
use burn_store::{
    ApplyResult, BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, ModuleContext, ModuleSnapshot, SafetensorsStore,
};

pub use error::{LoadError, Mismatch, Misshaped};
pub(crate) use format::{Format, rename_by, split_rows, swap_halves};
use format::{RENAMED, own_name};
use layout::FromFiles;
pub use random::CheckpointOptions;
pub(crate) use random::{randomise, write_checkpoint};
pub(crate) use spec::parameters;
use spec::specs;

use crate::check;

/// How far the loading of weights has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Tensors loaded.
    pub tensors: usize,
    /// Tensors in all.
    pub of_tensors: usize,
    /// Bytes of the file that they took.
    pub bytes: u64,
    /// Bytes in all.
    pub of_bytes: u64,
}

/// Hears of every tensor that was loaded.
pub(crate) type OnProgress = Arc<dyn Fn(LoadProgress) + Send + Sync>;

/// Fills `model` from `path`: a file, an index of shards, or a folder.
///
/// Names and shapes are compared before anything is read, so weights of another model cost nothing. Files are mapped
/// into memory and go to the device tensor by tensor, in the order of the layers.
pub(crate) fn load<M: ModuleSnapshot>(
    mut model: M,
    path: &Path,
    format: &Format,
    dtype: DType,
    progress: OnProgress,
) -> Result<M, LoadError> {
    check_dtype(dtype)?;
    let tensors = format.to_diffusers(shards::read(path)?);
    let specs = specs(&model);
    let found = spec::compare(&specs, &tensors);
    if !found.is_empty() {
        return Err(LoadError::Mismatch { path: path.into(), mismatch: found });
    }
    let tensors: Vec<StoredTensor> = tensors
        .into_iter()
        .map(|(_, mut tensor)| {
            tensor.name = own_name(&tensor.name);
            tensor
        })
        .collect();
    let counter = Counter {
        progress,
        tensors: Arc::default(),
        of_tensors: tensors.len(),
        bytes: Arc::default(),
        of_bytes: tensors.iter().map(|tensor| tensor.byte_len() as u64).sum(),
    };
    let adapter = counter.chain(FromFiles).chain(CastWeights { dtype, kept: format.kept_in_f32 });
    let result = model.apply(tensors, None, Some(Box::new(adapter)), false);
    match unreadable(result) {
        mismatch if mismatch.is_empty() => Ok(model),
        mismatch => Err(LoadError::Mismatch { path: path.into(), mismatch }),
    }
}

/// Writes `model` to one file under the names and in the layout of diffusers.
pub(crate) fn save<M: ModuleSnapshot>(model: &M, path: &Path) -> Result<(), LoadError> {
    let mut store = SafetensorsStore::from_file(path).with_to_adapter(BurnToPyTorchAdapter);
    for (file, own) in RENAMED {
        store = store.with_key_remapping(own.replace('.', r"\."), file);
    }
    model.save_into(&mut store).map_err(|error| LoadError::format(path, error))
}

pub(crate) fn check_dtype(dtype: DType) -> Result<(), LoadError> {
    if matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Ok(());
    }
    Err(check::config("dtype", "F32, F16 or BF16", format!("{dtype:?}")).into())
}

/// Reads a `config.json`.
pub(crate) fn config_from_file<C: serde::de::DeserializeOwned>(path: &Path) -> Result<C, LoadError> {
    let text = std::fs::read_to_string(path).map_err(|source| LoadError::io(path, source))?;
    serde_json::from_str(&text).map_err(|error| LoadError::config(path, error))
}

/// Casts on load, all but what is kept in f32.
#[derive(Clone)]
struct CastWeights {
    dtype: DType,
    kept: &'static [&'static str],
}

impl ModuleAdapter for CastWeights {
    fn adapt(&self, tensor: StoredTensor, context: ModuleContext<'_>) -> StoredTensor {
        let kept = format::is_kept(self.kept, &tensor.name);
        FloatCastAdapter::to(if kept { DType::F32 } else { self.dtype }).adapt(tensor, context)
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

/// Counts what goes by.
#[derive(Clone)]
struct Counter {
    progress: OnProgress,
    tensors: Arc<AtomicUsize>,
    of_tensors: usize,
    bytes: Arc<AtomicU64>,
    of_bytes: u64,
}

impl ModuleAdapter for Counter {
    fn adapt(&self, tensor: StoredTensor, _: ModuleContext<'_>) -> StoredTensor {
        let len = tensor.byte_len() as u64;
        (self.progress)(LoadProgress {
            tensors: self.tensors.fetch_add(1, Ordering::Relaxed) + 1,
            of_tensors: self.of_tensors,
            bytes: self.bytes.fetch_add(len, Ordering::Relaxed) + len,
            of_bytes: self.of_bytes,
        });
        tensor
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

/// What could not be read after all. Names and shapes were compared before.
fn unreadable(result: ApplyResult) -> Mismatch {
    let errors = result.errors.into_iter().map(|error| error.to_string());
    let lost = result.missing.iter().map(|(path, _)| format!("{}: not applied", format::file_name(path)));
    Mismatch { unreadable: errors.chain(lost).collect(), ..Mismatch::default() }
}

/// Gives a transformer the functions that read, write and invent its weights, and its configuration those around them.
macro_rules! weights {
    ($model:ident, $config:ident, $format:path, $class:literal) => {
        impl $model {
            /// Loads weights in safetensors format under the names that diffusers or the authors of the model give them.
            ///
            /// `path` is one file, a `*.safetensors.index.json` that lists shards, or a folder. In a folder the index
            /// counts if there is one, else `diffusion_pytorch_model.safetensors` or `model.safetensors`, else every
            /// `*.safetensors` file. Files are mapped into memory and go to `device` tensor by tensor. Weights of any
            /// float dtype become `dtype` (f32, f16 or bf16), but for the few that stay in f32 as in diffusers.
            ///
            /// # Errors
            ///
            /// [`LoadError`](crate::LoadError); for weights that do not fit `config`,
            /// [`LoadError::Mismatch`](crate::LoadError::Mismatch) with the name of every tensor that is missing, not
            /// expected or of another shape, before any value is read. Nothing half-loaded is ever returned.
            pub fn load(
                path: impl AsRef<std::path::Path>,
                config: &$config,
                dtype: burn::tensor::DType,
                device: &burn::tensor::Device,
            ) -> Result<Self, crate::LoadError> {
                Self::load_with_progress(path, config, dtype, device, |_| ())
            }

            /// As [`load`](Self::load); `progress` hears of every tensor that was loaded.
            ///
            /// # Errors
            ///
            /// Those of [`load`](Self::load).
            pub fn load_with_progress(
                path: impl AsRef<std::path::Path>,
                config: &$config,
                dtype: burn::tensor::DType,
                device: &burn::tensor::Device,
                progress: impl Fn(crate::LoadProgress) + Send + Sync + 'static,
            ) -> Result<Self, crate::LoadError> {
                config.validate()?;
                let progress = std::sync::Arc::new(progress);
                crate::load::load(config.init(device), path.as_ref(), &$format(config), dtype, progress)
            }

            /// Loads `config.json` and the weights beside it from a folder, as [`load`](Self::load) does.
            ///
            /// # Errors
            ///
            /// Those of the configuration's `from_file` and of [`load`](Self::load).
            pub fn from_folder(
                folder: impl AsRef<std::path::Path>,
                dtype: burn::tensor::DType,
                device: &burn::tensor::Device,
            ) -> Result<Self, crate::LoadError> {
                let folder = folder.as_ref();
                Self::load(folder, &$config::from_file(folder.join("config.json"))?, dtype, device)
            }

            /// A transformer with random weights of such a size that values stay of the order of 1, made on `device` in
            /// `dtype` one tensor at a time: for measurements, where weights only have to have the right shapes.
            ///
            /// # Errors
            ///
            /// [`LoadError::Setting`](crate::LoadError::Setting) if `config` or `dtype` is out of range.
            pub fn random(
                config: &$config,
                dtype: burn::tensor::DType,
                seed: u64,
                device: &burn::tensor::Device,
            ) -> Result<Self, crate::LoadError> {
                config.validate()?;
                crate::load::randomise(config.init(device), &$format(config), dtype, seed, device)
            }

            /// Writes the weights to one safetensors file under the names and in the layout of diffusers.
            ///
            /// # Errors
            ///
            /// [`LoadError::Format`](crate::LoadError::Format) if the file exists already or cannot be written.
            pub fn save(&self, path: impl AsRef<std::path::Path>) -> Result<(), crate::LoadError> {
                crate::load::save(self, path.as_ref())
            }
        }

        impl $config {
            /// Reads a `config.json` of diffusers.
            ///
            /// # Errors
            ///
            /// [`LoadError::Io`](crate::LoadError::Io) if the file cannot be read;
            /// [`LoadError::Config`](crate::LoadError::Config) if it is no such configuration, asks for a part that this
            /// crate does not have or has a value out of range.
            pub fn from_file(path: impl AsRef<std::path::Path>) -> Result<Self, crate::LoadError> {
                let path = path.as_ref();
                let config: Self = crate::load::config_from_file(path)?;
                config.validate().map_err(|error| crate::LoadError::config(path, error))?;
                Ok(config)
            }

            /// A transformer with random weights on `device`, in its default float dtype. They are drawn when they are
            /// first used.
            ///
            /// # Panics
            ///
            /// If [`validate`](Self::validate) refuses the configuration; one that was read from a file is valid.
            pub fn init(&self, device: &burn::tensor::Device) -> $model {
                $model::new(self, device)
            }

            /// Number of values in all weights. Allocates nothing.
            ///
            /// # Panics
            ///
            /// As [`init`](Self::init).
            pub fn parameters(&self, device: &burn::tensor::Device) -> usize {
                crate::load::parameters(&self.init(device))
            }

            /// Writes a checkpoint of this form with random values to `folder`, as diffusers keeps one: `config.json`,
            /// shards and their index. No device computes, and one tensor at a time is in memory. A block of a million
            /// random values serves all tensors over and over, scaled for each: files are written about as fast as the disk
            /// takes them, and no two tensors begin alike.
            ///
            /// # Errors
            ///
            /// [`LoadError`](crate::LoadError) if `folder` has files in it already, cannot be written, or an option is
            /// out of range; of what was begun nothing stays.
            ///
            /// # Panics
            ///
            /// As [`init`](Self::init).
            pub fn write_random(
                &self,
                folder: impl AsRef<std::path::Path>,
                options: &crate::CheckpointOptions,
                device: &burn::tensor::Device,
            ) -> Result<(), crate::LoadError> {
                let mut config = serde_json::to_value(self).expect("a configuration is plain data");
                config["_class_name"] = $class.into();
                crate::load::write_checkpoint(&self.init(device), &config, folder.as_ref(), &$format(self), options)
            }
        }
    };
}
pub(crate) use weights;
