//! How the residual is stored between steps.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Codes of a word.
pub(crate) const CODES: usize = 4;
/// Rows whose largest magnitude is below this are stored as zeros: their scale would leave f32.
pub(crate) const SMALLEST: f32 = 1e-30;

/// The number format of cached residuals.
///
/// The 8-bit forms store one code for each value, four a word, and the largest magnitude of each row (a token of a head) in
/// the dtype of the inputs, which holds it exactly. A value is `code * (largest * (1 / largest code))`. A row with NaN or
/// infinity comes back as NaN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ResidualFormat {
    /// The dtype of the inputs, unchanged.
    #[default]
    Input,
    /// 8-bit floats, e4m3: 3 bits of mantissa over 18 binades below the largest of the row.
    Fp8,
    /// 8-bit integers: 255 equal steps between the largest of the row and its negative.
    Int8,
}

impl ResidualFormat {
    /// All.
    pub const ALL: [Self; 3] = [Self::Input, Self::Fp8, Self::Int8];

    /// What the largest code stands for.
    pub(crate) fn largest_code(self) -> f32 {
        match self {
            Self::Input => 1.0,
            Self::Fp8 => 448.0,
            Self::Int8 => 127.0,
        }
    }

    /// What each of the 256 codes stands for, before the row's scale; NaN is not used and stands for 480.
    pub(crate) fn table(self) -> [f32; 256] {
        std::array::from_fn(|code| match self {
            Self::Input | Self::Int8 => f32::from(code as u8 as i8),
            Self::Fp8 => {
                let (exponent, mantissa) = ((code >> 3 & 15) as i32, (code & 7) as f32);
                let magnitude = match exponent {
                    0 => mantissa * 2f32.powi(-9),
                    _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
                };
                if code < 128 { magnitude } else { -magnitude }
            }
        })
    }
}

impl fmt::Display for ResidualFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "as the inputs",
            Self::Fp8 => "fp8 e4m3",
            Self::Int8 => "int8",
        })
    }
}
