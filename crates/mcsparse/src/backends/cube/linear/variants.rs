//! The kernels that a compiler is to be shown without a GPU.

use std::sync::Arc;

use burn::{backend::cubecl::dtype_to_storage_type, tensor::DType};
use cubecl::{
    ir::{AddressType, DeviceProperties},
    prelude::*,
};

use super::{
    super::{
        cuda_source::{Variant, buffer, settings},
        hopper,
    },
    kernel::{self, SizesCompilationArg},
    tile::{DEPTH, Tile, UNITS},
};

/// Both types, with a bias and without.
pub(in super::super) fn variants(properties: &Arc<DeviceProperties>) -> Vec<Variant> {
    let all = [(DType::BF16, true), (DType::BF16, false), (DType::F16, true)].map(|(dtype, bias)| {
        let tile = Tile { element: hopper::element(dtype), bias };
        let kernel = kernel::linear::Linear::new(
            settings(UNITS, AddressType::U32),
            properties.clone(),
            Arc::new(TargetProperties::default()),
            (),
            (),
            buffer(),
            buffer(),
            SizesCompilationArg { rows: (), inputs: (), outputs: () },
            tile,
            dtype_to_storage_type(dtype),
        );
        let name = format!("linear_{}{}", tile.element, if bias { "_bias" } else { "" });
        // A step's; NVRTC takes two at a time.
        Variant { name, kernel: Box::new(kernel), instruction: "HGMMA", products: 2 * (DEPTH / 16) }
    });
    all.into()
}
