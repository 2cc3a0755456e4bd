use std::fs;

use burn::tensor::{DType, Device, Tensor, TensorData};
use mcsparse::DenseAttention;
use safetensors::{Dtype, serialize, tensor::TensorView};

use super::*;
use crate::{LoadError, VelocityModel};

const SMALL_GRID: usize = 8;
const NANO_GRID: usize = 4;

fn config() -> ClipConfig {
    let network = r#"{"patch_size": [1, 4, 4], "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 6,
        "out_channels": 3, "text_dim": 64, "freq_dim": 16, "ffn_dim": 32, "num_layers": 1, "rope_max_seq_len": 64}"#;
    let sampling = r#"{"frames": 4, "height": 8, "width": 8, "video_channels": 3, "coordinate_channels": 3,
        "flow_shift": 3.0, "timestep_scale": 1000}"#;
    ClipConfig { network: serde_json::from_str(network).unwrap(), sampling: serde_json::from_str(sampling).unwrap() }
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

#[test]
fn shipped_tokens_follow_from_the_shipped_clips() {
    let device = Device::flex();
    let file = ConditionFile::open(folder()).unwrap();
    for (name, origin) in [
        ("bunny", Origin::Filmed { stride: 1 }),
        ("pedestrians", Origin::Filmed { stride: 2 }),
        ("sprite-rooster", Origin::Composed),
    ] {
        assert!(file.has_clip(name));
        let clip = file.clip(name).unwrap().unwrap();
        assert_eq!([clip.frames, clip.height, clip.width], [16, 128, 128]);
        // The clip of the nano model is the first half of the small one's.
        for (size, grid, last) in [("small", SMALL_GRID, 15), ("nano", NANO_GRID, 7)] {
            let made = condition_tokens(clip.frame(0), clip.frame(last), 128, grid, origin, &device).unwrap();
            let stored = file.tokens(name, size, &device).unwrap();
            assert_eq!(made.dims(), stored.dims());
            for (at, (made, stored)) in values(made).into_iter().zip(values(stored)).enumerate() {
                // Pixels were rounded to bytes after the stored tokens had been made.
                let most = if at % 64 < 48 { 1.0 / 127.5 } else { 1e-5 };
                assert!((made - stored).abs() < most, "{name}.{size}, number {}: {made}, stored {stored}", at % 64);
            }
        }
    }
}

#[test]
fn images_that_do_not_fit_are_refused() {
    let device = Device::flex();
    let refused = |bytes: usize, side, grid, stride| {
        let (first, last) = (vec![0; 16 * 16 * 3], vec![0; bytes]);
        condition_tokens(&first, &last, side, grid, Origin::Filmed { stride }, &device).unwrap_err().to_string()
    };
    assert_eq!(refused(767, 16, 4, 1), "last: expected 768 bytes, RGB of 16 x 16 pixels, got 767");
    assert_eq!(refused(768, 16, 3, 1), "side: expected a multiple of 12, got 16");
    assert_eq!(refused(768, 16, 0, 1), "grid: expected at least 1, got 0");
    assert_eq!(refused(768, 16, 4, 0), "stride: expected at least 1, got 0");
}

#[test]
fn unknown_conditions_list_all_names() {
    let file = ConditionFile::open(folder()).unwrap();
    let names = file.names("nano");
    assert!(names.is_sorted() && names.iter().any(|name| name == "photo-china"), "{names:?}");
    assert!(!file.has_clip("tree") && file.clip("tree").unwrap().is_none());
    let error = file.tokens("cat", "nano", &Device::flex()).unwrap_err();
    let expected = format!("conditions.safetensors: no condition cat for size nano; there are {}", names.join(", "));
    assert!(error.to_string().ends_with(&expected), "{error}");
    let error = file.tokens("bunny", "huge", &Device::flex()).unwrap_err();
    assert!(error.to_string().ends_with("for size huge; there are none"), "{error}");
}

