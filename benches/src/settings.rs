//! What is timed, from environment variables.

use std::str::FromStr;

use burn::tensor::{DType, Device};

/// Shape, dtype and budget of the timed problem.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `MCSPARSE_TOKENS`.
    pub tokens: usize,
    /// `MCSPARSE_HEADS`.
    pub heads: usize,
    /// `MCSPARSE_HEAD_DIM`.
    pub head_dim: usize,
    /// `MCSPARSE_GROUP`: queries in a group.
    pub group: usize,
    /// `MCSPARSE_DENSITY`.
    pub density: f64,
    /// `MCSPARSE_DTYPE`.
    pub dtype: DType,
    /// `MCSPARSE_LAYOUT`: `tokens` for views of `[batch, tokens, heads, head_dim]`, as models have them, or `heads` for
    /// contiguous `[batch, heads, tokens, head_dim]`.
    pub heads_first: bool,
    /// `MCSPARSE_BURN`: whether Burn's own attention runs too. On CUDA it panics at some shapes.
    pub burn: bool,
}

impl Settings {
    /// Reads the process's environment; Burn's attention is timed by default on Flex, where it takes every shape.
    ///
    /// # Errors
    ///
    /// A message that names the variable, what it may be and what it is.
    pub fn from_env(device: &Device) -> Result<Self, String> {
        let settings = Self::read(|name| std::env::var(name).ok(), format!("{device:?}").contains("Flex"))?;
        if !device.supports_dtype(settings.dtype) {
            return Err(format!("MCSPARSE_DTYPE: {device:?} lacks {:?}", settings.dtype));
        }
        Ok(settings)
    }

    fn read(get: impl Fn(&str) -> Option<String>, burn: bool) -> Result<Self, String> {
        let tokens = number(&get, "MCSPARSE_TOKENS", 4096, 1..=1 << 20)?;
        let dtype = match get("MCSPARSE_DTYPE").as_deref() {
            None | Some("f32") => DType::F32,
            Some("f16") => DType::F16,
            Some("bf16") => DType::BF16,
            Some(other) => return Err(format!("MCSPARSE_DTYPE: expected f32, f16 or bf16, got {other}")),
        };
        let heads_first = match get("MCSPARSE_LAYOUT").as_deref() {
            None | Some("tokens") => false,
            Some("heads") => true,
            Some(other) => return Err(format!("MCSPARSE_LAYOUT: expected tokens or heads, got {other}")),
        };
        Ok(Self {
            tokens,
            heads_first,
            heads: number(&get, "MCSPARSE_HEADS", 2, 1..=256)?,
            head_dim: number(&get, "MCSPARSE_HEAD_DIM", 128, 1..=256)?,
            group: number(&get, "MCSPARSE_GROUP", 128, 1..=1 << 20)?,
            density: number(&get, "MCSPARSE_DENSITY", 0.15, f64::MIN_POSITIVE..=1.0)?,
            dtype,
            burn: number(&get, "MCSPARSE_BURN", u8::from(burn), 0..=1)? == 1,
        })
    }

    /// The same problem with another number of tokens.
    pub fn with_tokens(&self, tokens: usize) -> Self {
        Self { tokens, ..self.clone() }
    }

    /// Keys that each group keeps.
    pub fn keys(&self) -> usize {
        ((self.tokens as f64 * self.density).round() as usize).clamp(1, self.tokens)
    }

    /// Groups of a head.
    pub fn groups(&self) -> usize {
        self.tokens.div_ceil(self.group)
    }

    /// Blocks of keys of the tail.
    pub fn blocks(&self) -> usize {
        self.tokens.div_ceil(crate::inputs::TAIL_BLOCK)
    }

    /// Factor on the scores.
    pub fn scale(&self) -> f64 {
        (self.head_dim as f64).powf(-0.5)
    }
}

fn number<T: FromStr + PartialOrd + std::fmt::Display>(
    get: impl Fn(&str) -> Option<String>,
    name: &str,
    default: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, String> {
    let Some(text) = get(name) else { return Ok(default) };
    match text.parse() {
        Ok(value) if range.contains(&value) => Ok(value),
        // The lower end of the density prints as a tiny number; 0 itself is what is refused.
        _ => Err(format!("{name}: expected a number from {:.4} to {}, got {text}", range.start(), range.end())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::read(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string()), true)
    }

    #[test]
    fn the_environment_is_read_and_checked() {
        let plain = read(&[]).unwrap();
        assert_eq!((plain.tokens, plain.keys(), plain.groups(), plain.burn), (4096, 614, 32, true));
        let set =
            [("MCSPARSE_TOKENS", "100"), ("MCSPARSE_DTYPE", "bf16"), ("MCSPARSE_BURN", "0"), ("MCSPARSE_GROUP", "64")];
        let set = read(&set).unwrap();
        assert_eq!((set.tokens, set.groups(), set.dtype, set.burn), (100, 2, DType::BF16, false));
        for (name, value) in [
            ("MCSPARSE_TOKENS", "0"),
            ("MCSPARSE_TOKENS", "many"),
            ("MCSPARSE_HEADS", "-1"),
            ("MCSPARSE_HEAD_DIM", "257"),
            ("MCSPARSE_GROUP", ""),
            ("MCSPARSE_DENSITY", "0"),
            ("MCSPARSE_DENSITY", "1.5"),
            ("MCSPARSE_DENSITY", "NaN"),
            ("MCSPARSE_DTYPE", "f64"),
            ("MCSPARSE_LAYOUT", "rows"),
            ("MCSPARSE_BURN", "2"),
        ] {
            let message = read(&[(name, value)]).unwrap_err();
            assert!(message.starts_with(name) && message.ends_with(value), "{message}");
        }
    }
}
