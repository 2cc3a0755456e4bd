"""Files the Rust side reads besides the weights: held-out conditions and a parity example."""

import pathlib

import numpy as np
import torch
from safetensors.torch import save_file

import model as m
from compose import Composer, Plan
from condition import condition_tokens, thumbnail
from scenes import CLIP_CANVAS, PHOTO_CANVAS, Scenes

# name: still, held-out sprite, path x0 y0 x1 y1, size
COMPOSED = {
    "photo-rocket": ("rocket", None, None),
    "photo-china": ("china", None, None),
    "sprite-rooster": ("china", "1f413", (-0.5, 0.3, 0.45, 0.1, 0.55)),
    "sprite-t-rex": ("field90", "1f996", (0.5, -0.3, -0.4, 0.35, 0.6)),
    "sprite-owl": ("rocket", "1f989", (-0.45, -0.4, 0.4, 0.4, 0.5)),
}
WITH_CLIP = ("bunny", "pedestrians", "sprite-rooster")


def named_plan(scenes: Scenes, frames: int) -> tuple[Plan, list[str]]:
    """One held-out window of every held-out shot, then the composed clips; all without chance."""
    shots = [s for s in scenes.held_shots if s.length >= frames]
    names = [s.name for s in shots] + list(COMPOSED)
    plan, u = Plan(len(names), frames), np.linspace(0, 1, frames)
    for b, shot in enumerate(shots):
        stride = min(2, (shot.length - 1) // (frames - 1))
        first = (shot.length - 1 - (frames - 1) * stride) // 2
        plan.real[b], plan.stride[b] = 1, stride
        plan.index[b] = shot.start + first + stride * np.arange(frames)
        side = CLIP_CANVAS[0] * 0.95
        plan.box[b] = (shot.width / 2, CLIP_CANVAS[0] / 2, side)
    for b, (still, sprite, path) in enumerate(COMPOSED.values(), len(shots)):
        photo = scenes.photo_names.index(still)
        width, height = scenes.photo_width[photo], PHOTO_CANVAS[0]
        side = height * np.linspace(0.8, 0.7, frames)
        plan.index[b] = photo
        plan.box[b, :, 0] = width / 2 + 0.1 * height * (u - 0.5)
        plan.box[b, :, 1], plan.box[b, :, 2] = height / 2, side
        if sprite is not None:
            number = scenes.sprite_names.index(sprite)
            assert number in scenes.held_sprites
            plan.sprite[0, b], plan.shown[0, b] = number, 1
            x0, y0, x1, y1, size = path
            plan.path[0, b, :, 0], plan.path[0, b, :, 1] = x0 + (x1 - x0) * u, y0 + (y1 - y0) * u
            plan.path[0, b, :, 2] = size
    return plan, names


def named_conditions(scenes: Scenes) -> dict:
    """Names, clips and tokens for both sizes. Nano sees the first 8 frames, a quarter as large."""
    small, nano = m.PRESETS["small"], m.PRESETS["nano"]
    plan, names = named_plan(scenes, small["frames"])
    clips, tokens = Composer(scenes, small["frames"], small["side"], small["grid"]).render(plan)
    stride, real = (torch.from_numpy(x).to(clips.device) for x in (plan.stride, plan.real))
    tiny = thumbnail(clips[:, :, : nano["frames"]], nano["side"])
    return {
        "names": names,
        "small": (clips, tokens),
        "nano": (tiny, condition_tokens(tiny, nano["grid"], stride, real)),
    }


def save_conditions(named: dict, path: pathlib.Path) -> None:
    """`NAME.small`, `NAME.nano` (f32 tokens) and, for some, `NAME.clip` (u8 `[3, T, S, S]`)."""
    tensors = {}
    for i, name in enumerate(named["names"]):
        tensors[f"{name}.small"] = named["small"][1][i].float().cpu().contiguous()
        tensors[f"{name}.nano"] = named["nano"][1][i].float().cpu().contiguous()
        if name in WITH_CLIP:
            pixels = ((named["small"][0][i] + 1) * 127.5).round().clamp(0, 255)
            tensors[f"{name}.clip"] = pixels.byte().cpu().contiguous()
    save_file(tensors, path)


@torch.no_grad()
def save_parity(network, tokens: torch.Tensor, path: pathlib.Path) -> None:
    """One f32 input of two frames and the network's f32 output, without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 3, 2, 32, 32, generator=generator).to(tokens.device)
    x = m.with_coordinates(x)
    timestep = torch.tensor([640.0], device=tokens.device)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = network(x, timestep, tokens[:1].float(), return_dict=False)[0]
    tensors = {"hidden_states": x, "timestep": timestep, "encoder_hidden_states": tokens[:1], "output": out}
    save_file({k: v.float().cpu().contiguous() for k, v in tensors.items()}, path)
