//! Values at the edges: ties everywhere, one key that outweighs all, NaN in rows that nobody reads, and memory that holds NaN
//! before a kernel writes it.

use burn::tensor::{DType, Tensor, TensorData};
use mcsparse::ops::{Epilogue, Route, Stage};
use mcsparse_tests::{
    Shape,
    case::{Case, F32, Lists, absolute_error, reference_lists, tolerance},
    device, half_dtypes,
    naive::index_rows,
    random, relative_error_of, values,
};

const SHAPE: Shape = Shape { batch: 2, kv_heads: 2, shared: 2, tokens: 77, head_dim: 64, group_size: 16, seed: 21 };

fn case(name: &str) -> Case {
    Case::new(name, &SHAPE, 13, &device())
}

/// The case in f32 and in the 16-bit types that the device has.
fn in_every_dtype(case: Case, test: &str) -> Vec<Case> {
    let half = half_dtypes(&device(), test).into_iter().map(|(dtype, _)| case.cast(dtype)).collect::<Vec<_>>();
    [vec![case], half].concat()
}

#[test]
fn hostile_equal_scores_give_the_mean_and_the_lowest_keys() {
    let mut case = case("all scores equal");
    case.qkv[0] = case.qkv[0].zeros_like();
    let lists = reference_lists(&case);
    let lowest: Vec<usize> = (0..case.keys).collect();
    assert!(index_rows(&lists.indices).iter().all(|row| *row == lowest), "the reference");
    for route in case.routes(Stage::Dense) {
        let (output, lse) = case.dense(&route);
        let mean = case.qkv[2].clone().mean_dim(2);
        // Query head h reads key/value head h / 2.
        let mean = Tensor::stack::<5>(vec![mean.clone(), mean], 2).reshape([2, 4, 1, 64]).expand(output.dims());
        let error = relative_error_of(&values(&output), &values(&mean));
        assert!(error < tolerance(&route), "{route}: {error:e}");
        let ln = (SHAPE.tokens as f64).ln();
        assert!(
            values(&lse).iter().all(|l| (l - ln).abs() < tolerance(&route)),
            "{route}: log-sum-exp is not ln {}",
            SHAPE.tokens
        );
        for select in case.routes(Stage::Select) {
            let rows = index_rows(&case.select(&select, lse.clone(), lists.order.clone()));
            assert!(rows.iter().all(|row| *row == lowest), "{select} after {route}: {rows:?}");
        }
    }
    for route in case.routes(Stage::Sparse) {
        let expected = case.sparse_oracle(&lists);
        case.assert_near(&route, "sparse", &case.sparse(&route, &lists, Epilogue::Output), &expected);
    }
}

/// Scores of several thousand: nothing may overflow, in f16 least of all, and one key takes everything.
#[test]
fn hostile_huge_key_takes_everything() {
    let huge = 40;
    let mut case = case("one huge key");
    case.qkv[0] = case.qkv[0].clone().abs().add_scalar(0.1);
    let row = Tensor::full([2, 2, 1, 64], 1e3, (&device(), DType::F32));
    case.qkv[1] = case.qkv[1].clone().slice_assign([0..2, 0..2, huge..huge + 1, 0..64], row);
    for case in in_every_dtype(case, "hostile_huge_key_takes_everything") {
        let value = case.qkv[2].clone().cast(DType::F32).slice_dim(2, huge..huge + 1);
        let value = Tensor::stack::<5>(vec![value.clone(), value], 2).reshape([2, 4, 1, 64]).expand([2, 4, 77, 64]);
        let lists = reference_lists(&case);
        let is_value = |route: &Route, output: Tensor<4>| {
            let error = absolute_error(&values(&output), &values(&value));
            // A kernel may round weights to the inputs' dtype, and scores of thousands leave them a rounding off 1.
            let rounding = match case.qkv[0].dtype() {
                DType::F16 => 2f64.powi(-10),
                DType::BF16 => 2f64.powi(-7),
                _ => 2f64.powi(-16),
            };
            let largest = values(&value).into_iter().fold(0.0, |max: f64, v| max.max(v.abs()));
            assert!(
                error < tolerance(route).max(rounding * largest),
                "{}: {route}: {error:e} from the value of the huge key",
                case.name
            );
        };
        for route in exact(case.routes(Stage::Dense)) {
            let (output, lse) = case.dense(&route);
            is_value(&route, output);
            for select in case.routes(Stage::Select) {
                let rows = index_rows(&case.select(&select, lse.clone(), lists.order.clone()));
                assert!(rows.iter().all(|row| row.contains(&huge)), "{}: {select} after {route}: {rows:?}", case.name);
            }
        }
        for route in exact(case.routes(Stage::Sparse)) {
            is_value(&route, case.sparse(&route, &lists, Epilogue::Output).0);
        }
    }
}

