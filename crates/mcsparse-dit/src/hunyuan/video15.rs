//! HunyuanVideo-1.5.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};
use mcsparse::{Error, SelfAttention, TokenLayout};

use super::refiner::PreparedText;
use super::video::{PatchEmbedder, check_latents, check_rest};
use super::{
    AdaptiveNorm, ByT5Embedder, ConditionTypes, DualBlock, EPS, FREQUENCIES, HunyuanVideo15Config, ImageEmbedder,
    TimeEmbedder, TokenRefiner,
};
use crate::layers::{
    self, PatchEmbedding, Projection, RotaryTables, Timestep, modulated_norm, timestep_embedding,
    unpatchify_channels_first,
};
use crate::{VelocityModel, check};

/// Rows of [`ConditionTypes`].
const TEXT: usize = 0;
const CHARACTERS: usize = 1;
const IMAGE: usize = 2;

/// What a video is to show. All tokens come without padding; see [`trim`](super::trim).
#[derive(Debug, Clone)]
pub struct Hunyuan15Condition {
    /// Text tokens, `[batch, text tokens, text_embed_dim]`.
    pub text: Tensor<3>,
    /// Tokens of the encoder of characters, for text that is to be seen, `[batch, tokens, text_embed_2_dim]`.
    pub characters: Option<Tensor<3>>,
    /// Tokens of the image encoder, `[batch, tokens, image_embed_dim]`; none for text-to-video.
    pub image: Option<Tensor<3>>,
    /// Channels that follow those of the noisy latents, `[batch, in_channels - out_channels, frames, height, width]`:
    /// encoded frames that are given, and a mask of them. Zeros in text-to-video, which `None` stands for.
    pub latents: Option<Tensor<5>>,
}

/// What follows from a condition for every step.
#[derive(Debug, Clone)]
pub struct Hunyuan15Prepared {
    text: PreparedText,
    /// Image and characters, `[batch, tokens, inner_dim]` each, as far as there are any.
    others: Vec<Tensor<3>>,
    latents: Option<Tensor<5>>,
    batch: usize,
    rotary: RotaryTables,
    grid: [usize; 3],
}

impl Hunyuan15Prepared {
    /// The tokens of the joined sequence.
    pub fn layout(&self) -> TokenLayout {
        let others: usize = self.others.iter().map(|tokens| tokens.dims()[1]).sum();
        TokenLayout { suffix: others + self.text.tokens(), ..TokenLayout::grid(self.grid) }
    }
}

/// The HunyuanVideo-1.5 transformer: predicts the velocity of noisy latents.
#[derive(Module, Debug)]
pub struct HunyuanVideo15 {
    /// Latents to tokens.
    pub x_embedder: PatchEmbedder,
    /// Image to tokens.
    pub image_embedder: ImageEmbedder,
    /// Text to tokens.
    pub context_embedder: TokenRefiner,
    /// Characters to tokens.
    pub context_embedder_2: ByT5Embedder,
    /// Time to what modulates the blocks.
    pub time_embed: TimeEmbedder,
    /// What is added to condition tokens by their kind.
    pub cond_type_embed: ConditionTypes,
    /// Dual blocks.
    pub transformer_blocks: Vec<DualBlock>,
    /// Scale and shift of the last norm.
    pub norm_out: AdaptiveNorm,
    /// Tokens to patches of velocity.
    pub proj_out: Linear,
    #[module(skip)]
    config: HunyuanVideo15Config,
}

impl HunyuanVideo15 {
    pub(super) fn new(config: &HunyuanVideo15Config, device: &Device) -> Self {
        config.validate().expect("a valid HunyuanVideo15Config");
        let (heads, head_dim, inner) = (config.num_attention_heads, config.attention_head_dim, config.inner_dim());
        let values = config.patch().iter().product::<usize>() * config.out_channels;
        let block = || DualBlock::new(heads, head_dim, config.hidden(), device);
        Self {
            x_embedder: PatchEmbedder { proj: PatchEmbedding::new(config.in_channels, inner, config.patch(), device) },
            image_embedder: ImageEmbedder::new(config.image_embed_dim, inner, device),
            context_embedder: TokenRefiner::new(
                config.text_embed_dim,
                heads,
                head_dim,
                config.num_refiner_layers,
                device,
            ),
            context_embedder_2: ByT5Embedder::new(config.text_embed_2_dim, config.text_embed_2_hidden, inner, device),
            time_embed: TimeEmbedder { timestep_embedder: Projection::new(FREQUENCIES, inner, device) },
            cond_type_embed: ConditionTypes::new(inner, device),
            transformer_blocks: (0..config.num_layers).map(|_| block()).collect(),
            norm_out: AdaptiveNorm::new(inner, 2, device),
            proj_out: LinearConfig::new(inner, values).init(device),
            config: config.clone(),
        }
    }

