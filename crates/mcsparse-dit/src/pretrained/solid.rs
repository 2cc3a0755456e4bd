//! What the shape model is told: two depth views of a solid.

use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use mcsparse::Error;
use safetensors::Dtype;

use super::file::TensorFile;
use super::images::{PLACE, position_code};
use crate::{LoadError, check};

/// What the name of a condition ends with, and that of the solid that it was made from.
const VIEWS: &str = "views";
const TRUTH: &str = "truth";
const BITS: usize = 8;

/// `conditions.safetensors` of the shape model: depth views of named solids that it was not trained on, and the solids.
#[derive(Debug, Clone)]
pub struct SolidFile(TensorFile);

/// The solid that a condition was made from, cell by cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupancy {
    /// Cells along each axis.
    pub side: usize,
    /// Whether a cell is inside, `[side, side, side]`: layers away from the front, rows from the top, columns from the
    /// left.
    pub cells: Vec<bool>,
}

/// How far one sees into the volume along parallel rays, from the front and from the left.
///
/// Pixels are bytes: 255 at the near face of the volume, 64 (63.75) at its far face, 0 where a ray hits nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DepthViews {
    side: usize,
    front: Vec<u8>,
    left: Vec<u8>,
}

impl SolidFile {
    /// Reads the file in the folder of the model, for example `folder().join("shape")`.
    ///
    /// # Errors
    ///
    /// [`LoadError::Io`] if it cannot be read, [`LoadError::Format`] if it is no safetensors file.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, LoadError> {
        TensorFile::open(folder.as_ref()).map(Self)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The solids, in order.
    pub fn names(&self) -> Vec<String> {
        self.0.names(VIEWS)
    }

    /// The views of the solid `name`.
    ///
    /// # Errors
    ///
    /// [`LoadError::UnknownCondition`] with the names that there are; [`LoadError::Format`] if the file has something
    /// else than two square views there.
    pub fn views(&self, name: &str) -> Result<DepthViews, LoadError> {
        let tensor = format!("{name}.{VIEWS}");
        let (shape, bytes) = self.bytes(name, &tensor)?;
        match shape {
            [2, rows, columns] if rows == columns && rows > 0 => {
                let (front, left) = bytes.split_at(rows * rows);
                Ok(DepthViews { side: rows, front: front.to_vec(), left: left.to_vec() })
            }
            _ => Err(self.format(&tensor, "[2, side, side]", shape)),
        }
    }

    /// The solid `name` itself.
    ///
    /// # Errors
    ///
    /// As [`SolidFile::views`], for a cube of bits.
    pub fn truth(&self, name: &str) -> Result<Occupancy, LoadError> {
        let tensor = format!("{name}.{TRUTH}");
        let (shape, bytes) = self.bytes(name, &tensor)?;
        match shape {
            [layers, rows, packed] if layers == rows && rows > 0 && rows == packed * BITS => {
                let cells = bytes.iter().flat_map(|byte| (0..BITS).map(move |bit| byte >> bit & 1 == 1)).collect();
                Ok(Occupancy { side: rows, cells })
            }
            _ => Err(self.format(&tensor, "[side, side, side / 8]", shape)),
        }
    }

    fn bytes(&self, name: &str, tensor: &str) -> Result<([usize; 3], Vec<u8>), LoadError> {
        let tensors = self.0.tensors();
        let view = tensors.tensor(tensor).map_err(|_| self.0.unknown(name, "shape", self.names()))?;
        Ok((self.0.shape(tensor, &view, Dtype::U8)?, view.data().to_vec()))
    }

    fn format(&self, tensor: &str, expected: &str, got: [usize; 3]) -> LoadError {
        LoadError::format(self.path(), format!("{tensor}: expected {expected}, got {got:?}"))
    }
}

impl DepthViews {
    /// Two views of `side` x `side` pixels, row by row from the top. The rows of both go down along the volume; columns
    /// of `front` go to the right, columns of `left` away from the front.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] for a view of another size.
    pub fn new(side: usize, front: Vec<u8>, left: Vec<u8>) -> Result<Self, Error> {
        for (argument, view) in [("front", &front), ("left", &left)] {
            if view.len() != side * side || side == 0 {
                return Err(check::tensor(argument, format!("{side} x {side} pixels, at least one"), view.len()));
            }
        }
        Ok(Self { side, front, left })
    }

    /// Pixels along each side of a view.
    pub fn side(&self) -> usize {
        self.side
    }

    /// The view from the front, row by row.
    pub fn front(&self) -> &[u8] {
        &self.front
    }

    /// The view from the left, row by row.
    pub fn left(&self) -> &[u8] {
        &self.left
    }

    /// Condition tokens, `[1, 2 * grid * grid, (side / grid)^2 + 14]`; `grid` is
    /// [`Sampling::condition_grid`](super::Sampling::condition_grid) of the model.
    ///
    /// The formula is in `training/README.md` of this crate: a token has the pixels of a square patch, from -1 to 1, and
    /// 14 numbers that say which view it is from and where it lies there.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if `grid` does not divide the views evenly.
    pub fn tokens(&self, grid: usize, device: &Device) -> Result<Tensor<3>, Error> {
        if grid == 0 || !self.side.is_multiple_of(grid) {
            return Err(check::config("grid", format!("a divisor of {}, the side of the views", self.side), grid));
        }
        let patch = self.side / grid;
        let size = patch * patch + PLACE;
        let mut values = Vec::with_capacity(2 * grid * grid * size);
        for (which, view) in [(-1.0, &self.front), (1.0, &self.left)] {
            for (row, column) in (0..grid).flat_map(|row| (0..grid).map(move |column| (row, column))) {
                for y in 0..patch {
                    let pixels = &view[(row * patch + y) * self.side + column * patch..][..patch];
                    values.extend(pixels.iter().map(|&pixel| f32::from(pixel) / 127.5 - 1.0));
                }
                values.extend(position_code(which, [row, column], grid));
            }
        }
        Ok(Tensor::from_data(TensorData::new(values, [1, 2 * grid * grid, size]), device))
    }
}
