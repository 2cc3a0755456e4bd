"""Flow matching: noise levels, the velocity that a network is asked for, the sampler, writing of weights."""

import json
import pathlib

import torch
from safetensors.torch import save_file

from condition import with_coordinates

FLOW_SHIFT = 3.0
SHARD_BYTES = 12_000_000


def shifted(sigma: torch.Tensor, shift: float = FLOW_SHIFT) -> torch.Tensor:
    """Move noise levels in [0, 1] towards 1, as the flow-matching schedulers of diffusers do."""
    return shift * sigma / (1 + (shift - 1) * sigma)


def velocity(model, x: torch.Tensor, sigma: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The network's velocity (noise minus data) for `x` `[B, C, T, S, S]` at noise levels `sigma` `[B]`."""
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


def save_weights(config: dict, state: dict, folder: pathlib.Path) -> None:
    """Write bf16 weights, split into shards if they are large, and `config.json` in the form of diffusers."""
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
    config = {k: v for k, v in config.items() if k == "_class_name" or k[0] != "_"}
    config = {"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.42.1"} | config
    write_json(folder / "config.json", config)


def write_json(path: pathlib.Path, body: dict) -> None:
    """Indented JSON with a final newline."""
    path.write_text(json.dumps(body, indent=2) + "\n")
