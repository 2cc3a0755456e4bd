"""Measure the shipped weights: held-out loss and PSNR, attention structure, MC-Sparse; write fixtures.

    python3 evaluate.py --data DIR --weights WEIGHTS --seconds 200

writes WEIGHTS/results.json, WEIGHTS/conditions.safetensors, WEIGHTS/nano/parity.safetensors and
WEIGHTS/{small,nano}-samples.png. Phases go from the most to the least important; those that would
start after `--seconds` are left out and named in results.json. `--check` runs all of them tiny.
"""

import argparse
import collections
import math
import pathlib
import time
import traceback

import numpy as np
import torch
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel

import fixtures
import model as m
import sparse
from compose import Composer
from scenes import Scenes

LEVELS = (0.2, 0.5, 0.8, 0.95)
DENSITIES = (0.15, 0.25)
TILES = {"small": (2, 8, 8), "nano": (2, 4, 4)}
GROUP = {"small": 128, "nano": 32}
CHUNK = {"small": 16, "nano": 64}
START = time.time()


def log(*parts) -> None:
    """One line with the seconds since the start."""
    print(f"[{time.time() - START:6.1f}]", *parts, flush=True)


def psnr(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """PSNR of each clip, both clamped to [-1, 1]."""
    error = ((a.clamp(-1, 1) - b.clamp(-1, 1)) ** 2).flatten(1).mean(1)
    return 10 * torch.log10(4 / error.clamp_min(1e-12))


@torch.no_grad()
def denoising(network, clips, tokens, chunk: int) -> dict:
    """Velocity error and one-step reconstruction at four noise levels, and the training loss."""
    generator = torch.Generator(clips.device).manual_seed(5)
    noise = torch.randn(clips.shape, generator=generator, device=clips.device)
    rows = {}
    for level in LEVELS:
        error, clean, noisy = [], [], []
        for x, n, c in zip(clips.split(chunk), noise.split(chunk), tokens.split(chunk)):
            mixed = (1 - level) * x + level * n
            v = m.velocity(network, mixed, torch.full((len(x),), level, device=x.device), c)
            error.append(((v - (n - x)) ** 2).flatten(1).mean(1))
            clean.append(((mixed - level * v - x) ** 2).flatten(1).mean(1))
            noisy.append(((mixed - x) ** 2).flatten(1).mean(1))
        error, clean, noisy = (torch.cat(e) for e in (error, clean, noisy))
        rows[level] = {
            "velocity_mse": error.mean().item(),
            "x0_psnr": 10 * math.log10(4 / clean.mean().item()),
            "noisy_psnr": 10 * math.log10(4 / noisy.mean().item()),
            "x0_psnr_per_clip": [round(x, 2) for x in (10 * torch.log10(4 / clean)).tolist()],
        }
    levels = (torch.arange(len(clips), device=clips.device) + 0.5) / len(clips)
    sigma = m.shifted(torch.sigmoid(torch.special.ndtri(levels)))
    losses = []
    for turn in range(4):  # every clip meets four noise levels spread over the training law
        part = sigma.roll(turn * len(clips) // 4)
        for x, n, c, s in zip(*(t.split(chunk) for t in (clips, noise, tokens, part))):
            level = s.view(-1, 1, 1, 1, 1)
            v = m.velocity(network, (1 - level) * x + level * n, s, c)
            losses.append(((v - (n - x)) ** 2).flatten(1).mean(1))
    return {"loss": torch.cat(losses).mean().item(), "levels": rows}


def held_out(run) -> None:
    """Held-out clips and, beside them, as many training clips."""
    for split in ("held_out", "training"):
        if split == "held_out":
            clips, tokens, names = run.composer.held_out(run.count, seed=11)
        else:
            plan = run.composer.training_plan(run.count, np.random.default_rng(12))
            clips, tokens = run.composer.render(plan)
            names = ["clip" if r else "still" for r in plan.real]
        row = denoising(run.network, clips, tokens, CHUNK[run.name])
        grouped = collections.defaultdict(list)
        for name, value in zip(names, row["levels"][0.8]["x0_psnr_per_clip"]):
            grouped[name.split("+")[0]].append(value)
        row["mean_x0_psnr_at_0.8_by_source"] = {k: round(float(np.mean(v)), 2) for k, v in grouped.items()}
        run.result[split] = row
        short = {k: (round(v["velocity_mse"], 4), round(v["x0_psnr"], 2), round(v["noisy_psnr"], 2))
                 for k, v in row["levels"].items()}
        log(run.name, split, "loss", round(row["loss"], 4), "v-mse, x0, noisy:", short)
        log(run.name, split, row["mean_x0_psnr_at_0.8_by_source"])


def strip(clip: torch.Tensor, frames) -> np.ndarray:
    """Some frames of one clip side by side."""
    picture = torch.cat([clip[:, f] for f in frames], -1).clamp(-1, 1)
    return ((picture + 1) * 127.5).round().byte().permute(1, 2, 0).cpu().numpy()


def contact_sheet(run) -> None:
    """Left: guided samples (first, middle, last frame). Right: the held-out clips they belong to."""
    names, (clips, tokens) = run.named["names"], run.named[run.name]
    generator = torch.Generator().manual_seed(21)
    noise = torch.randn(clips.shape, generator=generator).to(clips.device)
    parts = zip(noise.split(6), tokens.split(6))
    out = torch.cat([m.sample(run.network, n, c, run.steps, m.GUIDANCE) for n, c in parts])
    run.result["guided_samples_psnr_to_their_clip"] = {
        n: round(p, 2) for n, p in zip(names, psnr(out, clips).tolist())
    }
    log(run.name, run.result["guided_samples_psnr_to_their_clip"])
    last, rows = clips.shape[2] - 1, []
    for sample, real in zip(out, clips):
        pair = [strip(x, (0, (last + 1) // 2, last)) for x in (sample, real)]
        rows.append(np.concatenate([pair[0], np.full((pair[0].shape[0], 4, 3), 255, np.uint8), pair[1]], 1))
    sheet = Image.fromarray(np.concatenate(rows))
    if run.name == "nano":
        sheet = sheet.resize((sheet.width * 2, sheet.height * 2), Image.Resampling.NEAREST)
    path = run.folder / f"{run.name}-samples.png"
    for scale in (1.0, 0.85, 0.7, 0.55):
        size = (round(sheet.width * scale), round(sheet.height * scale))
        small = sheet if scale == 1.0 else sheet.resize(size, Image.Resampling.BOX)
        small.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size < 600_000:
            break


def structure(q, k, orders: dict, size: int, heads: int) -> list[dict]:
    """Entropy and kept mass of each head, the mean over samples and queries."""
    p = sparse.probabilities(q, k)
    n = p.shape[-1]
    entropy = -(p * p.clamp_min(1e-30).log()).sum(-1).mean(-1) / math.log(n)
    columns = {"entropy": entropy}
    orders = {name: order.to(q.device).expand(len(q), -1) for name, order in orders.items()}
    orders["pddp"] = sparse.pddp_order(q.float(), size)
    mass = {name: sparse.group_mass(p, order, size) for name, order in orders.items()}
    for density in DENSITIES:
        count = round(density * n)
        keys = sparse.pooled_keys(q, k, orders["tile"], size, count)
        columns[f"block_mean@{density}"] = torch.gather(mass["tile"], 2, keys).sum(-1).mean(-1)
        for name, m_ in mass.items():
            columns[f"{name}@{density}"] = m_.topk(count, -1).values.sum(-1).mean(-1)
        columns[f"per_query@{density}"] = p.topk(count, -1).values.sum(-1).mean(-1)
    columns = {name: value.view(-1, heads).mean(0).tolist() for name, value in columns.items()}
    return [{name: round(v[h], 4) for name, v in columns.items()} for h in range(heads)]


def kept_mass(run) -> None:
    """Attention structure at steps 10, 25 and 40 of a dense 50-step sampling, two clips."""
    clips, tokens, _ = run.composer.held_out(8, seed=31)
    noise = torch.randn(clips.shape, generator=torch.Generator().manual_seed(32)).to(clips.device)
    orders = {"tile": run.tiles, "raster": torch.arange(len(run.tiles))}
    rows, wanted = {}, (1, 2, 3) if run.check else (10, 25, 40)

    def observe(step, layer, q, k, heads):
        if step in wanted:
            z = 2 * heads
            rows.setdefault(f"step {step}", []).append(structure(q[:z], k[:z], orders, run.size, heads))

    run.control.observe = observe
    run.control.start()
    m.sample(run.network, noise[:2], tokens[:2], run.steps, before_step=run.control.before_step)
    run.control.observe = None
    run.result["kept_mass"] = rows
    for step, layers in rows.items():
        for layer, heads in enumerate(layers):
            mean = {c: round(float(np.mean([h[c] for h in heads])), 3) for c in heads[0]}
            log(run.name, step, "layer", layer, mean)


def recipes(steps: int) -> dict:
    """The rows of the comparison for one number of steps: a fifth warm-up, its last step an anchor."""
    warm, rows = steps // 5, {}
    for density in DENSITIES:
        one, two = (warm - 1,), (warm - 1, steps // 2)
        for label, groups, anchors, residual in (
            ("pddp + residual", "pddp", one, True),
            ("pddp", "pddp", one, False),
            ("vanilla block-sparse", "pooled", one, False),
            ("tile groups", "tile", one, False),
            ("pddp + residual, 2 anchors", "pddp", two, True),
            ("vanilla block-sparse + residual", "pooled", one, True),
            ("tile groups + residual", "tile", one, True),
            ("pddp, 2 anchors", "pddp", two, False),
        ):
            rows[f"{label} @ {density}"] = sparse.Recipe(groups, density, warm, anchors, residual)
    return rows


def ladder(run, steps: int) -> None:
    """PSNR of sparse samples against the dense samples from the same noise, without guidance."""
    count = 2 if run.check else run.ladder_clips
    clips, tokens, names = run.composer.held_out(count, seed=41)
    noise = torch.randn(clips.shape, generator=torch.Generator().manual_seed(42)).to(clips.device)
    table = run.result.setdefault("mc_sparse", {})[f"{steps} steps"] = {"clips": names}

    def clip_of(recipe):
        run.control.start(recipe)
        return m.sample(run.network, noise, tokens, steps, before_step=run.control.before_step)

    dense = clip_of(None)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        others = {"dense, another kernel": clip_of(None)}
    for name, recipe in ({"dense, another kernel": None} | recipes(steps)).items():
        if run.late():
            table["left out"] = table.get("left out", []) + [name]
            continue
        values = psnr(others.get(name) if recipe is None else clip_of(recipe), dense)
        spread = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else 0.0
        table[name] = {
            "psnr": round(values.mean().item(), 2),
            "standard_error": round(spread, 2),
            "per_clip": [round(v, 2) for v in values.tolist()],
        }
        log(run.name, steps, "steps:", name, table[name]["psnr"], "+-", table[name]["standard_error"])


class Run:
    """One model size with all that its phases need."""

    def __init__(self, name: str, args, scenes: Scenes, named: dict, result: dict):
        p = m.PRESETS[name]
        self.name, self.check, self.folder, self.named, self.result = name, args.check, args.weights, named, result
        self.late = lambda: time.time() - START > args.seconds
        self.network = m.load(name, args.weights / name, "cuda")
        self.composer = Composer(scenes, p["frames"], p["side"], p["grid"])
        self.count = 8 if args.check else 64
        self.ladder_clips = 8 if name == "small" else 16
        self.steps, self.size = 5 if args.check else 50, GROUP[name]
        rows = p["side"] // p["patch"]
        self.tiles = sparse.tile_order(p["frames"], rows, rows, TILES[name])
        self.control = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    scenes = Scenes(args.data, "cuda")
    small_scenes = Scenes(args.data, "cuda", pool=4)
    named = fixtures.named_conditions(scenes)
    fixtures.save_conditions(named, args.weights / "conditions.safetensors")
    log("data ready; conditions:", named["names"])
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "small": {}, "nano": {}}
    runs = [Run("small", args, scenes, named, report["small"])]
    runs.append(Run("nano", args, small_scenes, named, report["nano"]))
    small, nano = runs
    short, long = (5, 10) if args.check else (20, 50)
    phases = [
        ("held-out", held_out, small), ("held-out", held_out, nano),
        ("parity", lambda r: fixtures.save_parity(r.network, named["nano"][1], args.weights / "nano/parity.safetensors"), nano),
        ("samples", contact_sheet, small), ("samples", contact_sheet, nano),
        ("kept mass", kept_mass, small), ("kept mass", kept_mass, nano),
        (f"mc-sparse {long}", lambda r: ladder(r, long), small),
        (f"mc-sparse {short}", lambda r: ladder(r, short), small),
        (f"mc-sparse {long}", lambda r: ladder(r, long), nano),
    ]
    for label, phase, run in phases:
        if run.late():
            report.setdefault("left out", []).append(f"{run.name}: {label}")
            continue
        log("==", run.name, label)
        run.control = sparse.Controller(len(run.network.blocks), run.tiles, run.size)
        try:
            phase(run)
        except Exception:
            traceback.print_exc()
            report.setdefault("failed", []).append(f"{run.name}: {label}")
        run.control.close()
        m.write_json(args.weights / "results.json", report)
    log("done; failed:", report.get("failed", []), "left out:", report.get("left out", []))
    if args.check and "failed" in report:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
