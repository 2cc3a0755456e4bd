//! Device memory of an anchor step.

use burn::tensor::{DType, Distribution, Tensor};
use mcsparse::{McSparseConfig, MetaCache, Placement, Schedule};
use mcsparse_tests::device;

/// An anchor takes its inputs and its output, the cache and at most the workspace limit. Sizes come from `MCSPARSE_TOKENS`
/// and `MCSPARSE_HEADS`; allocators round small ones up too far to say anything, so this runs when asked for.
#[test]
#[ignore = "needs a GPU: MCSPARSE_TOKENS=75600 MCSPARSE_HEADS=8 BURN_DEVICE=cuda cargo test ... memory -- --ignored"]
fn memory_of_an_anchor_is_inputs_output_cache_and_workspace() {
    let size = |name: &str| std::env::var(name).ok().map(|value| value.parse::<usize>().expect("a number"));
    let (tokens, heads, dim) = (size("MCSPARSE_TOKENS").unwrap_or(8192), size("MCSPARSE_HEADS").unwrap_or(2), 128);
    let device = device();
    let reserved = || device.memory_pool_usage().expect("the backend reports its memory").bytes_reserved;
    device.sync().unwrap();
    let before = reserved();
    let [q, k, v] = [0; 3].map(|_| {
        let values =
            Tensor::<4>::random([1, tokens, heads, dim], Distribution::Normal(0.0, 1.0), (&device, DType::BF16));
        values.swap_dims(1, 2)
    });
    let config = McSparseConfig::density(0.2).with_dense_layers(vec![]).with_schedule(Schedule::warm_up(1));
    let attention = config.init(0).unwrap();
    let mut cache = MetaCache::new(&config, 3).unwrap();
    cache.begin_step(0).unwrap();
    let output = attention.forward(q, k, v, &mut cache).unwrap();
    device.sync().unwrap();
    let grown = reserved() - before;

    let row = heads * tokens;
    let inputs_and_output = 4 * row * dim * 2 + 4 * row;
    let bound = (inputs_and_output + cache.size_in_bytes() + config.workspace_bytes) as u64;
    let mib = |bytes: u64| bytes >> 20;
    println!("{tokens} tokens, {heads} heads: {} MiB reserved, {} MiB allowed", mib(grown), mib(bound));
    print!("{}", cache.report());
    assert_eq!(output.dims(), [1, heads, tokens, dim]);
    // Pages of the allocator may be larger than what is asked of them.
    assert!(grown <= bound + bound / 8, "{} MiB reserved, {} MiB allowed", mib(grown), mib(bound));
}

/// A slot in host memory holds nothing on the device. Other tests would count in, so this runs alone when asked for.
#[test]
#[ignore = "counts the device's memory: BURN_DEVICE=wgpu cargo test ... memory_of_a_slot -- --ignored --test-threads 1"]
fn memory_of_a_slot_in_the_host_is_none_of_the_devices() {
    let device = device();
    let in_use = || {
        device.sync().unwrap();
        device.memory_pool_usage().expect("the backend reports its memory").bytes_in_use as usize
    };
    let config = McSparseConfig::density(0.25).with_dense_layers(vec![]).with_schedule(Schedule::warm_up(1));
    let attention = config.init(0).unwrap();
    let mut left = Vec::new();
    for placement in [Placement::Device, Placement::Host] {
        let before = in_use();
        let mut cache = MetaCache::new(&config, 3).unwrap().with_placement(placement);
        cache.begin_step(0).unwrap();
        {
            let [q, k, v] = [0; 3]
                .map(|_| Tensor::<4>::random([1, 2, 4096, 64], Distribution::Normal(0.0, 1.0), (&device, DType::F32)));
            attention.forward(q, k, v, &mut cache).unwrap().into_data();
        }
        let (grown, slot) = (in_use().saturating_sub(before), cache.size_in_bytes());
        println!("{placement:?}: a slot of {slot} bytes, {grown} bytes more in use");
        left.push((grown, slot));
    }
    let [(device, slot), (host, _)] = left[..] else { unreachable!("two placements") };
    // wgpu reads into buffers that it counts as the device's, though they are the host's: there is one copy, not two.
    let allowed = if std::env::var("BURN_DEVICE").is_ok_and(|name| name == "cuda") { slot / 4 } else { slot * 3 / 2 };
    assert!(device >= slot && host < allowed, "{left:?}");
}
