//! The stored forms of a slot's key lists and residual.

use std::ops::Range;

use burn::{
    module::Module,
    tensor::{DType, Device, Int, Tensor, TensorData},
};

use crate::{
    IndexFormat, ResidualFormat,
    ops::{self, Route},
};

/// Kept keys of every group in a stored form.
#[derive(Module, Debug)]
pub(crate) struct KeyLists {
    words: Tensor<4, Int>,
    #[module(skip)]
    format: IndexFormat,
    #[module(skip)]
    keys: usize,
    #[module(skip)]
    kept: usize,
}

impl KeyLists {
    /// Packs `indices` `[batch, heads, groups, kept]` below `keys`.
    pub fn pack(route: &Route, indices: Tensor<4, Int>, format: IndexFormat, keys: usize) -> Self {
        let [.., kept] = indices.dims();
        Self { words: ops::pack_indices(route, indices, format, keys), format, keys, kept }
    }

    /// The words on `device`, for `kept` of `keys` keys.
    pub fn from_data(words: TensorData, format: IndexFormat, keys: usize, kept: usize, device: &Device) -> Self {
        Self { words: ints(words, device), format, keys, kept }
    }

    /// The indices, in temporary memory of their own unless they are stored as they are.
    pub fn expand(&self, route: &Route, workspace_bytes: usize) -> Tensor<4, Int> {
        ops::expand_indices(route, self.words.clone(), self.format, self.keys, self.kept, workspace_bytes)
    }

    /// Bytes that the expanded indices take beside the stored ones.
    pub fn scratch_bytes(&self) -> usize {
        let [batch, heads, groups, _] = self.words.dims();
        if self.format == IndexFormat::Plain { 0 } else { batch * heads * groups * self.kept * DType::I32.size() }
    }

    /// Those of some heads.
    pub fn heads(&self, heads: Range<usize>) -> Self {
        Self { words: self.words.clone().slice_dim(1, heads), ..self.clone() }
    }

    /// All heads of `parts`, which are of one format.
    pub fn of_parts(parts: Vec<Self>) -> Self {
        let first = parts[0].clone();
        let [batch, _, groups, words] = first.words.dims();
        // Rows of one word: those of a list may be padded, and packed again at every step.
        let column = |part: Self| part.words.reshape([batch as i32, -1, (groups * words) as i32, 1]);
        let joined = Tensor::cat(parts.into_iter().map(column).collect(), 1);
        Self { words: joined.reshape([batch as i32, -1, groups as i32, words as i32]), ..first }
    }

    pub fn words(&self) -> &Tensor<4, Int> {
        &self.words
    }

    pub fn format(&self) -> IndexFormat {
        self.format
    }
}

/// The residual in a stored form.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // handles of tensors, one for each layer
pub(crate) enum Residual {
    /// In the dtype of the inputs.
    Plain(Tensor<4>),
    /// In 8 bits.
    Codes(Codes),
}

/// Codes of a residual, see [`ResidualFormat`].
#[derive(Module, Debug)]
pub(crate) struct Codes {
    pub words: Tensor<4, Int>,
    pub largest: Tensor<3>,
    #[module(skip)]
    pub format: ResidualFormat,
    #[module(skip)]
    pub head_dim: usize,
}

impl Residual {
    /// Encodes `residual` `[batch, heads, rows, head_dim]`.
    pub fn encode(route: &Route, residual: Tensor<4>, format: ResidualFormat) -> Self {
        if format == ResidualFormat::Input {
            return Self::Plain(residual);
        }
        let [.., head_dim] = residual.dims();
        let (words, largest) = ops::encode_residual(route, residual, format);
        Self::Codes(Codes { words, largest, format, head_dim })
    }

    /// The values in the dtype of the inputs, in temporary memory of their own unless they are stored as they are.
    pub fn decode(&self, route: &Route) -> Tensor<4> {
        match self {
            Self::Plain(values) => values.clone(),
            Self::Codes(Codes { words, largest, format, head_dim }) => {
                ops::decode_residual(route, words.clone(), largest.clone(), *format, *head_dim)
            }
        }
    }

