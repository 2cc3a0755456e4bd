"""The two sizes of the video model: building, reading and writing them."""

import pathlib

import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file

from condition import TOKEN_SIZE
from flow import FLOW_SHIFT, sample, save_weights, shifted, velocity, write_json  # noqa: F401 (used as model.NAME)

GUIDANCE = 2.0
PRESETS = {
    # heads, head_dim, layers, ffn, patch: the network; frames, side: the clip; grid: the condition
    "small": dict(heads=2, head_dim=128, layers=10, ffn=1024, patch=8, frames=16, side=128, grid=8),
    "nano": dict(heads=4, head_dim=32, layers=4, ffn=512, patch=4, frames=8, side=32, grid=4),
}


def build(name: str) -> WanTransformer3DModel:
    """A fresh network. In: 3 noisy colour channels and 3 coordinate channels. Out: 3 (velocity)."""
    p = PRESETS[name]
    model = WanTransformer3DModel(
        patch_size=(1, p["patch"], p["patch"]),
        num_attention_heads=p["heads"],
        attention_head_dim=p["head_dim"],
        in_channels=6,
        out_channels=3,
        text_dim=TOKEN_SIZE,
        freq_dim=256,
        ffn_dim=p["ffn"],
        num_layers=p["layers"],
        cross_attn_norm=True,
        rope_max_seq_len=64,
    )
    torch.nn.init.zeros_(model.proj_out.weight)
    torch.nn.init.zeros_(model.proj_out.bias)
    return model


def sampling_settings(name: str) -> dict:
    """What a sampler needs to know besides the network's own config."""
    p = PRESETS[name]
    tokens = p["frames"] * (p["side"] // p["patch"]) ** 2
    return {
        "frames": p["frames"],
        "height": p["side"],
        "width": p["side"],
        "video_channels": 3,
        "coordinate_channels": 3,
        "video_tokens": tokens,
        "flow_shift": FLOW_SHIFT,
        "steps": 50,
        "guidance": GUIDANCE,
        "prediction": "velocity: noise minus data",
        "timestep_scale": 1000,
        "sampler": "Euler; sigmas = shift*s/(1+(shift-1)*s) for s = linspace(1, 0, steps + 1)",
        "unconditional": "all-zero condition tokens",
        "condition_grid": p["grid"],
        "condition_tokens": 2 * p["grid"] ** 2,
        "condition_token_size": TOKEN_SIZE,
    }


def save(model, state: dict, name: str, folder: pathlib.Path) -> None:
    """Write bf16 weights, split into shards if they are large, with config and sampling settings."""
    save_weights(model.config, state, folder)
    write_json(folder / "sampling.json", sampling_settings(name))


def load(name: str, folder: pathlib.Path, device: str) -> WanTransformer3DModel:
    """The shipped bf16 weights, held in f32."""
    model = build(name)
    state = {}
    for file in sorted(folder.glob("model*.safetensors")):
        state.update(load_file(file))
    model.load_state_dict({k: v.float() for k, v in state.items()})
    return model.to(device).eval()
