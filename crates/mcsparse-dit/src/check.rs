//! Refusals in the form of `mcsparse`: argument, expectation, what came.

use mcsparse::Error;

/// A setting outside its range.
pub(crate) fn config(argument: &'static str, expected: impl Into<String>, got: impl ToString) -> Error {
    Error::InvalidConfig { argument, expected: expected.into(), got: got.to_string() }
}

/// A tensor that does not fit.
pub(crate) fn tensor(argument: &'static str, expected: impl Into<String>, got: impl ToString) -> Error {
    Error::InvalidTensor { argument, expected: expected.into(), got: got.to_string() }
}
