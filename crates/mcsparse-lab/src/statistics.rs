//! Means and intervals.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A mean with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean.
    #[serde(with = "crate::metrics::decibel")]
    pub mean: f64,
    /// Half the width of the interval by Student's t; infinite with fewer than two values.
    #[serde(with = "crate::metrics::decibel")]
    pub half_width: f64,
}

impl Estimate {
    /// Of independent values. An infinite value makes the mean infinite and the interval unknown, which is infinite too.
    ///
    /// # Panics
    ///
    /// Without values.
    pub fn of(values: &[f64]) -> Self {
        assert!(!values.is_empty(), "an estimate needs values");
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        if values.len() < 2 || !mean.is_finite() {
            return Self { mean, half_width: f64::INFINITY };
        }
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let t = StudentsT::new(0.0, 1.0, n - 1.0).expect("at least one degree of freedom").inverse_cdf(0.975);
        Self { mean, half_width: t * (variance / n).sqrt() }
    }

    /// Of the differences of paired values.
    ///
    /// # Panics
    ///
    /// Without values, or if there are not as many of both.
    pub fn of_pairs(ours: &[f64], theirs: &[f64]) -> Self {
        assert_eq!(ours.len(), theirs.len(), "pairs");
        Self::of(&ours.iter().zip(theirs).map(|(a, b)| a - b).collect::<Vec<_>>())
    }

    /// Whether the whole interval lies above 0.
    pub fn is_above_zero(&self) -> bool {
        self.mean - self.half_width > 0.0
    }

    /// Whether the whole interval lies below 0.
    pub fn is_below_zero(&self) -> bool {
        self.mean + self.half_width < 0.0
    }
}

impl std::fmt::Display for Estimate {
    /// `mean ± half width`, to the precision that is asked for.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = f.precision().unwrap_or(2);
        match (self.mean.is_finite(), self.half_width.is_finite()) {
            (true, true) => write!(f, "{:.digits$} ± {:.digits$}", self.mean, self.half_width),
            (true, false) => write!(f, "{:.digits$}", self.mean),
            _ => write!(f, "identical"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_student_s() {
        // t of 3 degrees of freedom at 97.5 %: 3.182446.
        let estimate = Estimate::of(&[1.0, 2.0, 3.0, 4.0]);
        let error = (5.0f64 / 3.0 / 4.0).sqrt();
        assert!((estimate.mean - 2.5).abs() < 1e-12 && (estimate.half_width - 3.182446 * error).abs() < 1e-5);
        let pairs = Estimate::of_pairs(&[2.0, 4.0, 6.0, 8.0], &[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(pairs, estimate);
        assert!(estimate.is_above_zero() && !estimate.is_below_zero());
        assert_eq!(format!("{estimate:.1}"), "2.5 ± 2.1");
        assert_eq!(format!("{}", Estimate::of(&[3.0])), "3.00");
        assert_eq!(format!("{}", Estimate::of(&[3.0, f64::INFINITY])), "identical");
    }
}
