//! CubeCL kernels give the same bits whether Burn's fusion streams launch them or not.
//!
//! Fusion is a feature of the whole program: `burn::backend::Cube` is `Fusion<CubeBackend>` with it and `CubeBackend` without.
//! The unfused backend is there in both, so its kernels are called here on tensors of its own.

use burn::{
    backend::{
        DispatchDevice, TensorMetadata,
        ops::{FloatTensorOps, IntTensorOps},
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{Device, Int, Tensor, TensorData, read_sync},
};
use burn_cubecl::{CubeBackend, CubeDevice};
use mcsparse::{
    IndexFormat, ResidualFormat,
    ops::{
        Epilogue, Finish, McSparseOps, Route, Stage, add_tail, decode_residual, encode_residual, expand_indices,
        pack_indices, partition_indices,
    },
    reference::TailOptions,
};
use mcsparse_tests::{
    Shape,
    case::{Case, reference_lists},
    device, random,
};

type Float = FloatTensor<CubeBackend>;
type Integer = IntTensor<CubeBackend>;

/// On a residual that is added.
const FACTOR: f32 = 0.75;

const SHAPES: [(Shape, usize); 3] = [
    (Shape { batch: 2, kv_heads: 2, shared: 2, tokens: 77, head_dim: 64, group_size: 16, seed: 41 }, 13),
    (Shape { batch: 1, kv_heads: 2, shared: 1, tokens: 130, head_dim: 128, group_size: 64, seed: 42 }, 40),
    (Shape { batch: 1, kv_heads: 1, shared: 1, tokens: 1, head_dim: 16, group_size: 4, seed: 43 }, 1),
];

fn cube(device: &Device) -> Option<CubeDevice> {
    match device.as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        _ => None,
    }
}

/// The same values and strides without fusion: `[batch, heads, tokens, head_dim]` as a view of heads after tokens.
fn unfused(tensor: &Tensor<4>, device: &CubeDevice) -> Float {
    let packed = CubeBackend::float_from_data(tensor.clone().swap_dims(1, 2).to_data(), device);
    CubeBackend::float_swap_dims(packed, 1, 2)
}

fn int<const D: usize>(tensor: &Tensor<D, Int>, device: &CubeDevice) -> Integer {
    CubeBackend::int_from_data(tensor.to_data(), device)
}

fn floats(tensor: Float) -> TensorData {
    read_sync(CubeBackend::float_into_data(tensor)).expect("the device works")
}

fn integers(tensor: Integer) -> TensorData {
    read_sync(CubeBackend::int_into_data(tensor)).expect("the device works")
}

#[test]
fn fusion_changes_no_bit_of_any_kernel() {
    let device = device();
    let Some(cube) = cube(&device) else {
        // A program with CubeCL compiled in, asked to test another device.
        assert!(mcsparse_tests::is_flex(), "{device:?} is no CubeCL device");
        return;
    };
    for (shape, keys) in SHAPES {
        let case = Case::new(format!("{shape:?}"), &shape, keys, &device);
        let lists = reference_lists(&case);
        let auto = |stage| case.routes(stage).pop().expect("there is the reference");
        let [q, k, v] = case.qkv.each_ref().map(|t| unfused(t, &cube));
        let mut kernels = 0;

        let route = auto(Stage::Dense);
        let (fused, fused_lse) = case.dense(&route);
        if let Route::Kernel { name, .. } = &route {
            kernels += 1;
            let (output, lse) = CubeBackend::mc_dense_attention(q.clone(), k.clone(), v.clone(), case.scale);
            assert_eq!(output.dtype(), fused.dtype());
            assert!(floats(output) == fused.to_data(), "{}: {name}: output", case.name);
            assert!(floats(lse) == fused_lse.to_data(), "{}: {name}: log-sum-exp", case.name);
        }
        let route = auto(Stage::Group);
        if let Route::Kernel { name, .. } = &route {
            let order = CubeBackend::mc_group_queries(q.clone(), case.group_options());
            assert!(integers(order) == case.group(&route).to_data(), "{}: {name}", case.name);
        }
        let route = auto(Stage::Select);
        if let Route::Kernel { name, .. } = &route {
            let lse = CubeBackend::float_from_data(fused_lse.to_data(), &cube);
            let order = int(&lists.order, &cube);
            let chosen = CubeBackend::mc_select_keys(q.clone(), k.clone(), lse, order, case.select_options());
            let fused = case.select(&route, fused_lse.clone(), lists.order.clone());
            assert!(integers(chosen) == fused.to_data(), "{}: {name}", case.name);
        }
        let other = random(case.qkv[0].dims(), 3, &device);
        let epilogues = [
            (Finish::Output, Epilogue::Output),
            (Finish::AddResidual, Epilogue::AddScaledResidual(other.clone(), FACTOR)),
            (Finish::ResidualOf, Epilogue::ResidualOf(other.clone())),
        ];
        for (finish, epilogue) in epilogues {
            let route = auto(Stage::Sparse);
            let Route::Kernel { name, .. } = &route else { continue };
            kernels += 1;
            let (fused, fused_lse) = case.sparse(&route, &lists, epilogue);
            let (order, indices) = (int(&lists.order, &cube), int(&lists.indices, &cube));
            let other = unfused(&other, &cube);
            let (q, k, v) = (q.clone(), k.clone(), v.clone());
            let (output, lse) = CubeBackend::mc_sparse_attention(
                q,
                k,
                v,
                order,
                indices,
                other,
                finish,
                FACTOR,
                case.group_size,
                case.scale,
            );
            assert!(floats(output) == fused.to_data(), "{}: {name}, {finish:?}: output", case.name);
            assert!(floats(lse) == fused_lse.to_data(), "{}: {name}, {finish:?}: log-sum-exp", case.name);
        }
        let route = auto(Stage::Tail);
        let Route::Kernel { name, .. } = &route else { panic!("{}: no kernel for the tail", case.name) };
        let options = TailOptions {
            group_size: case.group_size,
            block: 16,
            sink_prefix: 0,
            sink_suffix: 0,
            scale: case.scale,
            workspace_bytes: 0,
        };
        let (sparse, sparse_lse) = case.sparse(&auto(Stage::Sparse), &lists, Epilogue::Output);
        let [tensors @ .., residual] = [&case.qkv[0], &case.qkv[1], &case.qkv[2], &sparse, &other];
        let epilogue = Epilogue::AddScaledResidual(residual.clone(), FACTOR);
        let [q, k, v, sparse_there] = tensors.map(|tensor| unfused(tensor, &cube));
        let (order, indices, there) = (int(&lists.order, &cube), int(&lists.indices, &cube), unfused(&other, &cube));
        let lse = CubeBackend::float_from_data(sparse_lse.to_data(), &cube);
        let finish = Finish::AddResidual;
        let (output, _) =
            CubeBackend::mc_add_tail(q, k, v, order, indices, sparse_there, lse, there, finish, FACTOR, options);
        let [q, k, v] = case.qkv.clone();
        let (order, indices) = (lists.order.clone(), lists.indices.clone());
        let fused = add_tail(&route, q, k, v, order, indices, (sparse, sparse_lse), epilogue, options).0;
        assert!(floats(output) == fused.to_data(), "{}: {name}: output", case.name);
        assert!(kernels == 4, "{}: {kernels} of 4 attention kernels compared", case.name);
    }
}

