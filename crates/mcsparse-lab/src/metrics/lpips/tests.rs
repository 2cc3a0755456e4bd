use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors, serialize, tensor::TensorView};

use super::*;
use crate::noise::normal;

/// The folder of a checked set: `weights.safetensors` and `io.safetensors` with images and what LPIPS of them is.
const CHECKED: &str = "MCSPARSE_LPIPS";
const DIM: usize = 37;

type Arrays = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Weights of few channels: 3 to a plain convolution, 2 squeezed, 2 + 3 expanded.
fn small(net: Net) -> Arrays {
    let (mut arrays, mut channels, mut heads) = (Arrays::new(), 3, 0);
    let mut put = |name: String, shape: Vec<usize>, gain: f32| {
        let values = normal(shape.iter().product(), name.len() as u64 * 31 + shape[0] as u64);
        arrays.insert(name, (shape, values.into_iter().map(|v| v * gain).collect()));
    };
    for layer in net.layers() {
        let convolutions = layer.convolutions();
        let (mut input, mut total) = (channels, 0);
        for (at, (name, kernel)) in convolutions.iter().enumerate() {
            let output = [[3, 0, 0], [2, 2, 3]][usize::from(convolutions.len() == 3)][at];
            put(format!("backbone.{name}.weight"), vec![output, input, *kernel, *kernel], 0.5);
            put(format!("backbone.{name}.bias"), vec![output], 0.1);
            (input, total) = if at == 0 { (output, output) } else { (input, total + output) };
        }
        match convolutions.len() {
            3 => channels = 5,
            1 => channels = total,
            _ => {}
        }
        if *layer == network::Layer::Head {
            put(format!("heads.lin{heads}.model.1.weight"), vec![1, channels, 1, 1], 1.0);
            heads += 1;
        }
    }
    arrays
}

fn file(arrays: &Arrays) -> Vec<u8> {
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let all: Vec<_> = arrays.iter().map(|(name, (shape, values))| (name, shape.clone(), bytes(values))).collect();
    let views =
        all.iter().map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    serialize(views, None).unwrap()
}

fn load(bytes: &[u8]) -> Result<Lpips, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lpips.safetensors");
    std::fs::write(&path, bytes).unwrap();
    Lpips::load(&path, &Device::flex())
}

/// One image as `[channel][row][column]`, in f64.
type Image = Vec<Vec<Vec<f64>>>;

/// The definition, value by value.
fn oracle(net: Net, arrays: &Arrays, image: &[f32]) -> Vec<Image> {
    let convolve = |x: &Image, name: &str, stride: usize, padding: usize| -> Image {
        let (shape, weight) = &arrays[&format!("backbone.{name}.weight")];
        let bias = &arrays[&format!("backbone.{name}.bias")].1;
        let (kernel, height, width) = (shape[2], x[0].len() + 2 * padding, x[0][0].len() + 2 * padding);
        let at = |c: usize, y: usize, x_: usize| {
            let inside = |i: usize, n: usize| (padding..n - padding).contains(&i);
            if inside(y, height) && inside(x_, width) { x[c][y - padding][x_ - padding] } else { 0.0 }
        };
        let value = |o: usize, top: usize, left: usize| {
            let mut sum = f64::from(bias[o]);
            for (c, y, x) in (0..x.len()).flat_map(|c| (0..kernel * kernel).map(move |i| (c, i / kernel, i % kernel))) {
                let w = weight[((o * shape[1] + c) * kernel + y) * kernel + x];
                sum += f64::from(w) * at(c, top + y, left + x);
            }
            sum.max(0.0)
        };
        let steps = |n: usize| (0..(n - kernel) / stride + 1).map(move |i| i * stride);
        (0..shape[0]).map(|o| steps(height).map(|y| steps(width).map(|x| value(o, y, x)).collect()).collect()).collect()
    };
    let pool = |x: &Image, size: usize, ceil: bool| -> Image {
        let (height, width) = (x[0].len(), x[0][0].len());
        let count = |n: usize| if ceil { (n - size).div_ceil(2) + 1 } else { (n - size) / 2 + 1 };
        let value = |plane: &[Vec<f64>], top: usize, left: usize| {
            let cells =
                (top..(top + size).min(height)).flat_map(|y| (left..(left + size).min(width)).map(move |x| (y, x)));
            cells.map(|(y, x)| plane[y][x]).fold(f64::NEG_INFINITY, f64::max)
        };
        let row = |plane: &Vec<Vec<f64>>, y: usize| (0..count(width)).map(|x| value(plane, 2 * y, 2 * x)).collect();
        x.iter().map(|plane| (0..count(height)).map(|y| row(plane, y)).collect()).collect()
    };
    let pixel = |c: usize, i: usize| (f64::from(image[c * DIM * DIM + i]) - f64::from(SHIFT[c])) / f64::from(SCALE[c]);
    let mut x: Image =
        (0..3).map(|c| (0..DIM).map(|y| (0..DIM).map(|x| pixel(c, y * DIM + x)).collect()).collect()).collect();
    let mut heads = Vec::new();
    for layer in net.layers() {
        x = match *layer {
            network::Layer::Convolution { index, stride, padding, .. } => {
                convolve(&x, &index.to_string(), stride, padding)
            }
            network::Layer::Fire { index } => {
                let squeezed = convolve(&x, &format!("{index}.squeeze"), 1, 0);
                let mut both = convolve(&squeezed, &format!("{index}.expand1x1"), 1, 0);
                both.extend(convolve(&squeezed, &format!("{index}.expand3x3"), 1, 1));
                both
            }
            network::Layer::Pool { size, ceil } => pool(&x, size, ceil),
            network::Layer::Head => {
                heads.push(x.clone());
                x
            }
        };
    }
    heads
}

