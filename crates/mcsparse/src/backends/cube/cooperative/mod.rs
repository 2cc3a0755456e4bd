//! Products of small matrices that all units of a plane make together and whose layout in registers is the device's own:
//! CubeCL's `cmma` (Vulkan cooperative matrices, Metal SIMD-group matrices, CUDA `wmma`, rocWMMA).

pub(super) mod emulated;
pub(super) mod products;

use burn::{backend::cubecl::dtype_to_storage_type, tensor::DType};
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::{
    DeviceProperties, ElemType, FloatKind,
    features::{MmaConfig, Plane},
};

use self::products::Form;
use super::reads_by;

/// The sizes that the device multiplies matrices of `dtype` in, with sums in f32, or what it lacks.
pub(super) fn supports(properties: &DeviceProperties, dtype: DType) -> Result<Form, String> {
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return Err(format!("cooperative matrices take f16 and bf16, not {dtype:?}"));
    }
    let (features, hardware) = (&properties.features, &properties.hardware);
    let element = dtype_to_storage_type(dtype);
    let sums = ElemType::Float(FloatKind::F32);
    let forms = features
        .matmul
        .cmma
        .iter()
        .filter(|config| (config.a_type, config.b_type, config.cd_type) == (element, element, sums))
        .map(|&MmaConfig { m, n, k, .. }| Form { m: m as usize, n: n as usize, k: k as usize })
        .filter(|form| form.suits(hardware.plane_size_min as usize));
    // Square ones of 16 are everywhere but on Metal; else the largest, and always the same.
    let Some(form) = forms.max_by_key(|&Form { m, n, k }| ((m, n, k) == (16, 16, 16), m * n * k, m, n)) else {
        return Err(format!("no cooperative matrices for {dtype:?} with sums in f32"));
    };
    if !features.plane.contains(Plane::Ops) || !features.plane.contains(Plane::Sync) {
        return Err("no plane operations with barriers".into());
    }
    Ok(form)
}

/// Elements that all tensors can be read by.
pub(super) fn vector_size(properties: &DeviceProperties, tensors: &[&CubeTensor]) -> usize {
    let fits = |size: usize| {
        size <= properties.hardware.max_vector_size && tensors.iter().all(|tensor| reads_by(tensor, size))
    };
    [8, 4].into_iter().find(|&size| fits(size)).unwrap_or(1)
}
