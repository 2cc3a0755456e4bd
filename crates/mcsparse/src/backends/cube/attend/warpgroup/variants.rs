//! The kernels that a compiler is to be shown without a GPU: those that differ in what their loops do.

use std::sync::Arc;

use burn::{backend::cubecl::dtype_to_storage_type, tensor::DType};
use cubecl::{
    ir::{AddressType, DeviceProperties},
    prelude::*,
};

use super::{
    super::{
        super::cuda_source::{Variant, buffer, layout, settings},
        shape::sizes,
    },
    kernel,
    layouts::LayoutsCompilationArg,
    ride::SpanCompilationArg,
    step::Addend,
    tile::{KEYS, QUERIES, Tile, UNITS},
};
use crate::ops::Finish;

/// Dense, and gathered with a residual, for both types and head dimensions.
pub(in super::super::super) fn variants(properties: &Arc<DeviceProperties>) -> Vec<Variant> {
    let mut all = Vec::new();
    for dtype in [DType::BF16, DType::F16] {
        for dim in [64, 128] {
            all.push(riding(properties, dtype, dim));
            let forms = [
                ("dense", Finish::Output, Addend::None),
                ("gathered", Finish::AddResidual, Addend::Pairs),
                // No vector starts where one can be read.
                ("strided", Finish::AddResidual, Addend::Single),
                // A negative scale, and tensors of more than 2^32 elements.
                ("large", Finish::ResidualOf, Addend::Pairs),
            ];
            for (form, finish, addend) in forms {
                let (scale, address) = match form {
                    "large" => (-1.0, AddressType::U64),
                    _ => (1.0, AddressType::U32),
                };
                let tile = super::tile(properties, dtype, dim, scale).expect("an H200 takes it");
                let (gathered, whole) = (form != "dense", form != "strided");
                let tile = Tile { gathered, whole, finish, addend, ..tile };
                let kernel = kernel::attend::Attend::new(
                    settings(UNITS, address),
                    properties.clone(),
                    Arc::new(TargetProperties::default()),
                    buffer(),
                    buffer(),
                    buffer(),
                    buffer(),
                    buffer(),
                    buffer(),
                    buffer(),
                    buffer(),
                    sizes(),
                    layouts(),
                    tile,
                    dtype_to_storage_type(dtype),
                );
                let name = format!("attend_{}_{dim}_{}", tile.element, form);
                // First scores; products and next scores of a step; products of the last. Each takes the head dimension or the
                // keys in 16s.
                let kernel = Box::new(kernel);
                all.push(Variant { name, kernel, instruction: "HGMMA", products: 2 * (dim / 16 + KEYS / 16) });
            }
        }
    }
    all
}

/// Dense, with column sums.
fn riding(properties: &Arc<DeviceProperties>, dtype: DType, dim: usize) -> Variant {
    let tile = super::riding_tile(properties, dtype, dim, 1.0, QUERIES).expect("an H200 takes it");
    let kernel = kernel::attend_and_sum::AttendAndSum::new(
        settings(UNITS, AddressType::U32),
        properties.clone(),
        Arc::new(TargetProperties::default()),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        sizes(),
        layouts(),
        SpanCompilationArg { first: (), end: (), sink_end: (), sink_start: () },
        tile,
        dtype_to_storage_type(dtype),
    );
    let name = format!("attend_{}_{dim}_riding", tile.element);
    Variant { name, kernel: Box::new(kernel), instruction: "HGMMA", products: 2 * (dim / 16 + KEYS / 16) }
}

fn layouts() -> LayoutsCompilationArg {
    LayoutsCompilationArg { query: layout(), key: layout(), value: layout(), other: layout() }
}
