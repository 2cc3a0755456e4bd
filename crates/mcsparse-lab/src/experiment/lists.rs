//! The arms of each experiment.

use mcsparse::{Anchors, McSparseConfig, Refresh, ResidualGain, Schedule as Steps, Selection, Tail};

use super::{
    arms::{Arm, Method},
    study::Settings,
};
use crate::attention::{
    Recipe, Residual, Rest, Select,
    rivals::{chipmunk, content_keys, lite, mc_sparse, pisa, reused_blocks, sol, svg2, token_keys, vanilla},
};

/// The floor of every table.
pub const FLOOR: &str = "dense-tensor-operations";

fn arm(id: impl Into<String>, label: impl Into<String>, method: Method, settings: &Settings) -> Arm {
    Arm { id: id.into(), label: label.into(), method, steps: settings.steps, schedule: Steps::default() }
}

fn of(id: &str, label: &str, recipe: Recipe, settings: &Settings) -> Arm {
    let id = format!("{id}@{}", recipe.density);
    arm(id, label, Method::Recipe(recipe), settings)
}

/// The library's MC-Sparse with some of its settings.
fn ours(id: &str, label: &str, config: McSparseConfig, settings: &Settings) -> Arm {
    let method = Method::Library(Box::new(config));
    let arm = arm(id, label, method, settings);
    let id = format!("{id}@{}", arm.density().unwrap_or_default());
    Arm { id, ..arm }
}

/// Dense attention by tensor operations.
pub fn floor(settings: &Settings) -> Arm {
    arm(FLOOR, "dense, tensor operations", Method::DenseByTensorOperations, settings)
}

/// The paper's five rows, one idea more in each, and the residual on weaker selections, at each density.
pub fn ablation(settings: &Settings) -> Vec<Arm> {
    let (group, small) = (settings.group_size, settings.small_block);
    let mut arms = vec![floor(settings)];
    for &density in &settings.densities {
        let rows = [
            ("vanilla", "vanilla block-sparse", vanilla(density, group, group)),
            ("reused", "reused exact block selection", reused_blocks(density, group, group)),
            ("token", "token-level keys", token_keys(density, group)),
            ("content", "groups by content (PDDP)", content_keys(density, group)),
            ("mc-sparse", "residual: MC-Sparse", mc_sparse(density, group)),
            ("vanilla-residual", "vanilla + residual", vanilla(density, group, group).plus_residual()),
            ("reused-residual", "reused exact blocks + residual", reused_blocks(density, group, group).plus_residual()),
            ("token-residual", "token-level keys + residual", token_keys(density, group).plus_residual()),
            ("pisa", "PISA", pisa(density, small)),
            ("pisa-residual", "PISA + residual", pisa(density, small).plus_residual()),
        ];
        arms.extend(rows.map(|(id, label, recipe)| of(id, label, recipe, settings)));
    }
    arms
}

/// MC-Sparse, as the library runs it, and its rivals at each density; with `residual` the rivals once more with one.
pub fn versus(settings: &Settings, residual: bool) -> Vec<Arm> {
    let (group, small) = (settings.group_size, settings.small_block);
    let mut arms = vec![floor(settings)];
    for &density in &settings.densities {
        let config = McSparseConfig::density(density);
        let rivals = [
            (format!("vanilla-{group}"), format!("block-sparse {group}"), vanilla(density, group, group)),
            (format!("vanilla-{small}"), format!("block-sparse {small}"), vanilla(density, small, small)),
            ("reused".into(), "reused exact blocks".into(), reused_blocks(density, group, group)),
            ("pisa".into(), "PISA".into(), pisa(density, small)),
            ("sol".into(), "Sol-Attn".into(), sol(density, small)),
            ("svg2".into(), "SVG2".into(), svg2(density, group, small)),
            ("chipmunk".into(), "Chipmunk, exact sums".into(), chipmunk(density, group, false)),
            ("chipmunk-stale".into(), "Chipmunk, stale sums".into(), chipmunk(density, group, true)),
            ("lite".into(), "LiteAttention".into(), lite(density, group, small)),
        ];
        arms.push(ours("mc-sparse", "MC-Sparse", config.clone(), settings));
        let config = config.with_tail(Tail::BlockMeans { block: small });
        arms.push(ours("mc-sparse-means", "MC-Sparse, tail by block means", config, settings));
        for (id, label, recipe) in rivals {
            let has = recipe.residual != Residual::Off;
            arms.push(of(&id, &label, recipe.clone(), settings));
            if residual && !has {
                let (id, label) = (format!("{id}-residual"), format!("{label} + residual"));
                arms.push(of(&id, &label, recipe.plus_residual(), settings));
            }
        }
    }
    arms
}