    /// That of some heads.
    pub fn heads(&self, heads: Range<usize>) -> Self {
        match self {
            Self::Plain(values) => Self::Plain(values.clone().slice_dim(1, heads)),
            Self::Codes(Codes { words, largest, format, head_dim }) => Self::Codes(Codes {
                words: words.clone().slice_dim(1, heads.clone()),
                largest: largest.clone().slice_dim(1, heads),
                format: *format,
                head_dim: *head_dim,
            }),
        }
    }

    /// All heads of `parts`, which are of one format.
    pub fn of_parts(parts: Vec<Self>) -> Self {
        let (mut plain, mut words, mut scales, mut coded) = (Vec::new(), Vec::new(), Vec::new(), None);
        for part in parts {
            match part {
                Self::Plain(values) => plain.push(values),
                Self::Codes(codes) => {
                    coded = Some((codes.format, codes.head_dim));
                    words.push(codes.words);
                    scales.push(codes.largest);
                }
            }
        }
        match coded {
            None => Self::Plain(Tensor::cat(plain, 1)),
            Some((format, head_dim)) => {
                let (words, largest) = (Tensor::cat(words, 1), Tensor::cat(scales, 1));
                Self::Codes(Codes { words, largest, format, head_dim })
            }
        }
    }

    /// Bytes that the decoded values take beside the stored ones.
    pub fn scratch_bytes(&self) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Codes(codes) => bytes(&codes.largest) * codes.head_dim,
        }
    }

    /// Bytes of the decoded values.
    pub fn decoded_bytes(&self) -> usize {
        match self {
            Self::Plain(values) => bytes(values),
            Self::Codes(_) => self.scratch_bytes(),
        }
    }

    /// Bytes that are stored.
    pub fn size_in_bytes(&self) -> usize {
        match self {
            Self::Plain(values) => bytes(values),
            Self::Codes(codes) => int_bytes(&codes.words) + bytes(&codes.largest),
        }
    }

    pub fn format(&self) -> ResidualFormat {
        match self {
            Self::Plain(_) => ResidualFormat::Input,
            Self::Codes(codes) => codes.format,
        }
    }

    /// The dtype of the inputs.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Plain(values) => values.dtype(),
            Self::Codes(codes) => codes.largest.dtype(),
        }
    }

    pub fn device(&self) -> Device {
        match self {
            Self::Plain(values) => values.device(),
            Self::Codes(codes) => codes.largest.device(),
        }
    }
}

/// Integers on `device`, as one row first: a device may pad the rows of a tensor that it gets.
pub(super) fn ints<const D: usize>(data: TensorData, device: &Device) -> Tensor<D, Int> {
    let (data, dims) = one_row::<D>(data);
    Tensor::<1, Int>::from_data(data, (device, DType::I32)).reshape(dims)
}

/// As [`ints`], floats of their own dtype.
pub(super) fn floats<const D: usize>(data: TensorData, device: &Device) -> Tensor<D> {
    let (data, dims) = one_row::<D>(data);
    let dtype = data.dtype();
    Tensor::<1>::from_data(data, (device, dtype)).reshape(dims)
}

fn one_row<const D: usize>(data: TensorData) -> (TensorData, [usize; D]) {
    let (bytes, shape, dtype) = data.into_parts();
    let dims: [usize; D] = shape.dims();
    (TensorData::from_bytes(bytes, [dims.iter().product::<usize>()], dtype), dims)
}

pub(super) fn bytes<const D: usize>(tensor: &Tensor<D>) -> usize {
    tensor.shape().num_elements() * tensor.dtype().size()
}

pub(super) fn int_bytes<const D: usize>(tensor: &Tensor<D, Int>) -> usize {
    tensor.shape().num_elements() * tensor.dtype().size()
}
