//! Hidden states.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::block::normal;
use crate::options::Inputs;
use crate::shape::Shape;

/// Objects and patches of ground of the structured states.
const OBJECTS: usize = 64;
/// Noise beside an object's own features, which have a spread of 1.
const NOISE: f64 = 0.5;

/// Hidden states `[tokens, hidden]` of a spread of about 1.
pub fn hidden(shape: &Shape, inputs: Inputs, dtype: DType, device: &Device) -> Tensor<2> {
    let [tokens, hidden] = [shape.tokens(), shape.hidden];
    match inputs {
        Inputs::Random => normal([tokens, hidden], 1.0, device).cast(dtype),
        Inputs::Structured => {
            let objects = objects(shape);
            let objects = Tensor::<1, Int>::from_data(TensorData::new(objects, [tokens]), (device, DType::I32));
            let features = normal::<2>([OBJECTS, hidden], 1.0, device).cast(dtype).select(0, objects);
            features + normal([tokens, hidden], NOISE, device).cast(dtype)
        }
    }
}

/// The object that each token shows: the one whose centre is nearest, centres moving from frame to frame. Joined tokens show
/// one each, in turn.
fn objects(shape: &Shape) -> Vec<i32> {
    let [frames, height, width] = shape.grid;
    // A plain lattice of irrational steps: spread out, and the same on every device.
    let start = |i: usize, step: f64| (i as f64 * step).fract();
    let joined = |n: usize| (0..n).map(|i| (i % OBJECTS) as i32);
    let mut all: Vec<i32> = joined(shape.prefix).collect();
    for frame in 0..frames {
        let time = frame as f64 / frames as f64;
        let centre = |i: usize| {
            let (y, x) = (start(i, 0.754_877_666), start(i, 0.569_840_291));
            let (dy, dx) = (start(i, 0.819_172_513) - 0.5, start(i, 0.671_043_607) - 0.5);
            [(y + 0.3 * dy * time) * height as f64, (x + 0.3 * dx * time) * width as f64]
        };
        let centres: Vec<_> = (0..OBJECTS).map(centre).collect();
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y as f64, x as f64))) {
            let distance = |c: &[f64; 2]| (c[0] - y).powi(2) + (c[1] - x).powi(2);
            let nearest = (0..OBJECTS).min_by(|&a, &b| distance(&centres[a]).total_cmp(&distance(&centres[b])));
            all.push(nearest.expect("there are objects") as i32);
        }
    }
    all.extend(joined(shape.suffix));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Model;

    #[test]
    fn objects_are_many_and_stay() {
        let shape = Shape { prefix: 3, suffix: 2, ..Model::Tiny.shape() };
        let objects = objects(&shape);
        assert_eq!(objects.len(), shape.tokens());
        let video = &objects[3..3 + shape.video()];
        let seen: std::collections::BTreeSet<_> = video.iter().collect();
        assert!(seen.len() > OBJECTS / 2, "{} objects", seen.len());
        let frame = shape.video() / shape.grid[0];
        let same = video.iter().zip(&video[frame..]).filter(|(a, b)| a == b).count();
        assert!(same * 2 > video.len() - frame, "{same} of {} tokens keep their object", video.len() - frame);
    }
}