/// MC-Sparse under schedules: dense steps at the start, anchors after them.
pub fn schedule(settings: &Settings) -> Vec<Arm> {
    let (steps, mut arms) = (settings.steps, vec![floor(settings)]);
    let share = |part: f64| ((steps as f64 * part).round() as usize).max(1);
    let mut warm_ups = [0.05, 0.1, 0.2, 0.3, 0.4].map(share).to_vec();
    warm_ups.dedup();
    for &density in &settings.densities {
        for &warm_up in warm_ups.iter().filter(|&&warm_up| warm_up < steps) {
            let first = warm_up - 1;
            let middle = (first + steps) / 2;
            let thirds = vec![first, first + (steps - first) / 3, first + 2 * (steps - first) / 3];
            for (id, label, anchors) in [
                ("one", "one anchor", vec![first]),
                ("two", "two anchors", vec![first, middle]),
                ("three", "three anchors", thirds),
            ] {
                let after = anchors.windows(2).all(|pair| pair[1] > pair[0] && pair[1] < steps);
                if !after || (id != "one" && anchors[1] <= warm_up) {
                    continue;
                }
                let (id, label) = (format!("warm-{warm_up}-{id}"), format!("{warm_up} dense steps, {label}"));
                let arm = ours(&id, &label, McSparseConfig::density(density), settings);
                arms.push(Arm { schedule: Steps::warm_up(warm_up).with_anchors(Anchors::At(anchors)), ..arm });
            }
        }
    }
    possible(arms)
}

/// Runs of few steps, as distilled models take them.
pub fn fewstep(settings: &Settings, steps: &[usize]) -> Vec<Arm> {
    let group = settings.group_size;
    let mut arms = Vec::new();
    for &steps in steps {
        arms.push(Arm { id: format!("{FLOOR}-{steps}"), steps, ..floor(settings) });
        for &density in &settings.densities {
            for (id, label, recipe) in [
                ("mc-sparse", "MC-Sparse", mc_sparse(density, group)),
                ("content", "MC-Sparse without residual", content_keys(density, group)),
                ("vanilla", "vanilla block-sparse", vanilla(density, group, group)),
            ] {
                let arm = of(&format!("{id}-{steps}"), label, recipe, settings);
                arms.push(Arm { steps, ..arm });
            }
        }
    }
    arms
}

/// MC-Sparse at several densities: the curve that changes have to beat at their effective density.
pub fn curve(settings: &Settings) -> Vec<Arm> {
    let mut densities = vec![0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7];
    densities.extend(&settings.densities);
    densities.sort_by(f64::total_cmp);
    densities.dedup();
    let arm = |density| ours("base", "MC-Sparse", McSparseConfig::density(density), settings);
    densities.into_iter().map(arm).collect()
}

