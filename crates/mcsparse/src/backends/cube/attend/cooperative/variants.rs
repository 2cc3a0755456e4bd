//! The kernels that a compiler is to be shown without a GPU: those that differ in what their loops do.

use std::sync::Arc;

use burn::{backend::cubecl::dtype_to_storage_type, tensor::DType};
use cubecl::{
    ir::{AddressType, DeviceProperties},
    prelude::*,
};

use super::{
    super::{
        super::cuda_source::{Variant, buffer, settings, tensor},
        shape::{Keys, sizes},
    },
    kernel,
};
use crate::ops::Finish;

/// Dense, gathered with a residual, and counted, for both types and two head dimensions.
pub(in super::super::super) fn variants(properties: &Arc<DeviceProperties>) -> Vec<Variant> {
    let mut all = Vec::new();
    for (dtype, element) in [(DType::BF16, "bf16"), (DType::F16, "f16")] {
        for dim in [64, 128] {
            let forms = [
                ("dense", Keys::All, Finish::Output, 8, AddressType::U32),
                ("gathered", Keys::Listed, Finish::AddResidual, 8, AddressType::U32),
                // Rows that start anywhere, and tensors of more than 2^32 elements.
                ("strided", Keys::Listed, Finish::ResidualOf, 1, AddressType::U64),
                // What shader languages read by.
                ("counted", Keys::Counted, Finish::AddResidual, 4, AddressType::U32),
            ];
            // Where registers are enough for four cubes of 64 columns, ptxas would rather spill a few bytes than lose one.
            let forms = if dim == 64 { &forms[..2] } else { &forms[..] };
            for &(form, keys, finish, read_by, address) in forms {
                let tile = super::tile(properties, dtype, dim, usize::MAX).expect("an H200 takes it");
                let kernel = kernel::attend::Attend::new(
                    settings(tile.units(), address),
                    properties.clone(),
                    Arc::new(TargetProperties::default()),
                    tensor(),
                    tensor(),
                    tensor(),
                    buffer(),
                    buffer(),
                    tensor(),
                    buffer(),
                    buffer(),
                    buffer(),
                    sizes(),
                    read_by,
                    4,
                    tile,
                    dim,
                    keys,
                    finish,
                    dtype_to_storage_type(dtype),
                );
                let name = format!("attend_cooperative_{element}_{dim}_{form}");
                // Scores of a tile, and what its weights add to the output, by two instructions each.
                let products = 2 * 2 * (tile.keys / 16) * (dim / 16);
                all.push(Variant { name, kernel: Box::new(kernel), instruction: "HMMA", products });
            }
        }
    }
    all
}
