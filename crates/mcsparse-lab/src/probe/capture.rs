//! Captured tensors.

use std::{collections::BTreeMap, path::Path};

use burn::tensor::{DType, Device, Tensor, TensorData};
use clap::ValueEnum;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::error::Error;

/// Order of the axes of tensors with four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Axes {
    /// `[batch, heads, tokens, head_dim]`, as PyTorch's `scaled_dot_product_attention` takes them.
    Heads,
    /// `[batch, tokens, heads, head_dim]`, as diffusers' attention processors have them.
    Tokens,
}

/// Query, key and value of one layer at one step or several.
#[derive(Debug, Clone)]
pub struct Capture {
    /// Name of the tensors without step and part.
    pub name: String,
    /// The steps, ascending, with query, key and value `[batch, heads, tokens, head_dim]` in f32.
    pub steps: Vec<(usize, [Tensor<4>; 3])>,
}

impl Capture {
    /// Batch, heads, tokens and head size of the query.
    pub fn dims(&self) -> [usize; 4] {
        self.steps[0].1[0].dims()
    }

    /// Makes queries such that scores divided by the root of the head size are those of `scale`.
    pub(super) fn rescale(&mut self, scale: f64) {
        let factor = scale * (self.dims()[3] as f64).sqrt();
        for (_, [query, ..]) in &mut self.steps {
            *query = query.clone().mul_scalar(factor);
        }
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.dims()[2]
    }
}

/// Reads a file. Tensors are named `NAME.q`, `NAME.k` and `NAME.v`; a part `stepN` anywhere between dots of the name says the
/// step. They have two axes (tokens, head_dim), three (heads before them) or four, see [`Axes`].
///
/// # Errors
///
/// [`Error::Run`] naming the file and the tensor that is missing, of another shape than its fellows or not of f32, f16 or bf16.
pub fn read(path: &Path, axes: Axes, device: &Device) -> Result<Vec<Capture>, Error> {
    let failed = |why: String| Error::run(path.display(), why);
    let bytes = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| failed(error.to_string()))?;
    captures(&file, axes, device).map_err(failed)
}

fn captures(file: &SafeTensors<'_>, axes: Axes, device: &Device) -> Result<Vec<Capture>, String> {
    let mut found: BTreeMap<String, BTreeMap<usize, String>> = BTreeMap::new();
    for name in file.names() {
        let Some((prefix, "q")) = name.rsplit_once('.') else { continue };
        let step_of = |part: &&str| part.strip_prefix("step").and_then(|digits| digits.parse::<usize>().ok());
        let step = prefix.split('.').find_map(|part| step_of(&part)).unwrap_or(0);
        let rest: Vec<&str> = prefix.split('.').filter(|part| step_of(part).is_none()).collect();
        let layer = if rest.is_empty() { "attention".to_owned() } else { rest.join(".") };
        if let Some(other) = found.entry(layer).or_default().insert(step, prefix.to_owned()) {
            return Err(format!("{other}.q and {prefix}.q are of the same layer and step"));
        }
    }
    if found.is_empty() {
        return Err("no tensor is named NAME.q, with NAME.k and NAME.v beside it".into());
    }
    let layers = found.into_iter().map(|(name, steps)| {
        let steps = steps.into_iter().map(|(step, prefix)| {
            let part = |part: &str| tensor(file, &format!("{prefix}.{part}"), axes, device);
            let qkv = [part("q")?, part("k")?, part("v")?];
            mcsparse::check::Problem::of_self_attention(&qkv[0], &qkv[1], &qkv[2])
                .map_err(|e| format!("{prefix}: {e}"))?;
            Ok((step, qkv))
        });
        let steps = steps.collect::<Result<Vec<_>, String>>()?;
        let dims = steps[0].1[0].dims();
        if let Some((step, qkv)) = steps.iter().find(|(_, qkv)| qkv[0].dims() != dims) {
            return Err(format!("{name}: expected {dims:?} at every step, got {:?} at step {step}", qkv[0].dims()));
        }
        Ok(Capture { name, steps })
    });
    layers.collect()
}

fn tensor(file: &SafeTensors<'_>, name: &str, axes: Axes, device: &Device) -> Result<Tensor<4>, String> {
    let view: TensorView<'_> = file.tensor(name).map_err(|_| format!("{name} is missing"))?;
    let dtype = match view.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        other => return Err(format!("{name}: expected F32, F16 or BF16, got {other:?}")),
    };
    let shape = match *view.shape() {
        [tokens, dim] => [1, 1, tokens, dim],
        [heads, tokens, dim] => [1, heads, tokens, dim],
        [a, b, c, d] => [a, b, c, d],
        ref other => return Err(format!("{name}: expected 2, 3 or 4 axes, got {other:?}")),
    };
    let data = TensorData::from_bytes_vec(view.data().to_vec(), shape, dtype).convert::<f32>();
    let tensor = Tensor::<4>::from_data(data, (device, DType::F32));
    let broken: i64 = tensor.clone().is_finite().bool_not().int().sum().into_scalar();
    if broken > 0 {
        return Err(format!("{name}: {broken} of its values are NaN or infinite"));
    }
    Ok(if view.shape().len() == 4 && axes == Axes::Tokens { tensor.swap_dims(1, 2) } else { tensor })
}
