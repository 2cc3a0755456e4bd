//! The whole transformer.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};
use mcsparse::{Error, SelfAttention, TokenLayout};

use super::block::table;
use super::{ConditionEmbedder, WanBlock, WanCondition, WanConfig, WanPrepared};
use crate::layers::{PatchEmbedding, RotaryTables, Timestep, modulated_norm, parts, unpatchify, with_rest};
use crate::{VelocityModel, check};

/// The Wan video transformer: predicts the velocity of noisy latents.
///
/// Make one with [`WanConfig::init`], or [`WanTransformer::load`] for trained weights.
#[derive(Module, Debug)]
pub struct WanTransformer {
    /// Latents to tokens.
    pub patch_embedding: PatchEmbedding,
    /// Timestep and text to what the blocks read.
    pub condition_embedder: ConditionEmbedder,
    /// The blocks.
    pub blocks: Vec<WanBlock>,
    /// Tokens to patches of velocity.
    pub proj_out: Linear,
    /// Added to the time embedding: shift and scale of the last norm, `[1, 2, inner_dim]`; stays in f32.
    pub scale_shift_table: Param<Tensor<3>>,
    #[module(skip)]
    config: WanConfig,
}

impl WanTransformer {
    pub(super) fn new(config: &WanConfig, device: &Device) -> Self {
        config.validate().expect("a valid WanConfig");
        Self {
            patch_embedding: PatchEmbedding::new(config.in_channels, config.inner_dim(), config.patch_size, device),
            condition_embedder: ConditionEmbedder::new(config, device),
            blocks: (0..config.num_layers).map(|_| WanBlock::new(config, device)).collect(),
            proj_out: LinearConfig::new(config.inner_dim(), config.output_dim()).init(device),
            scale_shift_table: table(2, config.inner_dim(), device),
            config: config.clone(),
        }
    }

    /// What the transformer is made of.
    pub fn config(&self) -> &WanConfig {
        &self.config
    }

    /// The dtype in which the blocks run.
    pub fn dtype(&self) -> DType {
        self.proj_out.weight.val().dtype()
    }

