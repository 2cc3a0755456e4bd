//! Tensors of the Flex backend as rows of f32, and back.

use std::borrow::Cow;

use burn::tensor::{DType, TensorData, bf16, f16};
use burn_flex::FlexTensor;
use rayon::prelude::*;

/// A `[batch, heads, tokens, head_dim]` tensor read row by row, strided as it is.
pub(super) struct Rows<'a> {
    data: Cow<'a, [f32]>,
    offset: isize,
    strides: [isize; 4],
    pub dims: [usize; 4],
}

impl<'a> Rows<'a> {
    /// Borrows f32 storage; converts half precision once.
    pub fn new(tensor: &'a FlexTensor) -> Self {
        let dims: [usize; 4] = tensor.layout().shape().dims();
        let layout = tensor.layout();
        let strided = |data: &'a [f32]| Rows {
            data: Cow::Borrowed(data),
            offset: layout.start_offset() as isize,
            strides: std::array::from_fn(|axis| layout.strides()[axis]),
            dims,
        };
        match tensor.dtype() {
            DType::F32 => strided(tensor.storage::<f32>()),
            DType::F16 => Self::converted(tensor, |v: &f16| v.to_f32()),
            DType::BF16 => Self::converted(tensor, |v: &bf16| v.to_f32()),
            other => unreachable!("dtype {other:?} is refused before any kernel runs"),
        }
    }

    fn converted<E: burn::tensor::Element + bytemuck::Pod>(
        tensor: &FlexTensor,
        convert: impl Fn(&E) -> f32 + Send + Sync,
    ) -> Self {
        let dims: [usize; 4] = tensor.layout().shape().dims();
        let tensor = tensor.to_contiguous();
        let start = tensor.layout().start_offset();
        let values = &tensor.storage::<E>()[start..start + dims.iter().product::<usize>()];
        let [_, heads, tokens, dim] = dims.map(|d| d as isize);
        Rows {
            data: Cow::Owned(values.par_iter().map(convert).collect()),
            offset: 0,
            strides: [heads * tokens * dim, tokens * dim, dim, 1],
            dims,
        }
    }

    /// All values, row after row.
    pub fn values(&self) -> Vec<f32> {
        let [_, _, rows, dim] = self.dims;
        let mut values = vec![0.0; self.heads() * rows * dim];
        values.chunks_exact_mut(dim).enumerate().for_each(|(i, row)| self.head(i / rows).copy_row(i % rows, 1.0, row));
        values
    }

    /// Joined batch and head count.
    pub fn heads(&self) -> usize {
        self.dims[0] * self.dims[1]
    }

    /// The rows of joined head `z`.
    pub fn head(&self, z: usize) -> Head<'_> {
        let (b, h) = (z / self.dims[1], z % self.dims[1]);
        let base = self.offset + b as isize * self.strides[0] + h as isize * self.strides[1];
        Head { data: &self.data, base, strides: [self.strides[2], self.strides[3]], dims: [self.dims[2], self.dims[3]] }
    }

    /// The key or value rows that query head `z` of `heads` heads a batch element reads.
    pub fn head_for(&self, z: usize, heads: usize) -> Head<'_> {
        let shared = heads / self.dims[1];
        self.head(z / heads * self.dims[1] + z % heads / shared)
    }
}

/// The rows of one head.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    data: &'a [f32],
    base: isize,
    strides: [isize; 2],
    dims: [usize; 2],
}

impl<'a> Head<'a> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.dims[0]
    }

    /// Copies row `i`, times `scale`.
    pub fn copy_row(&self, i: usize, scale: f32, out: &mut [f32]) {
        assert!(i < self.dims[0], "row {i} of {}", self.dims[0]);
        let start = self.base + i as isize * self.strides[0];
        if self.strides[1] == 1 {
            let row = &self.data[start as usize..][..self.dims[1]];
            out.iter_mut().zip(row).for_each(|(o, x)| *o = x * scale);
        } else {
            for (j, o) in out.iter_mut().enumerate() {
                *o = self.data[(start + j as isize * self.strides[1]) as usize] * scale;
            }
        }
    }

    /// Gathers the rows that `index` names into `out`, one behind the other.
    pub fn gather(&self, index: impl IntoIterator<Item = usize>, scale: f32, out: &mut [f32]) {
        for (i, row) in index.into_iter().zip(out.chunks_exact_mut(self.dims[1])) {
            self.copy_row(i, scale, row);
        }
    }

    /// Rows `first..first + count` where they lie: values, row stride and column stride.
    ///
    /// The values start at the first element of row `first`; every element `i * row_stride + j * column_stride` of the
    /// `count` rows lies inside them. `None` where a stride is negative.
    pub fn in_place(&self, first: usize, count: usize) -> Option<(&'a [f32], isize, isize)> {
        assert!(first + count <= self.dims[0] && count > 0, "rows {first}+{count} of {}", self.dims[0]);
        let [row, column] = self.strides;
        if row < 0 || column < 0 {
            return None;
        }
        let start = (self.base + first as isize * row) as usize;
        let last = start + (count - 1) * row as usize + (self.dims[1] - 1) * column as usize;
        Some((&self.data[start..=last], row, column))
    }
}

/// A float tensor of `shape` in `dtype`.
pub(super) fn floats(values: Vec<f32>, shape: &[usize], dtype: DType) -> FlexTensor {
    let shape = shape.to_vec();
    FlexTensor::from_data(match dtype {
        DType::F16 => TensorData::new(values.par_iter().map(|&v| f16::from_f32(v)).collect::<Vec<_>>(), shape),
        DType::BF16 => TensorData::new(values.par_iter().map(|&v| bf16::from_f32(v)).collect::<Vec<_>>(), shape),
        _ => TensorData::new(values, shape),
    })
}

/// An index tensor of `shape`.
pub(super) fn indices(values: Vec<i32>, shape: &[usize]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape.to_vec()))
}

/// All values of an index tensor. Negative ones become too large, which every use checks.
pub(super) fn index_values(tensor: &FlexTensor) -> Vec<u32> {
    let tensor = tensor.to_contiguous();
    let (start, len) = (tensor.layout().start_offset(), tensor.layout().num_elements());
    match tensor.dtype() {
        DType::I32 => tensor.storage::<i32>()[start..start + len].iter().map(|&i| i as u32).collect(),
        DType::I64 => {
            tensor.storage::<i64>()[start..start + len].iter().map(|&i| u32::try_from(i).unwrap_or(u32::MAX)).collect()
        }
        other => panic!("indices: expected 32- or 64-bit integers, got {other:?}"),
    }
}
