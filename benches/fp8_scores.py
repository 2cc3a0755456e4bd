#!/usr/bin/env python3
"""What selection by 8-bit scores would lose: attention weight kept by the keys that sums of e4m3 products choose, beside exact ones.

Real attention (DINOv2, tests/fixtures/dinov2_qkv), groups by principal directions as in the library. Queries and keys are rounded to
e4m3 with one scale a head, a power of two, keys with and without their mean taken off (it moves all scores of a row alike). Needs
torch and safetensors; runs on a CPU.

    python3 benches/fp8_scores.py
"""

from pathlib import Path

import torch
from safetensors.torch import load_file

FIXTURE = Path(__file__).parent.parent / "tests/fixtures/dinov2_qkv/qkv_1024.safetensors"


def groups(rows, size):
    """Indices of groups of `size`, by recursive splits along the first principal direction at a multiple of `size`."""
    def split(index):
        if len(index) <= size:
            return [index]
        centred = rows[index] - rows[index].mean(0)
        direction = torch.linalg.svd(centred, full_matrices=False)[2][0]
        order = index[torch.argsort(centred @ direction, stable=True)]
        left = (-(-len(index) // size) + 1) // 2 * size
        return split(order[:left]) + split(order[left:])
    return split(torch.arange(len(rows)))


def rounded(x):
    """To e4m3 and back, with the largest power of two as scale that does not overflow."""
    scale = 2.0 ** torch.floor(torch.log2(448 / x.abs().max()))
    return (x * scale).to(torch.float8_e4m3fn).float() / scale


def main():
    taken = load_file(FIXTURE)
    print("| head | group | density | kept, exact | e4m3 | e4m3, centred keys |\n|---|---|---|---|---|---|")
    for name in sorted(x[:-2] for x in taken if x.endswith(".q")):
        query, key = taken[name + ".q"].float(), taken[name + ".k"].float()
        scale, mean = query.shape[1] ** -0.5, key.mean(0)
        scores = query @ key.T * scale
        norm = torch.logsumexp(scores, 1, keepdim=True)
        by_8_bits = rounded(query) @ rounded(key).T * scale
        centred = (rounded(query) @ rounded(key - mean).T + (query @ mean)[:, None]) * scale
        weights = [torch.exp(x - norm) for x in (scores, by_8_bits, centred)]
        for size in (32, 128):
            parts = groups(query, size)
            for density in (0.1, 0.15, 0.25):
                keys, kept = int(len(key) * density), [0.0, 0.0, 0.0]
                for part in parts:
                    exact = weights[0][part].sum(0)
                    for i, by in enumerate(weights):
                        kept[i] += exact[torch.topk(by[part].sum(0), keys).indices].sum().item() / len(query)
                lost = [f"{100 * (x / kept[0] - 1):+.3f} %" for x in kept[1:]]
                print(f"| {name} | {size} | {density} | {kept[0]:.4f} | {lost[0]} | {lost[1]} |")


if __name__ == "__main__":
    main()
