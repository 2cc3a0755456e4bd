//! The cache as an object: size, files, moving.

use burn::{module::Module, tensor::DType};
use mcsparse::{
    IndexFormat, McSparse, McSparseConfig, MetaCache, ResidualFormat, Schedule, SelfAttention, SinkTokens, ops::Stage,
};
use mcsparse_tests::{device, half_dtypes, is_flex, random, values};

const SHAPE: [usize; 4] = [2, 3, 37, 16];

fn config() -> McSparseConfig {
    McSparseConfig::density(0.25).with_group_size(8).with_schedule(Schedule::warm_up(1)).with_sink(SinkTokens {
        prefix: 2,
        suffix: 1,
        within_budget: false,
    })
}

fn filled(dtype: DType) -> McSparse {
    filled_with(&config(), dtype)
}

fn filled_with(config: &McSparseConfig, dtype: DType) -> McSparse {
    let mut run = McSparse::new(config, 3).unwrap();
    run.begin_step(0).unwrap();
    for layer in 1..3 {
        let [q, k, v] = [1, 2, 3].map(|s| random(SHAPE, s + layer as u64, &device()).cast(dtype));
        run.attend(layer, q, k, v).unwrap();
    }
    run
}

/// All pairs of stored forms.
fn forms() -> impl Iterator<Item = McSparseConfig> {
    let pairs = IndexFormat::ALL.into_iter().flat_map(|keys| ResidualFormat::ALL.map(|values| (keys, values)));
    pairs.map(|(keys, values)| config().with_index_format(Some(keys)).with_residual_format(values))
}

#[test]
fn knows_its_size() {
    let (heads, grouped, groups, kept, tokens) = (2 * 3, 34, 5, 9 + 3, 37usize);
    for config in forms() {
        let words = match config.index_format.unwrap() {
            IndexFormat::Plain => kept,
            IndexFormat::Offsets => kept / 2,
            IndexFormat::Bitmap => tokens.div_ceil(32),
        };
        let residual = match config.residual_format {
            ResidualFormat::Input => 4 * 16,
            ResidualFormat::Fp8 | ResidualFormat::Int8 => 16 + 4,
        };
        let slot = heads * (4 * grouped + 4 * groups * words + grouped * residual);
        let run = filled_with(&config, DType::F32);
        assert_eq!(run.cache().size_in_bytes(), 2 * slot, "{config:?}");
        let bytes = run.cache().slots()[0].bytes();
        assert_eq!((bytes.order, bytes.total()), (heads * 4 * grouped, slot));
        assert_eq!(run.report().slots()[1].bytes, bytes);
        // Two batch elements.
        let expected = config.slot_bytes(tokens, 3, 16, DType::F32).unwrap();
        assert_eq!(2 * expected.total(), slot, "{config:?}");
        assert_eq!([2 * expected.order, 2 * expected.indices], [bytes.order, bytes.indices], "{config:?}");
    }
    // Left alone, the smallest form of the keys.
    assert_eq!(filled(DType::F32).cache().slots()[0].index_format(), IndexFormat::Bitmap);
}

#[test]
fn decoding_keeps_to_the_workspace_and_changes_no_bit() {
    // Four heads for every two key heads, and sinks; a slot of one key head takes more than half of the small limit.
    let shape = |heads| [2, heads, 70, 16];
    let run = |config: &McSparseConfig| {
        let mut run = McSparse::new(config, 4).unwrap();
        let outputs: Vec<_> = (0..4)
            .map(|step| {
                run.begin_step(step).unwrap();
                let [q, k, v] =
                    [(1, 4), (2, 2), (3, 2)].map(|(s, heads)| random(shape(heads), s + 10 * step as u64, &device()));
                values(&run.attend(1, q, k, v).unwrap())
            })
            .collect();
        (outputs, run)
    };
    // On software Vulkan a form takes half a minute: one there.
    let one = (IndexFormat::Bitmap, ResidualFormat::Fp8);
    for config in forms().filter(|form| is_flex() || (form.index_format, form.residual_format) == (Some(one.0), one.1))
    {
        let whole = config.clone().with_workspace_bytes(1 << 29);
        let (expected, all) = run(&whole);
        let decoded = |run: &McSparse| {
            let stages = run.report().stages().filter(|(stage, ..)| *stage == Stage::Decode);
            stages.map(|(_, _, record)| (record.runs, record.workspace_bytes)).collect::<Vec<_>>()
        };
        let Some(&(runs, Some(bytes))) = decoded(&all).first() else {
            assert_eq!(config.residual_format, ResidualFormat::Input, "{config:?}");
            continue;
        };
        assert_eq!(runs, 3, "{config:?}");
        let limit = bytes * 3 / 4;
        let (got, parts) = run(&config.with_workspace_bytes(limit));
        assert!(got == expected, "limit {limit}: other values");
        let stages = decoded(&parts);
        assert!(
            matches!(stages[..], [(6, Some(part))] if part <= limit && 2 * part == bytes),
            "{stages:?} for {bytes}"
        );
        assert_eq!(parts.cache().size_in_bytes(), all.cache().size_in_bytes());
    }
}

