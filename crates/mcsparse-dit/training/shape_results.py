"""Measure the shape model on held-out solids; write its conditions, its parity example and a contact sheet."""

import pathlib

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

import flow
import solids
import views
from condition import with_coordinates
from loop import log

HELD_OUT_SEED = 1_000_003
NAMED = 2  # held-out solids of each family that are shipped
MEASURED = 8  # of each family that are measured
FEW_STEPS, MANY_STEPS = 20, 50
GUIDANCE = (1.0, 1.5, 2.0)
LEVELS = (0.2, 0.5, 0.8, 0.95)
CHUNK = 32


def held_out(each: int) -> tuple[solids.Solids, list[str]]:
    """The first `each` held-out solids of every family, and their names."""
    count = len(solids.FAMILIES)
    families = np.tile(np.arange(count), MEASURED)
    drawn = solids.draw(len(families), np.random.default_rng(HELD_OUT_SEED), families)
    kept = solids.Solids(each * count)
    for name, value in vars(drawn).items():
        if isinstance(value, np.ndarray):
            setattr(kept, name, value[: each * count])
    return kept, [f"{family}-{i}" for i in range(each) for family in solids.FAMILIES]


def overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Intersection over union of the insides (above 0) of volumes."""
    a, b = (a > 0).flatten(1), (b > 0).flatten(1)
    return (a & b).sum(1) / (a | b).sum(1).clamp_min(1)


def noise_like(volume: torch.Tensor, seed: int) -> torch.Tensor:
    """The same noise on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(volume.shape, generator=generator).to(volume.device)


def by_family(values: torch.Tensor) -> dict:
    """Mean of all, and of each family."""
    table = {"mean": round(values.mean().item(), 4)}
    for i, family in enumerate(solids.FAMILIES):
        if i < len(values):
            table[family] = round(values[i :: len(solids.FAMILIES)].mean().item(), 4)
    return table


@torch.no_grad()
def denoising(network, volume, tokens) -> dict:
    """Error of the velocity at four noise levels."""
    noise, rows = noise_like(volume, 5), {}
    for level in LEVELS:
        errors = []
        for x, n, c in zip(volume.split(CHUNK), noise.split(CHUNK), tokens.split(CHUNK)):
            v = flow.velocity(network, (1 - level) * x + level * n, torch.full((len(x),), level, device=x.device), c)
            errors.append(((v - (n - x)) ** 2).flatten(1).mean(1))
        rows[str(level)] = round(torch.cat(errors).mean().item(), 5)
    return rows


def sampled(network, volume, tokens, steps: int, guidance: float) -> torch.Tensor:
    """Samples for all conditions."""
    parts = zip(noise_like(volume, 7).split(CHUNK), tokens.split(CHUNK))
    return torch.cat([flow.sample(network, n, c, steps, guidance) for n, c in parts])


def shaded(volume: torch.Tensor, front: bool) -> torch.Tensor:
    """Pictures `[B, S, S]` in [0, 1] from the front or from the left, lit from the upper left."""
    axes = torch.stack(torch.gradient(volume[:, 0], dim=(1, 2, 3)), 1)
    axes = axes if front else axes.permute(0, 1, 4, 3, 2)[:, [2, 1, 0]]
    inside = (volume[:, 0] if front else volume[:, 0].permute(0, 3, 2, 1)) > 0
    first = inside.to(torch.uint8).argmax(1, keepdim=True)
    normal = axes.gather(2, first[:, None].expand(-1, 3, -1, -1, -1))[:, :, 0]
    normal = normal / normal.norm(dim=1, keepdim=True).clamp_min(1e-6)
    light = torch.tensor([0.7, 0.6, 0.35], device=volume.device).view(1, 3, 1, 1)
    picture = 0.2 + 0.8 * (normal * light).sum(1).clamp(0, 1)
    return torch.where(inside.any(1), picture, torch.ones_like(picture))


