//! What stands where in the packed sequence, and when and where in the video that is.

use mcsparse::{Error, TokenLayout};

use crate::{check, layers};

/// Rotary time of one frame of the finished video; sound has one unit a latent.
const FRAME: f64 = 5.0 / 3.0;
/// Frames that the latent frames stand for, in turn.
const FRAMES_PER_LATENT: [f64; 5] = [1.0, 4.0, 4.0, 4.0, 4.0];
/// Rotary length of the side of a square canvas.
const SIDE: f64 = 32.0;
/// Channels that a soundtrack has, one after the other in the sequence.
const AUDIO_CHANNELS: usize = 2;

/// Which end of the video a given frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keyframe {
    /// Its first frame.
    First,
    /// Its last frame.
    Last,
}

/// Time, row and column of a token as the rotary embedding counts them.
pub type Position = [f64; 3];

/// What the packed sequence is made of, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedLayout {
    /// Whether each text token stands for a part of a keyframe (the text encoder sees those too) rather than for text.
    pub text_is_vision: Vec<bool>,
    /// Frames that are given, each as many tokens as one latent frame.
    pub keyframes: Vec<Keyframe>,
    /// Audio latents of each of the two channels.
    pub audio: usize,
    /// Latent frames, rows and columns of the video.
    pub video: [usize; 3],
    /// Latent frames, rows and columns of one token.
    pub patch: [usize; 3],
}

/// The noise level of each kind of token, from 0 for pure noise to 1 for none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Of the text, which is never read out; the model's own pipeline gives it that of the video.
    pub text: f64,
    /// Of the keyframes.
    pub keyframes: f64,
    /// Of the sound.
    pub audio: f64,
    /// Of the video.
    pub video: f64,
}

/// Modality of a token by its row in a table of modulations.
pub(super) const MODALITIES: usize = 3;
const VIDEO: usize = 0;
const TEXT: usize = 1;
const AUDIO: usize = 2;

/// Times by their row in a table of modulations.
pub(super) const TEXT_TIME: usize = 0;
pub(super) const KEYFRAME_TIME: usize = 1;
pub(super) const AUDIO_TIME: usize = 2;
pub(super) const VIDEO_TIME: usize = 3;

impl PackedLayout {
    /// Text of `text` tokens and a video of `video` latent frames, rows and columns, with `audio` latents of sound for
    /// each channel, in the patches of the model: a video from text alone.
    pub fn text_to_video(text: usize, video: [usize; 3], audio: usize) -> Self {
        Self { text_is_vision: vec![false; text], keyframes: Vec::new(), audio, video, patch: [1, 2, 2] }
    }

    /// Checks that the video can be cut into patches and that there are text and sound.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] on argument `latents` or `text`, [`Error::InvalidConfig`] on `patch` or `audio`.
    pub fn validate(&self) -> Result<(), Error> {
        if self.patch[0] != 1 {
            return Err(check::config("patch", "one latent frame a token", self.patch[0]));
        }
        layers::grid(self.video, self.patch)?;
        if self.text_is_vision.is_empty() {
            return Err(check::tensor("text", "at least one token", 0));
        }
        if self.audio == 0 {
            return Err(check::config("audio", "at least one latent: the model makes no video without sound", 0));
        }
        Ok(())
    }

    fn grid(&self) -> [usize; 3] {
        std::array::from_fn(|axis| self.video[axis] / self.patch[axis])
    }

    /// Text tokens.
    pub fn text_tokens(&self) -> usize {
        self.text_is_vision.len()
    }

    /// Tokens of one latent frame.
    pub fn frame_tokens(&self) -> usize {
        let [_, rows, columns] = self.grid();
        rows * columns
    }

    /// Tokens of all keyframes.
    pub fn keyframe_tokens(&self) -> usize {
        self.keyframes.len() * self.frame_tokens()
    }

    /// Tokens of the sound.
    pub fn audio_tokens(&self) -> usize {
        AUDIO_CHANNELS * self.audio
    }

    /// Tokens of the video.
    pub fn video_tokens(&self) -> usize {
        self.grid().iter().product()
    }

    /// The video as a grid, with everything else before it.
    pub fn tokens(&self) -> TokenLayout {
        let prefix = self.text_tokens() + self.keyframe_tokens() + self.audio_tokens();
        TokenLayout { prefix, grid: self.grid(), suffix: 0 }
    }

    /// Where every token of the sequence lies.
    ///
    /// The clock counts text tokens first and goes on with the media: 5/3 for every frame of the finished video, so that
    /// sound, at 40 latents a second to 24 frames, has one unit a latent. Rows and columns are centred, and scaled so
    /// that a square canvas is 32 wide. Sound lies at the left and the right edge.
    pub fn positions(&self) -> Vec<Position> {
        let [frames, rows, columns] = self.grid();
        let start = self.text_tokens() as f64;
        let area = ((self.video[1] * self.video[2]) as f64).sqrt();
        let axis = |size: usize, count: usize| -> Vec<f64> {
            let ratio = size as f64 / area;
            (0..count).map(|i| ((1.0 - ratio) / 2.0 + i as f64 * (ratio / count as f64)) * SIDE).collect()
        };
        let (heights, widths) = (axis(self.video[1], rows), axis(self.video[2], columns));
        let spans = (0..frames).map(|frame| FRAME * FRAMES_PER_LATENT[frame % FRAMES_PER_LATENT.len()]);
        let ends: Vec<f64> = spans.scan(0.0, |at, span| (*at += span, Some(*at)).1).collect();
        let frame = |time: f64| {
            let (heights, widths) = (&heights, &widths);
            heights.iter().flat_map(move |&height| widths.iter().map(move |&width| [time, height, width]))
        };

        let mut positions: Vec<Position> = (0..self.text_tokens()).map(|token| [token as f64, 0.0, 0.0]).collect();
        for keyframe in &self.keyframes {
            positions.extend(frame(match keyframe {
                Keyframe::First => start,
                Keyframe::Last => start + ends[frames - 1] - FRAME,
            }));
        }
        for width in [widths[0], widths[columns - 1]] {
            positions.extend((0..self.audio).map(|latent| [start + latent as f64, 0.0, width]));
        }
        for number in 0..frames {
            positions.extend(frame(start + if number == 0 { 0.0 } else { ends[number - 1] }));
        }
        positions
    }

    /// The row of every token in a table of [`Times::rows`] times modalities.
    pub(super) fn modulation_rows(&self) -> Vec<i32> {
        let row = |time: usize, modality: usize| (time * MODALITIES + modality) as i32;
        let text = self.text_is_vision.iter().map(|&vision| row(TEXT_TIME, if vision { VIDEO } else { TEXT }));
        let rest = [
            (self.keyframe_tokens(), row(KEYFRAME_TIME, VIDEO)),
            (self.audio_tokens(), row(AUDIO_TIME, AUDIO)),
            (self.video_tokens(), row(VIDEO_TIME, VIDEO)),
        ];
        text.chain(rest.into_iter().flat_map(|(tokens, row)| std::iter::repeat_n(row, tokens))).collect()
    }
}

impl Times {
    /// Rows of a table of times.
    pub(super) fn rows(&self) -> [f64; 4] {
        let mut rows = [0.0; 4];
        for (row, time) in [
            (TEXT_TIME, self.text),
            (KEYFRAME_TIME, self.keyframes),
            (AUDIO_TIME, self.audio),
            (VIDEO_TIME, self.video),
        ] {
            rows[row] = time;
        }
        rows
    }
}
