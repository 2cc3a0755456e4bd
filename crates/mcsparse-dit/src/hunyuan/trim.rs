//! Text without its padding.

use burn::tensor::Tensor;
use mcsparse::Error;

use crate::check;

/// Cuts the padding off `text` `[batch, tokens, size]`: keeps the tokens whose `mask` is true.
///
/// `mask` is that of one element; the batch shares it. In the order of the Python models, valid tokens come first.
///
/// # Errors
///
/// [`Error::InvalidTensor`] if there is not one value a token, none is true, or padding comes before a valid token.
pub fn trim(text: Tensor<3>, mask: &[bool]) -> Result<Tensor<3>, Error> {
    let [_, tokens, _] = text.dims();
    if mask.len() != tokens {
        return Err(check::tensor("mask", format!("{tokens} values, one a token"), mask.len()));
    }
    let valid = mask.iter().take_while(|&&valid| valid).count();
    if valid == 0 || mask[valid..].contains(&true) {
        let got = format!("{valid} valid tokens, then {} among padding", mask[valid..].iter().filter(|&&v| v).count());
        return Err(check::tensor("mask", "valid tokens first, at least one, then padding", got));
    }
    Ok(text.slice_dim(1, 0..valid))
}
