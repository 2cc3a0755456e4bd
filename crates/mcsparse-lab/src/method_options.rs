//! Options of the command line that make MC-Sparse another method than the published one, for all programs that have them.

use clap::{Args, ValueEnum};
use mcsparse::{McSparseConfig, Refresh, ResidualGain, Selection, Tail};
use serde::Serialize;

/// By which log-sum-exps anchors select keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SelectBy {
    /// Their own, in a second pass over the scores.
    Exact,
    /// Those of the dense pass before, in the anchor's own pass where there is a kernel for it.
    Riding,
}

impl SelectBy {
    /// As the library names it.
    pub fn selection(self) -> Selection {
        match self {
            Self::Exact => Selection::Exact,
            Self::Riding => Selection::Riding,
        }
    }
}

/// What anchors renew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Renew {
    /// Groups, keys and residual.
    All,
    /// The residual alone, after the first anchor.
    Residual,
}

impl Renew {
    /// As the library names it.
    pub fn refresh(self) -> Refresh {
        match self {
            Self::All => Refresh::All,
            Self::Residual => Refresh::Residual,
        }
    }
}

/// The options. None of them is the published method.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
pub struct MethodOptions {
    /// Refresh the cache wherever attention has moved by more than this share since the last refresh
    #[arg(long, value_name = "SHARE", value_parser = number, allow_negative_numbers = true)]
    pub drift_bound: Option<f64>,

    /// Factor on the residual for each step since the last refresh, 0 to 1 [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = number, allow_negative_numbers = true)]
    pub residual_decay: Option<f64>,

    /// Means of blocks of so many keys stand in for those that a group does not keep
    #[arg(long, value_name = "KEYS", value_parser = count, allow_negative_numbers = true)]
    pub tail_block: Option<usize>,

    /// By which log-sum-exps anchors select keys
    #[arg(long, value_enum, default_value_t = SelectBy::Exact)]
    pub selection: SelectBy,

    /// What anchors after the first one renew
    #[arg(long, value_enum, default_value_t = Renew::All)]
    pub refresh: Renew,

    /// Extrapolate residuals along a line through their last two renewals, times this; needs --refresh residual
    #[arg(long, value_name = "DAMPING", value_parser = number, allow_negative_numbers = true)]
    pub residual_forecast: Option<f64>,
}

impl MethodOptions {
    /// `config` with these options; its anchors stay.
    pub fn apply(&self, config: McSparseConfig) -> McSparseConfig {
        let mut schedule = config.schedule.clone().with_refresh(self.refresh.refresh());
        schedule.drift_bound = self.drift_bound;
        config
            .with_schedule(schedule)
            .with_residual_gain(self.residual_decay.map_or(ResidualGain::default(), ResidualGain::decay))
            .with_tail(self.tail_block.map_or(Tail::Dropped, |block| Tail::BlockMeans { block }))
            .with_selection(self.selection.selection())
            .with_residual_forecast(self.residual_forecast)
    }

    /// The option that decides the library's setting `argument`.
    pub fn option_of(argument: &str) -> String {
        let option = match argument {
            "residual_gain.decay" => "residual_decay",
            "tail.block" => "tail_block",
            argument => argument,
        };
        format!("--{}", option.replace('_', "-"))
    }
}

/// A whole number.
///
/// # Errors
///
/// What was expected and what came.
pub fn whole(text: &str) -> Result<usize, String> {
    text.trim().parse().map_err(|_| format!("expected a whole number of at least 0, got {text}"))
}

/// A whole number of at least 1.
///
/// # Errors
///
/// What was expected and what came.
pub fn count(text: &str) -> Result<usize, String> {
    match whole(text) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(format!("expected a whole number of at least 1, got {text}")),
    }
}

/// A finite number.
///
/// # Errors
///
/// What was expected and what came.
pub fn number(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(format!("expected a number, got {text}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use mcsparse::Schedule;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        method: MethodOptions,
    }

    fn config(arguments: &str) -> McSparseConfig {
        let all = format!("program {arguments}");
        let program = Program::try_parse_from(all.split_whitespace()).unwrap();
        program.method.apply(McSparseConfig::density(0.2).with_schedule(Schedule::warm_up(3)))
    }

    #[test]
    fn options_reach_the_config() {
        assert_eq!(config(""), McSparseConfig::density(0.2).with_schedule(Schedule::warm_up(3)));
        let all = config(
            "--drift-bound 0.3 --residual-decay 0.98 --tail-block 64 --selection riding --refresh residual \
             --residual-forecast 0.5",
        );
        assert!(all.validate().is_ok());
        let schedule = Schedule::warm_up(3).with_drift_bound(0.3).with_refresh(Refresh::Residual);
        assert_eq!(all.schedule, schedule);
        assert_eq!((all.residual_gain, all.tail), (ResidualGain::decay(0.98), Tail::BlockMeans { block: 64 }));
        assert_eq!((all.selection, all.residual_forecast), (Selection::Riding, Some(0.5)));
    }

    #[test]
    fn refusals_name_the_option() {
        for (arguments, option) in [
            ("--residual-decay 1.5", "--residual-decay"),
            ("--residual-forecast 0.5", "--residual-forecast"),
            ("--residual-forecast -1 --refresh residual", "--residual-forecast"),
        ] {
            match config(arguments).validate().unwrap_err() {
                mcsparse::Error::InvalidConfig { argument, .. } => {
                    assert_eq!(MethodOptions::option_of(argument), option, "{arguments}");
                }
                other => panic!("{other}"),
            }
        }
        assert_eq!(MethodOptions::option_of("tail.block"), "--tail-block");
        assert!(count("0").is_err() && whole("-1").is_err() && number("NaN").is_err());
    }
}
