"""Train one model size by flow matching on the composed clips.

    python3 train.py small --data DIR --out WEIGHTS --seconds 1000
    python3 train.py nano  --data DIR --out WEIGHTS --seconds 130

writes WEIGHTS/NAME/ (bf16 weights of the running average, config.json, sampling.json) and
WEIGHTS/NAME/training.json (the loss curve). `--check` runs a few steps of every stage instead.
"""

import argparse
import math
import pathlib
import time

import torch
from torch.nn.attention import sdpa_kernel

import model as m
from compose import Composer, Prefetcher
from loop import Average, attention_backends, learning_rate, log, loss_of
from optimizer import Optimizer
from scenes import Scenes

# share of the time, frames, batch, largest stride of real clips, noise shift
STAGES = {
    "small": [(0.22, 4, 128, 8, 2.0), (0.13, 8, 64, 5, 2.5), (0.65, 16, 32, 3, 3.0)],
    "nano": [(1.0, 8, 256, 3, 3.0)],
}


def train(name: str, scenes: Scenes, folder: pathlib.Path, seconds: float, check: bool) -> None:
    """All stages of one model size; a checkpoint every two minutes and at the end."""
    preset = m.PRESETS[name]
    network = m.build(name).cuda()
    count = sum(p.numel() for p in network.parameters())
    log(name, "parameters", count)
    optimizer, average = Optimizer(network), Average(network)
    for block in network.blocks:
        block.compile(dynamic=False)
    step, spent, curve, saved = 0, 0.0, [], time.time()
    for share, frames, batch, stride, shift in STAGES[name]:
        composer = Composer(scenes, frames, preset["side"], preset["grid"], stride)
        feed = Prefetcher(composer, batch, seed=100 + step)
        losses, begin, first = [], None, step
        while True:
            clips, tokens = feed.next()
            done = 0.0 if begin is None else time.time() - begin
            progress = (spent + done) / seconds
            lr = learning_rate(step, progress)
            loss = loss_of(network, clips, tokens, shift)
            loss.backward()
            optimizer.step(lr)
            average.update(step)
            losses.append(loss.detach())
            step += 1
            if step - first == 3:  # compiled and warm: the stage's clock starts
                torch.cuda.synchronize()
                begin = time.time()
            if check and step - first == 13:
                torch.cuda.synchronize()
                log(f"{10 / (time.time() - begin):.2f} steps/s")
                break
            if step % 100 == 0:
                mean = torch.stack(losses).mean().item()
                losses = []
                rate = (step - first - 3) / (time.time() - begin) if begin else 0
                curve.append([step, frames, round(mean, 5)])
                waiting = feed.queue.qsize()
                log(name, f"step {step} frames {frames} loss {mean:.4f} {rate:.2f}/s lr {lr:.5f} queue {waiting}")
                if not math.isfinite(mean):
                    raise SystemExit("the loss is not finite")
                if time.time() - saved > 120:
                    m.save(network, average.state(), name, folder)
                    saved = time.time()
            if begin and time.time() - begin > seconds * share:
                break
        feed.stop()
        log(name, f"stage of {frames} frames: {step - first} steps of {batch}, loss {loss.item():.4f}")
        curve.append([step, frames, None])
        spent += 0.0 if begin is None else time.time() - begin
    m.save(network, average.state(), name, folder)
    report = {
        "parameters": count,
        "steps": step,
        "seconds": round(spent, 1),
        "stages": [list(s) for s in STAGES[name]],
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "loss_curve": curve,
    }
    m.write_json(folder / "training.json", report)
    log(name, "done", step, "steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=list(m.PRESETS))
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=1000)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 64
    preset = m.PRESETS[args.name]
    scenes = Scenes(args.data, "cuda", pool=128 // preset["side"])
    log("data ready", tuple(scenes.frames.shape), tuple(scenes.photos.shape), tuple(scenes.sprites.shape))
    frames, batch = STAGES[args.name][-1][1:3]
    tokens = frames * (preset["side"] // preset["patch"]) ** 2
    order = attention_backends(tokens, preset["heads"], preset["head_dim"], batch)
    with sdpa_kernel(order, set_priority=True):
        train(args.name, scenes, args.out / args.name, args.seconds, args.check)


if __name__ == "__main__":
    main()