    /// What the transformer is made of.
    pub fn config(&self) -> &HunyuanVideo15Config {
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
    /// [`Error::InvalidTensor`] naming the argument that does not fit.
    pub fn prepare(&self, condition: Hunyuan15Condition, size: [usize; 3]) -> Result<Hunyuan15Prepared, Error> {
        let (config, Hunyuan15Condition { text, characters, image, latents }) = (&self.config, condition);
        let grid = layers::grid(size, config.patch())?;
        let (batch, device, dtype) = (text.dims()[0], text.device(), self.dtype());
        for (argument, tokens, dim) in [
            ("text", Some(&text), config.text_embed_dim),
            ("characters", characters.as_ref(), config.text_embed_2_dim),
            ("image", image.as_ref(), config.image_embed_dim),
        ] {
            let Some(tokens) = tokens else { continue };
            let got = tokens.dims();
            if batch == 0 || got[0] != batch || got[1] == 0 || got[2] != dim {
                let expected = format!("[{}, tokens, {dim}]", batch.max(1));
                return Err(check::tensor(argument, expected, format!("{got:?}")));
            }
        }
        check_rest(latents.as_ref(), batch, config.in_channels - config.out_channels, size)?;
        let image = image.map(|image| self.cond_type_embed.add(self.image_embedder.forward(image.cast(dtype)), IMAGE));
        let characters = characters
            .map(|tokens| self.cond_type_embed.add(self.context_embedder_2.forward(tokens.cast(dtype)), CHARACTERS));
        let text = self.context_embedder.prepare(text.cast(dtype));
        let others = image.into_iter().chain(characters).collect();
        let rotary = RotaryTables::with_axes(grid, config.rope_axes_dim, config.rope_theta, &device);
        let prepared = Hunyuan15Prepared { text, others, latents, batch, rotary, grid };
        let rotary = prepared.rotary.clone().with_suffix(prepared.layout().suffix);
        Ok(Hunyuan15Prepared { rotary, ..prepared })
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
        prepared: &Hunyuan15Prepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, Error> {
        let batch = prepared.batch;
        check_latents(&latents, batch, self.config.in_channels, self.config.patch(), prepared.grid)?;
        let (dtype, device) = (latents.dtype(), latents.device());
        let timestep = timestep.into().broadcastable(batch, 1, &device)?;
        let embedding = timestep_embedding(&self.time_embed.timestep_embedder, timestep.clone());
        let text = self.context_embedder.forward(&prepared.text, timestep);
        let text = self.cond_type_embed.add(text, TEXT);
        let joined = prepared.others.iter().cloned().chain([text]).collect();
        let video = self.x_embedder.proj.forward(latents.cast(self.dtype()));

        attention.begin_sequence(&prepared.layout())?;
        let mut streams = [video, Tensor::cat(joined, 1)];
        for (layer, block) in self.transformer_blocks.iter().enumerate() {
            streams = block.forward(layer, streams, embedding.clone(), &prepared.rotary, attention)?;
        }
        let [video, _] = streams;
        let [scale, shift] = self.norm_out.parts(embedding);
        let x = self.proj_out.forward(modulated_norm(video, scale, shift, EPS));
        Ok(unpatchify_channels_first(x, prepared.grid, self.config.patch()).cast(dtype))
    }
}

impl VelocityModel for HunyuanVideo15 {
    type Condition = Hunyuan15Condition;
    type Prepared = Hunyuan15Prepared;

    fn prepare(&self, condition: Hunyuan15Condition, latents: [usize; 5]) -> Result<Hunyuan15Prepared, Error> {
        let [_, _, frames, height, width] = latents;
        HunyuanVideo15::prepare(self, condition, [frames, height, width])
    }

    /// Latents have the channels of the velocity; those of the condition, or zeros, are appended here.
    fn velocity(
        &self,
        latents: Tensor<5>,
        timestep: f64,
        prepared: &Hunyuan15Prepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, Error> {
        let [batch, channels, frames, height, width] = latents.dims();
        if channels != self.config.out_channels {
            let expected = format!("[batch, {}, frames, height, width]", self.config.out_channels);
            return Err(check::tensor("latents", expected, format!("{:?}", latents.dims())));
        }
        let rest = match &prepared.latents {
            Some(rest) => rest.clone().cast(latents.dtype()),
            None => {
                let shape = [batch, self.config.in_channels - channels, frames, height, width];
                Tensor::zeros(shape, (&latents.device(), latents.dtype()))
            }
        };
        self.forward_prepared(Tensor::cat(vec![latents, rest], 1), timestep, prepared, attention)
    }
}
