//! A fixed list of shapes and views at the edges of what kernels assume, by the reference and the device's kernels, against
//! the f64 oracle.

use burn::tensor::Tensor;
use mcsparse::{
    ops::{Epilogue, Stage},
    reference,
};
use mcsparse_tests::{
    Shape,
    case::{Case, WORKSPACE, reference_lists, tolerance},
    device,
    naive::{groups, index_rows},
    random, relative_error_of, values,
};

const BASE: Shape = Shape { batch: 1, kv_heads: 2, shared: 1, tokens: 75, head_dim: 64, group_size: 32, seed: 11 };

/// Shapes and how many keys are kept.
fn cases() -> Vec<Case> {
    let mut shapes = vec![
        ("one token", Shape { tokens: 1, ..BASE }, 1),
        ("one token less than a group", Shape { tokens: 63, group_size: 64, ..BASE }, 20),
        ("one whole group", Shape { tokens: 64, group_size: 64, ..BASE }, 20),
        ("one token more than a group", Shape { tokens: 65, group_size: 64, ..BASE }, 20),
        ("groups of 128 and one token", Shape { tokens: 257, group_size: 128, ..BASE }, 129),
        ("groups of one token", Shape { tokens: 21, group_size: 1, ..BASE }, 5),
        ("one key a group", Shape { group_size: 16, ..BASE }, 1),
        ("all keys", Shape { group_size: 16, ..BASE }, BASE.tokens),
        ("tokens and keys no multiple of 8", Shape { tokens: 83, group_size: 20, ..BASE }, 13),
        ("three batch elements", Shape { batch: 3, tokens: 50, ..BASE }, 15),
        ("4 query heads on 2", Shape { kv_heads: 2, shared: 2, ..BASE }, 21),
        ("4 query heads on 1", Shape { kv_heads: 1, shared: 4, batch: 2, ..BASE }, 21),
    ];
    for head_dim in [16, 64, 72, 80, 96, 128, 160, 256] {
        shapes.push(("head_dim", Shape { head_dim, ..BASE }, 21));
    }
    let named =
        |(name, shape, keys): (&str, Shape, usize)| Case::new(format!("{name} {shape:?}"), &shape, keys, &device());
    shapes.into_iter().map(named).collect()
}

fn dense_is_right(case: &Case) {
    let expected = case.naive().dense();
    for route in case.routes(Stage::Dense) {
        case.assert_near(&route, "dense", &case.dense(&route), &expected);
    }
}

fn grouping_and_selection_are_right(case: &Case) {
    for route in case.routes(Stage::Group) {
        for row in index_rows(&case.group(&route)) {
            let grouped = groups(&row, case.group_size);
            assert!(grouped.iter().all(|group| group.is_sorted()), "{}: {route}: {row:?}", case.name);
            let mut all = row.clone();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..row.len()), "{}: {route}: no permutation: {row:?}", case.name);
        }
    }
    let [q, k, v] = case.qkv.clone();
    let lse = reference::dense_attention(q, k, v, case.scale, WORKSPACE).1;
    let order = reference_lists(case).order;
    for route in case.routes(Stage::Select) {
        case.assert_selection(&route, &order, &case.select(&route, lse.clone(), order.clone()));
    }
}

fn sparse_is_right_with_every_epilogue(case: &Case) {
    let tokens = case.problem().keys;
    let [batch, heads, _, head_dim] = case.qkv[0].dims();
    // A view of other strides than the query, as a residual kept in another layout would be.
    let other: Tensor<4> = random([batch, heads, head_dim, tokens], 99, &device()).swap_dims(2, 3);
    let third = values(&other);
    // Any lists must do; those that the method makes go without the epilogues.
    let selected = reference_lists(case);
    let selected = (selected.clone(), case.sparse_oracle(&selected));
    let lists = case.random_lists(5, 0..tokens);
    let (output, lse) = case.sparse_oracle(&lists);
    let scaled =
        |sign: f64, factor: f64| output.iter().zip(&third).map(|(o, r)| sign * o + factor * r).collect::<Vec<_>>();
    let with = |sign: f64| scaled(sign, 1.0);
    for route in case.routes(Stage::Sparse) {
        for (what, epilogue, expected) in [
            ("sparse", Epilogue::Output, output.clone()),
            ("sparse + residual", Epilogue::AddResidual(other.clone()), with(1.0)),
            ("sparse + a part of it", Epilogue::AddScaledResidual(other.clone(), -0.375), scaled(1.0, -0.375)),
            ("dense - sparse", Epilogue::ResidualOf(other.clone()), with(-1.0)),
        ] {
            case.assert_near(&route, what, &case.sparse(&route, &lists, epilogue), &(expected, lse.clone()));
        }
        case.assert_near(&route, "selected", &case.sparse(&route, &selected.0, Epilogue::Output), &selected.1);
    }
}

