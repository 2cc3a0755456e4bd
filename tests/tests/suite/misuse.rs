//! Every misuse is refused with a message that names the argument, the expectation and what came, and changes nothing.

use burn::tensor::{DType, Device, Tensor};
use mcsparse::{
    Anchors, Branch, Error, McSparse, McSparseAttention, McSparseConfig, MetaCache, Schedule, SelfAttention, StepKind,
};
use mcsparse_tests::{case::reference_tolerance, device, half_dtypes, random};

fn qkv(shape: [usize; 4], device: &Device) -> [Tensor<4>; 3] {
    [1, 2, 3].map(|seed| random(shape, seed, device))
}

fn config() -> McSparseConfig {
    McSparseConfig::density(0.3)
        .with_group_size(8)
        .with_schedule(Schedule::warm_up(1).with_anchors(Anchors::At(vec![0, 4])))
}

struct Case {
    attention: McSparseAttention,
    cache: MetaCache,
    device: Device,
}

impl Case {
    fn new(config: McSparseConfig) -> Self {
        let cache = MetaCache::new(&config, 6).unwrap();
        Self { attention: config.init(2).unwrap(), cache, device: device() }
    }

    fn call(&mut self, shape: [usize; 4]) -> Result<Tensor<4>, Error> {
        let [q, k, v] = qkv(shape, &self.device);
        self.attention.forward(q, k, v, &mut self.cache)
    }

    /// A refused call leaves slots and report as they were.
    fn refused(&mut self, call: impl FnOnce(&mut Self) -> Result<Tensor<4>, Error>) -> String {
        let state = |cache: &MetaCache| {
            let slots: Vec<_> = cache
                .slots()
                .iter()
                .map(|s| {
                    (s.key().clone(), s.step(), s.order().to_data(), s.indices().to_data(), s.residual().to_data())
                })
                .collect();
            (slots, cache.report().to_string(), cache.report().calls().to_vec())
        };
        let before = state(&self.cache);
        let message = call(self).expect_err("must be refused").to_string();
        let after = state(&self.cache);
        assert!(before == after, "a refused call changed the cache: {message}");
        message
    }
}

const SHAPE: [usize; 4] = [1, 2, 20, 16];

#[test]
fn the_step_clock() {
    let mut case = Case::new(config());
    assert_eq!(case.refused(|c| c.call(SHAPE)), "step clock: forward came before begin_step(0)");
    let skipped = case.cache.begin_step(1).unwrap_err().to_string();
    assert_eq!(skipped, "step clock: begin_step: expected step 0, got 1");
    case.cache.begin_step(0).unwrap();
    case.call(SHAPE).unwrap();
    let again = case.refused(|c| c.call(SHAPE));
    assert!(again.contains("layer 2 of branch conditional has already run at step 0"), "{again}");
    assert!(case.cache.begin_step(0).is_err());
    for step in 1..6 {
        let early = case.cache.finish().unwrap_err().to_string();
        assert!(early.starts_with("step clock: the run of 6 steps stopped after"), "{early}");
        case.cache.begin_step(step).unwrap();
        case.call(SHAPE).unwrap();
    }
    case.cache.finish().unwrap();
    let past = case.cache.begin_step(6).unwrap_err().to_string();
    assert!(past.contains("begin_step(6) runs past the end of the run of 6 steps"), "{past}");
    assert_eq!(case.cache.report().count(StepKind::Reuse), 4);
    case.cache.clear();
    assert_eq!((case.cache.slots().len(), case.cache.size_in_bytes()), (0, 0));
    case.cache.begin_step(0).unwrap();
}

#[test]
fn reuse_before_an_anchor_and_missed_refreshes() {
    let mut case = Case::new(config());
    case.cache.begin_step(0).unwrap();
    case.cache.begin_step(1).unwrap();
    let message = case.refused(|c| c.call(SHAPE));
    assert!(message.starts_with("reuse before an anchor: layer 2, branch conditional, step 1"), "{message}");

    let mut case = Case::new(config());
    for step in 0..6 {
        case.cache.begin_step(step).unwrap();
        match step {
            4 => {} // the refresh is missed
            5 => {
                let message = case.refused(|c| c.call(SHAPE));
                assert!(message.contains("the slot is from step 0, the refresh at step 4 was missed"), "{message}");
            }
            _ => drop(case.call(SHAPE).unwrap()),
        }
    }
}