def contact_sheet(truth, samples, path: pathlib.Path) -> None:
    """One row for two solids each: truth from front and left, then the sample."""
    cells = torch.cat([shaded(v, front) for v in (truth, samples) for front in (True, False)], 2)
    if len(cells) % 2:
        cells = cells[:-1]
    sheet = torch.cat([torch.cat(list(cells[i : i + 2]), 1) for i in range(0, len(cells), 2)], 0)
    Image.fromarray((sheet * 255).byte().cpu().numpy()).save(path, optimize=True)


def save_conditions(volume, names: list[str], path: pathlib.Path) -> None:
    """`NAME.views` (u8 `[2, S, S]`) and `NAME.truth` (u8 `[S, S, S / 8]`: voxel `x` is bit `x % 8` of byte `x / 8`)."""
    pictures = ((views.views(volume) + 1) * 127.5).round().byte().cpu()
    bits = np.packbits((volume[:, 0] > 0).cpu().numpy(), axis=-1, bitorder="little")
    tensors = {}
    for i, name in enumerate(names):
        tensors[f"{name}.views"] = pictures[i].contiguous()
        tensors[f"{name}.truth"] = torch.from_numpy(bits[i].copy())
    save_file(tensors, path)


@torch.no_grad()
def save_parity(network, tokens: torch.Tensor, path: pathlib.Path) -> None:
    """One f32 input of 16 voxels a side and the network's f32 output, without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    x = with_coordinates(noise_like(torch.empty(1, 1, 16, 16, 16, device=tokens.device), 3))
    timestep = torch.tensor([640.0], device=tokens.device)
    with sdpa_kernel(SDPBackend.MATH):
        out = network(x, timestep, tokens[:1].float())[0]
    tensors = {"hidden_states": x, "timestep": timestep, "encoder_hidden_states": tokens[:1], "output": out}
    save_file({k: v.float().cpu().contiguous() for k, v in tensors.items()}, path)


def record(table: dict, steps: int, guidance: float, iou: torch.Tensor, count: int) -> float:
    """One row of the results; the mean."""
    table[f"{steps} steps, guidance {guidance}"] = by_family(iou) | {"named": [round(x, 4) for x in iou[:count].tolist()]}
    log(f"{steps} steps, guidance {guidance}: IoU {iou.mean().item():.4f}")
    return iou.mean().item()


def measure(build, folder: pathlib.Path, device: str, check: bool) -> float:
    """Everything about the weights in `folder`; the guidance that samples best in 20 steps."""
    network = build()
    network.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
    network = network.to(device).eval()
    drawn, names = held_out(NAMED if check else MEASURED)
    count = NAMED * len(solids.FAMILIES)
    step = 8 if check else CHUNK
    volume = torch.cat([solids.field(drawn, slice(i, i + step), 64, device) for i in range(0, len(drawn), step)])
    tokens = views.tokens(views.views(volume))
    save_conditions(volume[:count], names[:count], folder / "conditions.safetensors")
    save_parity(network, tokens, folder / "parity.safetensors")
    log("conditions and parity example written")
    if check:
        volume, tokens = volume[:2], tokens[:2]
        if device == "cpu":
            volume = torch.nn.functional.avg_pool3d(volume, 2)
    results = {"held_out_solids": len(volume), "velocity_mse": denoising(network, volume, tokens), "iou": {}}
    log("velocity error", results["velocity_mse"])
    best, shown = (-1.0, GUIDANCE[0]), None
    for guidance in GUIDANCE:
        out = sampled(network, volume, tokens, 2 if check else FEW_STEPS, guidance)
        mean = record(results["iou"], FEW_STEPS, guidance, overlap(out, volume), count)
        if mean > best[0]:
            best, shown = (mean, guidance), out
    out = sampled(network, volume, tokens, 2 if check else MANY_STEPS, best[1])
    record(results["iou"], MANY_STEPS, best[1], overlap(out, volume), count)
    results["names"] = names[: min(count, len(volume))]
    flow.write_json(folder / "results.json", results)
    contact_sheet(volume[:count], shown[:count], folder.parent / "shape-samples.png")
    return best[1]
