//! The kernels for Hopper and those of cooperative matrices as CUDA C++, made without a GPU, to be compiled and looked at where there is none.

use std::sync::Arc;

use cubecl::{
    Compiler, CubeKernel,
    features::Features,
    ir::{
        AddressType, DeviceIdentity, DeviceProperties, ElemType, FloatKind, HardwareProperties, MemoryDeviceProperties,
        VectorSize,
        features::{MmaConfig, Plane},
    },
    prelude::*,
    profile::TimingMethod,
};
use cubecl_cpp::{
    shared::{CompilationOptions, CppCompiler, CppSupportedFeatures},
    target::Cuda,
};

use super::{attend, hopper::layout::LayoutCompilationArg, linear, select};

/// A kernel as CubeCL hands it to NVRTC.
#[derive(Debug, Clone)]
pub struct CudaSource {
    /// What it is, fit for a file name.
    pub name: String,
    /// CUDA C++ for sm_90a.
    pub source: String,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: usize,
    /// The instruction that multiplies, in machine code.
    pub instruction: &'static str,
    /// How many of it the machine code must have: more are code twice, fewer are code lost.
    pub products: usize,
}

/// Every Hopper kernel, and attention by cooperative matrices, in a selection of its variants.
///
/// # Panics
///
/// If CubeCL's C++ compiler does not take one.
pub fn cuda_sources() -> Vec<CudaSource> {
    let properties = Arc::new(h200());
    let variants = [
        attend::warpgroup::variants(&properties),
        attend::cooperative::variants(&properties),
        select::warpgroup::variants(&properties),
        linear::variants(&properties),
    ];
    variants
        .into_iter()
        .flatten()
        .map(|Variant { name, kernel, instruction, products }| {
            let definition = cubecl::define_kernel(kernel.as_ref()).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            let compiled = CppCompiler::<Cuda>::default()
                .compile(definition, &options())
                .unwrap_or_else(|e| panic!("{name}: {e:?}"));
            let (source, shared_bytes) = (compiled.source, compiled.shared_memory_size);
            CudaSource { name, source, shared_bytes, instruction, products }
        })
        .collect()
}

/// A kernel and what is to be found in its machine code, see [`CudaSource`].
pub(super) struct Variant {
    pub name: String,
    pub kernel: Box<dyn CubeKernel>,
    pub instruction: &'static str,
    pub products: usize,
}

/// What CubeCL's CUDA runtime says of an H200.
fn h200() -> DeviceProperties {
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 1024,
        max_shared_memory_size: 232_448,
        max_cube_count: (u32::MAX, 65_535, 65_535),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: Some(132),
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    let mut features = Features { copy_async: true, ..Default::default() };
    features.plane.insert(Plane::Ops);
    features.plane.insert(Plane::Sync);
    for kind in [FloatKind::F16, FloatKind::BF16] {
        let (element, sums) = (ElemType::Float(kind), ElemType::Float(FloatKind::F32));
        features.matmul.cmma.insert(MmaConfig { a_type: element, b_type: element, cd_type: sums, m: 16, n: 16, k: 16 });
    }
    let identity = DeviceIdentity { name: "H200".into(), fingerprint: "ptx_sm90".into(), physical: None };
    let memory = MemoryDeviceProperties::new(u64::MAX, 256);
    DeviceProperties::new(features, memory, hardware, TimingMethod::Device, identity)
}

fn options() -> CompilationOptions {
    CompilationOptions {
        supports_features: CppSupportedFeatures {
            fast_math: true,
            dp4a: true,
            grid_constants: true,
            clusters: true,
            elect_sync: true,
            fast_tanh: true,
        },
        ..Default::default()
    }
}

/// How a kernel of `units` a cube is launched.
pub(super) fn settings(units: usize, address: AddressType) -> KernelSettings {
    KernelSettings::new(CubeDim::new_1d(units as u32).into(), ExecutionMode::Unchecked, address)
}

/// A layout of the numbers of a launch.
pub(super) fn layout() -> LayoutCompilationArg {
    LayoutCompilationArg { batch: (), head: (), token: (), column: () }
}

/// A buffer that is no other argument's.
pub(super) fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

/// A tensor, with its strides.
pub(super) fn tensor() -> TensorCompilationArg {
    TensorCompilationArg { meta: TensorMetaCompilationArg { len: (), rank: () }, buffer: buffer() }
}
