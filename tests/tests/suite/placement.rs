//! Where slots wait changes no bit of a run, a budget is kept or refused with the bytes that are needed, and heads on several
//! devices give what one device gives.

use burn::tensor::{Device, Tensor};
use mcsparse::{
    Anchors, Branch, Error, HeadParallel, McSparse, McSparseConfig, MetaCache, Placement, Refresh, ResidualFormat,
    Schedule, SelfAttention, SinkTokens, TokenLayout,
};
use mcsparse_tests::{case::reference_tolerance, device, random, relative_error, values};

const SHAPE: [usize; 4] = [1, 4, 70, 16];
const STEPS: usize = 6;
const LAYERS: usize = 3;

fn config() -> McSparseConfig {
    // dArrAr
    McSparseConfig::density(0.25)
        .with_group_size(16)
        .with_schedule(Schedule::warm_up(2).with_anchors(Anchors::At(vec![1, 4])))
        .with_sink(SinkTokens { prefix: 2, suffix: 1, within_budget: false })
}

fn qkv(step: usize, layer: usize, branch: usize, kv_heads: usize, device: &Device) -> [Tensor<4>; 3] {
    let [batch, heads, tokens, dim] = SHAPE;
    [(0, heads), (1, kv_heads), (2, kv_heads)].map(|(part, heads)| {
        let seed = (((step * 10 + layer) * 10 + branch) * 10 + part) as u64;
        random([batch, heads, tokens, dim], seed, device)
    })
}

/// Outputs of all calls of a run over layers and branches.
fn run(attention: &mut dyn SelfAttention, kv_heads: usize) -> Result<Vec<Tensor<4>>, Error> {
    let mut outputs = Vec::new();
    for step in 0..STEPS {
        attention.begin_step(step)?;
        for (b, branch) in [Branch::conditional(), Branch::unconditional()].iter().enumerate() {
            attention.begin_branch(branch)?;
            for layer in 0..LAYERS {
                let [q, k, v] = qkv(step, layer, b, kv_heads, &device());
                outputs.push(attention.attend(layer, q, k, v)?);
            }
        }
    }
    Ok(outputs)
}

fn placed(config: &McSparseConfig, placement: Placement) -> McSparse {
    let cache = MetaCache::new(config, STEPS).unwrap().with_placement(placement);
    McSparse::with_cache(config, cache).unwrap()
}

/// One slot of a layer; layer 0 is dense.
fn slot_bytes(config: &McSparseConfig) -> usize {
    let mut whole = placed(config, Placement::Device);
    run(&mut whole, 4).unwrap();
    assert_eq!(whole.cache().slots().len(), 2 * (LAYERS - 1));
    whole.cache().slots()[0].size_in_bytes()
}

#[test]
fn a_place_changes_no_bit() {
    for residual in [ResidualFormat::Input, ResidualFormat::Fp8] {
        let config = config().with_residual_format(residual);
        let slot = slot_bytes(&config);
        let mut whole = placed(&config, Placement::Device);
        let expected = run(&mut whole, 4).unwrap();
        // Reuse steps are 2, 3 and 5.
        for (placement, on_device) in [
            (Placement::Host, 0),
            (Placement::Budget(2 * slot), 0),
            (Placement::Budget(3 * slot), 1),
            (Placement::Budget(4 * slot), 4),
        ] {
            let mut placed = placed(&config, placement);
            let got = run(&mut placed, 4).unwrap();
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert!(values(got) == values(expected), "{placement:?}: call {i} differs");
            }
            let (cache, report) = (placed.cache(), placed.report());
            assert_eq!((cache.slots().len(), cache.device_bytes()), (on_device, on_device * slot), "{placement:?}");
            assert_eq!(cache.size_in_bytes(), whole.cache().size_in_bytes(), "{placement:?}");
            let moved = report.slots().iter().filter(|slot| slot.place == "host").count();
            assert_eq!(moved, 4 - on_device, "{placement:?}");
            let transfers = report.transfers();
            assert_eq!(transfers.slots, 3 * moved, "{placement:?}");
            assert_eq!(transfers.bytes, 3 * moved * slot, "{placement:?}");
            // All but the first after each anchor are sent for while the one before computes.
            assert_eq!(transfers.ahead, if moved > 1 { 3 * moved - 2 } else { 0 }, "{placement:?}");
            assert_eq!(report.to_string().contains("from host memory"), moved > 0, "{report}");
        }
    }
}

