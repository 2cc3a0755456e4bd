//! Clips on the host.

use burn::tensor::Tensor;

use crate::error::Error;

/// Frames of RGB values from 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Clip {
    frames: usize,
    height: usize,
    width: usize,
    /// `[frames, 3, height, width]`.
    values: Vec<f32>,
}

impl Clip {
    /// A clip of values in the order `[frames, 3, height, width]`.
    ///
    /// # Panics
    ///
    /// If their number does not fit.
    pub fn new([frames, height, width]: [usize; 3], values: Vec<f32>) -> Self {
        assert_eq!(values.len(), frames * 3 * height * width, "values of {frames} frames of {height} x {width}");
        Self { frames, height, width, values }
    }

    /// What the model made: `[1, 3, frames, height, width]` with values from -1 to 1, cut off outside.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if a value is not finite, or the device failed.
    ///
    /// # Panics
    ///
    /// If there is more than one clip.
    pub fn from_latents(latents: Tensor<5>) -> Result<Self, Error> {
        let mut clips = Self::from_batch(latents)?;
        assert_eq!(clips.len(), 1, "clips");
        Ok(clips.remove(0))
    }

    /// The same for every clip of `[batch, 3, frames, height, width]`, read from the device at once.
    ///
    /// # Errors
    ///
    /// As [`Clip::from_latents`].
    pub fn from_batch(latents: Tensor<5>) -> Result<Vec<Self>, Error> {
        let [batch, _, frames, height, width] = latents.dims();
        let data = latents.permute([0, 2, 1, 3, 4]).try_into_data();
        let data = data.map_err(|error| Error::run("reading the clip", format!("{error:?}")))?;
        let mut values: Vec<f32> = data.convert::<f32>().try_to_vec().expect("just converted");
        let broken = values.iter().filter(|value| !value.is_finite()).count();
        if broken > 0 {
            return Err(Error::run("the clip", format!("{broken} of its values are NaN or infinite")));
        }
        values.iter_mut().for_each(|value| *value = ((*value + 1.0) / 2.0).clamp(0.0, 1.0));
        let clips = values.chunks_exact(values.len() / batch);
        Ok(clips.map(|values| Self::new([frames, height, width], values.to_vec())).collect())
    }

    /// Frames, height, width.
    pub fn size(&self) -> [usize; 3] {
        [self.frames, self.height, self.width]
    }

    /// One channel of one frame, row by row.
    pub fn plane(&self, frame: usize, channel: usize) -> &[f32] {
        let size = self.height * self.width;
        &self.values[(frame * 3 + channel) * size..][..size]
    }

    /// All values, `[frames, 3, height, width]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// What differs, times `gain`, cut off at 1.
    ///
    /// # Panics
    ///
    /// If the clips differ in size.
    pub fn difference(&self, other: &Self, gain: f32) -> Self {
        assert_eq!(self.size(), other.size());
        let pairs = self.values.iter().zip(&other.values);
        let values = pairs.map(|(a, b)| ((a - b).abs() * gain).min(1.0)).collect();
        Self::new(self.size(), values)
    }

    /// The first `frames` frames, or all if there are fewer.
    pub fn first(&self, frames: usize) -> Self {
        let frames = frames.min(self.frames);
        let values = self.values[..frames * 3 * self.height * self.width].to_vec();
        Self::new([frames, self.height, self.width], values)
    }

    /// Shrunk by means over blocks to a height of `height`, a divisor of the present one.
    pub fn shrunk(&self, height: usize) -> Self {
        let block = self.height / height;
        let width = self.width / block;
        let mut values = Vec::with_capacity(self.frames * 3 * height * width);
        for plane in self.values.chunks_exact(self.height * self.width) {
            for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                let rows = plane.chunks_exact(self.width).skip(y * block).take(block);
                let sum: f32 = rows.flat_map(|row| &row[x * block..(x + 1) * block]).sum();
                values.push(sum / (block * block) as f32);
            }
        }
        Self::new([self.frames, height, width], values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinks_by_means() {
        let values: Vec<f32> = (0..3 * 16).map(|i| i as f32).collect();
        let small = Clip::new([1, 4, 4], values).shrunk(2);
        assert_eq!(small.size(), [1, 2, 2]);
        assert_eq!(small.plane(0, 0), [2.5, 4.5, 10.5, 12.5]);
        assert_eq!(small.plane(0, 2)[0], 34.5);
    }

    #[cfg(feature = "flex")]
    #[test]
    fn a_batch_is_its_clips() {
        let device = burn::tensor::Device::flex();
        let values = (0..2 * 3 * 2 * 4).map(|i| i as f32 / 24.0 - 1.0).collect::<Vec<_>>();
        let latents = Tensor::<5>::from_data(burn::tensor::TensorData::new(values, [2, 3, 2, 2, 2]), &device);
        let clips = Clip::from_batch(latents.clone()).unwrap();
        assert_eq!(clips[1], Clip::from_latents(latents.clone().slice_dim(0, 1..2)).unwrap());
        // Frame 1, channel 2 of the second clip: elements 44 to 48.
        assert_eq!(clips[1].plane(1, 2)[0], (44.0 / 24.0 - 1.0 + 1.0) / 2.0);
        let broken = Clip::from_batch(latents.log()).unwrap_err().to_string();
        assert!(broken.starts_with("the clip: ") && broken.contains("NaN"), "{broken}");
    }

    #[test]
    fn the_first_frames() {
        let clip = Clip::new([3, 1, 1], (0..9).map(|i| i as f32).collect());
        assert_eq!(clip.first(2).values(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(clip.first(4), clip);
    }

    #[test]
    fn differences_are_amplified_and_cut() {
        let clip = |value| Clip::new([1, 1, 1], vec![value; 3]);
        assert_eq!(clip(0.5).difference(&clip(0.25), 2.0), clip(0.5));
        assert_eq!(clip(0.0).difference(&clip(0.25), 8.0), clip(1.0));
    }
}