#[test]
fn awkward_shapes_of_dense_attention() {
    cases().iter().for_each(dense_is_right);
}

#[test]
fn awkward_shapes_of_grouping_and_selection() {
    cases().iter().for_each(grouping_and_selection_are_right);
}

#[test]
fn awkward_shapes_of_sparse_attention() {
    cases().iter().for_each(sparse_is_right_with_every_epilogue);
}

/// Lists differ between batch elements above; here they are wrong for every element but their own.
#[test]
fn awkward_batches_use_their_own_lists() {
    let case = Case::new("batches", &Shape { batch: 3, tokens: 50, ..BASE }, 7, &device());
    let lists = case.random_lists(3, 0..50);
    let rows = index_rows(&lists.indices);
    let (first, second) = (&rows[..rows.len() / 3], &rows[rows.len() / 3..rows.len() / 3 * 2]);
    assert_ne!(first, second, "the lists do not differ: nothing is tested");
    for route in case.routes(Stage::Sparse) {
        let whole = values(&case.sparse(&route, &lists, Epilogue::Output).0);
        for b in 0..3 {
            let alone = Case { qkv: case.qkv.clone().map(|t| t.slice_dim(0, b..b + 1)), ..case.clone() };
            let own = mcsparse_tests::case::Lists {
                order: lists.order.clone().slice_dim(0, b..b + 1),
                indices: lists.indices.clone().slice_dim(0, b..b + 1),
            };
            let output = values(&alone.sparse(&route, &own, Epilogue::Output).0);
            let error = relative_error_of(&whole[b * output.len()..][..output.len()], &output);
            assert!(error < tolerance(&route), "{route}: batch element {b}: {error:e}");
        }
    }
}

/// Views as models make them, every one against the oracle, which reads values and knows no strides.
#[test]
fn awkward_views_are_read_as_they_are() {
    let device = device();
    let (b, n, h, d) = (2, 45, 4, 40);
    let fused = |s: usize| {
        let all: Tensor<5> = random([b, n, 3, h, d], 7, &device);
        all.slice_dim(2, s..s + 1).squeeze_dim::<4>(2).swap_dims(1, 2)
    };
    let one = |s: usize| random([b, n, 1, d], s as u64, &device).swap_dims(1, 2);
    let offset = |s: usize| {
        let wide: Tensor<4> = random([b + 1, n + 9, h + 3, d + 12], s as u64, &device);
        wide.slice([1..b + 1, 9..n + 9, 2..h + 2, 12..d + 12]).swap_dims(1, 2)
    };
    // Rows that start at an odd element: no vector of 2, 4 or 8 elements is aligned.
    let odd = |s: usize| random([b, h, n, d + 1], s as u64, &device).slice_dim(3, 1..d + 1);
    let views: [(&str, [Tensor<4>; 3]); 6] = [
        ("slices of one fused projection", [0, 1, 2].map(fused)),
        ("offset slices of every axis", [1, 2, 3].map(offset)),
        ("rows at odd offsets", [1, 2, 3].map(odd)),
        ("one head expanded to all", [4, 5, 6].map(|s| one(s).expand([b, h, n, d]))),
        ("one key and value row for all tokens", [fused(0), one(8).slice_dim(2, 0..1).expand([b, h, n, d]), fused(2)]),
        ("one batch element expanded to all", [1, 2, 3].map(|s| offset(s).slice_dim(0, 1..2).expand([b, h, n, d]))),
    ];
    for (name, qkv) in views {
        let case = Case { name: name.into(), qkv, scale: 0.3, group_size: 16, keys: 11 };
        dense_is_right(&case);
        grouping_and_selection_are_right(&case);
        sparse_is_right_with_every_epilogue(&case);
    }
}

/// Order and keys that are themselves views: one list for all heads, and a slice of longer lists.
#[test]
fn awkward_lists_are_read_as_they_are() {
    let case = Case::new("views of lists", &Shape { batch: 2, ..BASE }, 9, &device());
    let [batch, heads, n, _] = case.qkv[0].dims();
    let lists = case.random_lists(8, 0..n);
    let m = lists.indices.dims()[2];
    let (order, indices) = (lists.order.slice_dim(1, 1..2), lists.indices.slice_dim(1, 1..2));
    let views = mcsparse_tests::case::Lists {
        order: order.expand([batch, heads, n]),
        indices: indices.slice_dim(3, 2..9).expand([batch, heads, m, 7]),
    };
    let expected = case.sparse_oracle(&views);
    for route in case.routes(Stage::Sparse) {
        case.assert_near(&route, "sparse", &case.sparse(&route, &views, Epilogue::Output), &expected);
    }
}
