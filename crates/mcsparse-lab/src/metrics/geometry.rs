//! Point sets and occupancies, for models of three dimensions.

use rayon::prelude::*;
use rstar::{PointDistance, RTree};
use serde::{Deserialize, Serialize};

use super::mean;
use crate::error::Error;

/// A point in space.
pub type Point = [f32; 3];

/// How near two point sets are, sampled from the surfaces of two shapes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Distances {
    /// Chamfer distance: the mean distance from a point to the nearest of the other set, both ways, summed.
    pub chamfer: f64,
    /// The same of squared distances, which Fan et al. (2017) define. Papers use either; say which.
    pub chamfer_squared: f64,
    /// Share of the points of the first set that lie nearer than the threshold to the second.
    pub precision: f64,
    /// The same the other way.
    pub recall: f64,
    /// Harmonic mean of the two (Knapitsch et al. 2017); 0 where both are.
    pub f_score: f64,
}

/// Compares points `a` with reference points `b`. The nearest are found exactly, through an R*-tree, on all cores.
///
/// # Errors
///
/// [`Error::Run`] if a set is empty, a coordinate is not finite or the threshold is not positive.
pub fn distances(a: &[Point], b: &[Point], threshold: f64) -> Result<Distances, Error> {
    for (name, points) in [("the points", a), ("the reference points", b)] {
        if points.is_empty() {
            return Err(Error::run(name, "expected at least one, got none"));
        }
        if points.iter().flatten().any(|x| !x.is_finite()) {
            return Err(Error::run(name, "expected finite coordinates"));
        }
    }
    if threshold.is_nan() || threshold <= 0.0 {
        return Err(Error::run("the threshold", format!("expected above 0, got {threshold}")));
    }
    let (to_b, to_a) = (nearest(a, b), nearest(b, a));
    let near = |squares: &[f64]| mean(squares.iter().map(|square| f64::from(square.sqrt() < threshold)));
    let (precision, recall) = (near(&to_b), near(&to_a));
    let f_score = if precision + recall == 0.0 { 0.0 } else { 2.0 * precision * recall / (precision + recall) };
    Ok(Distances {
        chamfer: mean(to_b.iter().map(|s| s.sqrt())) + mean(to_a.iter().map(|s| s.sqrt())),
        chamfer_squared: mean(to_b.iter().copied()) + mean(to_a.iter().copied()),
        precision,
        recall,
        f_score,
    })
}

/// Squared distance of each point to the nearest of `others`, of which there is one at least.
fn nearest(points: &[Point], others: &[Point]) -> Vec<f64> {
    let wide = |point: &Point| point.map(f64::from);
    let tree = RTree::bulk_load(others.iter().map(wide).collect());
    points
        .par_iter()
        .map(|point| {
            let point = wide(point);
            tree.nearest_neighbor(point).map_or(f64::INFINITY, |other| other.distance_2(&point))
        })
        .collect()
}

/// Volumetric intersection over union of two occupancy grids, cell by cell; 1 if both are empty.
///
/// # Errors
///
/// [`Error::Run`] if the grids differ in size.
pub fn iou(a: &[bool], b: &[bool]) -> Result<f64, Error> {
    if a.len() != b.len() {
        return Err(Error::run(
            "occupancies",
            format!("expected equal numbers of cells, got {} and {}", a.len(), b.len()),
        ));
    }
    let count = |both: fn(bool, bool) -> bool| a.iter().zip(b).filter(|&(&a, &b)| both(a, b)).count() as f64;
    let (shared, all) = (count(|a, b| a && b), count(|a, b| a || b));
    Ok(if all == 0.0 { 1.0 } else { shared / all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_of_known_sets() {
        let a = [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]];
        let b = [[0.0, 0.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.5, 0.0]];
        // To b: 0 and min(1, 2, sqrt 1.25) = 1. To a: 0, 2 and 0.5.
        let d = distances(&a, &b, 0.6).unwrap();
        assert!((d.chamfer - (0.5 + 2.5 / 3.0)).abs() < 1e-12);
        assert!((d.chamfer_squared - (0.5 + 4.25 / 3.0)).abs() < 1e-12);
        assert_eq!((d.precision, d.recall), (0.5, 2.0 / 3.0));
        assert!((d.f_score - 2.0 * (1.0 / 3.0) / (7.0 / 6.0)).abs() < 1e-12);
        let same = distances(&a, &a, 1e-9).unwrap();
        assert_eq!((same.chamfer, same.f_score), (0.0, 1.0));
        let far = distances(&a, &[[9.0, 9.0, 9.0]], 0.1).unwrap();
        assert_eq!(far.f_score, 0.0);
    }

    #[test]
    fn the_nearest_are_those_of_all_pairs() {
        // Many points with equal coordinates, as on a grid.
        let points = |seed: u32| -> Vec<Point> {
            let mut state = seed;
            let mut number = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 28) as f32 / 4.0
            };
            (0..2000).map(|_| [number(), number(), number() * 3.7]).collect()
        };
        let (a, b) = (points(1), points(2));
        let square = |p: &Point, o: &Point| (0..3).map(|i| (f64::from(p[i]) - f64::from(o[i])).powi(2)).sum::<f64>();
        for (got, p) in nearest(&a, &b).into_iter().zip(&a) {
            assert_eq!(got, b.iter().map(|o| square(p, o)).fold(f64::INFINITY, f64::min));
        }
    }

    #[test]
    fn intersection_over_union() {
        assert_eq!(iou(&[true, true, false, false], &[true, false, true, false]).unwrap(), 1.0 / 3.0);
        assert_eq!(iou(&[false; 3], &[false; 3]).unwrap(), 1.0);
        assert!(iou(&[true], &[]).unwrap_err().to_string().ends_with("got 1 and 0"));
    }

    #[test]
    fn sets_that_cannot_be_compared_are_refused() {
        let one = [[0.0; 3]];
        assert!(distances(&[], &one, 1.0).unwrap_err().to_string().starts_with("the points: expected at least one"));
        assert!(distances(&one, &[[f32::NAN, 0.0, 0.0]], 1.0).unwrap_err().to_string().starts_with("the reference"));
        assert!(distances(&one, &one, 0.0).unwrap_err().to_string().ends_with("got 0"));
    }
}
