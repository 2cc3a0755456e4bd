//! Where the rows of a tensor lie.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::operand::global_address;

/// Strides of `[batch, heads, tokens, head_dim]` in bytes, as numbers of a launch: a kernel would have to fetch a tensor's own
/// from memory, again after every block of assembly.
#[derive(CubeLaunch, CubeType)]
pub(in super::super) struct Layout {
    pub batch: u64,
    pub head: u64,
    pub token: u32,
    pub column: u32,
}

impl LayoutLaunch {
    /// That of a tensor of 16-bit elements.
    ///
    /// # Panics
    ///
    /// If tokens or columns lie 4 GiB apart.
    pub fn of(tensor: &CubeTensor) -> Self {
        let strides = tensor.meta.strides();
        let near = |axis: usize| {
            let bytes = 2 * strides[axis];
            u32::try_from(bytes)
                .unwrap_or_else(|_| panic!("axis {axis}: expected strides below 4 GiB, got {bytes} bytes"))
        };
        Self::new(2 * strides[0] as u64, 2 * strides[1] as u64, near(2), near(3))
    }
}

#[cube]
impl Layout {
    /// The address of a head.
    pub fn head<E: Float>(&self, tensor: &[E], batch: u32, head: u32) -> u64 {
        let start = global_address::<E>(tensor[0..1].as_ptr());
        start + u64::cast_from(batch) * self.batch + u64::cast_from(head) * self.head
    }
}
