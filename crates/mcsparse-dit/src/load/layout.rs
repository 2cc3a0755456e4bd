//! The matrices of linear layers, which files hold the other way round.

use std::num::NonZero;
use std::thread::{available_parallelism, scope};

use burn::tensor::Bytes;
use burn_store::burn_pack::{Error as PackError, Tensor as StoredTensor};
use burn_store::{ModuleAdapter, ModuleContext, PyTorchToBurnAdapter};

/// Rows and columns of a matrix that change places together, so that both sides stay in a cache.
const TILE: usize = 64;
/// Values that are worth a thread.
const SHARE: usize = 1 << 20;

/// From the form of files to that of Burn: as [`PyTorchToBurnAdapter`], with matrices turned in tiles by all processors, where
/// a large model has 10^10 values to turn.
#[derive(Clone)]
pub(super) struct FromFiles;

impl ModuleAdapter for FromFiles {
    fn adapt(&self, tensor: StoredTensor, context: ModuleContext<'_>) -> StoredTensor {
        let in_linear = context.module_type() == Some("Struct:Linear");
        let [rows, columns] = tensor.shape.to_vec()[..] else { return PyTorchToBurnAdapter.adapt(tensor, context) };
        if !in_linear || !tensor.name.ends_with("weight") || !matches!(tensor.dtype.size(), 2 | 4) {
            return PyTorchToBurnAdapter.adapt(tensor, context);
        }
        let (name, dtype, id, len) = (tensor.name.clone(), tensor.dtype, tensor.param_id, tensor.byte_len());
        let turned = move || -> Result<Bytes, PackError> {
            let bytes = tensor.to_bytes()?;
            Ok(Bytes::from_bytes_vec(match dtype.size() {
                2 => turn::<2>(&bytes, rows, columns),
                _ => turn::<4>(&bytes, rows, columns),
            }))
        };
        StoredTensor::deferred(name, dtype, [columns, rows], id, len, turned)
    }

    fn get_alternative_param_name(&self, name: &str, module: &str) -> Option<String> {
        PyTorchToBurnAdapter.get_alternative_param_name(name, module)
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

/// The transpose of `rows` rows of `columns` values of `SIZE` bytes each.
fn turn<const SIZE: usize>(bytes: &[u8], rows: usize, columns: usize) -> Vec<u8> {
    let mut turned = vec![0; bytes.len()];
    let (from, _) = bytes.as_chunks::<SIZE>();
    let (to, _) = turned.as_chunks_mut::<SIZE>();
    let threads = available_parallelism().map_or(1, NonZero::get).min(from.len().div_ceil(SHARE)).max(1);
    let share = columns.div_ceil(threads).max(1);
    scope(|scope| {
        for (number, to) in to.chunks_mut((share * rows).max(1)).enumerate() {
            scope.spawn(move || columns_of(from, to, rows, columns, number * share));
        }
    });
    turned
}

/// The columns of `from` from `first` on, as the rows of `to`.
fn columns_of<const SIZE: usize>(
    from: &[[u8; SIZE]],
    to: &mut [[u8; SIZE]],
    rows: usize,
    columns: usize,
    first: usize,
) {
    let count = to.len() / rows;
    for row in (0..rows).step_by(TILE) {
        for column in (0..count).step_by(TILE) {
            for c in column..(column + TILE).min(count) {
                for r in row..(row + TILE).min(rows) {
                    to[c * rows + r] = from[r * columns + first + c];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_of_any_size_are_turned() {
        // More than one thread's share at the end.
        for [rows, columns] in [[1, 1], [3, 130], [65, 64], [1300, 1701]] {
            let values: Vec<u16> = (0..rows * columns).map(|i| (i * 7 % 65_521) as u16).collect();
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let expected: Vec<u8> = (0..columns)
                .flat_map(|c| (0..rows).map(move |r| r * columns + c))
                .flat_map(|i| values[i].to_le_bytes())
                .collect();
            assert!(turn::<2>(&bytes, rows, columns) == expected, "{rows} x {columns}");
            // The same pairs as one value.
            if columns % 2 == 0 {
                let pairs: Vec<u8> = (0..columns / 2)
                    .flat_map(|c| (0..rows).map(move |r| r * columns + 2 * c))
                    .flat_map(|i| [values[i].to_le_bytes(), values[i + 1].to_le_bytes()].concat())
                    .collect();
                assert!(turn::<4>(&bytes, rows, columns / 2) == pairs, "{rows} x {columns}");
            }
        }
    }
}