    /// Velocity of `latents` at `timestep`.
    ///
    /// # Shapes
    ///
    /// - `latents`: `[batch, in_channels, frames, height, width]`, the last three multiples of `patch_size`
    /// - `condition`: text `[batch, text tokens, text_dim]`, or a whole [`WanCondition`]
    /// - returns `[batch, out_channels, frames, height, width]` in the dtype of `latents`
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] naming the argument whose shape does not fit, before `attention` is called; and whatever
    /// `attention` refuses.
    pub fn forward(
        &self,
        latents: Tensor<5>,
        timestep: impl Into<Timestep>,
        condition: impl Into<WanCondition>,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, Error> {
        let [_, _, frames, height, width] = latents.dims();
        let prepared = self.prepare(condition, [frames, height, width])?;
        self.forward_prepared(latents, timestep, &prepared, attention)
    }

    /// What every step with this condition and latents of `size` `[frames, height, width]` has in common.
    ///
    /// # Shapes
    ///
    /// - `condition`: text `[batch, text tokens, text_dim]`, or a whole [`WanCondition`]
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] naming the argument that does not fit.
    pub fn prepare(&self, condition: impl Into<WanCondition>, size: [usize; 3]) -> Result<WanPrepared, Error> {
        let WanCondition { text, image, latents } = condition.into();
        let grid = self.config.grid(size)?;
        let [batch, tokens, text_dim] = text.dims();
        if text_dim != self.config.text_dim || batch == 0 || tokens == 0 {
            let expected = format!("[batch, text tokens, {}]", self.config.text_dim);
            return Err(check::tensor("text", expected, format!("{:?}", text.dims())));
        }
        self.check_image(image.as_ref(), batch)?;
        if let Some(latents) = &latents {
            let expected = [batch, self.config.in_channels - self.config.out_channels, size[0], size[1], size[2]];
            if latents.dims() != expected {
                let got = format!("{:?}", latents.dims());
                return Err(check::tensor("condition latents", format!("{expected:?}"), got));
            }
        }
        let rotary = RotaryTables::new(grid, self.config.attention_head_dim, &text.device());
        let text = self.condition_embedder.text(text.cast(self.dtype()));
        let image = image
            .zip(self.condition_embedder.image_embedder.as_ref())
            .map(|(image, embedder)| embedder.forward(image.cast(self.dtype())));
        let conditions = self.blocks.iter().map(|block| block.attn2.keys_values(text.clone(), image.clone())).collect();
        Ok(WanPrepared { rotary, conditions, latents, grid })
    }

    fn check_image(&self, image: Option<&Tensor<3>>, batch: usize) -> Result<(), Error> {
        match (image, self.config.image_dim) {
            (None, None) => Ok(()),
            (Some(image), Some(size)) => {
                let [images, tokens, dim] = image.dims();
                if images != batch || tokens == 0 || dim != size {
                    let expected = format!("[{batch}, image tokens, {size}]");
                    return Err(check::tensor("image", expected, format!("{:?}", image.dims())));
                }
                Ok(())
            }
            (Some(image), None) => {
                let got = format!("{:?}", image.dims());
                Err(check::tensor("image", "none: this model reads no tokens of an image encoder", got))
            }
            (None, Some(size)) => Err(check::tensor("image", format!("[{batch}, image tokens, {size}]"), "none")),
        }
    }

    /// As [`WanTransformer::forward`], with the condition and the grid of `prepared`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] naming the argument that does not fit, before `attention` is called; and whatever
    /// `attention` refuses.
    pub fn forward_prepared(
        &self,
        latents: Tensor<5>,
        timestep: impl Into<Timestep>,
        prepared: &WanPrepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, Error> {
        let grid = self.check(&latents, prepared)?;
        let (batch, tokens) = (latents.dims()[0], grid.iter().product());
        let timestep = timestep.into().broadcastable(batch, tokens, &latents.device())?;
        let (embedding, projected) = self.condition_embedder.time(timestep);

        let dtype = latents.dtype();
        attention.begin_sequence(&TokenLayout::grid(grid))?;
        let mut x = self.patch_embedding.forward(latents.cast(self.dtype()));
        for (layer, (block, condition)) in self.blocks.iter().zip(&prepared.conditions).enumerate() {
            x = block.forward(layer, x, projected.clone(), condition, &prepared.rotary, attention)?;
        }

        let table = self.scale_shift_table.val().cast(DType::F32);
        let [shift, scale] = parts(embedding.unsqueeze_dim::<4>(2) + table.unsqueeze());
        let x = self.proj_out.forward(modulated_norm(x, scale, shift, self.config.eps));
        Ok(unpatchify(x, grid, self.config.patch_size).cast(dtype))
    }

    /// The grid of `latents`, if they go with the model and with `prepared`.
    fn check(&self, latents: &Tensor<5>, prepared: &WanPrepared) -> Result<[usize; 3], Error> {
        let [batch, channels, frames, height, width] = latents.dims();
        let got = || format!("{:?}", latents.dims());
        if channels != self.config.in_channels || batch == 0 {
            let expected = format!("[batch, {}, frames, height, width]", self.config.in_channels);
            return Err(check::tensor("latents", expected, got()));
        }
        let grid = self.config.grid([frames, height, width])?;
        if grid != prepared.grid {
            let expected = format!("a grid of {:?} tokens, as was prepared", prepared.grid);
            return Err(check::tensor("latents", expected, format!("{grid:?}")));
        }
        let texts = prepared.conditions.first().map_or(batch, |condition| condition.batch());
        if texts != batch {
            return Err(check::tensor("text", format!("a batch of {batch}, as latents have"), texts));
        }
        Ok(grid)
    }
}

impl VelocityModel for WanTransformer {
    type Condition = WanCondition;
    type Prepared = WanPrepared;

    fn prepare(&self, condition: WanCondition, latents: [usize; 5]) -> Result<WanPrepared, Error> {
        let [_, _, frames, height, width] = latents;
        WanTransformer::prepare(self, condition, [frames, height, width])
    }

    /// Latents have the channels of the velocity; those of the condition are appended here.
    fn velocity(
        &self,
        latents: Tensor<5>,
        timestep: f64,
        prepared: &WanPrepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, Error> {
        self.forward_prepared(with_rest(latents, &prepared.latents), timestep, prepared, attention)
    }
}
