//! Surfaces of volumes.

use std::fmt::Write;

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
    /// The triangles of a cell are not looked up but traced: on each face of the cell, a line cuts off every run of inside
    /// corners, and the lines of the six faces join to loops. Where the inside corners of a face lie across, they are kept
    /// apart; the two cells beside the face agree on that, so there are no holes.
    pub fn of(volume: &Volume) -> Self {
        let side = volume.side();
        // One point more on every side.
        let points = side + 2;
        let value = |at: [usize; 3]| match at.iter().all(|at| (1..=side).contains(at)) {
            true => volume.at(at[2] - 1, at[1] - 1, at[0] - 1),
            false => -1.0,
        };
        let (faces, mut mesh, mut known) = (faces(), Self::default(), vec![usize::MAX; 3 * points.pow(3)]);
        for cell in 0..(points - 1).pow(3) {
            let low = [cell % (points - 1), cell / (points - 1) % (points - 1), cell / (points - 1).pow(2)];
            let corner = |corner: usize| -> [usize; 3] { std::array::from_fn(|axis| low[axis] + (corner >> axis & 1)) };
            let values: [f32; CORNERS] = std::array::from_fn(|at| value(corner(at)));
            let inside = values.map(|value| value > 0.0);
            if inside.iter().all(|&at| at == inside[0]) {
                continue;
            }
            let mut next = lines(&faces, &inside);
            while let Some(start) = next.iter().position(Option::is_some) {
                let (mut around, mut edge) = (Vec::new(), start);
                while let Some(to) = next[edge].take() {
                    let (from, axis) = (edge / 3, edge % 3);
                    let at = corner(from);
                    let place = &mut known[((at[2] * points + at[1]) * points + at[0]) * 3 + axis];
                    if *place == usize::MAX {
                        *place = mesh.vertices.len();
                        let (a, b) = (values[from], values[from | 1 << axis]);
                        let mut point = at.map(|at| at as f32);
                        point[axis] += a / (a - b);
                        // Voxel 0 is point 1, its centre half a voxel inside the cube.
                        let [x, y, z] = point.map(|at| (at - 0.5) * 2.0 / side as f32 - 1.0);
                        mesh.vertices.push([x, -y, -z]);
                    }
                    around.push(*place);
                    edge = to;
                }
                mesh.triangles.extend(around[1..].windows(2).map(|pair| [around[0], pair[0], pair[1]]));
            }
        }
        mesh
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

/// Corners of a cell; bit `axis` of their number says whether they are at its high end along that axis.
const CORNERS: usize = 8;

/// The corners of the six faces of a cell, counter-clockwise seen from outside it.
fn faces() -> [[usize; 4]; 6] {
    std::array::from_fn(|face| {
        let (axis, high) = (face / 2, face % 2);
        let [a, b, c] = [axis, (axis + 1) % 3, (axis + 2) % 3].map(|axis| 1 << axis);
        let start = high * a;
        if high == 1 {
            [start, start | b, start | b | c, start | c]
        } else {
            [start, start | c, start | b | c, start | b]
        }
    })
}

/// The lines on the faces of a cell: for each crossed edge the one that follows on the loop around the inside corners.
/// An edge has the number `3 * lower corner + axis`.
fn lines(faces: &[[usize; 4]; 6], inside: &[bool; CORNERS]) -> [Option<usize>; 3 * CORNERS] {
    let edge = |a: usize, b: usize| 3 * a.min(b) + (a ^ b).trailing_zeros() as usize;
    let mut next = [None; 3 * CORNERS];
    for face in faces {
        let corner = |at: usize| face[at % 4];
        for at in (0..4).filter(|&at| !inside[corner(at)] && inside[corner(at + 1)]) {
            // It ends before the outside corner where it began at the latest.
            let run = (at + 1..).take_while(|&at| inside[corner(at)]).count();
            next[edge(corner(at), corner(at + 1))] = Some(edge(corner(at + run), corner(at + run + 1)));
        }
    }
    next
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
    fn all_256_cells_are_closed_and_face_outwards() {
        for pattern in 1..256 {
            let value = |corner: usize| if pattern >> corner & 1 == 1 { 1.0 } else { -1.0 };
            let mesh = Mesh::of(&Volume::new(2, (0..8).map(value).collect()));
            assert!(is_closed(&mesh) && mesh.enclosed() > 0.0, "{pattern:08b}: {}", mesh.enclosed());
        }
    }

    #[test]
    fn obj_counts_from_one() {
        let mesh = Mesh { vertices: vec![[0.0, 0.5, -1.0]; 3], triangles: vec![[0, 1, 2]] };
        assert_eq!(mesh.to_obj(), format!("{}f 1 2 3\n", "v 0.000000 0.500000 -1.000000\n".repeat(3)));
    }
}
