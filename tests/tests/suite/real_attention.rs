//! What the method is for, on attention of a trained model: of the attention weight, single keys for similar queries keep more
//! than single keys for neighbouring queries, and those more than whole blocks, at the same number of query-key pairs.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use mcsparse::ops::{self, Kernels, Stage};
use mcsparse_tests::{
    case::{Case, ints, routes},
    device,
    naive::{Naive, groups, index_rows},
};
use safetensors::SafeTensors;

use super::dit_support::fixture;

const HEADS: [&str; 3] = ["layer2.head0", "layer5.head2", "layer8.head4"];
const TOKENS: usize = 1024;
const DIM: usize = 64;
/// Queries in a group and in a block; keys in a block.
const GROUP: usize = 32;

/// Query, key and value of the fixture's three heads in f32.
fn real(device: &Device) -> [Tensor<4>; 3] {
    let bytes = std::fs::read(fixture("dinov2_qkv").join("qkv_1024.safetensors")).expect("the fixture is there");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    ["q", "k", "v"].map(|part| {
        let heads = HEADS.map(|head| {
            let view = file.tensor(&format!("{head}.{part}")).expect("the fixture has it");
            assert_eq!((view.dtype(), view.shape()), (safetensors::Dtype::F16, &[TOKENS, DIM][..]));
            let values = view.data().chunks_exact(2).map(|b| f16_to_f32(u16::from_le_bytes([b[0], b[1]]))).collect();
            Tensor::<2>::from_data(TensorData::new::<f32, _>(values, [TOKENS, DIM]), (device, DType::F32))
        });
        Tensor::stack::<3>(heads.to_vec(), 0).reshape([1, HEADS.len(), TOKENS, DIM])
    })
}

/// By hand, so that the fixture can be read on devices without f16.
fn f16_to_f32(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f32::from(bits & 1023) / 1024.0);
    assert!(exponent < 31, "not finite");
    let value = if exponent == 0 { fraction * 2f32.powi(-14) } else { (1.0 + fraction) * 2f32.powi(exponent - 15) };
    if sign == 1 { -value } else { value }
}

/// Attention weights `[query][key]` of each head.
fn weights(naive: &Naive) -> Vec<Vec<Vec<f64>>> {
    (0..HEADS.len()).map(|z| (0..TOKENS).map(|i| naive.mass(z, &[i])).collect()).collect()
}

/// The share of each head's attention weight that `kept` names, group by group of `order`.
fn kept_mass(weights: &[Vec<Vec<f64>>], order: &Tensor<3, Int>, kept: &Tensor<4, Int>, group_size: usize) -> Vec<f64> {
    let kept = index_rows(kept);
    let rows = index_rows(order).into_iter().enumerate().map(|(z, order)| {
        let mut mass = 0.0;
        for (g, group) in groups(&order, group_size).iter().enumerate() {
            let keys = &kept[z * TOKENS / group_size + g];
            mass += group
                .iter()
                .flat_map(|&i| keys.iter().map(move |&j| (i, j)))
                .map(|(i, j)| weights[z][i][j])
                .sum::<f64>();
        }
        mass / TOKENS as f64
    });
    rows.collect()
}

/// Whole key blocks for each query block, by the scores of the mean query and the mean key.
fn mean_pooled_blocks([q, k, _]: &[Tensor<4>; 3], keys: usize, device: &Device) -> Tensor<4, Int> {
    let blocks = TOKENS / GROUP;
    let means = |t: &Tensor<4>| t.clone().reshape([3, blocks, GROUP, DIM]).mean_dim(2).reshape([3, blocks, DIM]);
    let scores = means(q).matmul(means(k).swap_dims(1, 2)).reshape([3 * blocks, blocks]);
    let chosen = index_rows(&mcsparse::reference::top_k_indices(scores, keys / GROUP));
    let keys_of = |row: Vec<usize>| row.into_iter().flat_map(|block| block * GROUP..(block + 1) * GROUP);
    ints(chosen.into_iter().flat_map(keys_of), [1, 3, blocks, keys], device)
}

#[test]
fn real_attention_keeps_more_by_token_and_by_content() {
    let device = device();
    let qkv = real(&device);
    let mut case = Case { name: "DINOv2".into(), qkv, scale: 0.125, group_size: GROUP, keys: 0 };
    let weights = weights(&case.naive());
    let auto = |stage| routes(stage, &case.problem()).pop().expect("there is the reference");
    let (dense, group, select) = (auto(Stage::Dense), auto(Stage::Group), auto(Stage::Select));
    assert_eq!(select, ops::route(Stage::Select, &case.problem(), Kernels::Auto));
    let lse = case.dense(&dense).1;
    let raster = ints((0..3).flat_map(|_| 0..TOKENS), [1, 3, TOKENS], &device);
    let content = case.group(&group);
    println!("kept attention mass of {HEADS:?}, groups and blocks of {GROUP}; {group}, {select}");
    // Whole blocks, so that all four keep the same number of pairs: densities of 0.156 and 0.25.
    for keys in [5 * GROUP, 8 * GROUP] {
        case.keys = keys;
        let by = |order: &Tensor<3, Int>| {
            kept_mass(&weights, order, &case.select(&select, lse.clone(), order.clone()), GROUP)
        };
        let single = Case { group_size: 1, ..case.clone() };
        let steps = [
            ("block mean-pool", kept_mass(&weights, &raster, &mean_pooled_blocks(&case.qkv, keys, &device), GROUP)),
            ("raster groups", by(&raster)),
            ("PDDP groups", by(&content)),
            ("single queries", kept_mass(&weights, &raster, &single.select(&select, lse.clone(), raster.clone()), 1)),
        ];
        let density = keys as f64 / TOKENS as f64;
        for (name, mass) in &steps {
            let mean = mass.iter().sum::<f64>() / mass.len() as f64;
            println!("density {density:.3}  {name:<16} {mass:.3?}  mean {mean:.3}");
            assert!(mass.iter().all(|m| (0.0..=1.0).contains(m)), "{name}: {mass:?}");
        }
        for pair in steps.windows(2) {
            let ((fewer, a), (more, b)) = (&pair[0], &pair[1]);
            for (head, (a, b)) in HEADS.iter().zip(a.iter().zip(b)) {
                assert!(a < b, "{head} at {density:.3}: {fewer} keep {a:.4}, {more} {b:.4}");
            }
        }
    }
}
