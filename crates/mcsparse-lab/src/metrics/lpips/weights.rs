//! Weights of LPIPS from a safetensors file.

use std::{collections::BTreeMap, path::Path};

use burn::tensor::{Device, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors};

use super::network::{Layer, Net};
use crate::error::Error;

/// Kernels and biases by name, and the heads in order.
#[derive(Debug, Clone)]
pub(super) struct Weights {
    convolutions: BTreeMap<String, (Tensor<4>, Tensor<1>)>,
    heads: Vec<Tensor<4>>,
}

impl Weights {
    /// Reads what the network of the file needs, and checks that each layer fits the one before.
    pub fn load(path: &Path, device: &Device) -> Result<(Net, Self), Error> {
        let failed = |why: String| Error::run(format!("LPIPS weights {}", path.display()), why);
        let bytes = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| failed(error.to_string()))?;
        Self::read(&file, device).map_err(failed)
    }

    fn read(file: &SafeTensors<'_>, device: &Device) -> Result<(Net, Self), String> {
        let net = net(file)?;
        let (mut convolutions, mut heads) = (BTreeMap::new(), Vec::new());
        // Channels that come in.
        let mut channels = 3;
        for layer in net.layers() {
            let mut outputs = Vec::new();
            for (name, kernel) in layer.convolutions() {
                // Both expansions read what was squeezed.
                let inputs = *outputs.first().unwrap_or(&channels);
                let [weight, bias] = ["weight", "bias"].map(|part| format!("backbone.{name}.{part}"));
                let [output, ..] = shape(file, &weight)?;
                let weight = values(file, &weight, [output, inputs, kernel, kernel], device)?;
                convolutions.insert(name, (weight, values(file, &bias, [output], device)?));
                outputs.push(output);
            }
            channels = match (layer, outputs.as_slice()) {
                (Layer::Fire { .. }, [_, one, three]) => one + three,
                (_, [output]) => *output,
                _ => channels,
            };
            if *layer == Layer::Head {
                heads.push(values(
                    file,
                    &format!("heads.lin{}.model.1.weight", heads.len()),
                    [1, channels, 1, 1],
                    device,
                )?);
            }
        }
        Ok((net, Self { convolutions, heads }))
    }

    /// Kernels `[out, in, size, size]` and biases of the convolution `name`.
    pub fn convolution(&self, name: &str) -> (Tensor<4>, Tensor<1>) {
        self.convolutions.get(name).cloned().expect("all layers were read")
    }

    /// How much each channel counts, `[1, channels, 1, 1]`.
    pub fn head(&self, index: usize) -> Tensor<4> {
        self.heads[index].clone()
    }
}

/// The network whose layers the file has.
fn net(file: &SafeTensors<'_>) -> Result<Net, String> {
    if file.tensor("backbone.3.squeeze.weight").is_ok() {
        return Ok(Net::Squeeze);
    }
    match shape(file, "backbone.0.weight")? {
        [_, _, 11, _] => Ok(Net::Alex),
        [_, _, 3, _] => Ok(Net::Vgg),
        [_, _, kernel, _] => {
            Err(format!("backbone.0.weight: expected kernels of 11 (AlexNet) or 3 (VGG-16), got {kernel}"))
        }
    }
}

fn shape(file: &SafeTensors<'_>, name: &str) -> Result<[usize; 4], String> {
    let view = file.tensor(name).map_err(|_| format!("{name} is missing"))?;
    view.shape().try_into().map_err(|_| format!("{name}: expected 4 axes, got {:?}", view.shape()))
}

fn values<const D: usize>(
    file: &SafeTensors<'_>,
    name: &str,
    shape: [usize; D],
    device: &Device,
) -> Result<Tensor<D>, String> {
    let view = file.tensor(name).map_err(|_| format!("{name} is missing"))?;
    if view.shape() != shape || view.dtype() != Dtype::F32 {
        return Err(format!("{name}: expected {shape:?} of F32, got {:?} of {:?}", view.shape(), view.dtype()));
    }
    let numbers = view.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")));
    Ok(Tensor::from_data(TensorData::new(numbers.collect::<Vec<_>>(), shape), device))
}