/// A renewed residual stands beside the old one until the anchor is through: in a budget it takes the next slot's room.
#[test]
fn a_budget_has_room_for_renewed_residuals() {
    let mut config = config();
    config.schedule = config.schedule.with_refresh(Refresh::Residual);
    let slot = slot_bytes(&config);
    let expected = run(&mut placed(&config, Placement::Device), 4).unwrap();
    // Reuse steps are 2, 3 and 5; step 4 renews. The first slot is waited for where nothing came before it or could send for it.
    for (placement, ahead) in [(Placement::Host, 3 + 4 + 4 + 4), (Placement::Budget(2 * slot), 3 + 4 + 1 + 3)] {
        let mut placed = placed(&config, placement);
        let got = run(&mut placed, 4).unwrap();
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert!(values(got) == values(expected), "{placement:?}: call {i} differs");
        }
        let transfers = placed.report().transfers();
        assert_eq!((transfers.slots, transfers.ahead), (16, ahead), "{placement:?}");
    }
}

#[test]
fn a_cache_in_host_memory_is_saved_and_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let mut hosted = placed(&config(), Placement::Host);
    run(&mut hosted, 4).unwrap();
    hosted.cache().save(&path).unwrap();
    let bytes = hosted.cache().size_in_bytes();
    hosted.cache_mut().clear();
    assert_eq!(hosted.cache().size_in_bytes(), 0);
    for (placement, on_device) in [(Placement::Device, bytes), (Placement::Host, 0)] {
        let config = config().with_schedule(Schedule::warm_up(0).with_anchors(Anchors::Loaded));
        let mut loaded = MetaCache::new(&config, STEPS).unwrap().with_placement(placement);
        loaded.load(&path, &device()).unwrap();
        assert_eq!((loaded.size_in_bytes(), loaded.device_bytes()), (bytes, on_device));
        let mut run = McSparse::with_cache(&config, loaded).unwrap();
        run.begin_step(0).unwrap();
        run.begin_branch(&Branch::unconditional()).unwrap();
        let [q, k, v] = qkv(0, 2, 0, 4, &device());
        run.attend(2, q, k, v).unwrap();
    }
}

#[test]
fn a_budget_too_small_is_refused_with_the_bytes_needed() {
    let slot = slot_bytes(&config());
    for (allowed, slots) in [(slot - 1, 0), (2 * slot - 1, 1)] {
        let mut small = placed(&config(), Placement::Budget(allowed));
        let message = run(&mut small, 4).unwrap_err().to_string();
        let expected = format!("a budget of {allowed} bytes does not hold all slots, nor two of them");
        assert!(message.contains(&expected) && message.ends_with(&format!("{} bytes needed", 2 * slot)), "{message}");
        assert_eq!(small.cache().slots().len(), slots, "something ran");
    }
}

/// Another problem, a missed anchor: refused by name wherever the slot is.
#[test]
fn slots_in_host_memory_are_checked_like_others() {
    let mut hosted = placed(&config(), Placement::Host);
    for step in 0..3 {
        hosted.begin_step(step).unwrap();
        if step == 1 {
            let [q, k, v] = qkv(step, 1, 0, 4, &device());
            hosted.attend(1, q, k, v).unwrap();
        }
    }
    let [q, k, v] = qkv(2, 1, 0, 4, &device()).map(|tensor| tensor.slice_dim(2, 0..60));
    let message = hosted.attend(1, q, k, v).unwrap_err().to_string();
    assert!(message.starts_with("tokens of layer 1") && message.contains("made for 70, got 60"), "{message}");
    let [q, k, v] = qkv(2, 2, 0, 4, &device());
    let message = hosted.attend(2, q, k, v).unwrap_err().to_string();
    assert!(message.starts_with("reuse before an anchor: layer 2"), "{message}");
    assert_eq!(hosted.report().transfers().slots, 0);
}

