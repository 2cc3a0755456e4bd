//! The stages as operations of a backend: what a kernel implements.

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};

use crate::{
    IndexFormat, ResidualFormat,
    reference::{GroupOptions, SelectOptions, TailOptions},
};

/// What the sparse kernel does with its output and one more tensor; see [`super::Epilogue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finish {
    /// Stores the output.
    Output,
    /// Stores output + factor * other.
    AddResidual,
    /// Stores other - output.
    ResidualOf,
}

/// Kernels of the stages. Callers go through [`crate::ops`], which asks the backend first whether it has a kernel for the
/// problem and runs the reference where it has none; a backend implements exactly the methods whose stages it offers.
///
/// Shapes and dtypes are those of the functions of the same names in [`crate::reference`]. Inputs may be strided views.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "fusion"),
)]
#[allow(unused_variables)] // the default bodies name the arguments for those who implement them
pub trait McSparseOps: Backend {
    /// Dense attention: output and log-sum-exp.
    #[fusion(meta = |query, _key, _value, _scale| metadata::attention(query))]
    fn mc_dense_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        no_kernel::<Self, _>("dense attention")
    }

    /// Grouping of similar queries: their order, group after group.
    #[fusion(meta = |query, _options| metadata::order(query))]
    fn mc_group_queries(query: FloatTensor<Self>, options: GroupOptions) -> IntTensor<Self> {
        no_kernel::<Self, _>("grouping")
    }

    /// Selection of each group's keys: ascending indices.
    #[fusion(meta = |_query, _key, _lse, order, options| metadata::indices(order, options))]
    fn mc_select_keys(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        order: IntTensor<Self>,
        options: SelectOptions,
    ) -> IntTensor<Self> {
        no_kernel::<Self, _>("selection")
    }

    /// Dense attention and selection in one pass: output and log-sum-exp as [`McSparseOps::mc_dense_attention`], indices as
    /// [`McSparseOps::mc_select_keys`] by the log-sum-exps `before`, those of an earlier step.
    #[fusion(meta = |query, _key, _value, order, _before, options| metadata::attention_and_indices(query, order, options))]
    fn mc_attend_and_select(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        order: IntTensor<Self>,
        before: FloatTensor<Self>,
        options: SelectOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, IntTensor<Self>) {
        no_kernel::<Self, _>("dense attention with selection")
    }

    /// Indices of the `k` largest values of each row and, if wanted, of the rest; see
    /// [`crate::reference::partition_indices`].
    #[fusion(meta = |values, k, with_rest| metadata::partition(values, *k, *with_rest))]
    fn mc_partition_indices(values: FloatTensor<Self>, k: usize, with_rest: bool) -> IntTensor<Self> {
        no_kernel::<Self, _>("partition")
    }

    /// `input` `[rows, inputs]` times `weight` `[inputs, outputs]`, plus `bias` `[outputs]` if `biased`;
    /// otherwise `bias` is not read.
    #[fusion(meta = |input, weight, _bias, _biased| metadata::linear(input, weight))]
    fn mc_linear(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        biased: bool,
    ) -> FloatTensor<Self> {
        no_kernel::<Self, _>("linear")
    }

    /// Token-gather attention: output in the order of `query`, and log-sum-exp over the kept keys. `other` has the shape of
    /// `query` and is read as `finish` says; `factor` is that of a residual that is added.
    #[fusion(meta = |query, _key, _value, _order, _indices, _other, _finish, _factor, _group_size, _scale| metadata::attention(query))]
    #[allow(clippy::too_many_arguments)]
    fn mc_sparse_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        order: IntTensor<Self>,
        indices: IntTensor<Self>,
        other: FloatTensor<Self>,
        finish: Finish,
        factor: f32,
        group_size: usize,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        no_kernel::<Self, _>("sparse attention")
    }

    /// What the keys weigh that are not kept: `sparse` and `lse`, as [`McSparseOps::mc_sparse_attention`] returns them without
    /// another tensor, for all keys. `other`, `finish` and `factor` as there.
    #[fusion(meta = |query, _key, _value, _order, _indices, _sparse, _lse, _other, _finish, _factor, _options| metadata::attention(query))]
    #[allow(clippy::too_many_arguments)]
    fn mc_add_tail(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        order: IntTensor<Self>,
        indices: IntTensor<Self>,
        sparse: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        other: FloatTensor<Self>,
        finish: Finish,
        factor: f32,
        options: TailOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        no_kernel::<Self, _>("tail by block means")
    }

    /// Ascending lists of keys below `keys` to a stored form; see [`crate::reference::pack_indices`].
    #[fusion(meta = |indices, format, keys| metadata::packed(indices, *format, *keys))]
    fn mc_pack_indices(indices: IntTensor<Self>, format: IndexFormat, keys: usize) -> IntTensor<Self> {
        no_kernel::<Self, _>("packing of indices")
    }

    /// The `kept` indices of each list from a stored form; see [`crate::reference::expand_indices`].
    #[fusion(meta = |packed, _format, _keys, kept| metadata::expanded(packed, *kept))]
    fn mc_expand_indices(packed: IntTensor<Self>, format: IndexFormat, keys: usize, kept: usize) -> IntTensor<Self> {
        no_kernel::<Self, _>("expansion of indices")
    }

    /// A residual to 8-bit codes and the largest magnitude of each row; see [`crate::reference::encode_residual`].
    #[fusion(meta = |residual, _format| metadata::codes(residual))]
    fn mc_encode_residual(residual: FloatTensor<Self>, format: ResidualFormat) -> (IntTensor<Self>, FloatTensor<Self>) {
        no_kernel::<Self, _>("encoding of residuals")
    }

    /// A residual from 8-bit codes; see [`crate::reference::decode_residual`].
    #[fusion(meta = |_codes, largest, _format, head_dim| metadata::residual(largest, *head_dim))]
    fn mc_decode_residual(
        codes: IntTensor<Self>,
        largest: FloatTensor<Self>,
        format: ResidualFormat,
        head_dim: usize,
    ) -> FloatTensor<Self> {
        no_kernel::<Self, _>("decoding of residuals")
    }
}

