//! How much of the cached residual a reuse step adds.

use serde::{Deserialize, Serialize};

use crate::Error;

/// The factor on the residual of a reuse step: `factor * decay^age`, times an entry of `table` where there is one. The age
/// is the number of steps (evaluations of the model) since the anchor, 1 at the first reuse step.
///
/// A residual is exact at its anchor and grows stale after it; adding all of it for ever is the published form and the
/// default. docs/findings.md has what a decay and a table gain on the models of this repository.
///
/// The factor is an argument of the kernels, so that another one compiles nothing, and it applies to every stored form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResidualGain {
    /// At every step.
    pub factor: f64,
    /// To the power of the age.
    pub decay: f64,
    /// `table[layer][age]`, for example fitted on other samples; 1 for layers and ages that it does not have. Entry 0 of a
    /// layer belongs to the anchor itself, which adds nothing, and is never read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<Vec<Vec<f64>>>,
}

impl Default for ResidualGain {
    /// All of the residual at every step.
    fn default() -> Self {
        Self::constant(1.0)
    }
}

impl ResidualGain {
    /// The same at all steps.
    pub fn constant(factor: f64) -> Self {
        Self { factor, decay: 1.0, table: None }
    }

    /// `decay`, 0 to 1, to the power of the age. Slots from a file have no age: [`crate::Anchors::Loaded`] refuses it.
    pub fn decay(decay: f64) -> Self {
        Self { factor: 1.0, decay, table: None }
    }

    /// A factor of its own for each layer and age.
    pub fn by_layer_and_age(table: Vec<Vec<f64>>) -> Self {
        Self { table: Some(table), ..Self::default() }
    }

    /// At `layer`, `age` steps after the anchor.
    pub fn at(&self, layer: usize, age: usize) -> f64 {
        let entry = self.table.as_ref().and_then(|table| table.get(layer)?.get(age).copied());
        self.factor * self.decay.powi(i32::try_from(age).unwrap_or(i32::MAX)) * entry.unwrap_or(1.0)
    }

    /// Whether the age makes a difference.
    pub(crate) fn needs_age(&self) -> bool {
        self.decay != 1.0 || self.table.is_some()
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        let refuse = |argument, expected: &str, got: f64| Err(Error::config(argument, expected, got));
        if !(self.factor as f32).is_finite() {
            return refuse("residual_gain.factor", "a number that is finite in f32", self.factor);
        }
        if !(0.0..=1.0).contains(&self.decay) {
            return refuse("residual_gain.decay", "0 to 1", self.decay);
        }
        let entries = self.table.iter().flatten().flatten();
        let finite = |entry: f64| (entry as f32).is_finite() && ((self.factor * entry) as f32).is_finite();
        match entries.into_iter().find(|entry| !finite(**entry)) {
            Some(entry) => {
                refuse("residual_gain.table", "numbers that are finite in f32, times the factor too", *entry)
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factor_decay_and_table_multiply() {
        let gain = ResidualGain { factor: 0.5, decay: 0.9, table: Some(vec![vec![1.0], vec![1.0, 3.0]]) };
        let at = |layer, age: usize| gain.at(layer, age);
        assert!((at(1, 1) - 0.5 * 0.9 * 3.0).abs() < 1e-12);
        assert!((at(1, 2) - 0.5 * 0.81).abs() < 1e-12, "an age that the table lacks");
        assert!((at(7, 1) - 0.5 * 0.9).abs() < 1e-12, "a layer that the table lacks");
        assert_eq!(ResidualGain::default().at(3, 1_000_000), 1.0);
        assert_eq!(ResidualGain::decay(0.5).at(0, usize::MAX), 0.0);
    }

    #[test]
    fn refuses_by_name() {
        let message = |gain: ResidualGain| gain.validate().unwrap_err().to_string();
        assert_eq!(message(ResidualGain::decay(1.01)), "residual_gain.decay: expected 0 to 1, got 1.01");
        assert!(message(ResidualGain::decay(f64::NAN)).starts_with("residual_gain.decay: expected 0 to 1"));
        assert!(message(ResidualGain::constant(1e300)).starts_with("residual_gain.factor: expected a number"));
        let table = vec![vec![1.0], vec![1.0, f64::INFINITY]];
        assert!(message(ResidualGain::by_layer_and_age(table)).starts_with("residual_gain.table: expected numbers"));
        assert!(ResidualGain::decay(0.0).validate().is_ok());
    }
}
