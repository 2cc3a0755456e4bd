//! How many keys a group attends to, with sink tokens accounted for.

use serde::{Deserialize, Serialize};

use crate::Error;

/// The number of keys that each query group keeps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum KeyBudget {
    /// A share of all keys, above 0 and at most 1, rounded to the nearest whole key and at least one.
    Density(f64),
    /// A number of keys.
    Keys(usize),
}

/// Tokens at the ends of the sequence (joined text, reference frames) whose keys every query attends to and whose own
/// query rows are computed densely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SinkTokens {
    /// Sink tokens at the start of the sequence.
    pub prefix: usize,
    /// Sink tokens at the end of the sequence.
    pub suffix: usize,
    /// Whether the sink keys use up the budget (`true`) or come on top of it (`false`, as published).
    pub within_budget: bool,
}

impl SinkTokens {
    /// Number of sink tokens.
    pub fn len(&self) -> usize {
        self.prefix.saturating_add(self.suffix)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The budget of one layer at one sequence length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// All tokens of the sequence.
    pub tokens: usize,
    /// Of these, sink tokens.
    pub sinks: usize,
    /// Keys that each group attends to, sinks included.
    pub keys: usize,
    /// Block means that stand in for the other keys, see [`crate::Tail`].
    pub means: usize,
}

impl Budget {
    /// Resolves `budget` for a sequence of `tokens` tokens.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for a density outside (0, 1], more keys than there are, no token left beside the sinks,
    /// or a budget that the sinks alone exceed.
    pub fn resolve(budget: KeyBudget, sink: SinkTokens, tokens: usize) -> Result<Self, Error> {
        let sinks = sink.len();
        if sinks >= tokens {
            return Err(Error::config("sink", format!("fewer than the {tokens} tokens of the sequence"), sinks));
        }
        let free = if sink.within_budget { tokens } else { tokens - sinks };
        let asked = match budget {
            KeyBudget::Density(density) => {
                check_density(density)?;
                ((density * tokens as f64).round() as usize).clamp(1, free)
            }
            KeyBudget::Keys(keys) if (1..=free).contains(&keys) => keys,
            KeyBudget::Keys(keys) => {
                return Err(Error::config(
                    "keys",
                    format!("1 to {free}, the keys that there are to choose from"),
                    keys,
                ));
            }
        };
        let keys = if sink.within_budget { asked } else { asked + sinks };
        if keys < sinks {
            return Err(Error::config("keys", format!("at least the {sinks} sink tokens within the budget"), keys));
        }
        Ok(Self { tokens, sinks, keys, means: 0 })
    }

    /// Query-key pairs that a reuse step computes, as a share of all pairs: kept keys and block means
    /// of the grouped rows, and all keys of the dense sink rows.
    pub fn reuse_density(&self) -> f64 {
        let (n, s) = (self.tokens as f64, self.sinks as f64);
        ((n - s) * (self.keys + self.means) as f64 + s * n) / (n * n)
    }

    /// Work of an anchor step as a share of dense attention: dense attention itself, the scores of the grouped rows once
    /// more (half of their attention), and their sparse attention for the residual.
    pub fn anchor_density(&self) -> f64 {
        self.anchor_density_without_scores() + 0.5 * (self.tokens - self.sinks) as f64 / self.tokens as f64
    }

    /// The same of an anchor that does not compute the scores once more: column sums ride in the dense pass
    /// ([`crate::Selection::Riding`]), or the residual alone is renewed ([`crate::Refresh::Residual`]).
    pub fn anchor_density_without_scores(&self) -> f64 {
        let (n, rows) = (self.tokens as f64, (self.tokens - self.sinks) as f64);
        1.0 + rows * (self.keys + self.means) as f64 / (n * n)
    }

    /// Kept keys as a share of all keys, sinks included.
    pub fn key_density(&self) -> f64 {
        self.keys as f64 / self.tokens as f64
    }

    /// Kept keys that were chosen by mass, as a share of all keys.
    pub fn selected_density(&self) -> f64 {
        (self.keys - self.sinks) as f64 / self.tokens as f64
    }
}

pub(crate) fn check_density(density: f64) -> Result<(), Error> {
    if density > 0.0 && density <= 1.0 {
        return Ok(());
    }
    Err(Error::config("density", "above 0 and at most 1", density))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink(prefix: usize, suffix: usize, within_budget: bool) -> SinkTokens {
        SinkTokens { prefix, suffix, within_budget }
    }

    #[test]
    fn density_rounds_and_keeps_at_least_one_key() {
        let keys = |d, n| Budget::resolve(KeyBudget::Density(d), SinkTokens::default(), n).unwrap().keys;
        assert_eq!((keys(0.15, 4096), keys(1e-6, 50), keys(1.0, 77), keys(0.5, 1)), (614, 1, 77, 1));
    }

    #[test]
    fn sinks_on_top_or_within() {
        let on_top = Budget::resolve(KeyBudget::Density(0.2), sink(4, 6, false), 100).unwrap();
        assert_eq!((on_top.keys, on_top.sinks), (30, 10));
        assert!((on_top.reuse_density() - (90.0 * 30.0 + 10.0 * 100.0) / 1e4).abs() < 1e-12);
        assert!((on_top.selected_density() - 0.2).abs() < 1e-12);
        assert!((on_top.anchor_density() - (1.0 + 0.45 + 0.27)).abs() < 1e-12);
        let with_means = Budget { means: 5, ..on_top };
        assert!((with_means.reuse_density() - (90.0 * 35.0 + 10.0 * 100.0) / 1e4).abs() < 1e-12);
        assert!((with_means.anchor_density() - (1.0 + 0.45 + 0.315)).abs() < 1e-12);
        let within = Budget::resolve(KeyBudget::Density(0.2), sink(4, 6, true), 100).unwrap();
        assert_eq!(within.keys, 20);
        let all = Budget::resolve(KeyBudget::Density(1.0), sink(4, 6, false), 100).unwrap();
        assert_eq!(all.keys, 100);
    }

    #[test]
    fn refusals_name_the_argument() {
        let message = |b, s, n| Budget::resolve(b, s, n).unwrap_err().to_string();
        for density in [0.0, -0.1, 1.01, f64::NAN] {
            assert!(
                message(KeyBudget::Density(density), SinkTokens::default(), 9).starts_with("density: expected above 0")
            );
        }
        assert_eq!(
            message(KeyBudget::Keys(10), SinkTokens::default(), 9),
            "keys: expected 1 to 9, the keys that there are to choose from, got 10"
        );
        assert!(message(KeyBudget::Keys(0), SinkTokens::default(), 9).starts_with("keys: expected 1 to 9"));
        assert!(message(KeyBudget::Keys(5), sink(3, 3, false), 9).starts_with("keys: expected 1 to 3"));
        assert!(message(KeyBudget::Keys(5), sink(3, 3, true), 9).starts_with("keys: expected at least the 6 sink"));
        assert!(message(KeyBudget::Density(0.5), sink(3, 6, true), 9).starts_with("sink: expected fewer than the 9"));
        assert!(message(KeyBudget::Density(0.5), sink(usize::MAX, 2, true), 9).starts_with("sink: expected fewer"));
    }
}