#[test]
fn branches() {
    let (cond, uncond) = (Branch::conditional(), Branch::unconditional());
    let mut case = Case::new(config());
    case.cache = case.cache.clone().with_branches([cond.clone(), uncond.clone()]);
    assert!(case.cache.begin_branch(&cond).unwrap_err().to_string().contains("before begin_step(0)"));
    case.cache.begin_step(0).unwrap();
    let none = case.refused(|c| c.call(SHAPE));
    assert!(none.contains("begin_branch must say which one layer 2 belongs to"), "{none}");
    let unknown = case.cache.begin_branch(&Branch::new("other")).unwrap_err().to_string();
    assert_eq!(unknown, "branch: expected one of [branch conditional, branch unconditional], got branch other");
    case.cache.begin_branch(&cond).unwrap();
    case.call(SHAPE).unwrap();
    // The other branch never ran at the anchor: its reuse must not read the first one's slot.
    case.cache.begin_step(1).unwrap();
    case.cache.begin_branch(&uncond).unwrap();
    let mixed = case.refused(|c| c.call(SHAPE));
    assert!(mixed.contains("branch unconditional") && mixed.contains("only branch conditional was cached"), "{mixed}");
}

#[test]
fn branches_and_experts_keep_their_own_slots() {
    let mut run = McSparse::new(&config(), 6).unwrap();
    let device = device();
    let branches = [Branch::conditional(), Branch::unconditional(), Branch::conditional().with_expert("low_noise")];
    for step in 0..2 {
        run.begin_step(step).unwrap();
        for (i, branch) in branches.iter().enumerate() {
            run.begin_branch(branch).unwrap();
            let [q, k, v] = [0, 1, 2].map(|t| random(SHAPE, (10 * i + t) as u64, &device));
            let dense = mcsparse::reference::dense_attention(q.clone(), k.clone(), v.clone(), 0.25, 1 << 24).0;
            let error = mcsparse_tests::relative_error(&run.attend(1, q, k, v).unwrap(), &dense);
            assert!(error < reference_tolerance(), "{branch} met another branch's slot: {error:e}");
        }
    }
    assert_eq!(run.cache().slots().len(), 3);
}

#[test]
fn a_changed_problem_is_refused_by_name() {
    let mut case = Case::new(config());
    case.cache.begin_step(0).unwrap();
    case.call(SHAPE).unwrap();
    case.cache.begin_step(1).unwrap();
    for (shape, argument, got) in [
        ([2, 2, 20, 16], "batch", "2"),
        ([1, 4, 20, 16], "heads", "4"),
        ([1, 2, 21, 16], "tokens", "21"),
        ([1, 2, 20, 32], "head_dim", "32"),
    ] {
        let message = case.refused(|c| c.call(shape));
        assert!(message.starts_with(&format!("{argument} of layer 2, branch conditional")), "{message}");
        assert!(message.contains(&format!("got {got};")), "{message}");
    }
    for (dtype, _) in half_dtypes(&case.device.clone(), "misuse") {
        let message = case.refused(|c| {
            let [q, k, v] = qkv(SHAPE, &c.device).map(|t| t.cast(dtype));
            c.attention.forward(q, k, v, &mut c.cache)
        });
        assert!(message.starts_with("dtype of layer 2"), "{message}");
    }
    let scaled = config().with_scale(Some(0.5)).init(2).unwrap();
    let message = case.refused(|c| {
        let [q, k, v] = qkv(SHAPE, &c.device);
        scaled.forward(q, k, v, &mut c.cache)
    });
    assert!(message.starts_with("scale of layer 2"), "{message}");
    let rescheduled = config().with_schedule(Schedule::warm_up(3)).init(2).unwrap();
    let message = case.refused(|c| {
        let [q, k, v] = qkv(SHAPE, &c.device);
        rescheduled.forward(q, k, v, &mut c.cache)
    });
    assert!(message.starts_with("schedule: expected that of the cache"), "{message}");
    let other = config().with_group_size(4).init(2).unwrap();
    let message = case.refused(|c| {
        let [q, k, v] = qkv(SHAPE, &c.device);
        other.forward(q, k, v, &mut c.cache)
    });
    assert!(message.starts_with("group_size of layer 2"), "{message}");
    // The right problem still runs afterwards.
    case.call(SHAPE).unwrap();
}