/// Huge scores of both signs: rows for which the huge key counts nothing are judged too.
#[test]
fn hostile_huge_scores_of_both_signs() {
    let mut case = case("huge scores of both signs");
    let row = random([2, 2, 1, 64], 5, &device()).mul_scalar(1e3);
    case.qkv[1] = case.qkv[1].clone().slice_assign([0..2, 0..2, 9..10, 0..64], row);
    let (dense, lists) = (case.naive().dense(), reference_lists(&case));
    let sparse = case.sparse_oracle(&lists);
    for route in exact(case.routes(Stage::Dense)) {
        case.assert_near(&route, "dense", &case.dense(&route), &dense);
    }
    for route in exact(case.routes(Stage::Sparse)) {
        case.assert_near(&route, "sparse", &case.sparse(&route, &lists, Epilogue::Output), &sparse);
    }
}

/// Those that can be judged here: TF32 products of huge scores are off by whole units.
fn exact(routes: Vec<Route>) -> impl Iterator<Item = Route> {
    routes.into_iter().filter(|route| tolerance(route) == F32)
}

/// Padding rows hold NaN. Each query row stands alone, and a group answers only for its own rows.
#[test]
fn hostile_padding_queries_leave_the_others_alone() {
    let (valid, n) = (64, SHAPE.tokens);
    let mut clean = case("padding");
    clean.qkv[0] = clean.qkv[0].clone() + 0.0;
    let nan = Tensor::full([2, 4, n - valid, 64], f32::NAN, (&device(), DType::F32));
    let mut padded = clean.clone();
    padded.qkv[0] = padded.qkv[0].clone().slice_assign([0..2, 0..4, valid..n, 0..64], nan);
    let used = |t: Tensor<4>| t.slice_dim(2, 0..valid).to_data();
    // Random groups mix rows that are used with rows that are not; in the plain order the last group holds all padding.
    let mixed = clean.random_lists(4, 0..n);
    let plain = mcsparse_tests::case::ints((0..8).flat_map(|_| 0..n), [2, 4, n], &device());
    for route in clean.routes(Stage::Dense) {
        let ((a, a_lse), (b, b_lse)) = (clean.dense(&route), padded.dense(&route));
        assert!(used(a) == used(b), "{route}: a row changed with the padding");
        assert!(
            values(&b_lse.clone().slice_dim(2, 0..valid)) == values(&a_lse.clone().slice_dim(2, 0..valid)),
            "{route}"
        );
        for select in clean.routes(Stage::Select) {
            let whole = valid / clean.group_size;
            let [a, b] = [(&clean, a_lse.clone()), (&padded, b_lse.clone())]
                .map(|(case, lse)| case.select(&select, lse, plain.clone()).slice_dim(2, 0..whole).to_data());
            assert!(a == b, "{select}: groups without padding chose other keys");
        }
    }
    for route in clean.routes(Stage::Sparse) {
        let [a, b] = [&clean, &padded].map(|case| used(case.sparse(&route, &mixed, Epilogue::Output).0));
        assert!(a == b, "{route}: a row changed with the padding");
    }
}

