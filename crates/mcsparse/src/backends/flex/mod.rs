//! Native CPU kernels for the Flex backend: tiles through the `gemm` crate, the rest in loops that vectorise, groups in
//! parallel through rayon.

mod attend;
mod formats;
mod gemm;
mod group;
mod math;
mod rows;
mod select;
mod tail;

use burn::backend::{
    Flex,
    tensor::{FloatTensor, IntTensor},
};

use crate::residual_format::CODES;
use crate::{
    IndexFormat, ResidualFormat,
    check::Problem,
    ops::{Finish, McSparseOps, Route, Stage},
    reference::{GroupOptions, SelectOptions, TailOptions},
};
use rows::{Rows, floats, index_values, indices};

/// Every checked problem is taken: the kernels convert f16 and bf16 to f32 on the way in.
pub(super) fn supports(stage: Stage, _problem: &Problem) -> Result<Route, String> {
    Ok(Route::kernel(match stage {
        Stage::DenseSelect => return Err("column sums ride on warpgroup tiles alone".into()),
        Stage::Dense => "cpu tiles",
        Stage::Group => "cpu pddp",
        Stage::Select => "cpu column sums",
        Stage::Sparse => "cpu gathered tiles",
        Stage::Tail => "cpu block means",
        Stage::Encode | Stage::Decode => "cpu cache formats",
    }))
}

/// Rows, a factor on them and a sign of the output, which is added.
fn epilogue<'a>(other: &'a Rows<'a>, finish: Finish, factor: f32) -> (&'a Rows<'a>, f32, f32) {
    match finish {
        Finish::ResidualOf => (other, 1.0, -1.0),
        _ => (other, factor, 1.0),
    }
}

impl McSparseOps for Flex {
    fn mc_dense_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let dtype = query.dtype();
        let (query, key, value) = (Rows::new(&query), Rows::new(&key), Rows::new(&value));
        let [batch, heads, queries, dim] = query.dims;
        let (output, lse) = attend::dense(&query, &key, &value, scale as f32);
        (
            floats(output, &[batch, heads, queries, dim], dtype),
            floats(lse, &[batch, heads, queries], burn::tensor::DType::F32),
        )
    }

    fn mc_group_queries(query: FloatTensor<Self>, options: GroupOptions) -> IntTensor<Self> {
        let query = Rows::new(&query);
        let [batch, heads, queries, _] = query.dims;
        indices(group::group_queries(&query, &options), &[batch, heads, queries])
    }

    fn mc_select_keys(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        order: IntTensor<Self>,
        options: SelectOptions,
    ) -> IntTensor<Self> {
        let (query, key) = (Rows::new(&query), Rows::new(&key));
        let [batch, heads, queries, _] = query.dims;
        let lse = lse.to_contiguous();
        let lse = &lse.storage::<f32>()[lse.layout().start_offset()..][..batch * heads * queries];
        let selected = select::select_keys(&query, &key, lse, &index_values(&order), &options);
        indices(selected, &[batch, heads, queries.div_ceil(options.group_size), options.keys])
    }

    fn mc_partition_indices(values: FloatTensor<Self>, k: usize, with_rest: bool) -> IntTensor<Self> {
        let [rows, n] = values.layout().shape().dims();
        assert!((1..=n).contains(&k), "partition: expected k from 1 to {n}, got {k}");
        let values = values.to_contiguous();
        let values = &values.storage::<f32>()[values.layout().start_offset()..][..rows * n];
        let width = if with_rest { n } else { k };
        indices(select::partition(values, n, k, width), &[rows, width])
    }

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
        let dtype = query.dtype();
        let (query, key, value) = (Rows::new(&query), Rows::new(&key), Rows::new(&value));
        let [batch, heads, queries, dim] = query.dims;
        let (order, indices) = (index_values(&order), index_values(&indices));
        let groups = attend::Groups { order: &order, indices: &indices, group_size };
        let other = (finish != Finish::Output).then(|| Rows::new(&other));
        let epilogue = other.as_ref().map(|other| epilogue(other, finish, factor));
        let (output, lse) = attend::sparse(&query, &key, &value, groups, epilogue, scale as f32);
        (
            floats(output, &[batch, heads, queries, dim], dtype),
            floats(lse, &[batch, heads, queries], burn::tensor::DType::F32),
        )
    }

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
        let dtype = query.dtype();
        let (query, key, value, sparse) = (Rows::new(&query), Rows::new(&key), Rows::new(&value), Rows::new(&sparse));
        let [batch, heads, queries, dim] = query.dims;
        let (order, indices) = (index_values(&order), index_values(&indices));
        let groups = attend::Groups { order: &order, indices: &indices, group_size: options.group_size };
        let lse = lse.to_contiguous();
        let lse = &lse.storage::<f32>()[lse.layout().start_offset()..][..batch * heads * queries];
        let other = (finish != Finish::Output).then(|| Rows::new(&other));
        let epilogue = other.as_ref().map(|other| epilogue(other, finish, factor));
        let (output, lse) = tail::add(&query, [&key, &value], groups, (&sparse, lse), epilogue, &options);
        (
            floats(output, &[batch, heads, queries, dim], dtype),
            floats(lse, &[batch, heads, queries], burn::tensor::DType::F32),
        )
    }

    fn mc_pack_indices(indices: IntTensor<Self>, format: IndexFormat, keys: usize) -> IntTensor<Self> {
        let [batch, heads, groups, kept] = indices.layout().shape().dims();
        let packed = formats::pack(&index_values(&indices), format, keys, kept);
        rows::indices(packed, &[batch, heads, groups, format.words(keys, kept)])
    }

    fn mc_expand_indices(packed: IntTensor<Self>, format: IndexFormat, keys: usize, kept: usize) -> IntTensor<Self> {
        let [batch, heads, groups, width] = packed.layout().shape().dims();
        assert_eq!(width, format.words(keys, kept), "packed: expected {format} words for {kept} of {keys} keys");
        let expanded = formats::expand(&index_values(&packed), format, keys, kept);
        rows::indices(expanded, &[batch, heads, groups, kept])
    }

    fn mc_encode_residual(residual: FloatTensor<Self>, format: ResidualFormat) -> (IntTensor<Self>, FloatTensor<Self>) {
        let dtype = residual.dtype();
        let residual = Rows::new(&residual);
        let [batch, heads, rows, dim] = residual.dims;
        let (codes, largest) = formats::encode(&residual, format);
        (
            rows::indices(codes, &[batch, heads, rows, dim.div_ceil(CODES)]),
            floats(largest, &[batch, heads, rows], dtype),
        )
    }

    fn mc_decode_residual(
        codes: IntTensor<Self>,
        largest: FloatTensor<Self>,
        format: ResidualFormat,
        head_dim: usize,
    ) -> FloatTensor<Self> {
        let [batch, heads, rows, width] = codes.layout().shape().dims();
        assert_eq!(width, head_dim.div_ceil(CODES), "codes: expected words for rows of {head_dim}");
        let dtype = largest.dtype();
        // As rows of one value, which are converted like all others.
        let shape = burn::tensor::Shape::new([batch, heads, rows, 1]);
        let largest = Rows::new(&largest.to_contiguous().reshape(shape)).values();
        let values = formats::decode(&index_values(&codes), &largest, format, head_dim);
        floats(values, &[batch, heads, rows, head_dim], dtype)
    }
}
