//! HunyuanVideo.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, activation::silu};
use mcsparse::{Error, SelfAttention, TokenLayout};

use super::attention::apart;
use super::refiner::PreparedText;
use super::{AdaptiveNorm, DualBlock, EPS, GuidedTimeEmbedder, HunyuanVideoConfig, SingleBlock, TokenRefiner};
use crate::layers::{
    self, PatchEmbedding, RotaryTables, Timestep, embedding_of, modulated_norm, timestep_embedding,
    unpatchify_channels_first,
};
use crate::{VelocityModel, check};

/// The model is told a thousand times the guidance.
const GUIDANCE_SCALE: f64 = 1000.0;

/// What a video is to show.
#[derive(Debug, Clone)]
pub struct HunyuanCondition {
    /// Text tokens without padding, `[batch, text tokens, text_embed_dim]`; see [`trim`](super::trim).
    pub text: Tensor<3>,
    /// The text as a whole, `[batch, pooled_projection_dim]`.
    pub pooled: Tensor<2>,
    /// Guidance that the model was distilled with, 6 in its own pipeline; `None` if it has no such input.
    pub guidance: Option<f64>,
    /// Channels that follow those of the noisy latents, `[batch, in_channels - out_channels, frames, height, width]`.
    pub latents: Option<Tensor<5>>,
}

/// What follows from a condition for every step.
#[derive(Debug, Clone)]
pub struct HunyuanPrepared {
    text: PreparedText,
    /// Pooled text and guidance, `[batch, 1, inner_dim]`.
    embedding: Tensor<3>,
    latents: Option<Tensor<5>>,
    rotary: RotaryTables,
    grid: [usize; 3],
}

impl HunyuanPrepared {
    /// The tokens of the joined sequence.
    pub fn layout(&self) -> TokenLayout {
        TokenLayout { suffix: self.text.tokens(), ..TokenLayout::grid(self.grid) }
    }
}

/// The HunyuanVideo transformer: predicts the velocity of noisy latents.
#[derive(Module, Debug)]
pub struct HunyuanVideo {
    /// Latents to tokens.
    pub x_embedder: PatchEmbedder,
    /// Text to tokens.
    pub context_embedder: TokenRefiner,
    /// Time, guidance and the text as a whole to what modulates the blocks.
    pub time_text_embed: GuidedTimeEmbedder,
    /// Dual blocks.
    pub transformer_blocks: Vec<DualBlock>,
    /// Single blocks.
    pub single_transformer_blocks: Vec<SingleBlock>,
    /// Scale and shift of the last norm.
    pub norm_out: AdaptiveNorm,
    /// Tokens to patches of velocity.
    pub proj_out: Linear,
    #[module(skip)]
    config: HunyuanVideoConfig,
}

/// The first layer under the name that it has in files.
#[derive(Module, Debug)]
pub struct PatchEmbedder {
    /// The layer.
    pub proj: PatchEmbedding,
}

impl HunyuanVideo {
    pub(super) fn new(config: &HunyuanVideoConfig, device: &Device) -> Self {
        config.validate().expect("a valid HunyuanVideoConfig");
        let (heads, head_dim, inner) = (config.num_attention_heads, config.attention_head_dim, config.inner_dim());
        let values = config.patch().iter().product::<usize>() * config.out_channels;
        let dual = || DualBlock::new(heads, head_dim, config.hidden(), device);
        let single = || SingleBlock::new(heads, head_dim, config.hidden(), device);
        Self {
            x_embedder: PatchEmbedder { proj: PatchEmbedding::new(config.in_channels, inner, config.patch(), device) },
            context_embedder: TokenRefiner::new(
                config.text_embed_dim,
                heads,
                head_dim,
                config.num_refiner_layers,
                device,
            ),
            time_text_embed: GuidedTimeEmbedder::new(
                config.pooled_projection_dim,
                inner,
                config.guidance_embeds,
                device,
            ),
            transformer_blocks: (0..config.num_layers).map(|_| dual()).collect(),
            single_transformer_blocks: (0..config.num_single_layers).map(|_| single()).collect(),
            norm_out: AdaptiveNorm::new(inner, 2, device),
            proj_out: LinearConfig::new(inner, values).init(device),
            config: config.clone(),
        }
    }

    /// What the transformer is made of.
    pub fn config(&self) -> &HunyuanVideoConfig {
        &self.config
    }

    /// The dtype in which the blocks run.
    pub fn dtype(&self) -> DType {
        self.proj_out.weight.val().dtype()
    }

