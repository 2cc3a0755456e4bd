//! The stored forms of key lists are exact, those of residuals off by half a step at most; by every route.

use burn::tensor::{DType, Int, Tensor};
use mcsparse::{
    IndexFormat, McSparse, McSparseConfig, ResidualFormat, Schedule, SelfAttention,
    check::Problem,
    ops::{self, Route, Stage},
};
use mcsparse_tests::{
    case::{ints, routes},
    cases, device, half_dtypes, is_flex,
    naive::index_rows,
    random, relative_error, values,
};
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng, seq::index};

const CODED: [ResidualFormat; 2] = [ResidualFormat::Fp8, ResidualFormat::Int8];

/// Routes of a stage; formats have one kernel for all problems of a device.
fn stage_routes(stage: Stage) -> Vec<Route> {
    let any = random([1, 1, 4, 8], 1, &device());
    routes(stage, &Problem::of(&any, &any, &any).unwrap())
}

/// Ascending lists of `kept` of `keys` keys, fresh for each row.
fn lists(rows: usize, keys: usize, kept: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut list = || {
        let mut list = index::sample(&mut rng, keys, kept).into_vec();
        list.sort_unstable();
        list
    };
    (0..rows).map(|_| list()).collect()
}

/// What the documentation of the format says, word by word.
fn words(list: &[usize], format: IndexFormat, keys: usize) -> Vec<u32> {
    match format {
        IndexFormat::Plain => list.iter().map(|&j| j as u32).collect(),
        IndexFormat::Bitmap => {
            let bit = |j: usize| u32::from(list.contains(&j)) << (j % 32);
            let word = |first: usize| (first..keys.min(first + 32)).map(bit).sum();
            (0..keys).step_by(32).map(word).collect()
        }
        IndexFormat::Offsets => {
            let starts = (1..keys.div_ceil(65_536)).map(|b| list.iter().filter(|&&j| j < b * 65_536).count() as u32);
            let pairs = list.chunks(2).map(|pair| {
                let [low, high] = [pair[0], pair.get(1).copied().unwrap_or(0)].map(|j| (j % 65_536) as u32);
                low | high << 16
            });
            starts.chain(pairs).collect()
        }
    }
}

