//! The whole transformer.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation::silu};
use mcsparse::{Error, SelfAttention};

use super::layout::{AUDIO_TIME, KEYFRAME_TIME, VIDEO_TIME};
use super::{H3Block, MiniMaxH3Config, PackedLayout, Times, TokenRefiner, rotary};
use crate::check;
use crate::layers::{Projection, RotaryTables, embedding_of, modulated_rms_norm};

/// The MiniMax-H3 transformer: predicts the velocities of noisy video and sound.
#[derive(Module, Debug)]
pub struct MiniMaxH3 {
    /// Video latents to tokens; stays in f32.
    pub proj_in: Linear,
    /// Audio latents to tokens; stays in f32.
    pub audio_proj_in: Linear,
    /// Text to tokens.
    pub context_embedder: Linear,
    /// Time to what the modulations are made of; stays in f32.
    pub time_embedder: Projection,
    /// The refiner of the text.
    pub token_refiner: TokenRefiner,
    /// The blocks.
    pub transformer_blocks: Vec<H3Block>,
    /// The last norm.
    pub norm_out: OutputNorm,
    /// Tokens to velocities of video latents; stays in f32.
    pub proj_out: Linear,
    /// Tokens to velocities of audio latents; stays in f32.
    pub audio_proj_out: Linear,
    #[module(skip)]
    config: MiniMaxH3Config,
}

/// The last norm, shifted and scaled by time.
#[derive(Module, Debug)]
pub struct OutputNorm {
    /// The norm.
    pub norm: RmsNorm,
    /// From the time embedding to shift, then scale.
    pub linear: Linear,
}

/// Velocities, which point from noise to data, or the latents that they belong to; one row a token.
#[derive(Debug, Clone)]
pub struct H3Velocity {
    /// `[batch, keyframe tokens + video tokens, video_dim]`.
    pub video: Tensor<3>,
    /// `[batch, audio tokens, audio_in_channels]`.
    pub audio: Tensor<3>,
}

/// What every step with the same text and layout has in common.
#[derive(Debug, Clone)]
pub struct H3Prepared {
    layout: PackedLayout,
    /// Refined text, `[batch, text tokens, hidden_size]`.
    text: Tensor<3>,
    rotary: RotaryTables,
    /// The row of every token of the batch in a table of modulations, 32 bits.
    rows: Tensor<1, Int>,
}

impl H3Prepared {
    /// What the sequence is made of.
    pub fn layout(&self) -> &PackedLayout {
        &self.layout
    }
}

impl MiniMaxH3 {
    pub(super) fn new(config: &MiniMaxH3Config, device: &Device) -> Self {
        config.validate().expect("a valid MiniMaxH3Config");
        let hidden = config.hidden_size;
        let linear = |input, output| LinearConfig::new(input, output).init(device);
        Self {
            proj_in: linear(config.video_dim(), hidden),
            audio_proj_in: linear(config.audio_in_channels, hidden),
            context_embedder: linear(config.text_dim, hidden),
            time_embedder: Projection::with_hidden(
                config.freq_dim,
                config.time_embed_hidden_dim,
                config.time_embed_dim,
                device,
            ),
            token_refiner: TokenRefiner::new(config, device),
            transformer_blocks: (0..config.num_layers).map(|_| H3Block::new(config, device)).collect(),
            norm_out: OutputNorm {
                norm: RmsNormConfig::new(hidden).with_epsilon(config.final_norm_eps).init(device),
                linear: linear(config.time_embed_dim, 2 * hidden),
            },
            proj_out: linear(hidden, config.video_dim()),
            audio_proj_out: linear(hidden, config.audio_in_channels),
            config: config.clone(),
        }
    }

    /// What the transformer is made of.
    pub fn config(&self) -> &MiniMaxH3Config {
        &self.config
    }

    /// The dtype in which the blocks run.
    pub fn dtype(&self) -> DType {
        self.context_embedder.weight.val().dtype()
    }

