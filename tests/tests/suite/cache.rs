//! The cache as an object: size, files, moving.

use burn::{module::Module, tensor::DType};
use mcsparse::{McSparse, McSparseConfig, MetaCache, Schedule, SelfAttention, SinkTokens};
use mcsparse_tests::{device, half_dtypes, random, values};

const SHAPE: [usize; 4] = [2, 3, 37, 16];

fn config() -> McSparseConfig {
    McSparseConfig::density(0.25).with_group_size(8).with_schedule(Schedule::warm_up(1)).with_sink(SinkTokens {
        prefix: 2,
        suffix: 1,
        within_budget: false,
    })
}

fn filled(dtype: DType) -> McSparse {
    let mut run = McSparse::new(&config(), 3).unwrap();
    run.begin_step(0).unwrap();
    for layer in 1..3 {
        let [q, k, v] = [1, 2, 3].map(|s| random(SHAPE, s + layer as u64, &device()).cast(dtype));
        run.attend(layer, q, k, v).unwrap();
    }
    run
}

#[test]
fn knows_its_size() {
    let run = filled(DType::F32);
    let (heads, grouped, groups, kept) = (2 * 3, 34, 5, 9 + 3);
    let slot = 4 * heads * (grouped + groups * kept + grouped * 16);
    assert_eq!(run.cache().size_in_bytes(), 2 * slot);
}

#[test]
fn a_saved_cache_serves_reuse_like_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let half = half_dtypes(&device(), "a_saved_cache_serves_reuse_like_the_original");
    for dtype in std::iter::once(DType::F32).chain(half.into_iter().map(|(dtype, _)| dtype)) {
        let mut original = filled(dtype);
        original.cache().save(&path).unwrap();
        let config = config().with_schedule(Schedule::warm_up(0).with_anchors(mcsparse::Anchors::Loaded));
        let mut cache = MetaCache::new(&config, 3).unwrap();
        cache.load(&path, &device()).unwrap();
        assert_eq!(cache.size_in_bytes(), original.cache().size_in_bytes());
        let mut loaded = McSparse::with_cache(&config, cache).unwrap();
        original.begin_step(1).unwrap();
        loaded.begin_step(0).unwrap();
        let [q, k, v] = [7, 8, 9].map(|s| random(SHAPE, s, &device()).cast(dtype));
        let expected = original.attend(1, q.clone(), k.clone(), v.clone()).unwrap();
        let got = loaded.attend(1, q, k, v).unwrap();
        assert_eq!(values(&got.cast(DType::F32)), values(&expected.cast(DType::F32)));
    }
}

/// A file whose checksum is right but whose lists are not: nothing of it may reach a kernel.
#[test]
fn consistent_files_with_impossible_lists_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let mut run = filled(DType::F32);
    run.cache().save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let (header_len, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().clone().unwrap();
    let data = 8 + header_len;
    for (tensor, words) in
        [("0.order", [0i32, 0]), ("0.indices", [5, 5]), ("1.indices", [-1, 3]), ("1.order", [33, 34])]
    {
        let mut edited = bytes.clone();
        let at = data + header.tensors()[tensor].data_offsets.0;
        for (i, word) in words.into_iter().enumerate() {
            edited[at + 4 * i..at + 4 * i + 4].copy_from_slice(&word.to_le_bytes());
        }
        let mut crc = crc32fast::Hasher::new();
        crc.update(metadata["slots"].as_bytes());
        for name in (0..2).flat_map(|i| ["order", "indices", "residual"].map(|part| format!("{i}.{part}"))) {
            let (from, to) = header.tensors()[&name].data_offsets;
            crc.update(&edited[data + from..data + to]);
        }
        let crc = format!("{:08x}", crc.finalize());
        let old = metadata["crc32"].as_bytes();
        let place = edited.windows(8).position(|w| w == old).unwrap();
        edited[place..place + 8].copy_from_slice(crc.as_bytes());
        std::fs::write(&path, edited).unwrap();
        let message = run.cache_mut().load(&path, &device()).unwrap_err().to_string();
        assert!(message.contains(tensor) && !message.contains("checksum"), "{message}");
    }
}