fn round_trip([batch, heads, groups]: [usize; 3], keys: usize, kept: usize, seed: u64) -> Result<(), TestCaseError> {
    let lists = lists(batch * heads * groups, keys, kept, seed);
    let indices = ints(lists.iter().flatten().copied(), [batch, heads, groups, kept], &device());
    for format in IndexFormat::ALL {
        let expected: Vec<u32> = lists.iter().flat_map(|list| words(list, format, keys)).collect();
        for (pack, expand) in stage_routes(Stage::Encode).into_iter().zip(stage_routes(Stage::Decode)) {
            // Tensor operations loop over rows there, and Mesa's software Vulkan ends loops after 65,535 rounds.
            if keys > 65_535 && !is_flex() && matches!(pack, Route::Reference { .. }) {
                continue;
            }
            let packed = ops::pack_indices(&pack, indices.clone(), format, keys);
            prop_assert_eq!(packed.dims(), [batch, heads, groups, format.words(keys, kept)]);
            let got: Vec<u32> = packed.to_data().iter::<i32>().map(|word| word as u32).collect();
            prop_assert!(got == expected, "{format} of {kept} of {keys} keys by {pack}: {got:x?}, not {expected:x?}");
            let expanded = ops::expand_indices(&expand, packed, format, keys, kept, 40_000);
            prop_assert_eq!(expanded.dims(), [batch, heads, groups, kept]);
            prop_assert!(index_rows(&expanded) == lists, "{format} of {kept} of {keys} keys by {expand}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn key_lists_round_trip(
        shape in [1usize..3, 1usize..3, 1usize..4], keys in prop_oneof![1usize..5, 20usize..300], share in 0.0f64..1.0, seed: u64,
    ) {
        let kept = ((share * keys as f64) as usize).max(1);
        round_trip(shape, keys, kept, seed)?;
    }

    /// Rows of many magnitudes and of zeros, rows of all lengths.
    #[test]
    fn residuals_are_off_by_half_a_step(
        shape in [1usize..3, 1usize..3, 1usize..40, 1usize..140], exponent in -20i32..20, seed: u64,
    ) {
        let [batch, heads, rows, _] = shape;
        let scale = |row: u64| if row % 5 == 4 { 0.0 } else { 2f64.powi(exponent + (row % 7) as i32) as f32 };
        let scales: Vec<f32> = (0..(batch * heads * rows) as u64).map(scale).collect();
        let scales = Tensor::<1>::from_data(scales.as_slice(), (&device(), DType::F32)).reshape([batch, heads, rows, 1]);
        half_step(random(shape, seed, &device()) * scales, 0.0)?;
    }
}

/// `rounding` is the relative error of rounding to the dtype.
fn half_step(residual: Tensor<4>, rounding: f64) -> Result<(), TestCaseError> {
    let [batch, heads, rows, dim] = residual.dims();
    let exact = values(&residual);
    for format in CODED {
        let mut decoded = Vec::new();
        for (encode, decode) in stage_routes(Stage::Encode).into_iter().zip(stage_routes(Stage::Decode)) {
            let (codes, largest) = ops::encode_residual(&encode, residual.clone(), format);
            prop_assert_eq!(codes.dims(), [batch, heads, rows, dim.div_ceil(4)]);
            prop_assert_eq!((largest.dims(), largest.dtype()), ([batch, heads, rows], residual.dtype()));
            let got = ops::decode_residual(&decode, codes.clone(), largest.clone(), format, dim);
            prop_assert_eq!((got.dims(), got.dtype()), (residual.dims(), residual.dtype()));
            let (largest, got) = (values(&largest), values(&got));
            for (i, row) in exact.chunks(dim).enumerate() {
                let most = row.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                prop_assert!(largest[i] == most, "{format} by {encode}: {} is not {most}", largest[i]);
                for (x, y) in row.iter().zip(&got[i * dim..]) {
                    let step = match format {
                        ResidualFormat::Int8 => most / 127.0,
                        // 3 bits of mantissa down to 2^-6, in units of which 448 is the largest.
                        _ => f64::max(x.abs() / 8.0, most / 448.0 * 2f64.powi(-9)),
                    };
                    let limit = step * 0.5 * (1.0 + 1e-5) + y.abs() * (rounding + 1e-6);
                    prop_assert!((x - y).abs() <= limit, "{format} by {encode}, {decode}: {x} came back as {y}");
                }
            }
            decoded.push((codes, got));
        }
        // Codes may differ where a quotient lies at the edge of two; what a code means may not.
        let (codes, got) = &decoded[0];
        for decode in stage_routes(Stage::Decode) {
            let largest = ops::encode_residual(&stage_routes(Stage::Encode)[0], residual.clone(), format).1;
            let again = ops::decode_residual(&decode, codes.clone(), largest, format, dim);
            prop_assert!(values(&again) == *got, "{format} by {decode} is not the reference, bit for bit");
        }
    }
    Ok(())
}

/// More keys than 16 bits count, at both ends and across blocks; lists longer than a tile of the kernel.
#[test]
fn long_sequences_round_trip() {
    let all = if is_flex() { vec![(65_536, 9), (65_537, 4_000), (200_000, 9_001)] } else { vec![(131_073, 4_001)] };
    for (keys, kept) in all {
        round_trip([1, 1, 2], keys, kept, keys as u64).unwrap();
    }
    // Full rows, and the two ends alone.
    for keys in [32, 4_096, 4_129] {
        round_trip([1, 2, 1], keys, keys, 1).unwrap();
    }
    let ends: Tensor<4, Int> = ints([0, 65_535, 65_536, 70_000].into_iter(), [1, 1, 1, 4], &device());
    for (format, (pack, expand)) in IndexFormat::ALL
        .into_iter()
        .flat_map(|f| stage_routes(Stage::Encode).into_iter().zip(stage_routes(Stage::Decode)).map(move |r| (f, r)))
    {
        let packed = ops::pack_indices(&pack, ends.clone(), format, 70_001);
        let again = ops::expand_indices(&expand, packed, format, 70_001, 4, 1 << 20);
        assert_eq!(index_rows(&again), index_rows(&ends), "{format} by {pack}, {expand}");
    }
}

#[test]
fn half_precision_residuals() {
    for (dtype, rounding) in half_dtypes(&device(), "half_precision_residuals") {
        half_step(random([1, 2, 33, 72], 5, &device()).mul_scalar(0.02).cast(dtype), rounding).unwrap();
    }
}

/// A row that is not finite comes back as NaN, as a whole, and spoils no other one; tiny and huge rows are no special case.
#[test]
fn broken_rows_stay_broken_and_alone() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let clean = random([1, 1, 9, 20], 8, &device());
        let residual = clean.clone().slice_fill([0..1, 0..1, 4..5, 7..8], bad);
        let row = |scale: f32| random([1, 1, 1, 20], 9, &device()).mul_scalar(scale);
        let residual = residual.slice_assign([0..1, 0..1, 0..1, 0..20], row(1e-37));
        let residual = residual.slice_assign([0..1, 0..1, 8..9, 0..20], row(1e37));
        for format in CODED {
            for (encode, decode) in stage_routes(Stage::Encode).into_iter().zip(stage_routes(Stage::Decode)) {
                let (codes, largest) = ops::encode_residual(&encode, residual.clone(), format);
                let got = values(&ops::decode_residual(&decode, codes, largest, format, 20));
                let exact = values(&residual);
                for (i, (x, y)) in exact.iter().zip(&got).enumerate() {
                    let most = exact[i / 20 * 20..][..20].iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                    match i / 20 {
                        4 => assert!(y.is_nan(), "{format} by {encode}, {decode}: {bad} became {y}"),
                        0 => assert!(y.abs() <= most, "{format} by {encode}, {decode}: {x:e} became {y:e}"),
                        _ => assert!((x - y).abs() <= most / 25.0, "{format} by {encode}, {decode}: {x} became {y}"),
                    }
                }
            }
        }
    }
}

