"""The two model sizes, the noise schedule, the sampler, and reading and writing of weights."""

import json
import pathlib

import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file, save_file

from condition import TOKEN_SIZE, with_coordinates

FLOW_SHIFT = 3.0
GUIDANCE = 2.0
SHARD_BYTES = 12_000_000
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


def shifted(sigma: torch.Tensor, shift: float = FLOW_SHIFT) -> torch.Tensor:
    """Move noise levels in [0, 1] towards 1, as the flow-matching schedulers of diffusers do."""
    return shift * sigma / (1 + (shift - 1) * sigma)


def velocity(model, x: torch.Tensor, sigma: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The network's velocity (noise minus data) for clips `x` at noise levels `sigma` `[B]`."""
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        out = model(with_coordinates(x), sigma * 1000, tokens, return_dict=False)[0]
    return out.float()


@torch.no_grad()
def sample(model, noise, tokens, steps=50, guidance=1.0, before_step=None) -> torch.Tensor:
    """Euler steps over the shifted schedule. `before_step(i)` is called before each step."""
    sigmas = shifted(torch.linspace(1, 0, steps + 1)).tolist()
    x = noise.clone()
    for i in range(steps):
        if before_step is not None:
            before_step(i)
        sigma = torch.full((len(x),), sigmas[i], device=x.device)
        v = velocity(model, x, sigma, tokens)
        if guidance != 1.0:
            empty = velocity(model, x, sigma, torch.zeros_like(tokens))
            v = empty + guidance * (v - empty)
        x = x + (sigmas[i + 1] - sigmas[i]) * v
    return x


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
    folder.mkdir(parents=True, exist_ok=True)
    state = {k: v.detach().to(torch.bfloat16).cpu().contiguous() for k, v in state.items()}
    shards, size = [{}], 0
    for key, value in state.items():
        if size + value.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][key] = value
        size += value.nbytes
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
    else:
        index = {}
        for i, shard in enumerate(shards):
            file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
            save_file(shard, folder / file, metadata={"format": "pt"})
            index.update(dict.fromkeys(shard, file))
        total = sum(v.nbytes for v in state.values())
        body = {"metadata": {"total_size": total}, "weight_map": index}
        write_json(folder / "model.safetensors.index.json", body)
    config = {k: v for k, v in model.config.items() if k == "_class_name" or k[0] != "_"}
    config = {"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.42.1"} | config
    write_json(folder / "config.json", config)
    write_json(folder / "sampling.json", sampling_settings(name))


def load(name: str, folder: pathlib.Path, device: str) -> WanTransformer3DModel:
    """The shipped bf16 weights, held in f32."""
    model = build(name)
    state = {}
    for file in sorted(folder.glob("model*.safetensors")):
        state.update(load_file(file))
    model.load_state_dict({k: v.float() for k, v in state.items()})
    return model.to(device).eval()


def write_json(path: pathlib.Path, body: dict) -> None:
    """Indented JSON with a final newline."""
    path.write_text(json.dumps(body, indent=2) + "\n")