fn distance(net: Net, arrays: &Arrays, a: &[f32], b: &[f32]) -> f64 {
    let (a, b) = (oracle(net, arrays, a), oracle(net, arrays, b));
    a.iter().zip(&b).enumerate().fold(0.0, |sum, (head, (a, b))| {
        let weight = &arrays[&format!("heads.lin{head}.model.1.weight")].1;
        let (height, width) = (a[0].len(), a[0][0].len());
        let mut layer = 0.0;
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            let length = |i: &Image| i.iter().map(|plane| plane[y][x].powi(2)).sum::<f64>().sqrt() + EPSILON;
            let (la, lb) = (length(a), length(b));
            layer +=
                (0..a.len()).map(|c| f64::from(weight[c]) * (a[c][y][x] / la - b[c][y][x] / lb).powi(2)).sum::<f64>();
        }
        sum + layer / (height * width) as f64
    })
}

#[test]
fn every_network_is_its_definition() {
    let device = Device::flex();
    for net in [Net::Squeeze, Net::Alex, Net::Vgg] {
        let arrays = small(net);
        let lpips = load(&file(&arrays)).unwrap();
        assert_eq!(lpips.net(), net);
        let values = normal(2 * 2 * 3 * DIM * DIM, 5);
        let (a, b) = values.split_at(values.len() / 2);
        let images = |v: &[f32]| Tensor::from_data(TensorData::new(v.to_vec(), [2, 3, DIM, DIM]), &device);
        let ours: Vec<f32> = lpips.images(images(a), images(b)).unwrap().into_data().try_to_vec().unwrap();
        for (image, ours) in ours.into_iter().enumerate() {
            let of = |v: &[f32]| v[image * 3 * DIM * DIM..][..3 * DIM * DIM].to_vec();
            let expected = distance(net, &arrays, &of(a), &of(b));
            // Sums of up to a few hundred products in f32, heads of either sign.
            assert!((f64::from(ours) - expected).abs() < 1e-4 * (1.0 + expected.abs()), "{net}: {ours} {expected}");
            assert!(expected.abs() > 1e-2, "{net}: {expected} says nothing");
        }
    }
}

#[test]
fn clips_are_means_over_frames() {
    let lpips = load(&file(&small(Net::Squeeze))).unwrap();
    let clip = |seed| crate::metrics::testing::noise([3, 33, 32], seed);
    let (a, b) = (clip(1), clip(2));
    let frame = |c: &Clip, f: usize| Clip::new([1, 33, 32], c.values()[f * 3 * 33 * 32..][..3 * 33 * 32].to_vec());
    let apart: f64 = (0..3).map(|f| lpips.clips(&frame(&a, f), &frame(&b, f)).unwrap()).sum();
    assert!((lpips.clips(&a, &b).unwrap() - apart / 3.0).abs() < 1e-5);
    assert!(lpips.clips(&a, &a).unwrap().abs() < 1e-12);
    let error = lpips.clips(&a, &a.first(2)).unwrap_err().to_string();
    assert!(error.contains("[3, 33, 32] and [2, 33, 32]"), "{error}");
    let small = crate::metrics::testing::clip(1);
    assert!(lpips.clips(&small, &small).unwrap_err().to_string().contains("32 or more"));
}

#[test]
fn weights_that_do_not_fit_are_named() {
    let refused = |change: &dyn Fn(&mut Arrays)| {
        let mut arrays = small(Net::Squeeze);
        change(&mut arrays);
        load(&file(&arrays)).unwrap_err().to_string()
    };
    let error = refused(&|a| drop(a.remove("backbone.7.expand3x3.bias")));
    assert!(error.ends_with("backbone.7.expand3x3.bias is missing"), "{error}");
    let error = refused(&|a| drop(a.insert("heads.lin1.model.1.weight".into(), (vec![1, 4, 1, 1], vec![0.0; 4]))));
    assert!(
        error.ends_with("heads.lin1.model.1.weight: expected [1, 5, 1, 1] of F32, got [1, 4, 1, 1] of F32"),
        "{error}"
    );
    assert!(Lpips::load(Path::new("/nowhere"), &Device::flex()).unwrap_err().to_string().contains("/nowhere"));
}

/// Against the trained network, where `MCSPARSE_LPIPS` names a folder with it.
#[test]
fn the_trained_network_gives_the_published_values() {
    let Ok(folder) = std::env::var(CHECKED) else {
        eprintln!("SKIPPED: {CHECKED} names no folder with weights.safetensors and io.safetensors");
        return;
    };
    let (folder, device) = (Path::new(&folder), Device::flex());
    let lpips = Lpips::load(&folder.join("weights.safetensors"), &device).unwrap();
    let bytes = std::fs::read(folder.join("io.safetensors")).unwrap();
    let io = SafeTensors::deserialize(&bytes).unwrap();
    let read = |name: &str| -> Vec<f32> {
        let view = io.tensor(name).unwrap();
        view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let images = |name: &str| {
        let shape: [usize; 4] = io.tensor(name).unwrap().shape().try_into().unwrap();
        Tensor::<4>::from_data(TensorData::new(read(name), shape), &device)
    };
    let ours: Vec<f32> = lpips.images(images("in.img1"), images("in.img2")).unwrap().into_data().try_to_vec().unwrap();
    let expected = read("out.lpips");
    for (ours, expected) in ours.iter().zip(&expected) {
        assert!((ours - expected).abs() < 1e-5, "{ours} {expected}");
    }
    assert_eq!(ours.len(), expected.len());
}