    /// What every step with this `text` `[batch, text tokens, text_dim]` and `layout` has in common.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] naming the argument that does not fit.
    pub fn prepare(&self, text: Tensor<3>, layout: PackedLayout) -> Result<H3Prepared, Error> {
        layout.validate()?;
        if layout.patch != self.config.patch_size {
            let expected = format!("that of the model, {:?}", self.config.patch_size);
            return Err(check::config("patch", expected, format!("{:?}", layout.patch)));
        }
        let (device, got) = (text.device(), text.dims());
        if got[0] == 0 || got[1..] != [layout.text_tokens(), self.config.text_dim] {
            let expected = format!("[batch, {}, {}]", layout.text_tokens(), self.config.text_dim);
            return Err(check::tensor("text", expected, format!("{got:?}")));
        }
        let rows = layout.modulation_rows().repeat(got[0]);
        Ok(H3Prepared {
            text: self.token_refiner.forward(self.context_embedder.forward(text.cast(self.dtype()))),
            rotary: rotary::tables(&layout.positions(), &self.config, &device),
            rows: Tensor::from_data(TensorData::new(rows.clone(), [rows.len()]), (&device, DType::I32)),
            layout,
        })
    }

    /// Velocities of `latents` at `times`.
    ///
    /// # Shapes
    ///
    /// Those of [`H3Velocity`], keyframes before the video; velocities come back in f32, those of keyframes included.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] naming the argument that does not fit, before `attention` is called; and whatever
    /// `attention` refuses.
    pub fn forward_prepared(
        &self,
        latents: &H3Velocity,
        times: Times,
        prepared: &H3Prepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<H3Velocity, Error> {
        let (layout, config) = (&prepared.layout, &self.config);
        let batch = prepared.text.dims()[0];
        let video_rows = layout.keyframe_tokens() + layout.video_tokens();
        for (argument, tensor, expected) in [
            ("video", &latents.video, [batch, video_rows, config.video_dim()]),
            ("audio", &latents.audio, [batch, layout.audio_tokens(), config.audio_in_channels]),
        ] {
            if tensor.dims() != expected {
                return Err(check::tensor(argument, format!("{expected:?}"), format!("{:?}", tensor.dims())));
            }
        }
        if let Some(time) = times.rows().into_iter().find(|time| !(0.0..=1.0).contains(time)) {
            return Err(check::config("times", "from 0 for pure noise to 1 for none", time));
        }
        let dtype = self.dtype();
        let embed = |linear: &Linear, rows: &Tensor<3>| {
            linear.forward(rows.clone().cast(linear.weight.val().dtype())).cast(dtype)
        };
        let (video, audio) = (embed(&self.proj_in, &latents.video), embed(&self.audio_proj_in, &latents.audio));
        let keyframes = layout.keyframe_tokens();
        let mut parts = vec![prepared.text.clone()];
        if keyframes > 0 {
            parts.push(video.clone().slice_dim(1, 0..keyframes));
        }
        parts.push(audio);
        parts.push(video.slice_dim(1, keyframes..video_rows));
        let mut x = Tensor::cat(parts, 1);

        let time = embedding_of(&self.time_embedder, &times.rows(), &x.device()).squeeze_dim::<2>(0);

        attention.begin_sequence(&layout.tokens())?;
        for (layer, block) in self.transformer_blocks.iter().enumerate() {
            x = block.forward(layer, x, time.clone(), prepared.rows.clone(), &prepared.rotary, attention)?;
        }
        let [keyframes_at, audio_at] = [layout.text_tokens(), layout.text_tokens() + keyframes];
        let video_at = audio_at + layout.audio_tokens();
        let output = |tokens: std::ops::Range<usize>, row: usize, linear: &Linear| {
            let normed = self.norm_out.forward(x.clone().slice_dim(1, tokens), time.clone(), row);
            linear.forward(normed.cast(linear.weight.val().dtype())).cast(DType::F32)
        };
        let end = video_at + layout.video_tokens();
        let mut video = vec![output(video_at..end, VIDEO_TIME, &self.proj_out)];
        if keyframes > 0 {
            video.insert(0, output(keyframes_at..audio_at, KEYFRAME_TIME, &self.proj_out));
        }
        let audio = output(audio_at..video_at, AUDIO_TIME, &self.audio_proj_out);
        Ok(H3Velocity { video: Tensor::cat(video, 1), audio })
    }
}

impl OutputNorm {
    /// `x` `[batch, tokens, hidden_size]` at the time of `row` of `time` `[times, time_embed_dim]`.
    fn forward(&self, x: Tensor<3>, time: Tensor<2>, row: usize) -> Tensor<3> {
        let hidden = x.dims()[2];
        let time = silu(time.slice_dim(0, row..row + 1)).cast(self.linear.weight.val().dtype());
        let both = self.linear.forward(time);
        let shift = both.clone().slice_dim(1, 0..hidden);
        modulated_rms_norm(&self.norm, x, both.slice_dim(1, hidden..2 * hidden), shift, None)
    }
}
