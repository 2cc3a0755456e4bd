"""Two depth views of a volume, and the condition tokens that they are cut into.

README.md states the same formulas in words; the Rust crate builds conditions by them.
"""

import torch

from condition import position_code

GRID = 8  # tokens along each side of a view
NEAREST, FARTHEST = 1.0, -0.5  # values at the front and at the back of the volume; -1 is background
TOKEN_SIZE = 64 + 14  # for 64 x 64 pixels: values of a token, numbers of code


def depth(volume: torch.Tensor) -> torch.Tensor:
    """How far rays along the last axis get: `[..., S]` to values as bytes would hold them, -1 where nothing is hit.

    A ray ends where the field goes through zero, on a straight line between two voxel centres.
    """
    side = volume.shape[-1]
    inside = volume > 0
    first = inside.to(torch.uint8).argmax(-1, keepdim=True)
    here = volume.gather(-1, first)
    before = volume.gather(-1, (first - 1).clamp_min(0))
    back = torch.where(first > 0, here / (here - before).clamp_min(1e-6), torch.zeros_like(here))
    at = (first + 0.5 - back) / side
    value = NEAREST + (FARTHEST - NEAREST) * at
    value = torch.where(inside.any(-1, keepdim=True), value, torch.full_like(value, -1))[..., 0]
    return ((value + 1) * 127.5).round().clamp(0, 255) / 127.5 - 1


def views(volume: torch.Tensor) -> torch.Tensor:
    """Depth of `[B, 1, S, S, S]` from the front (along z; rows y, columns x) and from the left (along x; rows y,
    columns z): `[B, 2, S, S]`."""
    front = depth(volume[:, 0].permute(0, 2, 3, 1))
    left = depth(volume[:, 0].permute(0, 2, 1, 3))
    return torch.stack([front, left], 1)


def tokens(pictures: torch.Tensor) -> torch.Tensor:
    """Condition tokens `[B, 2 * GRID * GRID, TOKEN_SIZE]` of views `[B, 2, S, S]`."""
    batch, patch = len(pictures), pictures.shape[-1] // GRID
    pixels = pictures.reshape(batch, 2, GRID, patch, GRID, patch).transpose(3, 4).flatten(4)
    code = position_code(GRID, pictures.device).expand(batch, -1, -1, -1, -1)
    return torch.cat([pixels, code], -1).flatten(1, 3)
