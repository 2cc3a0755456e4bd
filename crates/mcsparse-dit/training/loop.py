"""What the training loops share: the loss, the learning rate, the running average, and the choice of attention."""

import contextlib
import math
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import flow

PEAK_LR = 2e-3
WARM_UP = 150
DROP = 0.1
EMA = 0.999
START = time.time()


def log(*parts) -> None:
    """One line with the seconds since the start."""
    print(f"[{time.time() - START:7.1f}]", *parts, flush=True)


def attention_backends(tokens: int, heads: int, head_dim: int, batch: int) -> list[SDPBackend]:
    """Time FlashAttention and cuDNN attention forward and backward; the faster comes first."""
    times = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        with contextlib.suppress(RuntimeError), sdpa_kernel(backend):
            shape = (batch, tokens, heads, head_dim)
            q, k, v = (
                torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
                for _ in range(3)
            )
            for i in range(8):
                if i == 3:
                    torch.cuda.synchronize()
                    begin = time.time()
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
                out.backward(torch.ones_like(out))
            torch.cuda.synchronize()
            times[backend] = time.time() - begin
    log("attention, 5 x forward and backward, s:", {b.name: round(t, 4) for b, t in times.items()})
    return sorted(times, key=times.get) + [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def learning_rate(step: int, progress: float) -> float:
    """Linear warm-up over steps, then a cosine over the time, of which `progress` (0 to 1) is over."""
    lr = PEAK_LR * min(1, (step + 1) / WARM_UP)
    return lr * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def loss_of(network, data, tokens, shift: float) -> torch.Tensor:
    """Flow matching: logit-normal noise levels, shifted; one condition in ten is dropped."""
    batch = len(data)
    sigma = flow.shifted(torch.sigmoid(torch.randn(batch, device=data.device)), shift).clamp(1e-3, 1)
    level = sigma.view(-1, 1, 1, 1, 1)
    noise = torch.randn_like(data)
    keep = (torch.rand(batch, 1, 1, device=data.device) >= DROP).float()
    v = flow.velocity(network, (1 - level) * data + level * noise, sigma, tokens * keep)
    return ((v - (noise - data)) ** 2).mean()


class Average:
    """Exponential running average of the parameters, short-sighted at first."""

    def __init__(self, network):
        self.live = [p.detach() for p in network.parameters()]
        self.names = [n for n, _ in network.named_parameters()]
        self.mean = [p.clone() for p in self.live]

    def update(self, step: int) -> None:
        """Move the average towards the live parameters."""
        torch._foreach_lerp_(self.mean, self.live, 1 - min(EMA, (1 + step) / (10 + step)))

    def state(self) -> dict:
        """The averaged parameters under their names."""
        return dict(zip(self.names, self.mean))
