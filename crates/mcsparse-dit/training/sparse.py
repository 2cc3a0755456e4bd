"""MC-Sparse and its rivals as plain PyTorch, put in place of Wan's self-attention.

A selection is `order` `[Z, N]`, the token order whose consecutive runs of `size` form groups, and
`keys` `[Z, M, K]`, the keys of each group. Z is batch times heads. Every method ends as one of these.
"""

import dataclasses
import math

import diffusers.models.transformers.transformer_wan as wan
import torch
import torch.nn.functional as F


def tile_order(frames: int, rows: int, columns: int, tile: tuple[int, int, int]) -> torch.Tensor:
    """Token indices in the order of 3D tiles; the tokens of one tile are consecutive."""
    t, y, x = tile
    index = torch.arange(frames * rows * columns)
    index = index.view(frames // t, t, rows // y, y, columns // x, x)
    return index.permute(0, 2, 4, 1, 3, 5).reshape(-1)


def pddp_order(q: torch.Tensor, size: int, iterations: int = 6) -> torch.Tensor:
    """Principal direction divisive partitioning of queries `[Z, N, D]`, split at the median."""
    z, n, d = q.shape
    order = torch.arange(n, device=q.device).expand(z, n)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(d, 1, generator=generator).to(q.device)
    node = n
    while node > size:
        x = torch.gather(q, 1, order[..., None].expand(-1, -1, d)).view(-1, node, d)
        x = x - x.mean(1, keepdim=True)
        gram, axis = x.mT @ x, start.expand(len(x), -1, -1)
        for _ in range(iterations):
            axis = F.normalize(gram @ axis, dim=1)
        rank = (x @ axis).squeeze(-1).argsort(-1)
        order = torch.gather(order.reshape(-1, node), 1, rank).view(z, n)
        node //= 2
    return order


def probabilities(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Softmax attention `[Z, N, N]` in f32."""
    return torch.softmax(q.float() @ k.float().mT / math.sqrt(q.shape[-1]), -1)


def group_mass(p: torch.Tensor, order: torch.Tensor, size: int) -> torch.Tensor:
    """Mean attention a group gives to each key: `[Z, M, N]`."""
    rows = torch.gather(p, 1, order[..., None].expand(-1, -1, p.shape[-1]))
    return rows.view(len(p), -1, size, p.shape[-1]).mean(2)


def pooled_keys(q, k, order, size: int, count: int) -> torch.Tensor:
    """Vanilla block-sparse selection: blocks ranked by mean query times mean key.

    Exactly `count` keys: whole blocks from the best down, and the first keys of the next block.
    """

    def pooled(x):
        x = torch.gather(x.float(), 1, order[..., None].expand(-1, -1, x.shape[-1]))
        return x.view(len(x), -1, size, x.shape[-1]).mean(2)

    best = (pooled(q) @ pooled(k).mT).argsort(-1, descending=True)  # [Z, M, blocks]
    blocks = order.view(len(q), -1, size)
    rows = best[..., : -(-count // size)].flatten(1)
    picked = torch.gather(blocks, 1, rows[..., None].expand(-1, -1, size))
    return picked.view(len(q), best.shape[1], -1)[..., :count]


def attend(q, k, v, order, keys) -> torch.Tensor:
    """Each group of queries attends to its own keys only; `[Z, N, D]` in token order."""
    z, n, d = q.shape
    groups, count = keys.shape[1:]

    def take(x, index):
        return torch.gather(x, 1, index.reshape(z, -1, 1).expand(-1, -1, d))

    queries = take(q, order).view(z * groups, 1, n // groups, d)
    near_k, near_v = (take(x, keys).view(z * groups, 1, count, d) for x in (k, v))
    out = F.scaled_dot_product_attention(queries, near_k, near_v).reshape(z, n, d)
    return torch.empty_like(out).scatter_(1, order[..., None].expand(-1, -1, d), out)


@dataclasses.dataclass
class Recipe:
    """One row of the comparison. `groups`: pooled, tile or pddp."""

    groups: str
    density: float
    warm_up: int
    anchors: tuple[int, ...]
    residual: bool = False


class Controller:
    """Stands in for Wan's attention function; dense until a recipe is set."""

    def __init__(self, layers: int, tiles: torch.Tensor, size: int):
        self.layers, self.tiles, self.size = layers, tiles, size
        self.recipe, self.observe, self.cache, self.step, self.calls = None, None, {}, 0, 0
        self.original = wan.dispatch_attention_fn
        wan.dispatch_attention_fn = self

    def close(self) -> None:
        """Put the original attention back."""
        wan.dispatch_attention_fn = self.original

    def start(self, recipe: Recipe | None = None) -> None:
        """Forget all caches and use this recipe from now on."""
        self.recipe, self.cache, self.calls = recipe, {}, 0

    def before_step(self, step: int) -> None:
        """The sampler says which step comes next."""
        self.step = step

    def __call__(self, query, key, value, *args, **kwargs):
        if query.shape[1] != key.shape[1] or query.shape[1] != len(self.tiles):
            return self.original(query, key, value, *args, **kwargs)
        layer = self.calls % self.layers
        self.calls += 1
        batch, n, heads, d = query.shape
        parts = [x.bfloat16().transpose(1, 2).reshape(batch * heads, n, d) for x in (query, key, value)]
        if self.observe is not None:
            self.observe(self.step, layer, parts[0], parts[1], heads)
        out = self._attention(layer, *(p.view(batch, heads, n, d) for p in parts))
        return out.reshape(batch, heads, n, d).transpose(1, 2).to(query.dtype)

    def _attention(self, layer, q4, k4, v4):
        recipe = self.recipe
        anchor = recipe is not None and self.step in recipe.anchors
        if recipe is None or layer == 0 or (self.step < recipe.warm_up and not anchor):
            return F.scaled_dot_product_attention(q4, k4, v4)
        q, k, v = q4.flatten(0, 1), k4.flatten(0, 1), v4.flatten(0, 1)
        if not anchor:
            order, keys, residual = self.cache[layer]
            if recipe.groups == "pooled":
                keys = self._select(q, k, order)
            out = attend(q, k, v, order, keys)
            return out if residual is None else out + residual
        dense = F.scaled_dot_product_attention(q4, k4, v4)
        tiles = self.tiles.to(q.device).expand(len(q), -1)
        order = pddp_order(q.float(), self.size) if recipe.groups == "pddp" else tiles
        keys = self._select(q, k, order)
        residual = dense.flatten(0, 1) - attend(q, k, v, order, keys) if recipe.residual else None
        self.cache[layer] = (order, keys, residual)
        return dense

    def _select(self, q, k, order):
        count = round(self.recipe.density * q.shape[1])
        if self.recipe.groups == "pooled":
            return pooled_keys(q, k, order, self.size, count)
        picked = []
        for one_q, one_k, one_order in zip(q.split(4), k.split(4), order.split(4)):
            mass = group_mass(probabilities(one_q, one_k), one_order, self.size)
            picked.append(mass.topk(count, -1).indices)
        return torch.cat(picked)
