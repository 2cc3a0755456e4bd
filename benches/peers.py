#!/usr/bin/env python3
"""The stages of `cargo bench -p mcsparse-benches` and PyTorch's dense attention on the same GPU, in one table.

usage: python3 benches/peers.py [TOKENS HEADS HEAD_DIM [DENSITY]]      (default: 75648 10 128 0.2)

Needs a CUDA GPU, PyTorch and Rust; the kernels are compiled as CUDA C++ (`--features cuda-cpp`). Both sides time 9 samples of
at least 20 ms after a warm-up, synchronised, on random normal bf16 values; ours are checked against f64 sums first, and what is
wrong is not timed. PyTorch gets contiguous heads; ours are views of [batch, tokens, heads, head_dim] unless MCSPARSE_LAYOUT=heads.
MCSPARSE_BENCH names a compiled bench program to run instead of cargo.
"""
import os
import re
import subprocess
import sys

import torch
import torch.nn.functional as F
from timing import timed
from torch.nn.attention import SDPBackend, sdpa_kernel

if len(sys.argv) not in (1, 4, 5):
    sys.exit(f"expected no argument, or TOKENS HEADS HEAD_DIM [DENSITY], got {len(sys.argv) - 1} of them")
TOKENS, HEADS, DIM = (int(x) for x in (sys.argv[1:4] if len(sys.argv) > 3 else (75648, 10, 128)))
DENSITY = float(sys.argv[4]) if len(sys.argv) > 4 else 0.2


def torch_rows():
    q, k, v = (torch.randn(1, HEADS, TOKENS, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention-2", SDPBackend.FLASH_ATTENTION)):
        with sdpa_kernel(backend):
            yield f"PyTorch {name}, dense", *timed(lambda: F.scaled_dot_product_attention(q, k, v)), 1.0


def our_rows():
    settings = {"BURN_DEVICE": "cuda", "MCSPARSE_DTYPE": "bf16", "MCSPARSE_TOKENS": TOKENS, "MCSPARSE_HEADS": HEADS,
                "MCSPARSE_HEAD_DIM": DIM, "MCSPARSE_DENSITY": DENSITY}
    program = os.environ.get("MCSPARSE_BENCH")
    cargo = ["cargo", "bench", "-q", "-p", "mcsparse-benches", "--features", "cuda-cpp"]
    done = subprocess.run([program] if program else cargo, env={**os.environ, **{k: str(v) for k, v in settings.items()}},
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the stages failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    kept = int(re.search(r"\((\d+) keys for groups", done.stdout).group(1))
    for line in done.stdout.splitlines():
        cells = [cell.strip() for cell in line.strip("│").split("┆")]
        if len(cells) == 8 and cells[0] != "stage":
            share = {"dense": 1.0, "dense with selection": 1.0, "sparse + residual": kept / TOKENS}.get(cells[0])
            yield f"{cells[0]}: {cells[1]}", float(cells[2]), float(cells[3]), share


print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: {TOKENS} tokens, {HEADS} heads x {DIM}, density {DENSITY}")
theirs = list(torch_rows())
torch.cuda.empty_cache()
ours = list(our_rows())
dense = theirs[0][1]
print(f"{'':48s} {'ms':>9s} {'best ms':>9s} {'TFLOP/s':>8s} {'cuDNN / this':>12s} {'of ideal':>8s}")
for name, median, best, share in theirs + ours:
    rate = f"{4e-9 * TOKENS**2 * DIM * HEADS * share / median:8.0f}" if share else " " * 8
    ideal = f"{dense / median * share:8.2f}" if share and share < 1 else " " * 8
    print(f"{name:48s} {median:9.3f} {best:9.3f} {rate} {dense / median:12.2f} {ideal}")