#[test]
fn fusion_changes_no_bit_of_the_partition() {
    let device = device();
    let Some(cube) = cube(&device) else { return assert!(mcsparse_tests::is_flex(), "{device:?} is no CubeCL device") };
    let case = Case::new("partition", &SHAPES[0].0, 1, &device);
    let route = case.routes(Stage::Group).pop().expect("there is the reference");
    for (rows, n, k) in [(3, 1, 1), (5, 700, 100), (2, 3000, 2999)] {
        let values: Tensor<2> = random([rows, n], n as u64, &device);
        for with_rest in [false, true] {
            let own = CubeBackend::float_from_data(values.to_data(), &cube);
            let own = integers(CubeBackend::mc_partition_indices(own, k, with_rest));
            let fused = partition_indices(&route, values.clone(), k, with_rest);
            assert!(own == fused.to_data(), "{rows} x {n}, {k}, {with_rest}: {route}");
        }
    }
}

#[test]
fn fusion_changes_no_bit_of_the_stored_forms() {
    let device = device();
    let Some(cube) = cube(&device) else { return assert!(mcsparse_tests::is_flex(), "{device:?} is no CubeCL device") };
    for (shape, keys) in SHAPES {
        let case = Case::new(format!("{shape:?}"), &shape, keys, &device);
        let route = case.routes(Stage::Decode).pop().expect("there is the reference");
        let (indices, n) = (case.random_lists(7, 0..shape.tokens).indices, shape.tokens);
        for format in [IndexFormat::Bitmap, IndexFormat::Offsets] {
            let own = CubeBackend::mc_pack_indices(int(&indices, &cube), format, n);
            let fused = pack_indices(&route, indices.clone(), format, n);
            assert!(integers(own.clone()) == fused.to_data(), "{}: {format}", case.name);
            let own = integers(CubeBackend::mc_expand_indices(own, format, n, keys));
            assert!(
                own == expand_indices(&route, fused, format, n, keys, 1 << 20).to_data(),
                "{}: {format}",
                case.name
            );
        }
        let residual = case.qkv[0].clone();
        for format in [ResidualFormat::Fp8, ResidualFormat::Int8] {
            let (own, own_largest) = CubeBackend::mc_encode_residual(unfused(&residual, &cube), format);
            let (codes, largest) = encode_residual(&route, residual.clone(), format);
            assert!(integers(own.clone()) == codes.to_data(), "{}: {format}", case.name);
            assert!(floats(own_largest.clone()) == largest.to_data(), "{}: {format}", case.name);
            let own = floats(CubeBackend::mc_decode_residual(own, own_largest, format, shape.head_dim));
            let fused = decode_residual(&route, codes, largest, format, shape.head_dim);
            assert!(own == fused.to_data(), "{}: {format}", case.name);
        }
    }
}
