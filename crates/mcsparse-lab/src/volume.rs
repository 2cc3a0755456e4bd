//! Volumes on the host.

use burn::tensor::Tensor;
use mcsparse_dit::pretrained::Occupancy;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::mesh::Mesh;
use crate::metrics::geometry::{distances, iou};

/// A cube of values that are positive inside a shape and negative outside, with the surface where they are 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    side: usize,
    /// `[side, side, side]`: layers away from the front, rows from the top, columns from the left.
    values: Vec<f32>,
}

/// How near one shape is to another. Lengths are in halves of the cube's side: the cube reaches from -1 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Likeness {
    /// Chamfer distance of the surfaces: mean distance to the nearest point of the other, both ways, summed.
    ///
    /// Points are those where a surface crosses the lines between the centres of neighbouring voxels: the vertices of
    /// marching cubes. They depend on no chance, so equal shapes have distance 0. Infinite (null in JSON) if one of the
    /// shapes has no surface.
    #[serde(with = "crate::metrics::decibel")]
    pub chamfer: f64,
    /// Voxels inside both over voxels inside at least one.
    pub iou: f64,
    /// Harmonic mean of the shares of points that lie within [`THRESHOLD`] of the other surface.
    pub f_score: f64,
}

/// The distance within which points count as equal for the F-score: 1 % of the side of the cube.
pub const THRESHOLD: f64 = 0.02;

impl Volume {
    /// A volume of values in the order `[layer, row, column]`.
    ///
    /// # Panics
    ///
    /// If their number is not `side` cubed.
    pub fn new(side: usize, values: Vec<f32>) -> Self {
        assert_eq!(values.len(), side.pow(3), "values of a cube with {side} voxels a side");
        Self { side, values }
    }

    /// What the model made, `[batch, 1, side, side, side]`, read from the device at once.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if a value is not finite, the device failed, or these are no cubes of one channel.
    pub fn from_batch(latents: Tensor<5>) -> Result<Vec<Self>, Error> {
        let [batch, channels, layers, rows, columns] = latents.dims();
        if batch == 0 || channels != 1 || layers != rows || rows != columns {
            let got = format!("expected [batch, 1, side, side, side], got {:?}", latents.dims());
            return Err(Error::run("the volume", got));
        }
        let data = latents.try_into_data().map_err(|error| Error::run("reading the volume", format!("{error:?}")))?;
        let values: Vec<f32> = data.convert::<f32>().try_to_vec().expect("just converted");
        let broken = values.iter().filter(|value| !value.is_finite()).count();
        if broken > 0 {
            return Err(Error::run("the volume", format!("{broken} of its values are NaN or infinite")));
        }
        Ok(values.chunks_exact(layers.pow(3)).map(|values| Self::new(layers, values.to_vec())).collect())
    }

    /// Voxels along each axis.
    pub fn side(&self) -> usize {
        self.side
    }

    /// All values, `[layer, row, column]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The value of a voxel.
    ///
    /// # Panics
    ///
    /// If there is no such voxel.
    pub fn at(&self, layer: usize, row: usize, column: usize) -> f32 {
        self.values[(layer * self.side + row) * self.side + column]
    }

    /// Whether each voxel is inside.
    pub fn inside(&self) -> Vec<bool> {
        self.values.iter().map(|&value| value > 0.0).collect()
    }

    /// How near this shape is to `other`; both have a mesh already.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if the volumes differ in size.
    pub fn likeness(&self, mesh: &Mesh, other: &Self, other_mesh: &Mesh) -> Result<Likeness, Error> {
        let iou = iou(&self.inside(), &other.inside())?;
        if mesh.vertices.is_empty() || other_mesh.vertices.is_empty() {
            let both = mesh.vertices.is_empty() && other_mesh.vertices.is_empty();
            let (chamfer, f_score) = if both { (0.0, 1.0) } else { (f64::INFINITY, 0.0) };
            return Ok(Likeness { chamfer, iou, f_score });
        }
        let distances = distances(&mesh.vertices, &other_mesh.vertices, THRESHOLD)?;
        Ok(Likeness { chamfer: distances.chamfer, iou, f_score: distances.f_score })
    }
}

/// 1 inside, -1 outside: its surface lies half-way between voxels, up to half a voxel off the true one.
impl From<&Occupancy> for Volume {
    fn from(occupancy: &Occupancy) -> Self {
        let values = occupancy.cells.iter().map(|&inside| if inside { 1.0 } else { -1.0 });
        Self::new(occupancy.side, values.collect())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A ball around the centre, as signed distance in halves of the cube's side.
    pub(crate) fn ball(side: usize, radius: f32, centre: [f32; 3]) -> Volume {
        let axis = |i: usize| (i as f32 + 0.5) / side as f32 * 2.0 - 1.0;
        let all = (0..side.pow(3)).map(|i| [i / side / side, i / side % side, i % side].map(axis));
        let distance = |p: [f32; 3]| (0..3).map(|a| (p[a] - centre[a]).powi(2)).sum::<f32>().sqrt();
        Volume::new(side, all.map(|p| radius - distance(p)).collect())
    }

    #[test]
    fn likeness_of_balls() {
        let volumes = [ball(32, 0.6, [0.0; 3]), ball(32, 0.5, [0.0; 3])];
        let meshes = [Mesh::of(&volumes[0]), Mesh::of(&volumes[1])];
        let same = volumes[0].likeness(&meshes[0], &volumes[0], &meshes[0]).unwrap();
        assert_eq!((same.chamfer, same.iou, same.f_score), (0.0, 1.0, 1.0));
        let other = volumes[0].likeness(&meshes[0], &volumes[1], &meshes[1]).unwrap();
        // 0.1 apart everywhere, both ways; points are as dense as the grid, 0.06.
        assert!((other.chamfer - 0.2).abs() < 0.02, "{other:?}");
        assert!((other.iou - (5f64 / 6.0).powi(3)).abs() < 0.02, "{other:?}");
        assert_eq!(other.f_score, 0.0);
        let empty = ball(32, -1.0, [0.0; 3]);
        let nothing = empty.likeness(&Mesh::of(&empty), &volumes[1], &meshes[1]).unwrap();
        assert_eq!((nothing.chamfer, nothing.iou, nothing.f_score), (f64::INFINITY, 0.0, 0.0));
        let error = ball(16, 0.5, [0.0; 3]).likeness(&meshes[0], &volumes[1], &meshes[1]).unwrap_err();
        assert!(error.to_string().starts_with("occupancies"), "{error}");
    }

    #[cfg(feature = "flex")]
    #[test]
    fn volumes_of_a_batch() {
        let device = burn::tensor::Device::flex();
        let data = burn::tensor::TensorData::new((0..16).map(|i| i as f32).collect::<Vec<_>>(), [2, 1, 2, 2, 2]);
        let volumes = Volume::from_batch(Tensor::<5>::from_data(data, &device)).unwrap();
        assert_eq!((volumes.len(), volumes[1].at(1, 0, 1)), (2, 13.0));
        let broken = |shape: [usize; 5]| Volume::from_batch(Tensor::<5>::zeros(shape, &device).log()).unwrap_err();
        assert!(broken([1, 1, 2, 2, 2]).to_string().starts_with("the volume: 8 of its values"));
        assert!(broken([1, 3, 2, 2, 2]).to_string().ends_with("got [1, 3, 2, 2, 2]"));
        assert!(broken([1, 1, 2, 2, 4]).to_string().ends_with("got [1, 1, 2, 2, 4]"));
    }
}