/// Reached only if a backend offers a stage that it does not implement.
fn no_kernel<B: Backend, T>(stage: &str) -> T {
    panic!("{stage} has no kernel on {}; call it through mcsparse::ops", std::any::type_name::<B>())
}

/// Output shapes for lazy execution.
#[cfg(feature = "fusion")]
mod metadata {
    use burn::{
        backend::fusion::custom::TensorSpec,
        tensor::{DType, Shape},
    };

    use crate::{IndexFormat, reference::SelectOptions, residual_format::CODES};

    pub fn attention(query: &TensorSpec) -> (TensorSpec, TensorSpec) {
        (query.clone(), TensorSpec::new(leading(query), DType::F32))
    }

    pub fn order(query: &TensorSpec) -> TensorSpec {
        TensorSpec::new(leading(query), DType::I32)
    }

    pub fn indices(order: &TensorSpec, options: &SelectOptions) -> TensorSpec {
        let [batch, heads, queries] = order.shape.dims();
        let groups = queries.div_ceil(options.group_size);
        TensorSpec::new(Shape::new([batch, heads, groups, options.keys]), DType::I32)
    }

    pub fn attention_and_indices(
        query: &TensorSpec,
        order: &TensorSpec,
        options: &SelectOptions,
    ) -> (TensorSpec, TensorSpec, TensorSpec) {
        let (output, lse) = attention(query);
        (output, lse, indices(order, options))
    }

    pub fn linear(input: &TensorSpec, weight: &TensorSpec) -> TensorSpec {
        let ([rows, _], [_, outputs]) = (input.shape.dims(), weight.shape.dims());
        TensorSpec::new(Shape::new([rows, outputs]), input.dtype)
    }

    pub fn partition(values: &TensorSpec, k: usize, with_rest: bool) -> TensorSpec {
        let [rows, n] = values.shape.dims();
        TensorSpec::new(Shape::new([rows, if with_rest { n } else { k }]), DType::I32)
    }

    pub fn packed(indices: &TensorSpec, format: IndexFormat, keys: usize) -> TensorSpec {
        let [batch, heads, groups, kept] = indices.shape.dims();
        TensorSpec::new(Shape::new([batch, heads, groups, format.words(keys, kept)]), DType::I32)
    }

    pub fn expanded(packed: &TensorSpec, kept: usize) -> TensorSpec {
        let [batch, heads, groups, _] = packed.shape.dims();
        TensorSpec::new(Shape::new([batch, heads, groups, kept]), DType::I32)
    }

    pub fn codes(residual: &TensorSpec) -> (TensorSpec, TensorSpec) {
        let [batch, heads, rows, dim] = residual.shape.dims();
        let words = TensorSpec::new(Shape::new([batch, heads, rows, dim.div_ceil(CODES)]), DType::I32);
        (words, TensorSpec::new(leading(residual), residual.dtype))
    }

    pub fn residual(largest: &TensorSpec, head_dim: usize) -> TensorSpec {
        let [batch, heads, rows] = largest.shape.dims();
        TensorSpec::new(Shape::new([batch, heads, rows, head_dim]), largest.dtype)
    }

    /// `[batch, heads, queries]`.
    fn leading(query: &TensorSpec) -> Shape {
        let [batch, heads, queries, _] = query.shape.dims();
        Shape::new([batch, heads, queries])
    }
}