/// Keys that no list names are not read, not even with a weight of zero: the first and the last are what a kernel would take
/// to fill up a tile.
#[test]
fn hostile_keys_outside_the_lists_do_not_count() {
    let n = SHAPE.tokens;
    let mut case = case("NaN outside the lists");
    let lists = case.random_lists(6, 1..n - 1);
    let expected = case.sparse_oracle(&lists);
    for tensor in [1, 2] {
        for row in [0, n - 1] {
            case.qkv[tensor] = case.qkv[tensor].clone().slice_fill([0..2, 0..2, row..row + 1, 0..64], f32::NAN);
        }
    }
    for route in case.routes(Stage::Sparse) {
        case.assert_near(&route, "sparse", &case.sparse(&route, &lists, Epilogue::Output), &expected);
    }
}

/// Leaves freed memory of the sizes of the outputs full of NaN, or of indices far out of range, for the next allocation.
fn poison(shapes: &[&[usize]]) {
    let device = device();
    let filled: Vec<_> = shapes
        .iter()
        .flat_map(|shape| {
            let len = shape.iter().product::<usize>();
            // From data: a fill could be fused away.
            [0; 3].map(|_| Tensor::<1>::from_data(TensorData::new(vec![f32::NAN; len], [len]), (&device, DType::F32)))
        })
        .collect();
    for tensor in &filled {
        assert!(tensor.clone().slice_dim(0, 0..1).into_scalar::<f32>().is_nan());
    }
    drop(filled);
    device.sync().expect("the device works");
}

#[test]
fn hostile_memory_is_written_everywhere() {
    for (tokens, head_dim) in [(1, 16), (15, 72), (77, 128), (130, 64)] {
        let shape = Shape { tokens, head_dim, ..SHAPE };
        let case = Case::new(format!("{shape:?}"), &shape, tokens.div_ceil(5), &device());
        let lists = reference_lists(&case);
        let [b, h, n, d] = case.qkv[0].dims();
        let m = n.div_ceil(case.group_size);
        let outputs: [&[usize]; 3] = [&[b, h, n, d], &[b, h, n], &[b, h, m, case.keys]];
        let finite = |route: &Route, (output, lse): (Tensor<4>, Tensor<3>)| {
            assert!(values(&output).iter().all(|x| x.is_finite()), "{}: {route}: output", case.name);
            assert!(values(&lse).iter().all(|x| x.is_finite()), "{}: {route}: log-sum-exp", case.name);
        };
        for route in case.routes(Stage::Dense) {
            poison(&outputs);
            finite(&route, case.dense(&route));
        }
        let lse = case.dense(&case.routes(Stage::Dense)[0]).1;
        for route in case.routes(Stage::Group) {
            poison(&outputs);
            for mut row in index_rows(&case.group(&route)) {
                row.sort_unstable();
                assert!(row.into_iter().eq(0..n), "{}: {route}: no permutation", case.name);
            }
        }
        for route in case.routes(Stage::Select) {
            poison(&outputs);
            let indices = case.select(&route, lse.clone(), lists.order.clone());
            case.assert_selection(&route, &lists.order, &indices);
        }
        for route in case.routes(Stage::Sparse) {
            let other = random([b, h, n, d], 3, &device());
            for epilogue in [Epilogue::Output, Epilogue::AddResidual(other.clone()), Epilogue::ResidualOf(other)] {
                poison(&outputs);
                finite(&route, case.sparse(&route, &lists, epilogue));
            }
        }
    }
}

/// The lists that a case has are its own: guards the helpers above against lists that prove nothing.
#[test]
fn hostile_random_lists_are_valid() {
    let case = case("lists");
    let Lists { order, indices } = case.random_lists(6, 1..SHAPE.tokens - 1);
    for mut row in index_rows(&order) {
        row.sort_unstable();
        assert!(row.into_iter().eq(0..SHAPE.tokens));
    }
    let rows = index_rows(&indices);
    assert_eq!((rows.len(), rows[0].len()), (2 * 4 * 5, case.keys));
    assert!(rows.iter().all(|row| row.windows(2).all(|w| w[0] < w[1])));
    assert!(rows.iter().flatten().all(|&j| j > 0 && j < SHAPE.tokens - 1));
    assert_ne!(rows[0], rows[1]);
}
