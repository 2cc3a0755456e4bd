//! The three networks as tables of layers.

use burn::tensor::{
    Tensor,
    module::{conv2d, max_pool2d},
    ops::{ConvOptions, MaxPoolOptions},
};

use super::weights::Weights;

/// Which network measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Net {
    /// SqueezeNet 1.1 (Iandola et al. 2016).
    Squeeze,
    /// AlexNet (Krizhevsky 2014).
    Alex,
    /// VGG-16 (Simonyan and Zisserman 2014).
    Vgg,
}

impl std::fmt::Display for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Squeeze => "SqueezeNet",
            Self::Alex => "AlexNet",
            Self::Vgg => "VGG-16",
        })
    }
}

/// One step of a network. Numbers are those of torchvision's `features`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layer {
    /// Convolution with its rectifier.
    Convolution { index: usize, kernel: usize, stride: usize, padding: usize },
    /// Squeeze to few channels, then expand by kernels of 1 and 3, side by side; rectifiers after each.
    Fire { index: usize },
    /// Largest of windows; `ceil` lets a last window hang over the edge.
    Pool { size: usize, ceil: bool },
    /// What has been made so far is compared here.
    Head,
}

use Layer::{Convolution, Fire, Head, Pool};

const fn convolution(index: usize, kernel: usize, stride: usize, padding: usize) -> Layer {
    Convolution { index, kernel, stride, padding }
}

const fn three(index: usize) -> Layer {
    convolution(index, 3, 1, 1)
}

const SQUEEZE_POOL: Layer = Pool { size: 3, ceil: true };
const ALEX_POOL: Layer = Pool { size: 3, ceil: false };
const VGG_POOL: Layer = Pool { size: 2, ceil: false };

const SQUEEZE: &[Layer] = &[
    convolution(0, 3, 2, 0),
    Head,
    SQUEEZE_POOL,
    Fire { index: 3 },
    Fire { index: 4 },
    Head,
    SQUEEZE_POOL,
    Fire { index: 6 },
    Fire { index: 7 },
    Head,
    SQUEEZE_POOL,
    Fire { index: 9 },
    Head,
    Fire { index: 10 },
    Head,
    Fire { index: 11 },
    Head,
    Fire { index: 12 },
    Head,
];

const ALEX: &[Layer] = &[
    convolution(0, 11, 4, 2),
    Head,
    ALEX_POOL,
    convolution(3, 5, 1, 2),
    Head,
    ALEX_POOL,
    three(6),
    Head,
    three(8),
    Head,
    three(10),
    Head,
];

const VGG: &[Layer] = &[
    three(0),
    three(2),
    Head,
    VGG_POOL,
    three(5),
    three(7),
    Head,
    VGG_POOL,
    three(10),
    three(12),
    three(14),
    Head,
    VGG_POOL,
    three(17),
    three(19),
    three(21),
    Head,
    VGG_POOL,
    three(24),
    three(26),
    three(28),
    Head,
];

impl Net {
    /// Its layers in order.
    pub(super) fn layers(self) -> &'static [Layer] {
        match self {
            Self::Squeeze => SQUEEZE,
            Self::Alex => ALEX,
            Self::Vgg => VGG,
        }
    }
}

impl Layer {
    /// Convolutions of this layer: name, kernel.
    pub(super) fn convolutions(self) -> Vec<(String, usize)> {
        match self {
            Convolution { index, kernel, .. } => vec![(index.to_string(), kernel)],
            Fire { index } => [("squeeze", 1), ("expand1x1", 1), ("expand3x3", 3)]
                .map(|(part, kernel)| (format!("{index}.{part}"), kernel))
                .to_vec(),
            Pool { .. } | Head => Vec::new(),
        }
    }
}

/// What `net` makes of `x` `[images, 3, height, width]` at each head.
pub(super) fn features(net: Net, weights: &Weights, mut x: Tensor<4>) -> Vec<Tensor<4>> {
    let rectified = |x: Tensor<4>, name: &str, stride: usize, padding: usize| {
        let (weight, bias) = weights.convolution(name);
        let options = ConvOptions::new([stride; 2], [padding; 2], [1; 2], 1);
        conv2d(x, weight, Some(bias), options).clamp_min(0.0)
    };
    let mut heads = Vec::new();
    for layer in net.layers() {
        x = match *layer {
            Convolution { index, stride, padding, .. } => rectified(x, &index.to_string(), stride, padding),
            Fire { index } => {
                let x = rectified(x, &format!("{index}.squeeze"), 1, 0);
                let one = rectified(x.clone(), &format!("{index}.expand1x1"), 1, 0);
                Tensor::cat(vec![one, rectified(x, &format!("{index}.expand3x3"), 1, 1)], 1)
            }
            Pool { size, ceil } => {
                let options = MaxPoolOptions::new([size; 2]).with_stride([2; 2]);
                max_pool2d(x, MaxPoolOptions { ceil_mode: ceil, ..options })
            }
            Head => {
                heads.push(x.clone());
                x
            }
        };
    }
    heads
}
