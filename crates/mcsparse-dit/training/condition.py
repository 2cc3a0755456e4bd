"""Condition tokens and coordinate channels: everything the model sees besides noise and time.

README.md states the same formulas in words; the Rust example builds conditions by them.
"""

import math

import torch

TOKEN_SIZE = 64  # 48 pixel values and 16 numbers of code
PATCH = 4  # a token covers PATCH x PATCH pixels of a thumbnail


def thumbnail(image: torch.Tensor, side: int) -> torch.Tensor:
    """Plain block mean of square images `[..., S, S]` down to `[..., side, side]`."""
    block = image.shape[-1] // side
    shape = image.shape[:-2] + (side, block, side, block)
    return image.reshape(shape).mean((-3, -1))


def position_code(grid: int, device=None) -> torch.Tensor:
    """The 14 numbers of code that do not depend on the clip: `[2, grid, grid, 14]`.

    First index: 0 for the thumbnail of the first frame, 1 for that of the last frame.
    """
    axis = (torch.arange(grid, device=device) + 0.5) / grid * 2 - 1
    which = torch.tensor([-1.0, 1.0], device=device)
    w, y, x = torch.meshgrid(which, axis, axis, indexing="ij")
    parts = [w, torch.ones_like(w), y, x, y * y, x * x]
    for frequency in (math.pi, 2 * math.pi):
        parts += [
            torch.sin(frequency * y),
            torch.cos(frequency * y),
            torch.sin(frequency * x),
            torch.cos(frequency * x),
        ]
    return torch.stack(parts, -1)


def condition_tokens(clip: torch.Tensor, grid: int, stride: torch.Tensor, real: torch.Tensor):
    """Tokens `[B, 2 * grid * grid, 64]` of clips `[B, 3, T, S, S]` with values in [-1, 1].

    `stride` `[B]`: source frames per clip frame, 0 if the clip was composed from stills.
    `real` `[B]`: 1 for a filmed or rendered clip, 0 for a composed one.
    """
    batch = clip.shape[0]
    ends = torch.stack([clip[:, :, 0], clip[:, :, -1]], 1)  # [B, 2, 3, S, S]
    small = thumbnail(ends, grid * PATCH)
    pixels = small.reshape(batch, 2, 3, grid, PATCH, grid, PATCH)
    pixels = pixels.permute(0, 1, 3, 5, 4, 6, 2).reshape(batch, 2, grid, grid, 48)
    code = position_code(grid, clip.device).expand(batch, -1, -1, -1, -1)
    ones = torch.ones_like(pixels[..., :1])
    scalars = [ones * (stride / 4).view(-1, 1, 1, 1, 1), ones * real.view(-1, 1, 1, 1, 1)]
    return torch.cat([pixels, code, *scalars], -1).reshape(batch, 2 * grid * grid, TOKEN_SIZE)


def coordinates(frames: int, side: int, device=None) -> torch.Tensor:
    """Channels `[3, T, S, S]`: time, row, column of each pixel, centres scaled to (-1, 1)."""

    def axis(n):
        return (torch.arange(n, device=device) + 0.5) / n * 2 - 1

    return torch.stack(torch.meshgrid(axis(frames), axis(side), axis(side), indexing="ij"))


def with_coordinates(x: torch.Tensor) -> torch.Tensor:
    """Append the coordinate channels to a noisy clip: `[B, 3, T, S, S]` to `[B, 6, T, S, S]`."""
    extra = coordinates(x.shape[2], x.shape[3], x.device).to(x.dtype)
    return torch.cat([x, extra.expand(x.shape[0], -1, -1, -1, -1)], 1)
