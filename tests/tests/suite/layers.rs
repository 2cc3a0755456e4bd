//! Norms and rotary embedding in one pass, against plain loops in f64, by the kernel and by tensor operations.

use burn::tensor::{DType, Tensor};
use mcsparse_layers::{Pairs, Rotation, kernel, modulated_norm, norm_and_rotate, reference};
use mcsparse_tests::{
    case::reference_tolerance, cases, device, half_dtypes, is_flex, random, relative_error_of, values,
};
use proptest::prelude::*;

const EPS: f64 = 1e-6;

fn norm_oracle(x: &[f64], size: usize, scale: &[f64], shift: &[f64]) -> Vec<f64> {
    let row = |row: &[f64]| {
        let mean = row.iter().sum::<f64>() / size as f64;
        let deviation = (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / size as f64 + EPS).sqrt();
        let one = |((x, a), b): ((&f64, &f64), &f64)| (x - mean) / deviation * (1.0 + a) + b;
        row.iter().zip(scale).zip(shift).map(one).collect::<Vec<_>>()
    };
    x.chunks(size).flat_map(row).collect()
}

fn rotate_oracle(x: &[f64], weight: &[f64], cos: &[f64], sin: &[f64], dim: usize, rotation: Rotation) -> Vec<f64> {
    let root = |values: &[f64]| (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64 + EPS).sqrt();
    let mut output = Vec::new();
    for (token, row) in x.chunks(rotation.heads * dim).enumerate() {
        for (head, values) in row.chunks(dim).enumerate() {
            let size = if rotation.all_heads { root(row) } else { root(values) };
            let weight = if rotation.all_heads { &weight[head * dim..][..dim] } else { weight };
            let normed: Vec<f64> = values.iter().zip(weight).map(|(x, w)| x / size * w).collect();
            let turned = (0..dim).map(|c| {
                let (pair, first, second) = match rotation.pairs {
                    Pairs::Neighbours => (c / 2, c / 2 * 2, c / 2 * 2 + 1),
                    Pairs::Halves => (c % (dim / 2), c % (dim / 2), c % (dim / 2) + dim / 2),
                };
                let (cos, sin) = (cos[token * dim / 2 + pair], sin[token * dim / 2 + pair]);
                let (a, b) = (normed[first], normed[second]);
                if c == first { a * cos - b * sin } else { b * cos + a * sin }
            });
            output.extend(turned.collect::<Vec<_>>());
        }
    }
    output
}

/// Rows far from zero, so that a variance from squares alone would show; in `dtype`, judged within `limit`.
fn norm_case(rows: usize, size: usize, seed: u64, dtype: DType, limit: f64) -> Result<(), TestCaseError> {
    let device = device();
    let x: Tensor<2> = random([rows, size], seed, &device).add_scalar(3.0).cast(dtype);
    let [scale, shift]: [Tensor<1>; 2] = [1, 2].map(|s| random([size], seed ^ s, &device).mul_scalar(0.3));
    let expected = norm_oracle(&values(&x), size, &values(&scale), &values(&shift));
    for (name, output) in [
        ("chosen", modulated_norm(x.clone(), scale.clone(), shift.clone(), EPS)),
        ("reference", reference::modulated_norm(x.clone(), scale.clone(), shift.clone(), EPS)),
    ] {
        prop_assert_eq!((output.dims(), output.dtype()), ([rows, size], dtype));
        let error = relative_error_of(&values(&output), &expected);
        prop_assert!(error < limit, "{name}: {rows} x {size}: {error:e}");
    }
    Ok(())
}

fn rotate_case([tokens, heads, dim]: [usize; 3], seed: u64, dtype: DType, limit: f64) -> Result<(), TestCaseError> {
    let device = device();
    let size = heads * dim;
    let x: Tensor<2> = random([tokens, size], seed, &device).mul_scalar(2.0).cast(dtype);
    let angles: Tensor<2> = random([tokens, dim / 2], seed ^ 9, &device).mul_scalar(3.0);
    let (cos, sin) = (angles.clone().cos(), angles.sin());
    for (all_heads, pairs) in
        [(true, Pairs::Neighbours), (true, Pairs::Halves), (false, Pairs::Neighbours), (false, Pairs::Halves)]
    {
        let rotation = Rotation { heads, all_heads, pairs, eps: EPS };
        let weight: Tensor<1> = random([if all_heads { size } else { dim }], seed ^ 3, &device).add_scalar(1.0);
        let expected = rotate_oracle(&values(&x), &values(&weight), &values(&cos), &values(&sin), dim, rotation);
        for (name, output) in [
            ("chosen", norm_and_rotate(x.clone(), weight.clone(), cos.clone(), sin.clone(), rotation)),
            ("reference", reference::norm_and_rotate(x.clone(), weight.clone(), cos.clone(), sin.clone(), rotation)),
        ] {
            prop_assert_eq!((output.dims(), output.dtype()), ([tokens, heads, dim], dtype));
            let error = relative_error_of(&values(&output), &expected);
            prop_assert!(error < limit, "{name}: {tokens} x {heads} x {dim}, {rotation:?}: {error:e}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn modulated_norms(rows in 1usize..9, size in prop_oneof![2usize..70, 250usize..1300], seed: u64) {
        norm_case(rows, size, seed, DType::F32, reference_tolerance())?;
        norm_case(rows, size.div_ceil(8) * 8, seed, DType::F32, reference_tolerance())?;
    }

    #[test]
    fn norms_and_rotations(tokens in 1usize..6, heads in 1usize..9, half in 1usize..70, seed: u64) {
        rotate_case([tokens, heads, 2 * half], seed, DType::F32, reference_tolerance())?;
        rotate_case([tokens, heads, half.div_ceil(4) * 8], seed, DType::F32, reference_tolerance())?;
    }
}

/// The rows of Wan 14B and of MiniMax-H3, in 16 bits; the kernels must take them.
#[test]
fn rows_of_large_models() {
    for (dtype, rounding) in half_dtypes(&device(), "rows_of_large_models") {
        norm_case(3, 5120, 1, dtype, 1.1 * rounding).unwrap();
        rotate_case([2, 40, 128], 2, dtype, 1.1 * rounding).unwrap();
    }
    norm_case(2, 5376, 3, DType::F32, reference_tolerance()).unwrap();
    rotate_case([2, 56, 128], 4, DType::F32, reference_tolerance()).unwrap();
    if !is_flex() {
        for (size, head_dim) in [(5120, 128), (5376, 5376), (7168, 128), (16, 8)] {
            kernel(&device(), size, head_dim).unwrap();
        }
    }
    assert!(kernel(&device(), 30, 6).is_err());
}
