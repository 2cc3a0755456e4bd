//! What the tests share: the device under test, random inputs, a scalar f64 oracle and error measures.

pub mod case;
pub mod naive;
#[rustfmt::skip] // as the README has it
pub mod snippet;

use std::{collections::BTreeSet, io::Write, sync::Mutex};

use burn::tensor::{DType, Device, Distribution, Tensor};
use proptest::prelude::{ProptestConfig, Strategy, prop_oneof};

/// The device under test: `BURN_DEVICE` (`flex`, `wgpu`, `cuda` and so on, Burn's features), Flex if unset.
///
/// # Panics
///
/// If the name is unknown or its feature is not compiled in: a test run must not pass on another device than asked for.
pub fn device() -> Device {
    let name = std::env::var("BURN_DEVICE").unwrap_or_else(|_| "flex".into());
    match name.as_str() {
        #[cfg(feature = "flex")]
        "flex" => Device::flex(),
        #[cfg(feature = "wgpu")]
        "wgpu" => Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
        #[cfg(feature = "vulkan")]
        "vulkan" => Device::vulkan(burn::tensor::DeviceKind::DefaultDevice),
        #[cfg(feature = "webgpu")]
        "webgpu" => Device::webgpu(burn::tensor::DeviceKind::DefaultDevice),
        #[cfg(feature = "metal")]
        "metal" => Device::metal(burn::tensor::DeviceKind::DefaultDevice),
        #[cfg(feature = "rocm")]
        "rocm" => Device::rocm(0),
        #[cfg(feature = "cuda")]
        "cuda" => Device::cuda(0),
        #[cfg(feature = "cpu")]
        "cpu" => Device::cpu(),
        other => panic!("BURN_DEVICE={other}: unknown, or compiled without the feature of that name"),
    }
}

/// Whether the device under test is Flex. On others, software Vulkan above all, fewer random cases are tried.
pub fn is_flex() -> bool {
    std::env::var("BURN_DEVICE").map_or(true, |name| name == "flex")
}

/// The 16-bit float types that the device has, with the largest relative error of rounding to each. What is left out is
/// written to the terminal past the test harness, which keeps the output of tests that pass to itself.
///
/// # Panics
///
/// If Flex, which has both, says that it has not: then nothing would be tested anywhere.
pub fn half_dtypes(device: &Device, test: &str) -> Vec<(DType, f64)> {
    let all = [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))];
    let (have, lack): (Vec<_>, Vec<_>) = all.into_iter().partition(|(dtype, _)| device.supports_dtype(*dtype));
    assert!(lack.is_empty() || !is_flex(), "{test}: Flex lacks {lack:?}");
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    for (dtype, _) in lack {
        let line = format!("{test}: SKIPPED for {dtype:?}, which the device lacks");
        if SAID.lock().expect("nothing panics with it").insert(line.clone()) {
            writeln!(std::io::stderr(), "{line}").expect("stderr is open");
        }
    }
    have
}

/// Property-test settings: fresh random cases every run, fewer on a GPU interface emulated in software. A failing case is
/// printed with its shrunken inputs; inputs carry their own seed, so it can be run again.
pub fn cases(on_flex: u32) -> ProptestConfig {
    let cases = if is_flex() { on_flex } else { on_flex.div_ceil(8) };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Sizes of one attention problem and the seed of its values.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Batch size.
    pub batch: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Query heads for each key/value head.
    pub shared: usize,
    /// Tokens.
    pub tokens: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Queries in a group.
    pub group_size: usize,
    /// Seed of the values.
    pub seed: u64,
}

impl Shape {
    /// Query heads.
    pub fn heads(&self) -> usize {
        self.kv_heads * self.shared
    }

    /// Fresh random query, key and value in f32, as views of `[batch, tokens, heads, head_dim]` memory as models have it.
    pub fn qkv(&self, device: &Device) -> [Tensor<4>; 3] {
        let mut seed = self.seed;
        [self.heads(), self.kv_heads, self.kv_heads].map(|heads| {
            seed = seed.wrapping_add(1);
            random([self.batch, self.tokens, heads, self.head_dim], seed, device).swap_dims(1, 2)
        })
    }
}

/// Random small shapes, the awkward ones (1 token, one below and above a group, head sizes of no power of two) included.
pub fn shapes() -> impl Strategy<Value = Shape> {
    let tokens = prop_oneof![1usize..4, 4usize..150];
    let dims = proptest::sample::select(vec![1usize, 16, 18, 24, 64, 72, 80, 96, 128, 132, 160, 192, 256]);
    (1usize..4, 1usize..3, 1usize..3, tokens, dims, 1usize..40, -1i32..2, 0u64..u64::MAX).prop_map(
        |(batch, kv_heads, shared, tokens, head_dim, group_size, near, seed)| {
            // One case in three has a group size right at the number of tokens.
            let at_tokens = (tokens as i32 + near).max(1) as usize;
            let group_size = if seed % 3 == 0 { at_tokens } else { group_size };
            Shape { batch, kv_heads, shared, tokens, head_dim, group_size, seed }
        },
    )
}

/// Normal random values that depend on `seed` alone, not on the device.
pub fn random<const D: usize>(shape: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    use rand::{RngExt, SeedableRng};
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    let mut normal = move || {
        let (u, v): (f64, f64) = (rng.random_range(1e-12..1.0), rng.random_range(0.0..1.0));
        ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| normal()).collect();
    Tensor::<1>::from_data(values.as_slice(), (device, DType::F32)).reshape(shape)
}

/// Uniform random values from the device's own generator.
pub fn uniform<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Default, device)
}

/// All values of a float tensor.
pub fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.to_data().convert::<f64>().try_to_vec::<f64>().expect("converted to f64")
}

/// `|a - b| / |b|` in the L2 norm; infinite if anything is not finite.
pub fn relative_error<const D: usize>(a: &Tensor<D>, b: &Tensor<D>) -> f64 {
    assert_eq!(a.dims(), b.dims(), "shapes differ");
    relative_error_of(&values(a), &values(b))
}

/// As [`relative_error`], of plain values.
pub fn relative_error_of(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "lengths differ");
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut a.iter().zip(b).map(|(x, y)| x - y)) / norm(&mut b.iter().copied()).max(1e-300);
    if error.is_finite() { error } else { f64::INFINITY }
}

/// The snippet of the crate's README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../crates/mcsparse/README.md")]
pub struct CrateReadme;
