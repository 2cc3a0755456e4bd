//! Condition tokens from images.

use std::f64::consts::PI;

use burn::tensor::{Device, Tensor, TensorData};
use mcsparse::Error;

use crate::check;

/// Pixels of a thumbnail along each side of a token.
const PATCH: usize = 4;
const COLOURS: usize = 3;
/// Numbers of a token: its pixels, and what it is told about them.
const TOKEN_SIZE: usize = PATCH * PATCH * COLOURS + CODE;
/// Of those, two say where the clip is from and the rest where the token lies.
const CODE: usize = PLACE + 2;
pub(super) const PLACE: usize = 14;

/// What a condition says about the clip that it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Filmed or rendered, with every `stride`-th frame taken: 1 to 3 in training.
    Filmed {
        /// Source frames for each frame of the clip.
        stride: usize,
    },
    /// Composed from stills: a camera that moves over a photograph, sprites that move over it.
    Composed,
}

impl Default for Origin {
    /// Filmed, with every frame taken: the choice for two images of one's own.
    fn default() -> Self {
        Self::Filmed { stride: 1 }
    }
}

/// Condition tokens of a clip that begins with one image and ends with another, `[1, 2 * grid * grid, 64]`.
///
/// Both images are squares of `side` pixels, a multiple of `4 * grid`, in RGB bytes `[side, side, 3]`. `grid` is
/// [`Sampling::condition_grid`](super::Sampling::condition_grid) of the model. The formula is in `training/README.md` of
/// this crate: each image is shrunk to `4 * grid` pixels by means over blocks; a token has the values of 4 x 4 of them,
/// from -1 to 1, and numbers that say which image it is from and where it lies there.
///
/// # Errors
///
/// [`Error::InvalidConfig`] for a `grid` or a stride of 0 or a `side` that is no such multiple, [`Error::InvalidTensor`]
/// for an image with another number of bytes.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use burn::tensor::Device;
/// use mcsparse_dit::pretrained::{Origin, condition_tokens};
///
/// let (dark, light) = ([0; 16 * 16 * 3], [255; 16 * 16 * 3]);
/// let tokens = condition_tokens(&dark, &light, 16, 4, Origin::default(), &Device::flex()).unwrap();
/// assert_eq!(tokens.dims(), [1, 32, 64]);
/// # }
/// ```
pub fn condition_tokens(
    first: &[u8],
    last: &[u8],
    side: usize,
    grid: usize,
    origin: Origin,
    device: &Device,
) -> Result<Tensor<3>, Error> {
    if grid == 0 {
        return Err(check::config("grid", "at least 1", grid));
    }
    if side == 0 || !side.is_multiple_of(PATCH * grid) {
        return Err(check::config("side", format!("a multiple of {}", PATCH * grid), side));
    }
    let (stride, real) = match origin {
        Origin::Filmed { stride: 0 } => return Err(check::config("stride", "at least 1", 0)),
        Origin::Filmed { stride } => (stride as f32 / 4.0, 1.0),
        Origin::Composed => (0.0, 0.0),
    };
    for (argument, image) in [("first", first), ("last", last)] {
        if image.len() != side * side * COLOURS {
            let expected = format!("{} bytes, RGB of {side} x {side} pixels", side * side * COLOURS);
            return Err(check::tensor(argument, expected, image.len()));
        }
    }
    let mut values = Vec::with_capacity(2 * grid * grid * TOKEN_SIZE);
    for (which, image) in [(-1.0, first), (1.0, last)] {
        let thumbnail = thumbnail(image, side, PATCH * grid);
        for (row, column) in (0..grid).flat_map(|row| (0..grid).map(move |column| (row, column))) {
            for y in 0..PATCH {
                let start = ((row * PATCH + y) * grid + column) * PATCH * COLOURS;
                values.extend(&thumbnail[start..start + PATCH * COLOURS]);
            }
            values.extend(position_code(which, [row, column], grid));
            values.extend([stride, real]);
        }
    }
    Ok(Tensor::from_data(TensorData::new(values, [1, 2 * grid * grid, TOKEN_SIZE]), device))
}

/// What a token is told about its place: `which` is -1 in the first image and 1 in the second.
pub(super) fn position_code(which: f64, at: [usize; 2], grid: usize) -> [f32; PLACE] {
    let [y, x] = at.map(|at| 2.0 * (at as f64 + 0.5) / grid as f64 - 1.0);
    let [once_y, once_x, twice_y, twice_x] = [PI * y, PI * x, 2.0 * PI * y, 2.0 * PI * x].map(f64::sin_cos);
    let waves = [once_y.0, once_y.1, once_x.0, once_x.1, twice_y.0, twice_y.1, twice_x.0, twice_x.1];
    let polynomials = [which, 1.0, y, x, y * y, x * x];
    let mut code = [0.0; PLACE];
    for (number, value) in code.iter_mut().zip(polynomials.into_iter().chain(waves)) {
        *number = value as f32;
    }
    code
}

/// Means over blocks, as values from -1 to 1, `[to, to, 3]`.
fn thumbnail(image: &[u8], side: usize, to: usize) -> Vec<f32> {
    let block = side / to;
    let mut sums = vec![0u64; to * to * COLOURS];
    for (at, &byte) in image.iter().enumerate() {
        let (pixel, colour) = (at / COLOURS, at % COLOURS);
        let (row, column) = (pixel / side / block, pixel % side / block);
        sums[(row * to + column) * COLOURS + colour] += u64::from(byte);
    }
    let scale = 127.5 * (block * block) as f64;
    sums.into_iter().map(|sum| (sum as f64 / scale - 1.0) as f32).collect()
}
