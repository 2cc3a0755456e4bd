//! Norms, rotary embedding and gates in one pass, against plain loops in f64, by the kernel and by tensor operations.

use burn::tensor::{DType, Int, Tensor, TensorData};
use mcsparse_layers::{
    HeadNorm, Layer, Norm, Pairs, gated_add, kernel, layer_norm, modulated_norm, norm_and_rotate, reference, rms_norm,
    scaled_norm, swiglu,
};
use mcsparse_tests::{
    case::reference_tolerance, cases, device, half_dtypes, is_flex, random, relative_error_of, values,
};
use proptest::prelude::*;

const EPS: f64 = 1e-6;

/// Row `i` of `x` takes row `rows[i]` of the tables.
fn norm_oracle(x: &[f64], size: usize, scale: &[f64], shift: &[f64], rows: &[usize], norm: Norm) -> Vec<f64> {
    let row = |(row, &table): (&[f64], &usize)| {
        let mean = if norm.centred { row.iter().sum::<f64>() / size as f64 } else { 0.0 };
        let deviation = (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / size as f64 + norm.eps).sqrt();
        let one = |((x, a), b): ((&f64, &f64), &f64)| (x - mean) / deviation * (norm.offset + a) + b;
        row.iter().zip(&scale[table * size..]).zip(&shift[table * size..]).map(one).collect::<Vec<_>>()
    };
    x.chunks(size).zip(rows).flat_map(row).collect()
}

/// `turned` values of a head turn; `tokens` rows of cosines and sines serve all rows in turn.
fn rotate_oracle(
    x: &[f64],
    weight: &[f64],
    [cos, sin]: [&[f64]; 2],
    [tokens, dim, turned]: [usize; 3],
    norm: HeadNorm,
    pairs: Pairs,
) -> Vec<f64> {
    let root = |values: &[f64]| (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64 + norm.eps).sqrt();
    let mut output = Vec::new();
    for (number, row) in x.chunks(norm.heads * dim).enumerate() {
        for (head, values) in row.chunks(dim).enumerate() {
            let size = if norm.all_heads { root(row) } else { root(values) };
            let weight = if norm.all_heads { &weight[head * dim..][..dim] } else { weight };
            let normed: Vec<f64> = values.iter().zip(weight).map(|(x, w)| x / size * w).collect();
            let turned = (0..dim).map(|c| {
                if c >= turned {
                    return normed[c];
                }
                let (pair, first, second) = match pairs {
                    Pairs::Neighbours => (c / 2, c / 2 * 2, c / 2 * 2 + 1),
                    Pairs::Halves => (c % (turned / 2), c % (turned / 2), c % (turned / 2) + turned / 2),
                };
                let at = number % tokens * turned / 2 + pair;
                let (a, b) = (normed[first], normed[second]);
                if c == first { a * cos[at] - b * sin[at] } else { b * cos[at] + a * sin[at] }
            });
            output.extend(turned.collect::<Vec<_>>());
        }
    }
    output
}

/// Numbers below `tables`, one for each of `rows` rows, in no order; and as a tensor.
fn numbers(rows: usize, tables: usize, seed: u64) -> (Vec<usize>, Tensor<1, Int>) {
    let numbers: Vec<usize> = (0..rows).map(|i| (seed as usize % 97 + 7 * i * i) % tables).collect();
    let data: Vec<i32> = numbers.iter().map(|&number| number as i32).collect();
    (numbers, Tensor::from_data(TensorData::new(data, [rows]), (&device(), DType::I32)))
}

fn judge(what: &str, output: &Tensor<2>, expected: &[f64], dtype: DType, limit: f64) -> Result<(), TestCaseError> {
    prop_assert_eq!(output.dtype(), dtype);
    let error = relative_error_of(&values(output), expected);
    prop_assert!(error < limit, "{what}: {:?}: {error:e}", output.dims());
    Ok(())
}

