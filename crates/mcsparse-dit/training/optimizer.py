"""Muon for the matrices inside the blocks, AdamW for everything else."""

import torch

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalised(m: torch.Tensor) -> torch.Tensor:
    """Bring the singular values of stacked matrices `[N, rows, cols]` near 1, in bf16."""
    a, b, c = NEWTON_SCHULZ
    x = m.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon:
    """Momentum, then orthogonalisation; matrices of one shape are handled as one stack.

    Updates are scaled to the root-mean-square size that AdamW's have, so one learning rate suits both.
    """

    def __init__(self, params, momentum: float = 0.95, weight_decay: float = 0.01):
        self.momentum, self.weight_decay = momentum, weight_decay
        shapes = {}
        for p in params:
            shapes.setdefault(p.shape, []).append(p)
        self.groups = [(ps, torch.zeros(len(ps), *s, device=ps[0].device)) for s, ps in shapes.items()]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update of all matrices."""
        for params, buffer in self.groups:
            grad = torch.stack([p.grad for p in params])
            buffer.lerp_(grad, 1 - self.momentum)
            update = orthogonalised(grad.lerp(buffer, self.momentum))
            update *= 0.2 * max(update.shape[1:]) ** 0.5
            torch._foreach_mul_(params, 1 - lr * self.weight_decay)
            torch._foreach_add_(params, list(update.unbind(0)), alpha=-lr)


class Optimizer:
    """Both optimisers behind one `step`, with gradient clipping."""

    def __init__(self, model, muon_scale: float = 1.5):
        inner = [p for n, p in model.named_parameters() if n.startswith("blocks.") and p.ndim == 2]
        chosen = {id(p) for p in inner}
        rest = [p for p in model.parameters() if id(p) not in chosen]
        self.params, self.muon_scale = inner + rest, muon_scale
        self.muon = Muon(inner)
        self.adam = torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.01, fused=True)

    def step(self, lr: float) -> None:
        """Clip, update, and clear the gradients."""
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        self.adam.param_groups[0]["lr"] = lr
        self.adam.step()
        self.muon.step(lr * self.muon_scale)
        for p in self.params:
            p.grad = None
