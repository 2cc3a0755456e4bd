//! The whole transformer.

use burn::module::Module;
use burn::nn::{LayerNorm, Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};
use mcsparse::{Error, SelfAttention, TokenLayout};

use super::block::layer_norm;
use super::{Hunyuan3dConfig, LatentBlock, TimeEmbedder};
use crate::layers::{f32_norm, linear};
use crate::{VelocityModel, check};

/// Timestep of pure noise, as the samplers of this crate count.
const TIMESTEPS: f64 = 1000.0;

/// The shape transformer of Hunyuan3D-2.1.
#[derive(Module, Debug)]
pub struct Hunyuan3d {
    /// From latents to hidden states.
    pub x_embedder: Linear,
    /// Makes the token of the time.
    pub t_embedder: TimeEmbedder,
    /// The blocks.
    pub blocks: Vec<LatentBlock>,
    /// From hidden states to the velocity.
    pub final_layer: FinalLayer,
    #[module(skip)]
    config: Hunyuan3dConfig,
}

/// Norm and projection at the end.
#[derive(Module, Debug)]
pub struct FinalLayer {
    /// Norm.
    pub norm_final: LayerNorm,
    /// Projection to the channels of a latent.
    pub linear: Linear,
}

/// What every step with the same image has in common.
#[derive(Debug, Clone)]
pub struct Hunyuan3dPrepared {
    /// Keys and values of the image for each block.
    images: Vec<[Tensor<4>; 2]>,
    batch: usize,
}

impl Hunyuan3d {
    pub(super) fn new(config: &Hunyuan3dConfig, device: &Device) -> Self {
        if let Err(error) = config.validate() {
            panic!("{error}");
        }
        let hidden = config.hidden_size;
        Self {
            x_embedder: LinearConfig::new(config.in_channels, hidden).init(device),
            t_embedder: TimeEmbedder::new(hidden, device),
            blocks: (0..config.depth).map(|layer| LatentBlock::new(config, layer, device)).collect(),
            final_layer: FinalLayer {
                norm_final: layer_norm(hidden, device),
                linear: LinearConfig::new(hidden, config.in_channels).init(device),
            },
            config: config.clone(),
        }
    }

    /// What it is made of.
    pub fn config(&self) -> &Hunyuan3dConfig {
        &self.config
    }

    /// Float type of the weights.
    pub fn dtype(&self) -> DType {
        self.x_embedder.weight.val().dtype()
    }

    /// What every step with this image has in common: the keys and values of its tokens `[batch, tokens, context_dim]`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] on argument `image` if it has another shape.
    pub fn prepare(&self, image: Tensor<3>) -> Result<Hunyuan3dPrepared, Error> {
        let [batch, tokens, size] = image.dims();
        if batch == 0 || tokens == 0 || size != self.config.context_dim {
            let expected = format!("[batch, image tokens, {}]", self.config.context_dim);
            return Err(check::tensor("image", expected, format!("{:?}", image.dims())));
        }
        let image = image.cast(self.dtype());
        let images = self.blocks.iter().map(|block| block.attn2.keys_values(image.clone())).collect();
        Ok(Hunyuan3dPrepared { images, batch })
    }

    /// The velocity as the model gives it, towards the data.
    ///
    /// # Shapes
    ///
    /// - `latents`: `[batch, tokens, in_channels]`
    /// - returns the same shape, in the dtype of `latents`
    ///
    /// `time` runs from 0 for pure noise to 1 for none.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] naming the argument that does not fit, before `attention` is called; and whatever
    /// `attention` refuses.
    pub fn forward(
        &self,
        latents: Tensor<3>,
        time: f64,
        prepared: &Hunyuan3dPrepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<3>, Error> {
        let [batch, tokens, channels] = latents.dims();
        if batch == 0 || tokens == 0 || channels != self.config.in_channels {
            let expected = format!("[batch, tokens, {}]", self.config.in_channels);
            return Err(check::tensor("latents", expected, format!("{:?}", latents.dims())));
        }
        if prepared.batch != batch || prepared.images.len() != self.blocks.len() {
            let expected = format!("a batch of {batch}, as latents have, for {} blocks", self.blocks.len());
            let got = format!("{} for {}", prepared.batch, prepared.images.len());
            return Err(check::tensor("image", expected, got));
        }
        if !time.is_finite() {
            return Err(check::config("time", "a finite number", time));
        }
        let dtype = latents.dtype();
        attention.begin_sequence(&TokenLayout { prefix: 1, grid: [1, 1, tokens], suffix: 0 })?;
        let time = self.t_embedder.forward(time, &latents.device());
        let time = if batch == 1 { time } else { time.repeat_dim(0, batch) };
        let mut x = Tensor::cat(vec![time, linear(&self.x_embedder, latents.cast(self.dtype()))], 1);
        let (half, mut kept) = (self.blocks.len() / 2, Vec::new());
        for (layer, (block, image)) in self.blocks.iter().zip(&prepared.images).enumerate() {
            let mirrored = if layer > half { kept.pop() } else { None };
            x = block.forward(layer, x, mirrored, image.clone(), attention)?;
            if layer < half {
                kept.push(x.clone());
            }
        }
        let x = f32_norm(&self.final_layer.norm_final, x).slice_dim(1, 1..tokens + 1);
        Ok(linear(&self.final_layer.linear, x).cast(dtype))
    }
}

impl VelocityModel for Hunyuan3d {
    /// Tokens of the image encoder, `[batch, tokens, context_dim]`; zeros stand for no image.
    type Condition = Tensor<3>;
    type Prepared = Hunyuan3dPrepared;

    fn prepare(&self, image: Tensor<3>, latents: [usize; 5]) -> Result<Hunyuan3dPrepared, Error> {
        self.check(latents)?;
        Hunyuan3d::prepare(self, image)
    }

    /// Latents `[batch, channels, 1, 1, tokens]`; the velocity is the noise less the data, as in all models of this crate.
    fn velocity(
        &self,
        latents: Tensor<5>,
        timestep: f64,
        prepared: &Hunyuan3dPrepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, Error> {
        self.check(latents.dims())?;
        let velocity = self.forward(to_tokens(latents), 1.0 - timestep / TIMESTEPS, prepared, attention)?;
        Ok(from_tokens(velocity.neg()))
    }
}

impl Hunyuan3d {
    fn check(&self, latents: [usize; 5]) -> Result<(), Error> {
        let channels = self.config.in_channels;
        if latents[0] == 0 || latents[1..4] != [channels, 1, 1] || latents[4] == 0 {
            let expected = format!("[batch, {channels}, 1, 1, tokens]");
            return Err(check::tensor("latents", expected, format!("{latents:?}")));
        }
        Ok(())
    }
}

/// Latents of a shape, one row a token, in the form that the samplers and the loop of this crate take.
///
/// # Shapes
///
/// - `tokens`: `[batch, tokens, channels]`
/// - returns `[batch, channels, 1, 1, tokens]`
pub fn from_tokens(tokens: Tensor<3>) -> Tensor<5> {
    let [batch, count, channels] = tokens.dims();
    tokens.swap_dims(1, 2).reshape([batch, channels, 1, 1, count])
}

/// The inverse of [`from_tokens`].
///
/// # Shapes
///
/// - `latents`: `[batch, channels, 1, 1, tokens]`
/// - returns `[batch, tokens, channels]`
///
/// # Panics
///
/// If frames or rows are more than one.
pub fn to_tokens(latents: Tensor<5>) -> Tensor<3> {
    let [batch, channels, _, _, tokens] = latents.dims();
    latents.reshape([batch, channels, tokens]).swap_dims(1, 2)
}
