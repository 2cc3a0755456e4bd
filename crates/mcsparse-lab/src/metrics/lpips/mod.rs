//! Learned perceptual image patch similarity (Zhang et al. 2018), version 0.1, with weights from a file that the user names.
//!
//! Weights are not shipped. The file is safetensors with the names of torchvision and of the `lpips` package:
//! `backbone.N.weight` and `backbone.N.bias` for layer `N` of `features` (`backbone.N.squeeze.weight` and so on inside the
//! fire modules of SqueezeNet), and `heads.linI.model.1.weight` for head `I`. In PyTorch:
//!
//! ```python
//! import torch, torchvision, safetensors.torch as st
//! net = torchvision.models.squeezenet1_1(weights="DEFAULT").features.state_dict()  # or alexnet, vgg16
//! heads = torch.load("lpips/weights/v0.1/squeeze.pth")                             # or alex.pth, vgg.pth
//! st.save_file({f"backbone.{k}": v for k, v in net.items()} | {f"heads.{k}": v for k, v in heads.items()}, "lpips.safetensors")
//! ```

mod network;
mod weights;

use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};

pub use network::Net;
use weights::Weights;

use crate::{clip::Clip, error::Error};

/// Smallest side of an image: what leaves something to the deepest layer.
const SMALLEST: usize = 32;
/// Mean and spread of each colour that the networks were trained with, for values from -1 to 1.
const SHIFT: [f32; 3] = [-0.030, -0.088, -0.188];
const SCALE: [f32; 3] = [0.458, 0.448, 0.450];
/// Against division by zero where a pixel has no features.
const EPSILON: f64 = 1e-10;
/// Images that are compared at once.
const BATCH: usize = 64;

/// LPIPS with loaded weights.
#[derive(Debug, Clone)]
pub struct Lpips {
    net: Net,
    weights: Weights,
    device: Device,
}

impl Lpips {
    /// Reads the weights; which network they are of follows from their names and shapes.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] naming the file and the tensor that is missing or does not fit.
    pub fn load(path: &Path, device: &Device) -> Result<Self, Error> {
        let (net, weights) = Weights::load(path, device)?;
        Ok(Self { net, weights, device: device.clone() })
    }

    /// The network, which has to be named beside every value: they differ.
    pub fn net(&self) -> Net {
        self.net
    }

    /// Distance of each pair of images with values from -1 to 1.
    ///
    /// # Shapes
    ///
    /// - `a`, `b`: `[images, 3, height, width]`, at least 32 x 32
    /// - returns `[images]`
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if the shapes differ or do not suit.
    pub fn images(&self, a: Tensor<4>, b: Tensor<4>) -> Result<Tensor<1>, Error> {
        let [images, colours, height, width] = a.dims();
        if a.dims() != b.dims() || images == 0 || colours != 3 || height.min(width) < SMALLEST {
            let expected = format!("expected two of [images, 3, {SMALLEST} or more, {SMALLEST} or more]");
            return Err(Error::run("LPIPS", format!("{expected}, got {:?} and {:?}", a.dims(), b.dims())));
        }
        let (a, b) = (self.features(a), self.features(b));
        let layers = a.into_iter().zip(b).enumerate().map(|(head, (a, b))| {
            let difference = (unit(a) - unit(b)).square() * self.weights.head(head);
            difference.sum_dim(1).mean_dims(&[2, 3]).reshape([images])
        });
        Ok(layers.reduce(|sum, layer| sum + layer).expect("every network has layers"))
    }

    /// Mean distance of the frames of two clips.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if the clips differ in size or are too small.
    pub fn clips(&self, a: &Clip, b: &Clip) -> Result<f64, Error> {
        let [frames, height, width] = a.size();
        let frame = 3 * height * width;
        let mut sum = 0.0;
        for first in (0..frames).step_by(BATCH) {
            let count = BATCH.min(frames - first);
            let images = |clip: &Clip| {
                let values = clip.values().iter().skip(first * frame).take(count * frame).map(|v| v * 2.0 - 1.0);
                let shape = [count, 3, clip.size()[1], clip.size()[2]];
                Tensor::<4>::from_data(TensorData::new(values.collect::<Vec<f32>>(), shape), &self.device)
            };
            if a.size() != b.size() {
                return Err(Error::run(
                    "LPIPS",
                    format!("expected clips of one size, got {:?} and {:?}", a.size(), b.size()),
                ));
            }
            sum += f64::from(self.images(images(a), images(b))?.sum().into_scalar::<f32>());
        }
        Ok(sum / frames as f64)
    }

    /// What the network makes of the images at each layer that has a head.
    fn features(&self, images: Tensor<4>) -> Vec<Tensor<4>> {
        let constant = |values: [f32; 3]| Tensor::<1>::from_floats(values, &self.device).reshape([1, 3, 1, 1]);
        network::features(self.net, &self.weights, (images - constant(SHIFT)) / constant(SCALE))
    }
}

/// Scales the features of each pixel to length 1.
fn unit(features: Tensor<4>) -> Tensor<4> {
    let length = features.clone().square().sum_dim(1).sqrt().add_scalar(EPSILON);
    features / length
}

#[cfg(all(test, feature = "flex"))]
mod tests;
