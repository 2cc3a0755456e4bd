"""Train the shape model by flow matching on generated solids, measure it, and write what the Rust side reads.

    python3 train_shape.py --out WEIGHTS --seconds 240

needs PyTorch, NumPy, safetensors and Pillow alone. It writes WEIGHTS/shape/ (bf16 weights of the running average,
config.json, sampling.json, training.json, results.json, conditions.safetensors, parity.safetensors) and
WEIGHTS/shape-samples.png. `--check` takes a few steps at every place, also on a CPU (there with volumes of 32 voxels a side).
"""

import argparse
import math
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel

import flow
import shape_results
import solids
import views
from loop import Average, attention_backends, learning_rate, log, loss_of
from optimizer import Optimizer
from wan import Wan

SIDE, PATCH, BATCH = 64, 4, 32
HEADS, HEAD_DIM, LAYERS, FFN = 3, 64, 8, 512
TRAINING_SEED = 0
DRAWN = 1024  # solids drawn on the host at a time


def build() -> Wan:
    """A fresh network. In: the noisy volume and 3 coordinate channels. Out: its velocity."""
    network = Wan(
        patch_size=(PATCH, PATCH, PATCH),
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_DIM,
        in_channels=4,
        out_channels=1,
        text_dim=views.TOKEN_SIZE,
        freq_dim=256,
        ffn_dim=FFN,
        num_layers=LAYERS,
        rope_max_seq_len=64,
    )
    torch.nn.init.zeros_(network.proj_out.weight)
    torch.nn.init.zeros_(network.proj_out.bias)
    return network


def sampling_settings(guidance: float) -> dict:
    """What a sampler needs to know besides the network's own config; the frames of a volume are its layers along z."""
    return {
        "frames": SIDE,
        "height": SIDE,
        "width": SIDE,
        "video_channels": 1,
        "coordinate_channels": 3,
        "video_tokens": (SIDE // PATCH) ** 3,
        "flow_shift": flow.FLOW_SHIFT,
        "steps": 20,
        "guidance": guidance,
        "prediction": "velocity: noise minus data",
        "timestep_scale": 1000,
        "sampler": "Euler; sigmas = shift*s/(1+(shift-1)*s) for s = linspace(1, 0, steps + 1)",
        "unconditional": "all-zero condition tokens",
        "condition_grid": views.GRID,
        "condition_tokens": 2 * views.GRID**2,
        "condition_token_size": views.TOKEN_SIZE,
    }


def rendered(batch: solids.Solids, rows: slice, side: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Volumes of `side` and condition tokens; the views are always those of the full volume."""
    volume = solids.field(batch, rows, SIDE, device)
    tokens = views.tokens(views.views(volume))
    return (volume if side == SIDE else F.avg_pool3d(volume, SIDE // side)), tokens


def batches(size: int, side: int, device):
    """Endless training batches; no solid comes twice."""
    rng = np.random.default_rng(TRAINING_SEED)
    while True:
        drawn = solids.draw(DRAWN, rng)
        for start in range(0, DRAWN, size):
            yield rendered(drawn, slice(start, start + size), side, device)


def train(device: str, seconds: float, check: bool) -> tuple[dict, dict]:
    """The averaged parameters and the report of the training."""
    network = build().to(device)
    count = sum(p.numel() for p in network.parameters())
    log("parameters", count)
    optimizer, average = Optimizer(network), Average(network)
    if device == "cuda":
        for block in network.blocks:
            block.compile(dynamic=False)
    size, side = (2, 32) if check and device == "cpu" else (BATCH, SIDE)
    feed, losses, curve, begin, step = batches(size, side, device), [], [], None, 0
    while True:
        volume, tokens = next(feed)
        done = 0.0 if begin is None else time.time() - begin
        loss = loss_of(network, volume, tokens, flow.FLOW_SHIFT)
        loss.backward()
        optimizer.step(learning_rate(step, done / seconds))
        average.update(step)
        losses.append(loss.detach())
        step += 1
        if step == 3:  # compiled and warm: the clock starts
            loss.item()
            begin = time.time()
            log("first steps taken")
        if step % 100 == 0 or check:
            mean = torch.stack(losses).mean().item()
            losses = []
            rate = (step - 3) / (time.time() - begin) if begin else 0
            curve.append([step, round(mean, 5)])
            log(f"step {step} loss {mean:.4f} {rate:.2f}/s")
            if not math.isfinite(mean):
                raise SystemExit("the loss is not finite")
        if begin and time.time() - begin > seconds or check and step == 4:
            break
    if device == "cuda":
        torch.cuda.synchronize()
    report = {
        "parameters": count,
        "steps": step,
        "batch": size,
        "seconds": round(time.time() - begin, 1),
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "torch": torch.__version__,
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if device == "cuda" else None,
        "loss_curve": curve,
    }
    log("trained", step, "steps")
    return network.config, average.state(), report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if not (math.isfinite(args.seconds) and args.seconds > 0):
        parser.error("--seconds: expected a positive number")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.check:
        parser.error("training needs a GPU; --check runs without one")
    folder = args.out / "shape"
    if device == "cuda":
        order = attention_backends((SIDE // PATCH) ** 3, HEADS, HEAD_DIM, BATCH)
        with sdpa_kernel(order, set_priority=True):
            config, state, report = train(device, args.seconds, args.check)
    else:
        config, state, report = train(device, args.seconds, args.check)
    flow.save_weights(config, state, folder)
    flow.write_json(folder / "training.json", report)
    guidance = shape_results.measure(build, folder, device, args.check)
    flow.write_json(folder / "sampling.json", sampling_settings(guidance))
    log("all written")


if __name__ == "__main__":
    main()