#[test]
fn the_report_lists_what_is_cached() {
    let mut run = filled(DType::F32);
    run.begin_step(1).unwrap();
    run.begin_step(2).unwrap();
    let text = run.report().to_string();
    let line = text.lines().find(|line| line.contains("bitmap")).unwrap_or_else(|| panic!("no slots in {text}"));
    let cells: Vec<_> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!((cells[0], cells[6], cells[7]), ("1-2", "device", "2"), "{text}");
    run.cache_mut().clear();
    assert!(run.report().slots().is_empty());
}

#[test]
fn a_saved_cache_serves_reuse_like_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let half = half_dtypes(&device(), "a_saved_cache_serves_reuse_like_the_original");
    let dtypes: Vec<_> = std::iter::once(DType::F32).chain(half.into_iter().map(|(dtype, _)| dtype)).collect();
    for (dtype, form) in dtypes.into_iter().flat_map(|dtype| forms().map(move |form| (dtype, form))) {
        let mut original = filled_with(&form, dtype);
        original.cache().save(&path).unwrap();
        // The forms of a file are its own, whatever the configuration asks for.
        let config = config().with_schedule(Schedule::warm_up(0).with_anchors(mcsparse::Anchors::Loaded));
        let mut cache = MetaCache::new(&config, 3).unwrap();
        cache.load(&path, &device()).unwrap();
        assert_eq!(cache.size_in_bytes(), original.cache().size_in_bytes());
        assert_eq!(cache.report().slots()[0].residual_format, form.residual_format);
        assert!(cache.report().to_string().contains("from a file"));
        let mut loaded = McSparse::with_cache(&config, cache).unwrap();
        original.begin_step(1).unwrap();
        loaded.begin_step(0).unwrap();
        let [q, k, v] = [7, 8, 9].map(|s| random(SHAPE, s, &device()).cast(dtype));
        let expected = original.attend(1, q.clone(), k.clone(), v.clone()).unwrap();
        let got = loaded.attend(1, q, k, v).unwrap();
        assert_eq!(values(&got.cast(DType::F32)), values(&expected.cast(DType::F32)));
    }
}

#[test]
fn a_cache_of_another_model_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("named");
    let cache = |model: Option<&str>| {
        let cache = MetaCache::new(&config(), 3).unwrap();
        model.map_or(cache.clone(), |model| cache.with_model(model))
    };
    let refusal = |model| cache(Some(model)).load(&path, &device()).unwrap_err().to_string();
    filled(DType::F32).cache().clone().with_model("wan-1.3b").save(&path).unwrap();
    cache(Some("wan-1.3b")).load(&path, &device()).unwrap();
    cache(None).load(&path, &device()).unwrap();
    let message = refusal("wan-14b");
    assert!(message.ends_with("expected a cache of the model \"wan-14b\", got \"wan-1.3b\""), "{message}");
    filled(DType::F32).cache().save(&path).unwrap();
    assert!(refusal("wan-14b").ends_with("got none by name"));
}

/// A file whose checksum is right but whose lists are not: nothing of it may reach a kernel.
#[test]
fn consistent_files_with_impossible_lists_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    for form in IndexFormat::ALL {
        let mut run = filled_with(&config().with_index_format(Some(form)), DType::F32);
        run.cache().save(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let (header_len, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().clone().unwrap();
        let data = 8 + header_len;
        for (tensor, words) in [
            ("0.order", [0i32, 0]),
            ("0.indices", [5, 5]),
            ("0.indices", [0, 0]),
            ("1.indices", [-1, 3]),
            ("1.indices", [0, 1 << 31 | 37]),
            ("1.order", [33, 34]),
        ] {
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
            assert!(message.contains(tensor) && !message.contains("checksum"), "{form}: {message}");
        }
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
        ("version", Some(edit(text_at(b"mcsparse-cache-3") + 15, b'9'))),
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
