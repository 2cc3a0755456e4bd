//! The noise that both clips start from.

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// `count` standard normal values (Box-Muller), made on the host: every device gets the same.
pub fn normal(count: usize, seed: u64) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut values = Vec::with_capacity(count + 1);
    while values.len() < count {
        // 1 - u is never 0, where there is no logarithm.
        let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
        let (sine, cosine) = (std::f64::consts::TAU * rng.random::<f64>()).sin_cos();
        values.extend([(radius * cosine) as f32, (radius * sine) as f32]);
    }
    values.truncate(count);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_moments_and_follows_the_seed() {
        let values = normal(100_001, 7);
        let moment = |n: i32| values.iter().map(|&v| f64::from(v).powi(n)).sum::<f64>() / values.len() as f64;
        assert!(moment(1).abs() < 0.02 && (moment(2) - 1.0).abs() < 0.02 && (moment(4) - 3.0).abs() < 0.15);
        assert_eq!(values, normal(100_001, 7));
        assert_ne!(values[..8], normal(8, 8));
    }
}