#[test]
fn tensors_that_do_not_fit_each_other() {
    let mut case = Case::new(config());
    case.cache.begin_step(0).unwrap();
    let device = device();
    let mut refused = |q: [usize; 4], k: [usize; 4], v: [usize; 4]| {
        case.refused(|c| {
            let [q, k, v] = [q, k, v].map(|s| random(s, 1, &device));
            c.attention.forward(q, k, v, &mut c.cache)
        })
    };
    let s = SHAPE;
    assert!(
        refused(s, [1, 2, 21, 16], [1, 2, 21, 16])
            .starts_with("key: expected 20 tokens, as query has, got [1, 2, 21, 16]")
    );
    assert!(refused(s, [1, 3, 20, 16], [1, 3, 20, 16]).starts_with("key: expected [1, heads dividing 2, tokens, 16]"));
    assert!(refused(s, s, [1, 1, 20, 16]).starts_with("value: expected the shape of key, [1, 2, 20, 16]"));
    assert!(refused(s, [2, 2, 20, 16], [2, 2, 20, 16]).starts_with("key: expected [1,"));
    assert!(refused([1, 2, 20, 300], s, s).starts_with("query: expected head_dim (last axis) from 1 to 256"));
    let ints = random(s, 1, &device).cast(DType::F64);
    if ints.dtype() == DType::F64 {
        let message = case.refused(|c| c.attention.forward(ints.clone(), ints.clone(), ints.clone(), &mut c.cache));
        assert!(message.starts_with("query: expected dtype f32, f16 or bf16, got F64"), "{message}");
    }
}

#[test]
fn budgets_that_do_not_fit_the_tokens() {
    let mut case = Case::new(McSparseConfig::keys(21).with_schedule(Schedule::warm_up(1)));
    case.cache.begin_step(0).unwrap();
    let message = case.refused(|c| c.call(SHAPE));
    assert_eq!(message, "keys: expected 1 to 20, the keys that there are to choose from, got 21");
}

#[test]
fn values_that_are_not_finite_when_checking_is_on() {
    let mut case = Case::new(config().with_check_finite(true));
    case.cache.begin_step(0).unwrap();
    let names = ["query", "key", "value"];
    for (bad, name) in names.into_iter().enumerate() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let message = case.refused(|c| {
                let mut tensors = qkv(SHAPE, &c.device);
                tensors[bad] = tensors[bad].clone().slice_fill([0..1, 1..2, 3..4, 5..7], value);
                let [q, k, v] = tensors;
                c.attention.forward(q, k, v, &mut c.cache)
            });
            assert_eq!(
                message,
                format!("{name}: expected finite values, got 2 that are NaN or infinite (layer 2, step 0)")
            );
        }
    }
    case.call(SHAPE).unwrap();
}

#[test]
fn the_report_says_what_ran() {
    let device = device();
    let config = config().with_dense_layers(vec![0]);
    let mut run = McSparse::new(&config, 6).unwrap();
    for step in 0..6 {
        run.begin_step(step).unwrap();
        for layer in 0..2 {
            let [q, k, v] = qkv(SHAPE, &device);
            run.attend(layer, q, k, v).unwrap();
        }
    }
    let report = run.report();
    assert_eq!([StepKind::Dense, StepKind::Anchor, StepKind::Reuse].map(|k| report.count(k)), [6, 2, 4]);
    let plan = run.cache().plan();
    assert!((report.effective_density() - config.effective_density(plan, 2, 20).unwrap()).abs() < 1e-12);
    let text = report.to_string();
    for part in [
        "12 calls: 6 dense, 2 anchor, 4 reuse",
        "dense attention: 8 runs by",
        "selection: 2 runs",
        "sparse attention: 6",
    ] {
        assert!(text.contains(part), "{text}");
    }
}
