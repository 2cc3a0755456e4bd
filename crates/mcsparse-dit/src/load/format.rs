//! How weights are called and kept in files.

use burn_store::burn_pack::{Error as PackError, Tensor as StoredTensor};

use burn::tensor::Bytes;

/// Parts of names that differ: in files of diffusers, in this crate.
pub(super) const RENAMED: [(&str, &str); 5] = [
    (".to_out.0.", ".to_out."),
    (".net.0.proj.", ".up."),
    (".net.2.", ".down."),
    (".mlp.0.", ".mlp_in."),
    (".mlp.2.", ".mlp_out."),
];

/// The files of one kind of transformer.
pub(crate) struct Format {
    /// Parts of the names of parameters that stay in f32 whatever the dtype of the model, as in diffusers.
    pub kept_in_f32: &'static [&'static str],
    /// A part of a name that only files of the model's authors have.
    pub original_has: &'static str,
    /// Brings a tensor of such a file into the form of diffusers: under other names, or in several parts.
    pub from_original: Box<dyn Fn(StoredTensor) -> Vec<StoredTensor>>,
}

impl Format {
    /// The tensors of a file in the form of diffusers, each with the name that it, or the whole that it is a part of, has in
    /// the file.
    pub(super) fn to_diffusers(&self, tensors: Vec<StoredTensor>) -> Vec<(String, StoredTensor)> {
        let original = tensors.iter().any(|tensor| tensor.name.contains(self.original_has));
        let named = |tensor: StoredTensor| -> Vec<(String, StoredTensor)> {
            let name = tensor.name.clone();
            let parts = if original { (self.from_original)(tensor) } else { vec![tensor] };
            parts.into_iter().map(|part| (name.clone(), part)).collect()
        };
        tensors.into_iter().flat_map(named).collect()
    }
}

pub(super) fn is_kept(kept: &[&str], own: &str) -> bool {
    kept.iter().any(|part| own.contains(part))
}

/// The name in this crate of a tensor of a file of diffusers; norms keep `weight` and `bias`.
pub(super) fn own_name(file: &str) -> String {
    replace_first(file, RENAMED)
}

/// The name in files of diffusers of a parameter of this crate.
pub(super) fn file_name(own: &str) -> String {
    let name = replace_first(own, RENAMED.map(|(file, own)| (own, file)));
    match name.rsplit_once('.') {
        Some((module, "gamma")) => format!("{module}.weight"),
        Some((module, "beta")) => format!("{module}.bias"),
        _ => name,
    }
}

/// `name` with the first part that has another one replaced.
fn replace_first(name: &str, parts: [(&str, &str); 5]) -> String {
    match parts.into_iter().find(|(old, _)| name.contains(old)) {
        Some((old, new)) => name.replacen(old, new, 1),
        None => name.to_owned(),
    }
}

/// `tensor` under the name that comes out when every pair of `parts` is replaced in turn.
///
/// A part that begins with `^` stands at the start of a name.
pub(crate) fn rename_by(mut tensor: StoredTensor, parts: &[(&str, &str)]) -> StoredTensor {
    for (old, new) in parts {
        tensor.name = match old.strip_prefix('^') {
            Some(old) => match tensor.name.strip_prefix(old) {
                Some(rest) => format!("{new}{rest}"),
                None => continue,
            },
            None => tensor.name.replace(old, new),
        };
    }
    tensor
}

/// Takes a tensor apart whose rows are `blocks` times `sizes` rows for the parts `names` in turn: each part's rows of all
/// blocks. One whose rows do not add up comes back whole, for its name to be refused.
pub(crate) fn split_rows(
    tensor: StoredTensor,
    blocks: usize,
    sizes: &[usize],
    names: impl IntoIterator<Item = String>,
) -> Vec<StoredTensor> {
    let (shape, block) = (tensor.shape.to_vec(), sizes.iter().sum::<usize>());
    if shape.first() != Some(&(blocks * block)) {
        return vec![tensor];
    }
    let row_bytes = tensor.byte_len() / (blocks * block);
    let mut start = 0;
    let part = |(name, &rows): (String, &usize)| {
        let (source, from) = (tensor.clone(), start);
        start += rows;
        let (mut shape, len) = (shape.clone(), blocks * rows * row_bytes);
        shape[0] = blocks * rows;
        let read = move || -> Result<Bytes, PackError> {
            let (all, mut part) = (source.to_bytes()?, Vec::with_capacity(len));
            for first in (0..blocks).map(|number| number * block + from) {
                part.extend_from_slice(&all[first * row_bytes..(first + rows) * row_bytes]);
            }
            Ok(Bytes::from_bytes_vec(part))
        };
        StoredTensor::deferred(name, tensor.dtype, shape, None, len, read)
    };
    names.into_iter().zip(sizes).map(part).collect()
}

/// A tensor whose first and second half of rows change places.
pub(crate) fn swap_halves(tensor: StoredTensor) -> StoredTensor {
    let (name, dtype, shape, len) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone(), tensor.byte_len());
    let swapped = move || -> Result<Bytes, PackError> {
        let mut bytes = tensor.to_bytes()?.to_vec();
        bytes.rotate_left(len / 2);
        Ok(Bytes::from_bytes_vec(bytes))
    };
    StoredTensor::deferred(name, dtype, shape, None, len, swapped)
}
