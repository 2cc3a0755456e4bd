//! What the tests of the transformer share: fixtures, taps and distances.

use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, Tensor, TensorData};
use mcsparse::{Branch, DenseAttention, Error, SelfAttention, TokenLayout};
use mcsparse_dit::wan::{WanConfig, WanTransformer};
use safetensors::SafeTensors;
use serde::de::DeserializeOwned;

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// A safetensors file of f32 tensors.
pub struct Tensors(Vec<u8>);

impl Tensors {
    pub fn open(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    pub fn names(&self) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        file.names().into_iter().map(String::from).collect()
    }

    pub fn values(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let view = file.tensor(name).unwrap();
        assert_eq!(view.dtype(), safetensors::Dtype::F32, "{name}");
        view.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    /// Integers of 64 bits.
    pub fn integers(&self, name: &str) -> Vec<i64> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let view = file.tensor(name).unwrap();
        assert_eq!(view.dtype(), safetensors::Dtype::I64, "{name}");
        view.data().chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    /// Floats of 64 bits.
    pub fn doubles(&self, name: &str) -> Vec<f64> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let view = file.tensor(name).unwrap();
        assert_eq!(view.dtype(), safetensors::Dtype::F64, "{name}");
        view.data().chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    pub fn tensor<const D: usize>(&self, name: &str, device: &Device) -> Tensor<D> {
        let shape = SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap().shape().to_vec();
        Tensor::from_data(TensorData::new(self.values(name), shape), (device, DType::F32))
    }
}

/// The configuration of a fixture, which keeps it under `config`.
pub fn config_of<C: DeserializeOwned>(folder: &str) -> C {
    let text = std::fs::read_to_string(fixture(folder).join("config.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(json["config"].clone()).unwrap()
}

/// The configuration of a Wan fixture.
pub fn config(folder: &str) -> WanConfig {
    config_of(folder)
}

pub fn model(folder: &str, device: &Device) -> WanTransformer {
    WanTransformer::load(fixture(folder).join("weights.safetensors"), &config(folder), DType::F32, device).unwrap()
}

/// What [`Recorder`] was told, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    Step(usize),
    Branch(Branch),
    Sequence(TokenLayout),
    Layer(usize),
}

/// Dense attention that keeps what goes through it.
#[derive(Default)]
pub struct Recorder {
    pub calls: Vec<Call>,
    /// Query, key, value and output of every call.
    pub taps: Vec<[Tensor<4>; 4]>,
    /// Refuses the call of this number.
    pub fail_at: Option<usize>,
}

impl SelfAttention for Recorder {
    fn attend(&mut self, layer: usize, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Result<Tensor<4>, Error> {
        if self.fail_at == Some(self.taps.len()) {
            return Err(Error::Clock("asked to fail".into()));
        }
        self.calls.push(Call::Layer(layer));
        let output = DenseAttention::default().attend(layer, query.clone(), key.clone(), value.clone())?;
        self.taps.push([query, key, value, output.clone()]);
        Ok(output)
    }

    fn begin_step(&mut self, step: usize) -> Result<(), Error> {
        self.calls.push(Call::Step(step));
        Ok(())
    }

    fn begin_branch(&mut self, branch: &Branch) -> Result<(), Error> {
        self.calls.push(Call::Branch(branch.clone()));
        Ok(())
    }

    fn begin_sequence(&mut self, layout: &TokenLayout) -> Result<(), Error> {
        self.calls.push(Call::Sequence(*layout));
        Ok(())
    }
}