#[test]
fn broken_condition_files_are_refused_by_name() {
    let folder = std::env::temp_dir().join(format!("mcsparse-conditions-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    assert!(matches!(ConditionFile::open(folder.join("none")), Err(LoadError::Io { .. })));
    let path = folder.join("conditions.safetensors");
    fs::write(&path, b"nothing").unwrap();
    assert!(matches!(ConditionFile::open(&folder), Err(LoadError::Format { .. })));
    let bytes = [0; 32];
    let view = |shape: Vec<usize>| TensorView::new(Dtype::U8, shape, &bytes).unwrap();
    let tensors = [("a.nano", view(vec![4, 8])), ("a.clip", view(vec![4, 2, 2, 2])), ("b.clip", view(vec![32]))];
    fs::write(&path, serialize(tensors, None).unwrap()).unwrap();
    let file = ConditionFile::open(&folder).unwrap();
    let messages = [
        file.tokens("a", "nano", &Device::flex()).unwrap_err().to_string(),
        file.clip("a").unwrap_err().to_string(),
        file.clip("b").unwrap_err().to_string(),
    ];
    fs::remove_dir_all(&folder).unwrap();
    for (message, expected) in messages.iter().zip([
        "a.nano: expected 2 axes of F32, got [4, 8] of U8",
        "a.clip: expected 3 colours, got [4, 2, 2, 2]",
        "b.clip: expected 4 axes of U8, got [32] of U8",
    ]) {
        assert_eq!(*message, format!("{}: {expected}", path.display()));
    }
}

#[test]
fn the_shipped_models_load_as_their_files_say() {
    for (size, shape, grid, layers, heads) in
        [("small", [1, 3, 16, 128, 128], [16, 16, 16], 10, 2), ("nano", [1, 3, 8, 32, 32], [8, 8, 8], 4, 4)]
    {
        let model = ClipModel::load(folder().join(size), DType::F32, &Device::flex()).unwrap();
        assert_eq!((model.shape(), model.grid(), model.layers(), model.heads()), (shape, grid, layers, heads));
        assert_eq!(model.sampling().video_tokens, Some(model.tokens()));
        assert_eq!((model.flow_shift(), model.sampling().condition_grid), (3.0, Some(grid[0] / 2)));
    }
    // Layers of the cube count as frames.
    let shape = ClipModel::load(folder().join("shape"), DType::F32, &Device::flex()).unwrap();
    assert_eq!((shape.shape(), shape.grid(), shape.tokens()), ([1, 1, 64, 64, 64], [16; 3], 4096));
    assert_eq!((shape.layers(), shape.heads(), shape.sampling().condition_grid), (8, 3, Some(8)));
    let error = ClipModel::load(folder().join("huge"), DType::F32, &Device::flex()).unwrap_err();
    assert!(error.to_string().contains("huge/sampling.json"), "{error}");
}

#[test]
fn fields_that_do_not_fit_are_named() {
    let refused = |change: fn(&mut ClipConfig)| {
        let mut config = config();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    };
    assert_eq!(refused(|c| c.network.in_channels = 3), "in_channels: expected 6, got 3");
    assert_eq!(refused(|c| c.network.out_channels = 6), "out_channels: expected 3, got 6");
    assert_eq!(refused(|c| c.sampling.coordinate_channels = 2), "coordinate_channels: expected 3, got 2");
    assert_eq!(refused(|c| c.sampling.video_tokens = Some(15)), "video_tokens: expected 16, got 15");
    assert_eq!(refused(|c| c.sampling.condition_token_size = Some(8)), "condition_token_size: expected 64, got 8");
    assert_eq!(refused(|c| c.sampling.timestep_scale = 1.0), "timestep_scale: expected 1000, got 1");
    assert_eq!(refused(|c| c.sampling.flow_shift = 0.0), "flow_shift: expected a positive number, got 0");
    assert!(refused(|c| c.sampling.width = 6).contains("width a multiple of the patch size 4"));
    let tokens = |c: &mut ClipConfig| (c.sampling.condition_grid, c.sampling.condition_tokens) = (Some(4), Some(16));
    assert_eq!(refused(tokens), "condition_tokens: expected 32, got 16");
}

#[test]
fn frames_lie_where_they_do_in_a_full_clip() {
    let model = config().init(&Device::flex()).unwrap();
    let full = model.coordinates();
    let axis = |channel: usize, stride: usize, of: &[f32]| {
        (0..of.len() / 3 / stride).map(|i| of[channel * of.len() / 3 + i * stride]).collect::<Vec<_>>()
    };
    let all = values(full.clone());
    assert_eq!(axis(0, 64, &all), [-0.75, -0.25, 0.25, 0.75]);
    assert_eq!(axis(1, 8, &all)[..8], [-0.875, -0.625, -0.375, -0.125, 0.125, 0.375, 0.625, 0.875]);
    assert_eq!(axis(2, 1, &all)[..8], [-0.875, -0.625, -0.375, -0.125, 0.125, 0.375, 0.625, 0.875]);

    let short = model.with_frames(3).unwrap();
    assert_eq!((short.shape(), short.grid(), short.tokens()), ([1, 3, 3, 8, 8], [3, 2, 2], 12));
    assert_eq!(values(short.coordinates()), values(full.narrow(2, 0, 3)));
    assert_eq!(short.clone().with_frames(4).unwrap().shape(), [1, 3, 4, 8, 8]);
    let error = short.with_frames(5).unwrap_err().to_string();
    assert_eq!(error, "frames: expected 1 to 4, got 5");
}

#[test]
fn clips_of_a_batch_do_not_touch() {
    let device = Device::flex();
    let model = config().init(&device).unwrap();
    let wave = |shape: [usize; 5], phase: f32| {
        let values = (0..shape.iter().product()).map(|i: usize| (i as f32 * 0.7 + phase).sin()).collect::<Vec<_>>();
        Tensor::<5>::from_data(TensorData::new(values, shape), &device)
    };
    let velocity = |clips: Tensor<5>| {
        let batch = clips.dims()[0];
        let prepared = model.prepare(Tensor::ones([batch, 4, 64], &device), clips.dims())?;
        model.velocity(clips, 500.0, &prepared, &mut DenseAttention::default())
    };
    let (a, b) = (wave(model.shape(), 0.0), wave(model.shape(), 1.0));
    let together = velocity(Tensor::cat(vec![a.clone(), b.clone()], 0)).unwrap();
    let apart = Tensor::cat(vec![velocity(a).unwrap(), velocity(b).unwrap()], 0);
    let error: f32 = (together - apart).abs().max().into_scalar();
    assert!(error < 1e-5, "{error}");
    let refusal = velocity(wave([1, 3, 4, 8, 4], 0.0)).unwrap_err().to_string();
    assert_eq!(refusal, "latents: expected [batch, 3, 4, 8, 8], got [1, 3, 4, 8, 4]");
}

#[test]
fn shipped_views_are_those_of_the_shipped_solids() {
    let file = SolidFile::open(folder().join("shape")).unwrap();
    let names = file.names();
    assert!(names.is_sorted() && names.len() == 16 && names.contains(&"mug-1".into()), "{names:?}");
    for name in names {
        let (views, truth) = (file.views(&name).unwrap(), file.truth(&name).unwrap());
        let side = truth.side;
        assert_eq!((side, views.side()), (64, 64));
        let inside = |layer: usize, row: usize, column: usize| truth.cells[(layer * side + row) * side + column];
        for (row, other) in (0..side).flat_map(|row| (0..side).map(move |other| (row, other))) {
            let front = (0..side).find(|&layer| inside(layer, row, other));
            let left = (0..side).find(|&column| inside(other, row, column));
            for (pixel, first) in [(views.front(), front), (views.left(), left)] {
                let pixel = f64::from(pixel[row * side + other]);
                let Some(first) = first else {
                    assert_eq!(pixel, 0.0, "{name} {row} {other}");
                    continue;
                };
                // The surface lies at most one voxel before the centre of the first one inside.
                let at = (255.0 - pixel) / 1.5 / 127.5 * side as f64;
                let depth = first as f64 + 0.5;
                assert!(at > depth - 1.3 && at < depth + 0.3, "{name} {row} {other}: {at} for {depth}");
            }
        }
    }
}

#[test]
fn views_become_tokens_of_patches_and_places() {
    let device = Device::flex();
    let front = (0..16).map(|pixel| pixel * 10).collect();
    let views = DepthViews::new(4, front, vec![255; 16]).unwrap();
    let tokens = views.tokens(2, &device).unwrap();
    assert_eq!(tokens.dims(), [1, 8, 18]);
    let all = values(tokens);
    // The token of the second row and first column: pixels 8, 9, 12 and 13.
    let token = &all[2 * 18..3 * 18];
    for (got, byte) in token.iter().zip([80.0, 90.0, 120.0, 130.0]) {
        assert!((got - (byte / 127.5 - 1.0)).abs() < 1e-6);
    }
    assert_eq!(token[4..10], [-1.0, 1.0, 0.5, -0.5, 0.25, 0.25]);
    assert_eq!((all[4 * 18], all[4 * 18 + 4]), (1.0, 1.0));
    let refused = |views: &DepthViews, grid| views.tokens(grid, &device).unwrap_err().to_string();
    assert_eq!(refused(&views, 3), "grid: expected a divisor of 4, the side of the views, got 3");
    assert_eq!(refused(&views, 0), "grid: expected a divisor of 4, the side of the views, got 0");
    let error = DepthViews::new(4, vec![0; 16], vec![0; 15]).unwrap_err().to_string();
    assert_eq!(error, "left: expected 4 x 4 pixels, at least one, got 15");
}

#[test]
fn broken_files_of_solids_are_refused_by_name() {
    let folder = std::env::temp_dir().join(format!("mcsparse-solids-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let bytes = [0; 32];
    let view = |dtype, shape: Vec<usize>| TensorView::new(dtype, shape, &bytes).unwrap();
    let tensors = [
        ("a.views", view(Dtype::U8, vec![2, 4, 4])),
        ("a.truth", view(Dtype::U8, vec![4, 4, 2])),
        ("b.views", view(Dtype::U8, vec![2, 2, 8])),
        ("c.views", view(Dtype::F32, vec![2, 2, 2])),
    ];
    fs::write(folder.join("conditions.safetensors"), serialize(tensors, None).unwrap()).unwrap();
    let file = SolidFile::open(&folder).unwrap();
    assert_eq!((file.names(), file.views("a").unwrap().side()), (vec!["a".into(), "b".into(), "c".into()], 4));
    let message = |error: LoadError| {
        let text = error.to_string();
        text.strip_prefix(&format!("{}: ", file.path().display())).expect("the file comes first").to_owned()
    };
    let messages = [
        message(file.truth("a").unwrap_err()),
        message(file.views("b").unwrap_err()),
        message(file.views("c").unwrap_err()),
        message(file.views("d").unwrap_err()),
    ];
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(
        messages,
        [
            "a.truth: expected [side, side, side / 8], got [4, 4, 2]",
            "b.views: expected [2, side, side], got [2, 2, 8]",
            "c.views: expected 3 axes of U8, got [2, 2, 2] of F32",
            "no condition d for size shape; there are a, b, c",
        ]
    );
}
