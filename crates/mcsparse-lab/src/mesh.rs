//! Surfaces of volumes.

use std::fmt::Write;

use transvoxel::prelude::{Block, FieldCaching, TransitionSide, extract_from_field};
use transvoxel::structs::grid_point::GridPoint;
use transvoxel::structs::vertex_index::VertexIndex;
use transvoxel::traits::mesh_builder::MeshBuilder;

use crate::metrics::geometry::Point;
use crate::volume::Volume;

/// Triangles.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mesh {
    /// Corners, in a cube from -1 to 1: `x` to the right, `y` up, `z` towards the viewer of the front.
    pub vertices: Vec<Point>,
    /// Three corners each, counter-clockwise seen from outside.
    pub triangles: Vec<[usize; 3]>,
}

impl Mesh {
    /// The surface of `volume` where its values are 0, by marching cubes. Everything around the volume counts as outside, so
    /// the surface is closed.
    ///
    /// The cells are those of Lengyel's Transvoxel algorithm, whose table leaves no holes between ambiguous cells.
    pub fn of(volume: &Volume) -> Self {
        let (side, cells) = (volume.side(), volume.side() + 1);
        let field = |x: f32, y: f32, z: f32| {
            let inner = |at: f32| (at.round() as isize - 1).try_into().ok().filter(|&at: &usize| at < side);
            match (inner(z), inner(y), inner(x)) {
                (Some(layer), Some(row), Some(column)) => volume.at(layer, row, column),
                _ => -1.0,
            }
        };
        let block = Block::new([0.0; 3], cells as f32, cells);
        let builder = Builder { scale: 2.0 / side as f32, mesh: Self::default() };
        extract_from_field(&field, FieldCaching::CacheCentralBlockOnly, block, TransitionSide::none(), 0.0, builder)
            .mesh
    }

    /// Wavefront OBJ.
    pub fn to_obj(&self) -> String {
        let mut text = String::with_capacity(self.vertices.len() * 64);
        let written =
            self.vertices.iter().try_for_each(|[x, y, z]| writeln!(text, "v {x:.6} {y:.6} {z:.6}")).and_then(|()| {
                self.triangles.iter().try_for_each(|t| writeln!(text, "f {} {} {}", t[0] + 1, t[1] + 1, t[2] + 1))
            });
        written.expect("strings take everything");
        text
    }

    /// Volume that the surface encloses.
    pub fn enclosed(&self) -> f64 {
        self.triangles
            .iter()
            .map(|triangle| {
                let [a, b, c] = triangle.map(|corner| self.vertices[corner].map(f64::from));
                let cross = [b[1] * c[2] - b[2] * c[1], b[2] * c[0] - b[0] * c[2], b[0] * c[1] - b[1] * c[0]];
                (0..3).map(|axis| a[axis] * cross[axis]).sum::<f64>() / 6.0
            })
            .sum()
    }
}

struct Builder {
    scale: f32,
    mesh: Mesh,
}

impl MeshBuilder<f32, f32> for Builder {
    fn add_vertex_between(&mut self, a: GridPoint<f32, f32>, b: GridPoint<f32, f32>, towards_b: f32) -> VertexIndex {
        let at = a.position.interpolate_toward(&b.position, towards_b);
        // The voxel of index 0 lies at 1, its centre half a voxel inside.
        let [x, y, z] = [at.x, at.y, at.z].map(|at| (at - 0.5) * self.scale - 1.0);
        self.mesh.vertices.push([x, -y, -z]);
        VertexIndex(self.mesh.vertices.len() - 1)
    }

    fn add_triangle(&mut self, a: VertexIndex, b: VertexIndex, c: VertexIndex) {
        self.mesh.triangles.push([a.0, b.0, c.0]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::volume::tests::ball;

    /// How often each edge is gone along, in either direction.
    fn is_closed(mesh: &Mesh) -> bool {
        let mut edges: HashMap<[usize; 2], i32> = HashMap::new();
        for t in &mesh.triangles {
            for (a, b) in [(t[0], t[1]), (t[1], t[2]), (t[2], t[0])] {
                *edges.entry([a.min(b), a.max(b)]).or_default() += if a < b { 1 } else { -1 };
            }
        }
        edges.values().all(|&sum| sum == 0)
    }

    #[test]
    fn a_ball_has_its_radius_and_volume() {
        let mesh = Mesh::of(&ball(48, 0.7, [0.1, -0.05, 0.0]));
        let centre = [0.0, 0.05, -0.1];
        for vertex in &mesh.vertices {
            let distance = (0..3).map(|axis| (vertex[axis] - centre[axis]).powi(2)).sum::<f32>().sqrt();
            assert!((distance - 0.7).abs() < 2e-3, "{vertex:?}: {distance}");
        }
        let volume = 4.0 / 3.0 * std::f64::consts::PI * 0.7f64.powi(3);
        assert!((mesh.enclosed() / volume - 1.0).abs() < 0.01, "{} of {volume}", mesh.enclosed());
        assert!(is_closed(&mesh));
    }

    #[test]
    fn noise_up_to_the_border_is_closed() {
        let mut state = 1u32;
        let values = (0..10usize.pow(3)).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        });
        let mesh = Mesh::of(&Volume::new(10, values.collect()));
        assert!(mesh.triangles.len() > 1000 && is_closed(&mesh));
        assert_eq!(Mesh::of(&ball(8, -1.0, [0.0; 3])), Mesh::default());
    }

    #[test]
    fn obj_counts_from_one() {
        let mesh = Mesh { vertices: vec![[0.0, 0.5, -1.0]; 3], triangles: vec![[0, 1, 2]] };
        assert_eq!(mesh.to_obj(), format!("{}f 1 2 3\n", "v 0.000000 0.500000 -1.000000\n".repeat(3)));
    }
}
