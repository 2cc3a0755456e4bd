//! The kernels that a compiler is to be shown without a GPU.

use std::sync::Arc;

use burn::{backend::cubecl::dtype_to_storage_type, tensor::DType};
use cubecl::{
    ir::{AddressType, DeviceProperties},
    prelude::*,
};

use super::{
    super::{
        super::cuda_source::{Variant, buffer, layout, settings},
        sizes::SizesCompilationArg,
    },
    kernel::{self, LayoutsCompilationArg},
    tile::{Tile, UNITS},
};

/// For both types and head dimensions.
pub(in super::super::super) fn variants(properties: &Arc<DeviceProperties>) -> Vec<Variant> {
    let mut all = Vec::new();
    for dtype in [DType::BF16, DType::F16] {
        for (dim, whole) in [(64, true), (128, true), (128, false)] {
            let tile = Tile { whole, ..super::tile(properties, dtype, dim).expect("an H200 takes it") };
            let kernel = kernel::column_sums::ColumnSums::new(
                settings(UNITS, AddressType::U32),
                properties.clone(),
                Arc::new(TargetProperties::default()),
                buffer(),
                buffer(),
                buffer(),
                buffer(),
                buffer(),
                (),
                SizesCompilationArg {
                    queries: (),
                    keys: (),
                    group_size: (),
                    groups: (),
                    heads: (),
                    heads_per_kv: (),
                    first_row: (),
                    rows: (),
                    splits: (),
                    sink_end: (),
                    sink_start: (),
                    always: (),
                    scale: (),
                },
                LayoutsCompilationArg { query: layout(), key: layout() },
                tile,
                dtype_to_storage_type(dtype),
            );
            let name = format!("select_{}_{dim}{}", tile.element, if whole { "" } else { "_strided" });
            // Two halves of a step's keys.
            let kernel = Box::new(kernel);
            all.push(Variant { name, kernel, instruction: "HGMMA", products: 2 * (dim / 16) });
        }
    }
    all
}
