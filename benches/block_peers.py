#!/usr/bin/env python3
"""The parts of a transformer block around attention in PyTorch, beside those that `dit-block` timed on the same GPU.

usage: python3 benches/block_peers.py out/dit-block/block.json

Takes the shape and dtype of block.json and builds the same parts from PyTorch's operations, as diffusers' models have them:
norms and rotary embedding in f32, products by cuBLAS. Each part is timed as it is ("eager") and through `torch.compile`, unless
MCSPARSE_COMPILE=0: medians of 9 samples of at least 20 ms, synchronised. Needs a CUDA GPU and PyTorch.
"""
import json
import os
import sys

import torch
import torch.nn.functional as F
from timing import timed

EPS = 1e-6


def parts(shape, tokens, dtype):
    """Name, number of calls in a block and function of each part, by the names that dit-block gives them."""
    hidden, heads, dim, ffn = shape["hidden"], shape["heads"], shape["head_dim"], shape["ffn"]
    inner, all_heads = heads * dim, shape["norm_all_heads"]
    new = lambda *size: torch.randn(*size, device="cuda", dtype=dtype)
    layer = lambda inputs, outputs: (new(outputs, inputs) / inputs**0.5, new(outputs) * 0.02)
    x, query, key = new(tokens, hidden), new(tokens, inner), new(tokens, inner)
    scale, shift, gate = (torch.randn(hidden, device="cuda") * 0.2 for _ in range(3))
    norm_weight = torch.randn(inner if all_heads else dim, device="cuda")
    angles = torch.rand(tokens, 1, dim // 2, device="cuda")
    cos, sin = angles.cos(), angles.sin()
    projections, out = [layer(hidden, inner) for _ in range(3)], layer(inner, hidden)
    up, gated, down = layer(hidden, ffn), layer(hidden, ffn), layer(ffn, hidden)

    def norm(x):
        return (F.layer_norm(x.float(), (hidden,), eps=EPS) * (1 + scale) + shift).to(dtype)

    def rms(x):
        x = x.float()
        if all_heads:
            return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * norm_weight).view(tokens, heads, dim)
        x = x.view(tokens, heads, dim)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * norm_weight

    def rotate(x):
        a, b = rms(x).unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(dtype)

    gated_sum = lambda x, y: (x.float() + y.float() * gate).to(dtype)
    attended = new(1, heads, tokens, dim)
    yield "norm and modulation", 2, norm, (x,)
    yield "query, key and value", 1, lambda x: [F.linear(x, *p) for p in projections], (x,)
    yield "QK norm and RoPE", 1, lambda q, k: (rotate(q), rotate(k)), (query, key)
    yield "layout of the output", 1, lambda a: a.transpose(1, 2).reshape(tokens, inner), (attended,)
    yield "output and gated sum", 1, lambda x, a: gated_sum(x, F.linear(a, *out)), (x, query)
    if shape["cross_text"]:
        to_q, to_out = layer(hidden, inner), layer(inner, hidden)
        text = [new(1, heads, shape["cross_text"], dim) for _ in range(2)]
        weight, bias = torch.randn(hidden, device="cuda"), torch.randn(hidden, device="cuda")

        def cross(x):
            normed = F.layer_norm(x.float(), (hidden,), weight, bias, EPS).to(dtype)
            q = rms(F.linear(normed, *to_q)).to(dtype).transpose(0, 1)[None]
            y = F.scaled_dot_product_attention(q, *text).transpose(1, 2).reshape(tokens, inner)
            return x + F.linear(y, *to_out)

        yield "cross-attention", 1, cross, (x,)
    if shape["mlp"] == "gelu":
        mlp = lambda x, n: gated_sum(x, F.linear(F.gelu(F.linear(n, *up), approximate="tanh"), *down))
    else:
        mlp = lambda x, n: gated_sum(x, F.linear(F.silu(F.linear(n, *up)) * F.linear(n, *gated), *down))
    yield "MLP and gated sum", 1, mlp, (x, new(tokens, hidden))


def main():
    if len(sys.argv) != 2:
        sys.exit(f"expected the path of block.json, got {len(sys.argv) - 1} arguments")
    with open(sys.argv[1]) as file:
        report = json.load(file)
    ours = {part["name"]: part["time"]["median"] * 1e3 for part in report["parts"]}
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[report["dtype"]]
    shape, tokens = report["shape"], report["tokens"]
    compiled = os.environ.get("MCSPARSE_COMPILE") != "0"
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: {tokens} tokens, hidden {shape['hidden']}, {report['dtype']}")
    print(f"{'ms in a block':24s} {'eager':>9s} {'compiled':>9s} {'ours':>9s} {'ours / best':>11s}")
    sums, worst = [0.0, 0.0, 0.0], (0.0, "")
    with torch.no_grad():
        for name, calls, function, inputs in parts(shape, tokens, dtype):
            eager = calls * timed(lambda: function(*inputs))[0]
            fused = torch.compile(function) if compiled else None
            best = calls * timed(lambda: fused(*inputs))[0] if compiled else float("nan")
            mine = calls * ours[name]
            lowest = min(eager, best) if compiled else eager
            sums = [a + b for a, b in zip(sums, (eager, lowest, mine))]
            worst = max(worst, (mine - lowest, name))
            print(f"{name:24s} {eager:9.3f} {best:9.3f} {mine:9.3f} {mine / lowest:11.2f}")
    eager, lowest, mine = sums
    print(f"{'all':24s} {eager:9.3f} {lowest:9.3f} {mine:9.3f} {mine / lowest:11.2f}   (ours / eager: {mine / eager:.2f})")
    print(f"worst: {worst[1]}, {worst[0]:.3f} ms over the best of PyTorch")


if __name__ == "__main__":
    main()