/// What a run with each form returns: the same bits for all forms of the keys, a rounding of the residual for its forms.
#[test]
fn forms_change_a_run_by_their_rounding_alone() {
    let run = |keys: Option<IndexFormat>, values: ResidualFormat| {
        let config = McSparseConfig::density(0.2)
            .with_group_size(16)
            .with_schedule(Schedule::warm_up(1))
            .with_index_format(keys)
            .with_residual_format(values);
        let mut run = McSparse::new(&config, 2).unwrap();
        let mut outputs = Vec::new();
        for step in 0..2 {
            run.begin_step(step).unwrap();
            let [q, k, v] = [1, 2, 3].map(|s| random([1, 2, 90, 32], s + 10 * step as u64, &device()));
            outputs.push(run.attend(1, q, k, v).unwrap());
        }
        (outputs.remove(1), run.report().to_string())
    };
    let (plain, report) = run(Some(IndexFormat::Plain), ResidualFormat::Input);
    assert!(!report.contains("cache decoding"), "{report}");
    for form in [None, Some(IndexFormat::Bitmap), Some(IndexFormat::Offsets)] {
        let (output, report) = run(form, ResidualFormat::Input);
        assert!(values(&output) == values(&plain), "{form:?}");
        assert!(report.contains("cache encoding") && report.contains("cache decoding"), "{report}");
    }
    // The residual is about as large as the output here; int8 has 127 steps to its largest, fp8 8 to each power of two.
    for (form, least, most) in [(ResidualFormat::Int8, 1e-4, 0.012), (ResidualFormat::Fp8, 1e-3, 0.04)] {
        let error = relative_error(&run(None, form).0, &plain);
        assert!((least..most).contains(&error), "{form}: {error:e}");
    }
}

/// The lists that cases have are valid and differ, else they prove nothing.
#[test]
fn lists_are_valid() {
    let lists = lists(3, 50, 20, 4);
    assert!(lists.iter().all(|list| list.len() == 20 && list.windows(2).all(|w| w[0] < w[1]) && list[19] < 50));
    assert_ne!(lists[0], lists[1]);
}