/// Changes to MC-Sparse, at the first density. `law` is a gain for each layer and age, fitted on other clips.
pub fn improve(settings: &Settings, law: Option<Vec<Vec<f64>>>) -> Vec<Arm> {
    let (steps, density, group) = (settings.steps, settings.densities[0], settings.group_size);
    let (full, base) = (McSparseConfig::density(density), content_keys(density, group));
    let plan = Steps::default().plan(steps).expect("checked with the settings");
    let warm_up = (0..steps).find(|&step| plan.kind(step) == Some(mcsparse::StepKind::Reuse)).unwrap_or(1);
    let first = warm_up - 1;
    let (middle, third) = ((first + steps) / 2, (steps - first) / 3);
    let mut arms = vec![floor(settings)];
    let gained = |id: &str, label: &str, gain| ours(id, label, full.clone().with_residual_gain(gain), settings);
    for factor in [0.6, 0.7, 0.8, 0.9] {
        let (id, label) = (format!("gain-{factor}"), format!("residual times {factor}"));
        arms.push(gained(&id, &label, ResidualGain::constant(factor)));
    }
    for decay in [0.95, 0.98] {
        let (id, label) = (format!("decay-{decay}"), format!("residual decays by {decay} a step"));
        arms.push(gained(&id, &label, ResidualGain::decay(decay)));
    }
    if let Some(law) = law {
        let gain = ResidualGain::by_layer_and_age(law);
        arms.push(gained("law", "gain by layer and age, fitted on other clips", gain));
    }
    let renormalised = base.clone().with_residual(Residual::Renormalised);
    arms.push(of("renormalised", "sparse part keeps its share of the anchor", renormalised, settings));
    let tail = base.clone().with_residual(Residual::Tail);
    arms.push(of("tail", "tail as a part of the softmax", tail, settings));
    let block = settings.small_block;
    let means = Recipe { rest: Rest::Means { block }, ..base.clone() };
    arms.push(of("means", "tail by block means at every step, no residual", means, settings));
    let with_means = |block| full.clone().with_tail(Tail::BlockMeans { block });
    let label = "tail by block means at every step, and residual";
    arms.push(ours("means-residual", label, with_means(block), settings));
    let label = "the same by means of twice as many keys";
    arms.push(ours("coarse-means-residual", label, with_means(settings.group_size), settings));
    let first_order = Recipe { rest: Rest::FirstOrder { block }, ..base.clone().plus_residual() };
    arms.push(of("first-order-residual", "tail by PISA's first order, and residual", first_order, settings));
    arms.push(of("pisa-residual", "PISA and residual", pisa(density, block).plus_residual(), settings));
    for (id, label, heads) in [
        ("groups-compete", "groups of a head compete for keys", false),
        ("heads-compete", "groups and heads compete for keys", true),
    ] {
        let recipe = Recipe { select: Select::CompetingKeys { heads }, ..base.clone().plus_residual() };
        arms.push(of(id, label, recipe, settings));
    }

    let at = |arm: Arm, warm_up: usize, anchors: Vec<usize>| Arm {
        schedule: Steps::warm_up(warm_up).with_anchors(Anchors::At(anchors)),
        ..arm
    };
    let plain = |id: &str, label: &str| ours(id, label, full.clone(), settings);
    let two = vec![first, middle];
    let three = vec![first, first + third, first + 2 * third];
    arms.push(at(plain("second-anchor", "second anchor"), warm_up, two.clone()));
    arms.push(at(plain("third-anchor", "three anchors"), warm_up, three));
    let label = "second anchor, tail by block means, and residual";
    arms.push(at(ours("second-anchor-means", label, with_means(block), settings), warm_up, two.clone()));
    let riding = || full.clone().with_selection(Selection::Riding);
    arms.push(ours("riding", "keys by the log-sum-exps of the step before", riding(), settings));
    let label = "second anchor, keys by the log-sum-exps of the dense pass before";
    arms.push(at(ours("second-anchor-riding", label, riding(), settings), warm_up, two.clone()));
    let renewing = |arm: Arm| {
        let arm = at(arm, warm_up, two.clone());
        Arm { schedule: arm.schedule.clone().with_refresh(Refresh::Residual), ..arm }
    };
    arms.push(renewing(plain("second-residual", "second anchor refreshes the residual alone")));
    for damping in [0.5, 1.0] {
        let label = format!("second anchor, residual forecast along a line times {damping}");
        let config = full.clone().with_residual_forecast(Some(damping));
        arms.push(renewing(ours(&format!("forecast-{damping}"), &label, config, settings)));
    }
    if warm_up > 2 {
        let short = warm_up / 2;
        let label = format!("{short} dense steps, second anchor");
        arms.push(at(plain("short-warm-up", &label), short, vec![short - 1, middle]));
        let label = format!("{short} dense steps, three anchors");
        let anchors = vec![short - 1, first + third / 2, middle];
        arms.push(at(plain("short-warm-up-three", &label), short, anchors));
    }
    for bound in [0.2, 0.3, 0.4] {
        let label = format!("anchor once outputs have drifted by {bound}");
        let arm = plain(&format!("drift-{bound}"), &label);
        arms.push(Arm { schedule: Steps::default().with_drift_bound(bound), ..arm });
    }
    possible(arms)
}