/// Rows far from zero, so that a variance from squares alone would show; in `dtype`, judged within `limit`. Tables of one row,
/// of one for every `run` rows, and by number.
fn norm_case(rows: usize, size: usize, seed: u64, dtype: DType, limit: f64) -> Result<(), TestCaseError> {
    let device = device();
    let x: Tensor<2> = random([rows, size], seed, &device).add_scalar(3.0).cast(dtype);
    let run = (seed % 3 + 1) as usize;
    let x = Tensor::cat(vec![x; run], 0);
    let (given, by_number) = numbers(rows * run, rows, seed);
    for norm in [Norm::layer(EPS).from_one(), Norm::layer(EPS), Norm::root_mean_square(EPS).from_one()] {
        let table = |n: usize, s: u64| -> Tensor<2> { random([n, size], seed ^ s, &device).mul_scalar(0.3) };
        let all = |n: usize| (table(n, 1), table(n, 2));
        for (name, (scale, shift), taken, by) in [
            ("one table", all(1), vec![0; rows * run], None),
            ("in runs", all(rows), (0..rows * run).map(|row| row / run).collect(), None),
            ("by number", all(rows), given.clone(), Some(by_number.clone())),
        ] {
            let expected = norm_oracle(&values(&x), size, &values(&scale), &values(&shift), &taken, norm);
            let chosen = scaled_norm(x.clone(), scale.clone(), shift.clone(), by.clone(), norm);
            judge(name, &chosen, &expected, dtype, limit)?;
            judge(name, &reference::scaled_norm(x.clone(), scale, shift, by, norm), &expected, dtype, limit)?;
        }
    }
    let [scale, shift]: [Tensor<1>; 2] = [1, 2].map(|s| random([size], seed ^ s, &device).mul_scalar(0.3));
    let expected = |norm| norm_oracle(&values(&x), size, &values(&scale), &values(&shift), &vec![0; rows * run], norm);
    let modulated = modulated_norm(x.clone(), scale.clone(), shift.clone(), EPS);
    judge("modulated", &modulated, &expected(Norm::layer(EPS).from_one()), dtype, limit)?;
    let layer = layer_norm(x.clone(), scale.clone(), shift.clone(), EPS);
    judge("with weights", &layer, &expected(Norm::layer(EPS)), dtype, limit)
}

fn gate_case(rows: usize, size: usize, seed: u64, dtype: DType, limit: f64) -> Result<(), TestCaseError> {
    let device = device();
    let [x, update]: [Tensor<2>; 2] = [3, 4].map(|s| random([2 * rows, size], seed ^ s, &device).cast(dtype));
    let gate: Tensor<2> = random([rows, size], seed ^ 5, &device);
    let (given, by_number) = numbers(2 * rows, rows, seed);
    let (a, b, g) = (values(&x), values(&update), values(&gate));
    for (name, taken, by) in [
        ("gates in runs", (0..2 * rows).map(|row| row / 2).collect::<Vec<_>>(), None),
        ("gates by number", given, Some(by_number)),
    ] {
        let expected: Vec<f64> = (0..a.len()).map(|i| a[i] + b[i] * g[taken[i / size] * size + i % size]).collect();
        let chosen = gated_add(x.clone(), update.clone(), gate.clone(), by.clone());
        judge(name, &chosen, &expected, dtype, limit)?;
        judge(name, &reference::gated_add(x.clone(), update.clone(), gate.clone(), by), &expected, dtype, limit)?;
    }
    // Far out, where an exponential overflows, as well.
    let x = random([rows, 2 * size], seed ^ 6, &device).mul_scalar(40.0).cast(dtype);
    let a = values(&x);
    let expected: Vec<f64> = (0..rows * size)
        .map(|i| {
            let (value, gate) = (a[i / size * 2 * size + i % size], a[i / size * 2 * size + size + i % size]);
            value * gate / (1.0 + (-gate).exp())
        })
        .collect();
    judge("swiglu", &swiglu(x.clone()), &expected, dtype, limit)?;
    judge("swiglu", &reference::swiglu(x), &expected, dtype, limit)
}

