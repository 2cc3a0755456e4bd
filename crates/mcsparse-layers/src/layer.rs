//! Which layers have a kernel, and why one has none.

use std::fmt;

use burn::tensor::Device;

#[cfg(feature = "cube")]
use crate::cube;

/// A layer of this crate with the sizes that decide whether a kernel takes it; see [`kernel`]. Rows may be as many as memory
/// holds, in any dtype that the layer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layer {
    /// [`scaled_norm`](crate::scaled_norm), [`modulated_norm`](crate::modulated_norm) and [`layer_norm`](crate::layer_norm).
    Norm {
        /// Values of a row.
        size: usize,
    },
    /// [`gated_add`](crate::gated_add).
    GatedAdd {
        /// Values of a row.
        size: usize,
    },
    /// [`swiglu`](crate::swiglu).
    SwiGlu {
        /// Values of a row of the output, half of those of the input.
        hidden: usize,
    },
    /// [`rms_norm`](crate::rms_norm), and [`norm_and_rotate`](crate::norm_and_rotate) where values turn.
    HeadNorm {
        /// Heads of a row.
        heads: usize,
        /// Values of a head.
        head_dim: usize,
        /// Values of a head that turn, two a pair; 0 if none do.
        turned: usize,
    },
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layer::Norm { size } => write!(f, "norm of {size} values"),
            Layer::GatedAdd { size } => write!(f, "gated sum of {size} values"),
            Layer::SwiGlu { hidden } => write!(f, "SwiGLU of {hidden} values"),
            Layer::HeadNorm { heads, head_dim, turned } => {
                write!(f, "norm of {heads} heads x {head_dim}, {turned} values of each turned")
            }
        }
    }
}

/// Whether `layer` runs in a kernel of `device`, or why it runs in tensor operations. The functions of this crate ask the same,
/// so that what this says is what they do.
///
/// # Errors
///
/// The reason, which begins with the layer and its sizes.
pub fn kernel(device: &Device, layer: Layer) -> Result<(), String> {
    supports(device, layer).map_err(|reason| format!("{layer}: {reason}"))
}

#[cfg_attr(not(feature = "cube"), allow(unused_variables))]
fn supports(device: &Device, layer: Layer) -> Result<(), String> {
    #[cfg(feature = "cube")]
    if let burn::backend::DispatchDevice::Cube(cube) = device.as_dispatch() {
        return cube::supports(cube, layer);
    }
    Err(format!("no kernel for {device:?}"))
}
