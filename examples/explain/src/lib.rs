//! Looks into the attention of a denoising run and draws what MC-Sparse makes of it: the pictures of `docs/method.md`.

pub mod canvas;
pub mod charts;
pub mod kept;
pub mod observe;
pub mod options;
pub mod pictures;
pub mod report;

use burn::tensor::{DType, Device, Tensor};
use mcsparse::Schedule;
use mcsparse_dit::pretrained::{ClipModel, ConditionFile};
use mcsparse_lab::{attention::tiles, error::Error as Failure};

use crate::{kept::Head, observe::Tap, options::Options, pictures::Clip, report::Masses};

/// Whatever goes wrong with a picture, in words.
pub type Error = Box<dyn std::error::Error>;

/// The snippets of the porting guide, compiled and run.
#[cfg(all(doctest, feature = "flex"))]
#[doc = include_str!("../../../docs/porting.md")]
pub struct Porting;

/// Runs the program.
///
/// # Errors
///
/// [`Failure::Option`] for options that do not fit the model, [`Failure::Run`] if the model refuses the condition or a picture
/// cannot be written.
pub fn start(options: &Options) -> Result<(), Failure> {
    let device = Device::default();
    let model = ClipModel::load(options.weights.join(&options.size), DType::F32, &device)?;
    options.check(model.layers(), model.heads(), model.grid())?;
    let condition = ConditionFile::open(&options.weights)?.tokens(&options.condition, &options.size, &device)?;
    explain(&model, condition, options, &device).map_err(|error| Failure::Run(error.to_string()))
}