fn rotate_case(
    [tokens, heads, dim, turned]: [usize; 4],
    seed: u64,
    dtype: DType,
    limit: f64,
) -> Result<(), TestCaseError> {
    let device = device();
    let (size, rows) = (heads * dim, 2 * tokens);
    let x: Tensor<2> = random([rows, size], seed, &device).mul_scalar(2.0).cast(dtype);
    let angles: Tensor<2> = random([tokens, turned / 2], seed ^ 9, &device).mul_scalar(3.0);
    let turn = [angles.clone().cos(), angles.sin()];
    let [cos, sin] = turn.each_ref().map(values);
    for all_heads in [true, false] {
        let norm = HeadNorm { heads, all_heads, eps: EPS };
        let weight: Tensor<1> = random([if all_heads { size } else { dim }], seed ^ 3, &device).add_scalar(1.0);
        let oracle = |turned: usize, pairs: Pairs| {
            let sizes = [tokens, dim, turned];
            rotate_oracle(&values(&x), &values(&weight), [&cos, &sin], sizes, norm, pairs)
        };
        for pairs in [Pairs::Neighbours, Pairs::Halves] {
            let expected = oracle(turned, pairs);
            for (name, output) in [
                ("chosen", norm_and_rotate(x.clone(), weight.clone(), turn.clone(), norm, pairs)),
                ("reference", reference::norm_and_rotate(x.clone(), weight.clone(), turn.clone(), norm, pairs)),
            ] {
                prop_assert_eq!(output.dims(), [rows, heads, dim]);
                let what = format!("{name}: {turned} of {norm:?}, {pairs:?}");
                judge(&what, &output.reshape([rows, size]), &expected, dtype, limit)?;
            }
        }
        let expected = oracle(0, Pairs::Halves);
        let chosen = rms_norm(x.clone(), weight.clone(), norm);
        prop_assert_eq!(chosen.dims(), [rows, heads, dim]);
        judge("norm alone", &chosen.reshape([rows, size]), &expected, dtype, limit)?;
        judge("norm alone", &reference::rms_norm(x.clone(), weight, norm), &expected, dtype, limit)?;
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
        let turned = 2 * (seed as usize % half + 1);
        rotate_case([tokens, heads, 2 * half, turned], seed, DType::F32, reference_tolerance())?;
        let dim = half.div_ceil(4) * 8;
        rotate_case([tokens, heads, dim, dim], seed, DType::F32, reference_tolerance())?;
        rotate_case([tokens, heads, dim, (turned.div_ceil(8) * 8).min(dim)], seed, DType::F32, reference_tolerance())?;
    }

    #[test]
    fn gates(rows in 1usize..6, size in prop_oneof![1usize..40, 250usize..1300], seed: u64) {
        gate_case(rows, size, seed, DType::F32, reference_tolerance())?;
        gate_case(rows, size.div_ceil(8) * 8, seed, DType::F32, reference_tolerance())?;
    }
}

/// The rows of Wan 14B and of MiniMax-H3, in 16 bits; the kernels must take them.
#[test]
fn rows_of_large_models() {
    for (dtype, rounding) in half_dtypes(&device(), "rows_of_large_models") {
        norm_case(3, 5120, 1, dtype, 1.1 * rounding).unwrap();
        gate_case(2, 5120, 5, dtype, 1.1 * rounding).unwrap();
        rotate_case([2, 40, 128, 128], 2, dtype, 1.1 * rounding).unwrap();
    }
    norm_case(2, 5376, 3, DType::F32, reference_tolerance()).unwrap();
    rotate_case([2, 56, 128, 96], 4, DType::F32, reference_tolerance()).unwrap();
}

/// Each layer asks only for what its own kernel needs, and a refusal says which layer and why.
#[test]
fn what_kernels_take() {
    let heads = |heads, head_dim, turned| Layer::HeadNorm { heads, head_dim, turned };
    let taken = [
        Layer::Norm { size: 5120 },
        Layer::Norm { size: 5376 },
        // A vector, not two.
        Layer::Norm { size: 12 },
        // As long as the registers allow; the sums of heads do not count here.
        Layer::Norm { size: 16_384 },
        Layer::GatedAdd { size: 4 },
        Layer::GatedAdd { size: 16_388 },
        Layer::GatedAdd { size: 100_000 },
        Layer::SwiGlu { hidden: 4 },
        Layer::SwiGlu { hidden: 28_672 },
        heads(40, 128, 128),
        heads(56, 128, 96),
        heads(2, 8, 0),
    ];
    for layer in taken {
        match kernel(&device(), layer) {
            Ok(()) => assert!(!is_flex(), "{layer}"),
            Err(reason) => assert!(is_flex() && reason.contains("no kernel for"), "{reason}"),
        }
    }
    let refused = [
        (Layer::Norm { size: 30 }, "a multiple of 4"),
        (Layer::Norm { size: 16_388 }, "at most 16384"),
        (Layer::GatedAdd { size: 0 }, "rows of 0 values"),
        (Layer::GatedAdd { size: 30 }, "a multiple of 4"),
        (Layer::SwiGlu { hidden: 30 }, "a multiple of 4"),
        (heads(5, 6, 0), "multiples of 8"),
        (heads(2, 16, 12), "multiples of 8"),
        (heads(2000, 8, 8), "shared memory"),
    ];
    for (layer, why) in refused {
        let reason = kernel(&device(), layer).unwrap_err();
        assert!(reason.starts_with(&layer.to_string()), "{reason}");
        assert!(is_flex() || reason.contains(why), "{reason}");
    }
}

/// Rows longer than registers hold, which only norms hold there; and norms as long as they may be.
#[test]
fn long_rows() {
    gate_case(2, 20_004, 7, DType::F32, reference_tolerance()).unwrap();
    norm_case(1, 16_384, 8, DType::F32, reference_tolerance()).unwrap();
    norm_case(2, 12, 9, DType::F32, reference_tolerance()).unwrap();
}
