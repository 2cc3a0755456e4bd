//! What the machine can do at best, measured beside the stages.

use burn::tensor::{DType, Device, Distribution, Tensor};
use mcsparse::ops::{self, Kernels, Route};

use crate::clock::time;

/// Bytes of the copied tensor: what a WebGPU binding may hold, and more than most caches.
const COPY_BYTES: usize = 128 << 20;
/// The largest square matrix product tried.
const MATMUL: usize = 8192;

/// Measured peaks.
#[derive(Debug, Clone, Copy)]
pub struct Ceilings {
    /// Bytes read and written per second by `x + 1` over a large tensor.
    pub bytes: f64,
    /// Operations per second of Burn's product of large square matrices in the dtype.
    pub matmul: f64,
    /// Side of that product.
    pub side: usize,
    /// The same by `mcsparse::ops::linear`, where it has a kernel.
    pub linear: Option<f64>,
}

impl Ceilings {
    /// The best matrix product, in operations per second.
    pub fn flops(&self) -> f64 {
        self.matmul.max(self.linear.unwrap_or(0.0))
    }
}

/// Measures all.
pub fn measure(device: &Device, dtype: DType) -> Ceilings {
    let x = Tensor::<1>::zeros([COPY_BYTES / 4], (device, DType::F32));
    let copy = time(device, COPY_BYTES, |_| {
        let y = x.clone() + 1.0;
        // One pass a call: fusion would join several into one.
        device.flush().expect("the device works");
        y
    });
    let random = |n: usize| Tensor::<2>::random([n, n], Distribution::Normal(0.0, 1.0), (device, dtype));
    // The largest side that still takes a moment only; small ones do not fill a GPU.
    let (mut side, mut flops, mut linear) = (512, 0.0, None);
    loop {
        let (a, b) = (random(side), random(side));
        let product = time(device, side * side * dtype.size(), |_| a.clone().matmul(b.clone()));
        flops = f64::max(flops, 2.0 * (side as f64).powi(3) / product.min);
        let route = ops::linear_route(&a, &b, Kernels::Auto);
        if let Route::Kernel { .. } = route {
            let ours = time(device, side * side * dtype.size(), |_| ops::linear(&route, a.clone(), b.clone(), None));
            linear = Some(f64::max(linear.unwrap_or(0.0), 2.0 * (side as f64).powi(3) / ours.min));
        }
        if product.median > 0.02 || side >= MATMUL {
            break;
        }
        side *= 2;
    }
    Ceilings { bytes: 2.0 * COPY_BYTES as f64 / copy.min, matmul: flops, side, linear }
}
