//! Linear layers against plain loops in f64: a kernel where the device has one, Burn's own product elsewhere.

use burn::tensor::{DType, Tensor};
use mcsparse::ops::{self, Kernels, Route};
use mcsparse_tests::{device, half_dtypes, random, values};

/// `[rows][outputs]`.
fn exact(input: &Tensor<2>, weight: &Tensor<2>, bias: Option<&Tensor<1>>) -> Vec<f64> {
    let ([rows, inputs], [_, outputs]) = (input.dims(), weight.dims());
    let (x, w, b) = (values(input), values(weight), bias.map(values));
    let mut result = Vec::with_capacity(rows * outputs);
    for r in 0..rows {
        let mut row = b.clone().unwrap_or_else(|| vec![0.0; outputs]);
        for (i, x) in x[r * inputs..][..inputs].iter().enumerate() {
            row.iter_mut().zip(&w[i * outputs..]).for_each(|(sum, w)| *sum += x * w);
        }
        result.extend(row);
    }
    result
}

#[test]
fn linear_layers() {
    let device = device();
    // Rows of less than a tile, of a tile, and of many bands of tiles; then sizes that no kernel takes.
    for (seed, [rows, inputs, outputs]) in
        [[1, 128, 256], [128, 256, 512], [129, 128, 768], [1700, 384, 256], [300, 192, 512], [5, 40, 24]]
            .into_iter()
            .enumerate()
    {
        for (dtype, epsilon) in half_dtypes(&device, "linear") {
            let random = |shape, offset| random::<2>(shape, 10 * seed as u64 + offset, &device).cast(dtype);
            let (input, weight) = (random([rows, inputs], 1), random([inputs, outputs], 2));
            let route = ops::linear_route(&input, &weight, Kernels::Auto);
            let what = format!("{rows} x {inputs} x {outputs}, {dtype:?} by {route}");
            assert!(outputs != 24 || matches!(route, Route::Reference { .. }), "{what}");
            for bias in [None, Some(random([1, outputs], 3).reshape([outputs]))] {
                let got = ops::linear(&route, input.clone(), weight.clone(), bias.clone());
                assert_eq!((got.dims(), got.dtype()), ([rows, outputs], dtype), "{what}");
                let exact = exact(&input, &weight, bias.as_ref());
                // One rounding of the result. Burn's own product may round sums on the way, and the bias apart.
                let size = exact.iter().fold(0f64, |a, b| a.max(b.abs()));
                let limit = if matches!(route, Route::Kernel { .. }) { epsilon } else { 4.0 * epsilon } * size;
                let error = values(&got).iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(error <= limit, "{what}, bias {}: off by {error:e} of {size}", bias.is_some());
            }
        }
    }
}

#[test]
#[should_panic(expected = "linear: weight: expected [3, outputs], got [4, 2]")]
fn linear_names_what_does_not_fit() {
    let (input, weight) = (Tensor::<2>::zeros([2, 3], &device()), Tensor::<2>::zeros([4, 2], &device()));
    let route = ops::linear_route(&input, &weight, Kernels::Auto);
    ops::linear(&route, input, weight, None);
}

/// f32 has no kernel, and says so.
#[test]
fn linear_in_f32_is_burns() {
    let (input, weight) = (random::<2>([3, 128], 1, &device()), random::<2>([128, 256], 2, &device()));
    let route = ops::linear_route(&input, &weight, Kernels::Auto);
    assert!(matches!(route, Route::Reference { .. }) && input.dtype() == DType::F32, "{route}");
}

/// Rows of a wider tensor, a column as one row, and a weight that lies the other way round.
#[test]
fn linear_of_views() {
    let device = device();
    for (dtype, epsilon) in half_dtypes(&device, "linear") {
        let random = |shape, seed| random::<2>(shape, seed, &device).cast(dtype);
        let wide = |from: usize, rows: usize| random([rows, 512], 21).slice([0..rows, from..from + 256]);
        let column = random([256, 1], 24).swap_dims(0, 1);
        for (from, input) in
            [0, 3, 128].map(|from| (from, wide(from, 130))).into_iter().chain([(0, wide(0, 1)), (0, column)])
        {
            for weight in [random([256, 1024], 22).slice([0..256, 256..512]), random([256, 256], 23).transpose()] {
                let route = ops::linear_route(&input, &weight, Kernels::Auto);
                let got = ops::linear(&route, input.clone(), weight.clone(), None);
                let exact = exact(&input, &weight, None);
                let size = exact.iter().fold(0f64, |a, b| a.max(b.abs()));
                let error = values(&got).iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                // Burn's own product of one row sums up in 16 bits on Flex.
                let limit = if matches!(route, Route::Kernel { .. }) { epsilon } else { 16.0 * epsilon } * size;
                assert!(error <= limit, "from {from}, {dtype:?} by {route}: off by {error:e} of {size}");
            }
        }
    }
}
