//! Heads shared out over several devices, one thread for each.

use std::{
    ops::Range,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use burn::tensor::{Device, Tensor};

use crate::{
    Branch, Error, McSparse, McSparseConfig, RunReport, SelfAttention, TokenLayout, check::Problem,
    stages::cat_tokens_first,
};

/// MC-Sparse with the heads of every layer shared out over several devices.
///
/// Groups, selections and caches belong to single heads, so that devices need nothing of each other: each gets its heads'
/// queries, keys and values, keeps its part of the cache, and gives its part of the output back. One thread drives each
/// device. The model and everything around attention stay on the device that the tensors come from, which may be one of them.
/// Between CUDA devices of one host Burn copies through NCCL where its library is found, through host memory elsewhere.
///
/// If one device refuses a call the others have taken it, so that it cannot be repeated: the run is over. A call with fewer key/value
/// heads than devices is refused by all. Each device has a cache of its own, on the device; for announced branches, placements or
/// cache files take [`McSparse`].
///
/// Query heads that share a key and value head stay together. Where key/value heads do not share out evenly, the first devices
/// get one more.
#[derive(Debug)]
pub struct HeadParallel {
    shards: Vec<Shard>,
}

#[derive(Debug)]
struct Shard {
    device: Device,
    orders: Sender<Order>,
    answers: Receiver<Result<Answer, Error>>,
}

#[allow(clippy::large_enum_variant)] // one is on its way at a time
enum Order {
    Step(usize),
    Branch(Branch),
    Sequence(TokenLayout),
    /// Query, key and value of the next call; the answer comes once they are there.
    Bring([Tensor<4>; 3]),
    /// A call of a layer, and the device that its output goes to.
    Attend(usize, Device),
    Report,
}

#[allow(clippy::large_enum_variant)] // one is on its way at a time
enum Answer {
    Done,
    Output(Tensor<4>),
    Report(Box<RunReport>),
}

impl HeadParallel {
    /// A run of `steps` steps over `devices`. A device may be named several times; each time is a thread of its own.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if there is no device, and as [`crate::MetaCache::new`].
    pub fn new(config: &McSparseConfig, steps: usize, devices: &[Device]) -> Result<Self, Error> {
        if devices.is_empty() {
            return Err(Error::config("devices", "at least 1", 0));
        }
        let shards = devices.iter().map(|device| Ok(Shard::new(McSparse::new(config, steps)?, device.clone())));
        Ok(Self { shards: shards.collect::<Result<_, Error>>()? })
    }

    /// What ran so far, device by device.
    ///
    /// # Errors
    ///
    /// [`Error::Shard`] if the thread of a device is gone.
    pub fn reports(&mut self) -> Result<Vec<RunReport>, Error> {
        let answers = self.ask(|_| Order::Report)?;
        let report = |answer| match answer {
            Answer::Report(report) => Some(*report),
            Answer::Done | Answer::Output(_) => None,
        };
        Ok(answers.into_iter().filter_map(report).collect())
    }

    /// Gives every shard an order and waits for all answers, so that none is left over for the next order.
    fn ask(&mut self, order: impl Fn(usize) -> Order) -> Result<Vec<Answer>, Error> {
        for (i, shard) in self.shards.iter().enumerate() {
            // A thread that is gone is noticed where its answer is missing.
            let _ = shard.orders.send(order(i));
        }
        let answers: Vec<_> = self.shards.iter().map(Shard::answer).collect();
        answers.into_iter().collect()
    }
}

impl Shard {
    fn new(mut run: McSparse, device: Device) -> Self {
        let (orders, received) = channel::<Order>();
        let (sent, answers) = channel();
        let here = device.clone();
        thread::spawn(move || {
            let mut brought = None;
            for order in received {
                let answer = match order {
                    Order::Step(step) => run.begin_step(step).map(|()| Answer::Done),
                    Order::Branch(branch) => run.begin_branch(&branch).map(|()| Answer::Done),
                    Order::Sequence(layout) => run.begin_sequence(&layout).map(|()| Answer::Done),
                    Order::Bring(qkv) => {
                        brought = Some(bring(qkv, &here));
                        Ok(Answer::Done)
                    }
                    Order::Attend(layer, home) => {
                        let [q, k, v] = brought.take().expect("inputs are brought before every call");
                        run.attend(layer, q, k, v).map(|output| Answer::Output(take_home(output, &home)))
                    }
                    Order::Report => Ok(Answer::Report(Box::new(run.report().clone()))),
                };
                if sent.send(answer).is_err() {
                    break;
                }
            }
        });
        Self { device, orders, answers }
    }

    fn answer(&self) -> Result<Answer, Error> {
        let gone = |_| Error::Shard {
            device: format!("{:?}", self.device),
            reason: "its thread ended; what the backend said then is on the error stream".into(),
        };
        self.answers.recv().map_err(gone)?
    }
}

/// The tensors on `device`, and there before this returns: attention that began before, on the device where they come from, would
/// keep every multiprocessor, and the copies would wait for its end.
fn bring(tensors: [Tensor<4>; 3], device: &Device) -> [Tensor<4>; 3] {
    if tensors[0].device() == *device {
        return tensors;
    }
    let brought = tensors.map(|tensor| tensor.to_device(device));
    // A device that failed says so where its output is read.
    let _ = device.sync();
    brought
}

/// An output on `device`, finished. With fusion it would begin no earlier than somebody asks for it, one device after another; and a
/// copy that begins before its end would wait for it on multiprocessors of `device`, and keep them from the attention there.
fn take_home(output: Tensor<4>, device: &Device) -> Tensor<4> {
    let _ = output.device().sync();
    output.to_device(device)
}

/// The key/value heads of each of `shards` shards.
fn share_out(kv_heads: usize, shards: usize) -> Vec<Range<usize>> {
    let start = |i: usize| i * (kv_heads / shards) + i.min(kv_heads % shards);
    (0..shards).map(|i| start(i)..start(i + 1)).collect()
}

impl SelfAttention for HeadParallel {
    fn attend(&mut self, layer: usize, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Result<Tensor<4>, Error> {
        let problem = Problem::of_self_attention(&query, &key, &value)?;
        let (kv_heads, shards, shared) = (problem.kv_heads, self.shards.len(), problem.heads_per_kv());
        if kv_heads < shards {
            return Err(Error::config("devices", format!("at most the {kv_heads} key/value heads"), shards));
        }
        let ranges = share_out(kv_heads, shards);
        self.ask(|i| {
            let Range { start, end } = ranges[i];
            let query = query.clone().slice_dim(1, start * shared..end * shared);
            let [key, value] = [&key, &value].map(|tensor| tensor.clone().slice_dim(1, start..end));
            Order::Bring([query, key, value])
        })?;
        let answers = self.ask(|_| Order::Attend(layer, problem.device.clone()))?;
        let outputs = answers.into_iter().filter_map(|answer| match answer {
            Answer::Output(output) => Some(output),
            Answer::Done | Answer::Report(_) => None,
        });
        Ok(cat_tokens_first(outputs.collect(), 1))
    }

    fn begin_step(&mut self, step: usize) -> Result<(), Error> {
        self.ask(|_| Order::Step(step)).map(drop)
    }

    fn begin_branch(&mut self, branch: &Branch) -> Result<(), Error> {
        self.ask(|_| Order::Branch(branch.clone())).map(drop)
    }

    fn begin_sequence(&mut self, layout: &TokenLayout) -> Result<(), Error> {
        self.ask(|_| Order::Sequence(*layout)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_shared_out_without_gaps() {
        assert_eq!(share_out(7, 3), [0..3, 3..5, 5..7]);
        assert_eq!(share_out(4, 2), [0..2, 2..4]);
        assert_eq!(share_out(2, 2), [0..1, 1..2]);
    }
}
