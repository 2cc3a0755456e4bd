//! Reading rows of a strided tensor in device code.

use cubecl::prelude::*;

/// Elements that shared memory is read by.
pub(super) const VECTOR: usize = 4;
pub(super) type V = Const<4>;

/// Elements `element..element + VECTOR` of a row of `dim` elements in f32, strided as they are, zero past its end. `whole`
/// says that no vector of the caller crosses the end.
#[cube]
pub(super) fn load<E: Float>(
    tensor: &Tensor<E>,
    row: usize,
    element: usize,
    #[comptime] dim: usize,
    #[comptime] whole: bool,
) -> Vector<f32, V> {
    let mut vector = Vector::<f32, V>::new(0.0f32);
    #[unroll]
    for e in 0..comptime!(VECTOR) {
        if comptime!(whole) {
            vector.insert(e, f32::cast_from(tensor[row + (element + e) * tensor.stride(3)]));
        } else if element + e < comptime!(dim) {
            vector.insert(e, f32::cast_from(tensor[row + (element + e) * tensor.stride(3)]));
        }
    }
    vector
}

/// The sum of the products of the elements.
#[cube]
pub(super) fn dot(a: Vector<f32, V>, b: Vector<f32, V>) -> f32 {
    let products = a * b;
    products.extract(0usize) + products.extract(1usize) + products.extract(2usize) + products.extract(3usize)
}