/// Leaves out what a run of so few steps has no room for.
fn possible(mut arms: Vec<Arm>) -> Vec<Arm> {
    arms.retain(|arm| {
        let distinct = match &arm.schedule.anchors {
            Anchors::At(at) => at.windows(2).all(|pair| pair[0] < pair[1]),
            _ => true,
        };
        distinct && arm.schedule.plan(arm.steps).is_ok()
    });
    arms
}

#[cfg(test)]
pub(super) mod testing {
    use crate::{
        device::{DType, DeviceName},
        experiment::study::Settings,
        presets::Size,
    };

    /// Settings of a small study.
    pub fn settings(steps: usize) -> Settings {
        Settings {
            size: Size::Nano,
            device: DeviceName::Flex,
            dtype: DType::F32,
            clips: 2,
            batch: 2,
            seed: 0,
            steps,
            densities: vec![0.15, 0.25],
            group_size: 32,
            small_block: 16,
            lpips: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::settings, *};

    /// docs/lab.md says how many arms each command has.
    #[test]
    fn the_page_counts_the_arms() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lab.md")).unwrap();
        let with = |densities: &[f64]| Settings { densities: densities.to_vec(), ..settings(20) };
        let four = with(&[0.1, 0.15, 0.25, 0.5]);
        let changes = [curve(&with(&[0.15])), improve(&with(&[0.15]), Some(Vec::new()))].concat();
        for (name, counts) in [
            ("ablation", vec![ablation(&with(&[0.2])).len()]),
            ("versus", vec![versus(&four, false).len(), versus(&four, true).len()]),
            ("improve", vec![changes.len()]),
            ("schedule", vec![schedule(&with(&[0.15])).len()]),
            ("fewstep", vec![fewstep(&with(&[0.25]), &[4, 8, 16, 50]).len()]),
        ] {
            let begin = format!("| `{name}` |");
            let row = page.lines().find(|line| line.starts_with(&begin)).unwrap_or_else(|| panic!("no row of {name}"));
            let cell = row.trim_end_matches('|').rsplit('|').next().unwrap();
            let numbers = cell.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<usize>().ok());
            assert_eq!(numbers.collect::<Vec<_>>(), counts, "{row}");
        }
    }

    #[test]
    fn every_arm_has_an_id_of_its_own_and_a_plan() {
        for steps in [2, 3, 5, 20, 50] {
            let settings = settings(steps);
            let law = Some(vec![vec![1.0]]);
            for arms in [
                ablation(&settings),
                versus(&settings, true),
                schedule(&settings),
                fewstep(&settings, &[4, 8]),
                [curve(&settings), improve(&settings, law)].concat(),
            ] {
                let mut ids: Vec<_> = arms.iter().map(|arm| arm.id.clone()).collect();
                ids.sort();
                ids.dedup();
                assert_eq!(ids.len(), arms.len(), "{steps} steps");
                for arm in &arms {
                    assert!(!arm.id.contains(' '), "{}", arm.id);
                    let planned = arm.schedule.plan(arm.steps);
                    assert!(planned.is_ok() || arm.density().is_none(), "{} of {steps}: {planned:?}", arm.id);
                }
            }
        }
    }
}