    /// What every step with this `condition` and latents of `size` `[frames, height, width]` has in common.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] or [`Error::InvalidConfig`] naming the argument that does not fit.
    pub fn prepare(&self, condition: HunyuanCondition, size: [usize; 3]) -> Result<HunyuanPrepared, Error> {
        let (config, HunyuanCondition { text, pooled, guidance, latents }) = (&self.config, condition);
        let grid = layers::grid(size, config.patch())?;
        let [batch, tokens, text_dim] = text.dims();
        if batch == 0 || tokens == 0 || text_dim != config.text_embed_dim {
            let expected = format!("[batch, text tokens, {}]", config.text_embed_dim);
            return Err(check::tensor("text", expected, format!("{:?}", text.dims())));
        }
        if pooled.dims() != [batch, config.pooled_projection_dim] {
            let expected = format!("[{batch}, {}]", config.pooled_projection_dim);
            return Err(check::tensor("pooled", expected, format!("{:?}", pooled.dims())));
        }
        check_rest(latents.as_ref(), batch, config.in_channels - config.out_channels, size)?;
        let (dtype, embedder, device) = (self.dtype(), &self.time_text_embed, text.device());
        let pooled = embedder.text_embedder.forward(pooled.cast(dtype).unsqueeze_dim(1), silu);
        let embedding = match (&embedder.guidance_embedder, guidance) {
            (Some(embedder), Some(guidance)) if guidance.is_finite() => {
                embedding_of(embedder, &[GUIDANCE_SCALE * guidance], &device) + pooled
            }
            (None, None) => pooled,
            (Some(_), guidance) => return Err(check::config("guidance", "a finite number", format!("{guidance:?}"))),
            (None, Some(guidance)) => {
                return Err(check::config("guidance", "none: this model has no such input", guidance));
            }
        };
        let rotary = RotaryTables::with_axes(grid, config.rope_axes_dim, config.rope_theta, &device);
        let text = self.context_embedder.prepare(text.cast(dtype));
        Ok(HunyuanPrepared { text, embedding, latents, rotary: rotary.with_suffix(tokens), grid })
    }

    /// Velocity of `latents` at `timestep` (1000 for pure noise).
    ///
    /// # Shapes
    ///
    /// - `latents`: `[batch, in_channels, frames, height, width]`
    /// - returns `[batch, out_channels, frames, height, width]` in the dtype of `latents`
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] naming the argument that does not fit, before `attention` is called; and whatever
    /// `attention` refuses.
    pub fn forward_prepared(
        &self,
        latents: Tensor<5>,
        timestep: impl Into<Timestep>,
        prepared: &HunyuanPrepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, Error> {
        let batch = prepared.embedding.dims()[0];
        check_latents(&latents, batch, self.config.in_channels, self.config.patch(), prepared.grid)?;
        let (dtype, device) = (latents.dtype(), latents.device());
        let timestep = timestep.into().broadcastable(batch, 1, &device)?;
        let time = timestep_embedding(&self.time_text_embed.timestep_embedder, timestep.clone());
        let embedding = time + prepared.embedding.clone();
        let text = self.context_embedder.forward(&prepared.text, timestep);
        let video = self.x_embedder.proj.forward(latents.cast(self.dtype()));
        let tokens = video.dims()[1];

        attention.begin_sequence(&prepared.layout())?;
        let mut streams = [video, text];
        for (layer, block) in self.transformer_blocks.iter().enumerate() {
            streams = block.forward(layer, streams, embedding.clone(), &prepared.rotary, attention)?;
        }
        let mut x = Tensor::cat(streams.into(), 1);
        for (layer, block) in (self.transformer_blocks.len()..).zip(&self.single_transformer_blocks) {
            x = block.forward(layer, x, embedding.clone(), &prepared.rotary, attention)?;
        }
        let [video, _] = apart(x, tokens);
        let [scale, shift] = self.norm_out.parts(embedding);
        let x = self.proj_out.forward(modulated_norm(video, scale, shift, EPS));
        Ok(unpatchify_channels_first(x, prepared.grid, self.config.patch()).cast(dtype))
    }
}

impl VelocityModel for HunyuanVideo {
    type Condition = HunyuanCondition;
    type Prepared = HunyuanPrepared;

    fn prepare(&self, condition: HunyuanCondition, latents: [usize; 5]) -> Result<HunyuanPrepared, Error> {
        let [_, _, frames, height, width] = latents;
        HunyuanVideo::prepare(self, condition, [frames, height, width])
    }

    fn velocity(
        &self,
        latents: Tensor<5>,
        timestep: f64,
        prepared: &HunyuanPrepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, Error> {
        self.forward_prepared(layers::with_rest(latents, &prepared.latents), timestep, prepared, attention)
    }
}

/// Refuses channels of a condition that do not go with the latents.
pub(super) fn check_rest(
    rest: Option<&Tensor<5>>,
    batch: usize,
    channels: usize,
    size: [usize; 3],
) -> Result<(), Error> {
    let expected = [batch, channels, size[0], size[1], size[2]];
    match rest {
        Some(rest) if rest.dims() != expected => {
            Err(check::tensor("condition latents", format!("{expected:?}"), format!("{:?}", rest.dims())))
        }
        _ => Ok(()),
    }
}

/// Refuses latents that do not go with the model or with what was prepared.
pub(super) fn check_latents(
    latents: &Tensor<5>,
    batch: usize,
    channels: usize,
    patch: [usize; 3],
    grid: [usize; 3],
) -> Result<(), Error> {
    let [_, _, frames, height, width] = latents.dims();
    if latents.dims()[..2] != [batch, channels] {
        let expected = format!("[{batch}, {channels}, frames, height, width]");
        return Err(check::tensor("latents", expected, format!("{:?}", latents.dims())));
    }
    let got = layers::grid([frames, height, width], patch)?;
    if got != grid {
        return Err(check::tensor(
            "latents",
            format!("a grid of {grid:?} tokens, as was prepared"),
            format!("{got:?}"),
        ));
    }
    Ok(())
}