#[test]
fn damaged_and_foreign_files_are_refused_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut run = filled(DType::F32);
    run.cache().save(path("good")).unwrap();
    let good = std::fs::read(path("good")).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a partial file was left");
    let text_at = |needle: &[u8]| good.windows(needle.len()).position(|w| w == needle).unwrap();
    let edit = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let flipped = |at: usize| edit(at, !good[at]);
    let files = [
        ("missing", None),
        ("empty", Some(Vec::new())),
        ("cut", Some(good[..good.len() - 9].to_vec())),
        ("version", Some(edit(text_at(b"mcsparse-cache-1") + 15, b'9'))),
        ("first", Some(flipped(header))),
        ("middle", Some(flipped((header + good.len()) / 2))),
        ("last", Some(flipped(good.len() - 1))),
        ("listed", Some(edit(text_at(b"\\\"tokens\\\":37") + 11, b'4'))),
    ];
    let size = run.cache().size_in_bytes();
    for (name, bytes) in files {
        if let Some(bytes) = bytes {
            std::fs::write(path(name), bytes).unwrap();
        }
        let message = run.cache_mut().load(path(name), &device()).unwrap_err().to_string();
        assert!(message.starts_with("cache file ") && message.contains(name), "{message}");
        assert_eq!(run.cache().size_in_bytes(), size);
    }
    let unwritable = run.cache().save(path("no/such/folder/file")).unwrap_err().to_string();
    assert!(unwritable.starts_with("cache file "), "{unwritable}");
}

#[test]
fn moves_with_to_device() {
    let run = filled(DType::F32);
    let moved = run.cache().clone().to_device(&device());
    assert_eq!(moved.size_in_bytes(), run.cache().size_in_bytes());
    assert_eq!(moved.slots()[1].key(), run.cache().slots()[1].key());
}

#[cfg(all(feature = "flex", feature = "cube"))]
#[test]
fn moves_between_backends_and_refuses_the_wrong_one() {
    use burn::tensor::Device;
    let devices = [Device::flex(), device()];
    for (here, there) in [(0, 1), (1, 0)].map(|(a, b): (usize, usize)| (&devices[a], &devices[b])) {
        let config = config();
        let attention = config.init(1).unwrap();
        let mut cache = MetaCache::new(&config, 3).unwrap();
        cache.begin_step(0).unwrap();
        let qkv = |device| [1, 2, 3].map(|s| random(SHAPE, s, device));
        let [q, k, v] = qkv(here);
        let dense = attention.forward(q, k, v, &mut cache).unwrap();
        cache.begin_step(1).unwrap();
        let [q, k, v] = qkv(there);
        let message = attention.forward(q.clone(), k.clone(), v.clone(), &mut cache).unwrap_err().to_string();
        assert!(message.starts_with("device of layer 1"), "{message}");
        let mut cache = cache.to_device(there);
        let moved = attention.forward(q, k, v, &mut cache).unwrap();
        let error = mcsparse_tests::relative_error(&moved, &dense);
        assert!(error < mcsparse_tests::case::reference_tolerance(), "{error:e}");
    }
}

#[cfg(feature = "autodiff")]
#[test]
fn an_autodiff_device_gets_the_value_and_is_told_about_the_gradient() {
    let device = device().autodiff();
    let attention = config().init(1).unwrap();
    let mut cache = MetaCache::new(&config(), 3).unwrap();
    for step in 0..2 {
        cache.begin_step(step).unwrap();
        let [q, k, v] = [1, 2, 3].map(|s| random(SHAPE, s, &device).require_grad());
        let inner = [&q, &k, &v].map(|t| t.clone().inner());
        let output = attention.forward(q, k, v, &mut cache).unwrap();
        assert!(output.is_autodiff() && !output.is_tracked());
        let [q, k, v] = inner;
        let dense = mcsparse::reference::dense_attention(q, k, v, 0.25, 1 << 24).0;
        assert!(mcsparse_tests::relative_error(&output.inner(), &dense) < mcsparse_tests::case::reference_tolerance());
    }
    assert!(cache.report().dropped_gradient());
    assert!(cache.report().to_string().contains("no gradient passes"));
}