/// The device under test twice, and with Flex beside it where it is another one.
fn device_pairs() -> Vec<[Device; 2]> {
    let mut pairs = vec![[device(), device()]];
    #[cfg(feature = "flex")]
    if device() != Device::flex() {
        pairs.push([device(), Device::flex()]);
    }
    pairs
}

#[test]
fn heads_on_two_devices_give_what_one_gives() {
    for kv_heads in [4, 2] {
        let mut one = McSparse::new(&config(), STEPS).unwrap();
        let expected = run(&mut one, kv_heads).unwrap();
        for devices in device_pairs() {
            let mut parallel = HeadParallel::new(&config(), STEPS, &devices).unwrap();
            let got = run(&mut parallel, kv_heads).unwrap();
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(got.device(), device());
                if devices[0] == devices[1] {
                    assert!(values(got) == values(expected), "{kv_heads}, {devices:?}: call {i} differs");
                } else if i < 2 * 2 * LAYERS {
                    // After the anchors, keys of equal weight may have been chosen differently.
                    let error = relative_error(got, expected);
                    assert!(error < reference_tolerance(), "{kv_heads}, {devices:?}: call {i}: {error:e}");
                }
            }
            let reports = parallel.reports().unwrap();
            assert_eq!(reports.len(), 2);
            let bytes =
                |report: &mcsparse::RunReport| -> usize { report.slots().iter().map(|slot| slot.bytes.total()).sum() };
            assert_eq!(reports.iter().map(bytes).sum::<usize>(), one.cache().size_in_bytes());
            assert_eq!(reports[0].calls(), one.report().calls());
        }
    }
}

/// What a model announces reaches every device: the tokens around its grid are sinks there too.
#[test]
fn heads_on_two_devices_learn_of_the_sequence() {
    let config = config().with_sink(SinkTokens::default());
    let layout = TokenLayout { prefix: 2, grid: [1, 8, 8], suffix: 4 };
    let mut one = McSparse::new(&config, STEPS).unwrap();
    one.begin_sequence(&layout).unwrap();
    let expected = run(&mut one, 4).unwrap();
    let mut parallel = HeadParallel::new(&config, STEPS, &[device(), device()]).unwrap();
    parallel.begin_sequence(&layout).unwrap();
    for (i, (got, expected)) in run(&mut parallel, 4).unwrap().iter().zip(&expected).enumerate() {
        assert!(values(got) == values(expected), "call {i} differs");
    }
    assert_eq!(one.cache().slots()[0].order().dims()[2], 64);
    let nothing = TokenLayout { prefix: 70, grid: [0, 0, 0], suffix: 0 };
    assert!(parallel.begin_sequence(&nothing).unwrap_err().to_string().starts_with("sink: "));
}

#[test]
fn misuse_of_several_devices_is_refused() {
    let message = HeadParallel::new(&config(), STEPS, &[]).unwrap_err().to_string();
    assert_eq!(message, "devices: expected at least 1, got 0");
    let mut parallel = HeadParallel::new(&config(), STEPS, &[device(), device(), device()]).unwrap();
    let [q, k, v] = qkv(0, 1, 0, 2, &device());
    let message = parallel.attend(1, q, k, v).unwrap_err().to_string();
    assert_eq!(message, "devices: expected at most the 2 key/value heads, got 3");
    let [q, k, v] = qkv(0, 1, 0, 4, &device());
    let message = parallel.attend(1, q.clone(), k.clone(), v.clone()).unwrap_err().to_string();
    assert_eq!(message, "step clock: forward came before begin_step(0)");
    assert!(parallel.begin_step(1).is_err());
    // Every shard refused alike, and goes on alike.
    parallel.begin_step(0).unwrap();
    parallel.attend(1, q, k, v).unwrap();
}
