"""The Wan transformer in plain PyTorch: the parameters and the arithmetic of diffusers' `WanTransformer3DModel`.

For machines without diffusers. `python3 wan.py` holds it against diffusers where that is installed.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

EPS = 1e-6


def rotary_tables(grid: tuple[int, int, int], head_dim: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines `[tokens, head_dim / 2]` of Wan's rotary embedding over three axes."""
    side = 2 * (head_dim // 6)
    angles = []
    for axis, dim in enumerate((head_dim - 2 * side, side, side)):
        rate = 10_000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
        angle = torch.arange(grid[axis], dtype=torch.float64, device=device)[:, None] * rate
        shape = [1, 1, 1, dim // 2]
        shape[axis] = grid[axis]
        angles.append(angle.view(shape).expand(*grid, -1))
    angle = torch.cat(angles, -1).flatten(0, 2)
    return angle.cos().float(), angle.sin().float()


def rotate(x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn neighbouring pairs of `x` `[B, heads, tokens, head_dim]`."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = tables
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    """Self- or cross-attention with an RMS norm over all heads on queries and keys."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(dim, dim)])
        self.norm_q, self.norm_k = nn.RMSNorm(dim, eps=EPS), nn.RMSNorm(dim, eps=EPS)

    def forward(self, x, source, tables=None):
        """Attend from `x` to `source`, both `[B, tokens, dim]`."""
        q, k, v = self.norm_q(self.to_q(x).float()), self.norm_k(self.to_k(source).float()), self.to_v(source)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        if tables is not None:
            q, k = rotate(q, tables), rotate(k, tables)
        out = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v)
        return self.to_out[0](out.transpose(1, 2).flatten(2))


class Gelu(nn.Module):
    """The first half of the feed-forward network."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.proj = nn.Linear(dim, hidden)

    def forward(self, x):
        """GELU with tanh after the projection."""
        return F.gelu(self.proj(x), approximate="tanh")


class FeedForward(nn.Module):
    """Two projections; `net.1` is the place of a dropout."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.net = nn.ModuleList([Gelu(dim, hidden), nn.Identity(), nn.Linear(hidden, dim)])

    def forward(self, x):
        """Both projections."""
        return self.net[2](self.net[0](x))


class Block(nn.Module):
    """Self-attention, cross-attention, feed-forward, modulated by time."""

    def __init__(self, dim: int, heads: int, ffn: int):
        super().__init__()
        self.attn1, self.attn2 = Attention(dim, heads), Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=EPS)
        self.ffn = FeedForward(dim, ffn)
        self.scale_shift_table = nn.Parameter(torch.randn(1, 6, dim) / dim**0.5)

    def forward(self, x, context, time, tables):
        """`x` `[B, tokens, dim]`; `time` `[B, 6, dim]`."""
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = (self.scale_shift_table + time.float()).chunk(6, 1)
        width = (x.shape[-1],)
        y = (F.layer_norm(x.float(), width, eps=EPS) * (1 + scale) + shift).to(x.dtype)
        x = (x.float() + self.attn1(y, y, tables) * gate).to(x.dtype)
        x = x + self.attn2(self.norm2(x.float()).to(x.dtype), context)
        y = (F.layer_norm(x.float(), width, eps=EPS) * (1 + ffn_scale) + ffn_shift).to(x.dtype)
        return (x.float() + self.ffn(y).float() * ffn_gate).to(x.dtype)


class TwoLinear(nn.Module):
    """Two projections with an activation between."""

    def __init__(self, size: int, dim: int, activation):
        super().__init__()
        self.linear_1, self.linear_2, self.activation = nn.Linear(size, dim), nn.Linear(dim, dim), activation

    def forward(self, x):
        """Both projections."""
        return self.linear_2(self.activation(self.linear_1(x)))


class ConditionEmbedder(nn.Module):
    """Embeddings of the time and of the condition tokens."""

    def __init__(self, dim: int, token_size: int, frequencies: int):
        super().__init__()
        self.frequencies = frequencies
        self.time_embedder = TwoLinear(frequencies, dim, F.silu)
        self.time_proj = nn.Linear(dim, 6 * dim)
        self.text_embedder = TwoLinear(token_size, dim, lambda x: F.gelu(x, approximate="tanh"))

    def forward(self, timestep, tokens):
        """Time embedding `[B, dim]`, its projection `[B, 6, dim]`, embedded tokens."""
        half = self.frequencies // 2
        rate = torch.exp(-math.log(10_000) * torch.arange(half, device=timestep.device) / half)
        angle = timestep.float()[:, None] * rate
        time = self.time_embedder(torch.cat([angle.cos(), angle.sin()], -1))
        return time, self.time_proj(F.silu(time)).unflatten(1, (6, -1)), self.text_embedder(tokens)


class Wan(nn.Module):
    """Takes the fields of diffusers' `config.json`; `config` has them all."""

    def __init__(self, patch_size, num_attention_heads, attention_head_dim, in_channels, out_channels, text_dim,
                 freq_dim, ffn_dim, num_layers, rope_max_seq_len):
        super().__init__()
        dim = num_attention_heads * attention_head_dim
        self.config = {
            "patch_size": list(patch_size),
            "num_attention_heads": num_attention_heads,
            "attention_head_dim": attention_head_dim,
            "in_channels": in_channels,
            "out_channels": out_channels,
            "text_dim": text_dim,
            "freq_dim": freq_dim,
            "ffn_dim": ffn_dim,
            "num_layers": num_layers,
            "cross_attn_norm": True,
            "qk_norm": "rms_norm_across_heads",
            "eps": EPS,
            "image_dim": None,
            "added_kv_proj_dim": None,
            "rope_max_seq_len": rope_max_seq_len,
            "pos_embed_seq_len": None,
        }
        self.patch_embedding = nn.Conv3d(in_channels, dim, patch_size, patch_size)
        self.condition_embedder = ConditionEmbedder(dim, text_dim, freq_dim)
        self.blocks = nn.ModuleList([Block(dim, num_attention_heads, ffn_dim) for _ in range(num_layers)])
        self.proj_out = nn.Linear(dim, out_channels * math.prod(patch_size))
        self.scale_shift_table = nn.Parameter(torch.randn(1, 2, dim) / dim**0.5)

    def forward(self, hidden_states, timestep, encoder_hidden_states, return_dict=False):
        """As diffusers' class: `[B, in_channels, T, H, W]`, `[B]`, `[B, tokens, text_dim]` to a tuple of one."""
        patch, heads = self.config["patch_size"], self.config["num_attention_heads"]
        grid = tuple(n // p for n, p in zip(hidden_states.shape[2:], patch))
        x = self.patch_embedding(hidden_states).flatten(2).transpose(1, 2)
        tables = rotary_tables(grid, x.shape[-1] // heads, x.device)
        time, projected, context = self.condition_embedder(timestep, encoder_hidden_states)
        for block in self.blocks:
            x = block(x, context, projected, tables)
        shift, scale = (self.scale_shift_table + time.float()[:, None]).chunk(2, 1)
        x = (F.layer_norm(x.float(), (x.shape[-1],), eps=EPS) * (1 + scale) + shift).to(x.dtype)
        x = self.proj_out(x).view(len(x), *grid, *patch, -1)
        return (x.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(len(x), -1, *hidden_states.shape[2:]),)


def main() -> None:
    """The largest difference to diffusers, at a tiny size with random parameters."""
    from diffusers import WanTransformer3DModel

    fields = dict(patch_size=(4, 4, 4), num_attention_heads=2, attention_head_dim=32, in_channels=4, out_channels=1,
                  text_dim=20, freq_dim=32, ffn_dim=96, num_layers=2, rope_max_seq_len=64)
    torch.manual_seed(0)
    theirs, ours = WanTransformer3DModel(**fields, cross_attn_norm=True), Wan(**fields)
    for p in theirs.parameters():
        torch.nn.init.normal_(p, std=0.3)
    ours.load_state_dict(theirs.state_dict())
    inputs = torch.randn(2, 4, 8, 12, 16), torch.tensor([640.0, 3.0]), torch.randn(2, 7, 20)
    with torch.no_grad():
        a, b = (net(*inputs, return_dict=False)[0] for net in (theirs, ours))
    missing = {k: v for k, v in theirs.config.items() if k[0] != "_" and list_of(ours.config[k]) != list_of(v)}
    print("largest difference", (a - b).abs().max().item(), "of", a.abs().max().item(), "; config differs in", missing)


def list_of(x):
    """Lists and tuples alike."""
    return list(x) if isinstance(x, tuple) else x


if __name__ == "__main__":
    main()