/// Runs the model, draws all pictures and prints their numbers; `options` fit the model.
///
/// # Errors
///
/// If the model refuses the condition, or a picture cannot be written.
pub fn explain(model: &ClipModel, condition: Tensor<3>, options: &Options, device: &Device) -> Result<(), Error> {
    let Options { steps, step, density, .. } = *options;
    let (layer_count, head_count, grid) = (model.layers(), model.heads(), model.grid());
    let tokens = grid.iter().product();
    let tile = [options.tile[0], options.tile[1], options.tile[2]];
    let (group_size, tiles) = (tile.iter().product(), tiles(grid, tile));
    let anchor = Schedule::default().plan(steps)?.anchor_before(step).ok_or("no anchor came before the step")?;
    std::fs::create_dir_all(&options.out).map_err(|error| format!("{}: {error}", options.out.display()))?;
    let [frames, rows, columns] = grid;
    println!("model {}: {layer_count} layers, {head_count} heads", options.size);
    println!("{tokens} tokens: {frames} frames of {rows} x {columns}; groups of {group_size}, blocks of {tile:?}");
    println!("condition {}, no guidance, noise of seed {}", options.condition, options.seed);
    println!("step {step} of {steps} (from 0); the anchor of the default schedule before it is step {anchor}");

    let mut tap = Tap::new(&options.layers, &[anchor, step]);
    let clip = observe::run(model, condition, steps, step, options.seed, &mut tap, device)?;
    let clip = Clip::new(clip, grid);
    let head = |layer, step, head| {
        let qkv = tap.taken(layer, step).ok_or_else(|| format!("layer {layer} did not run at step {step}"))?;
        Ok::<_, Error>(Head::new(qkv, head, group_size, &tiles)?)
    };

    let (layer, out) = (options.layers[0], &options.out);
    let shown = head(layer, step, options.head)?;
    let title = format!("the clip that the model expects at step {step} of {steps}");
    pictures::groups(&out.join("groups.png"), &clip, &shown, group_size, &title)?;
    let selection = pictures::selection(&out.join("selection.png"), &clip, &shown, group_size, density, options.group)?;
    println!("\nselection.png: layer {layer}, head {}, group {}", options.head, selection.group);
    println!("  single keys: density {density:.3}, kept mass {:.3}", selection.selected);
    println!("  whole blocks: density {:.3}, kept mass {:.3}", selection.block_density, selection.blocks);

    let masses = |layer: usize| -> Result<Vec<Masses>, Error> {
        let of_head = |h| Ok(Masses::new(head(layer, step, h)?, head(layer, anchor, h)?, group_size));
        (0..head_count).map(of_head).collect()
    };
    let heads = masses(layer)?;
    let blocks = heads[0].blocks();
    let share = |count: usize| count as f64 / blocks as f64;
    let counts = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16].into_iter().filter(|&count| 2 * count <= blocks);
    let points: Vec<_> = counts.map(|count| (share(count), report::mean_kept(&heads, count))).collect();
    let title = format!("kept attention mass: layer {layer}, mean of {head_count} heads, step {step} of {steps}");
    charts::mass(&out.join("mass.svg"), &title, &points)?;
    println!("\n{title}\n\n{}", report::heading("density"));
    for (density, kept) in &points {
        println!("{}", report::line(&format!("{density:.4}"), kept.map(|value| format!("{value:.3}"))));
    }

    let count = ((density * blocks as f64).round() as usize).max(1);
    println!("\nkept attention mass at density {:.4}\n\n{}", share(count), report::heading("layer.head"));
    for &layer in &options.layers {
        for (h, masses) in masses(layer)?.iter().enumerate() {
            let kept = masses.kept(count).map(|value| format!("{value:.3}"));
            println!("{}", report::line(&format!("{layer}.{h}"), kept));
        }
    }

    charts::schedule(&out.join("schedule.svg"), 50, density, tokens)?;
    println!("\nschedules of 50 steps");
    for (name, plan) in charts::plans(50)? {
        println!("  {name}: {plan}");
    }
    println!("\npictures are in {}", out.canonicalize()?.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use mcsparse_dit::pretrained::ClipConfig;

    use super::*;

    const TINY: &str = r#"{"patch_size": [1, 4, 4], "num_attention_heads": 2, "attention_head_dim": 16,
        "in_channels": 6, "out_channels": 3, "text_dim": 8, "freq_dim": 16, "ffn_dim": 32, "num_layers": 2,
        "cross_attn_norm": true, "rope_max_seq_len": 64}"#;
    const SAMPLING: &str = r#"{"frames": 8, "height": 32, "width": 32, "video_channels": 3, "coordinate_channels": 3,
        "flow_shift": 3.0, "timestep_scale": 1000}"#;

    #[test]
    fn an_untrained_model_gives_all_pictures() {
        let device = Device::default();
        let network = serde_json::from_str(TINY).unwrap();
        let sampling = serde_json::from_str(SAMPLING).unwrap();
        let model = ClipConfig { network, sampling }.init(&device).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().to_str().unwrap();
        let arguments = "explain --steps 6 --step 3 --layers 1,0 --tile 1,4,4 --out";
        let options = Options::parse_from(arguments.split(' ').chain([out]));
        explain(&model, Tensor::ones([1, 4, 8], &device), &options, &device).unwrap();
        for name in ["groups.png", "selection.png", "mass.svg", "schedule.svg"] {
            let size = std::fs::metadata(folder.path().join(name)).unwrap().len();
            assert!((1_000..150_000).contains(&size), "{name} has {size} bytes");
        }
    }

    #[test]
    fn options_are_refused_by_name() {
        let refused = |arguments: &str| {
            let options = Options::parse_from(format!("explain {arguments}").split(' '));
            options.check(10, 2, [16, 16, 16]).unwrap_err().to_string()
        };
        assert_eq!(refused("--step 20"), "--step: expected a step from 3 to 19, got 20");
        assert_eq!(refused("--step 2"), "--step: expected a step from 3 to 19, got 2");
        assert_eq!(refused("--steps 0"), "--steps: expected 2 or more, with room for a reuse step, got 0");
        assert_eq!(refused("--layers 3,10"), "--layers: expected layers below 10, got [3, 10]");
        assert_eq!(refused("--head 2"), "--head: expected a head below 2, got 2");
        assert_eq!(refused("--tile 2,8,7"), "--tile: expected divisors of the grid [16, 16, 16], got [2, 8, 7]");
        assert_eq!(refused("--group 32"), "--group: expected a group below 32, got 32");
    }
}
