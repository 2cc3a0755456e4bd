"""Random solids put together from parts: families of objects, drawn by number, and their distance fields.

A `Solids` is a batch of part lists on the host; `field` turns it into volumes on the GPU. The volume is the cube from
-1 to 1 with axes `[z, y, x]`; `z` grows away from the front view, `x` to the right, and rows count down from the top.
"""

import numpy as np
import torch

PARTS = 10
TRUNCATION = 0.125  # four of 64 voxels: one token
ELLIPSOID, BOX, CYLINDER, CAPSULE, TORUS, POWER = range(6)
NONE, ADD, CUT = range(3)
FAR = 4.0
UP = (0.0, 0.0, np.pi / 2)  # Euler angles that lay a part's own axis, y, along x


def turns(angles: np.ndarray) -> np.ndarray:
    """Rotation matrices `[..., 3, 3]` of Euler angles about x, then y, then z."""
    (cx, cy, cz), (sx, sy, sz) = (np.moveaxis(f(angles), -1, 0) for f in (np.cos, np.sin))
    zero, one = np.zeros_like(cx), np.ones_like(cx)

    def matrix(*rows):
        return np.stack([np.stack(row, -1) for row in rows], -2)

    x = matrix((one, zero, zero), (zero, cx, -sx), (zero, sx, cx))
    y = matrix((cy, zero, sy), (zero, one, zero), (-sy, zero, cy))
    z = matrix((cz, -sz, zero), (sz, cz, zero), (zero, zero, one))
    return z @ y @ x


class Solids:
    """`count` solids of up to `PARTS` parts, which are added or cut in order.

    `size` is the half extent along the part's own axes; a torus has its outer radius along x and z and its tube along y.
    """

    def __init__(self, count: int):
        shape = (count, PARTS)
        self.kind, self.act = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.centre, self.size = np.zeros((*shape, 3)), np.full((*shape, 3), 0.1)
        self.turn = np.broadcast_to(np.eye(3), (*shape, 3, 3)).copy()
        self.round = np.zeros(shape)  # rounding of boxes and cylinders, exponent of POWER
        self.blend = np.full(count, 1e-4)  # radius of the smooth union
        self.used = 0

    def __len__(self) -> int:
        return len(self.blend)

    def part(self, kind, centre, size, angles=(0.0, 0.0, 0.0), act=ADD, shown=True, rounding=0.01) -> None:
        """The next part of every solid; each argument is one value for all or an array over the solids."""
        k, count = self.used, len(self)
        self.used += 1
        self.kind[:, k] = kind
        self.act[:, k] = np.where(shown, act, NONE)
        for target, axes in ((self.centre, centre), (self.size, size)):
            for axis in range(3):
                target[:, k, axis] = axes[axis]
        self.turn[:, k] = turns(np.stack([np.broadcast_to(a, count) for a in angles], -1))
        self.round[:, k] = rounding

    def turned(self, angles: np.ndarray) -> None:
        """Turn each solid as a whole."""
        turn = turns(angles)[:, None]
        self.centre = (turn @ self.centre[..., None])[..., 0]
        self.turn = turn @ self.turn

    def fit(self, half: np.ndarray) -> None:
        """Move and scale each solid so that the box around its parts has `half` as its largest half extent."""
        reach = (np.abs(self.turn) @ self.size[..., None])[..., 0]
        added = (self.act == ADD)[..., None]
        low = np.where(added, self.centre - reach, np.inf).min(1)
        high = np.where(added, self.centre + reach, -np.inf).max(1)
        scale = half / ((high - low).max(-1) / 2)
        self.centre = (self.centre - (high + low)[:, None] / 2) * scale[:, None, None]
        self.size = self.size * scale[:, None, None]
        self.round = np.where(self.kind == POWER, self.round, self.round * scale[:, None])
        self.blend = self.blend * scale

    def put(self, rows: np.ndarray, other: "Solids") -> None:
        """Overwrite `rows` with the solids of another batch."""
        for name in ("kind", "act", "centre", "size", "turn", "round", "blend"):
            getattr(self, name)[rows] = getattr(other, name)


def chair(n: int, u) -> Solids:
    """Seat, four legs, back, arms on some."""
    s, w, d, t = Solids(n), u(0.38, 0.6), u(0.38, 0.6), u(0.05, 0.1)
    leg, thick, back, slim = u(0.35, 0.75), u(0.055, 0.085), u(0.35, 0.8), u(0.055, 0.1)
    kind = np.where(u(0, 1) < 0.5, BOX, CYLINDER)
    s.part(BOX, (0, 0, 0), (w, t, d), rounding=u(0, 0.05))
    for x, z in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
        s.part(kind, (x * (w - thick), -leg / 2, z * (d - thick)), (thick, leg / 2, thick))
    s.part(BOX, (0, t + back / 2, -d + slim), (w, back / 2 + t, slim), (u(-0.15, 0.0), 0, 0), rounding=u(0, 0.05))
    arms, high = u(0, 1) < 0.4, u(0.2, 0.32)
    for x in (-1, 1):
        s.part(BOX, (x * (w - 0.06), high, 0), (0.06, 0.055, d), shown=arms)
        s.part(kind, (x * (w - 0.06), high / 2, d - 0.08), (0.055, high / 2, 0.055), shown=arms)
    return s


def table(n: int, u) -> Solids:
    """A round or square top on four legs or on one foot."""
    s, w, t, high = Solids(n), u(0.5, 0.9), u(0.05, 0.09), u(0.5, 1.0)
    round_top, one = u(0, 1) < 0.4, u(0, 1) < 0.4
    d = np.where(round_top, w, w * u(0.55, 1.0))
    s.part(np.where(round_top, CYLINDER, BOX), (0, 0, 0), (w, t, d), rounding=u(0, 0.04))
    thick, inset = u(0.06, 0.09), np.where(round_top, 0.62, u(0.8, 0.92))
    for x, z in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
        s.part(CYLINDER, (x * w * inset, -high / 2, z * d * inset), (thick, high / 2, thick), shown=~one)
    column, foot = u(0.07, 0.14), u(0.3, 0.6)
    s.part(CYLINDER, (0, -high / 2, 0), (column, high / 2, column), shown=one)
    s.part(CYLINDER, (0, -high, 0), (foot, 0.06, foot), shown=one)
    return s


def mug(n: int, u) -> Solids:
    """A hollow cylinder with a handle on most."""
    s, r, h, wall = Solids(n), u(0.35, 0.6), u(0.4, 0.75), u(0.07, 0.11)
    ring, tube = h * u(0.55, 0.75), u(0.07, 0.1)
    s.part(CYLINDER, (0, 0, 0), (r, h, r), rounding=u(0, 0.06))
    s.part(TORUS, (r, 0, 0), (ring, tube, ring), (np.pi / 2, 0, 0), shown=u(0, 1) < 0.85)
    s.part(CYLINDER, (0, 2 * wall, 0), (r - wall, h + wall, r - wall), act=CUT)
    return s


def plane(n: int, u) -> Solids:
    """Body, wings, tail, engines on some."""
    s, body, r = Solids(n), u(0.75, 1.0), u(0.12, 0.2)
    span, chord, sweep = u(0.6, 1.0), u(0.14, 0.24), u(-0.1, 0.5)
    s.part(CAPSULE, (0, 0, 0), (r, body, r), UP)
    for z in (-1, 1):
        s.part(BOX, (-0.3 * sweep, 0, z * span / 2), (chord, 0.05, span / 2), (0, z * sweep, 0), rounding=0.03)
    s.part(BOX, (-body + 0.15, 0.03, 0), (0.1, 0.05, span * 0.4), rounding=0.03)
    fin = u(0.2, 0.4)
    s.part(BOX, (-body + 0.15, fin / 2, 0), (0.11, fin / 2 + 0.1, 0.05), rounding=0.03)
    engines = u(0, 1) < 0.6
    for z in (-1, 1):
        s.part(CAPSULE, (0, -0.1, z * span * 0.45), (0.08, 0.2, 0.08), UP, shown=engines)
    s.turned(np.stack([u(-0.9, 0.9), np.zeros(n), u(-0.4, 0.4)], -1))
    return s


def lamp(n: int, u) -> Solids:
    """Foot, pole and shade, hollow on some."""
    s, foot, high, r = Solids(n), u(0.25, 0.5), u(0.6, 1.0), u(0.3, 0.6)
    shade, drop = u(0.2, 0.4), u(0, 1)
    s.part(CYLINDER, (0, -high, 0), (foot, 0.07, foot), rounding=u(0, 0.05))
    s.part(np.where(u(0, 1) < 0.5, CYLINDER, ELLIPSOID), (0, high, 0), (r, shade, r), rounding=0.02)
    s.part(CYLINDER, (0, high - shade, 0), (r - 0.1, shade, r - 0.1), act=CUT, shown=drop < 0.5)
    s.part(CYLINDER, (0, 0, 0), (0.07, high + 0.05, 0.07))
    s.part(ELLIPSOID, (0, u(-0.5, 0.3), 0), (u(0.12, 0.25), u(0.12, 0.4), u(0.12, 0.25)), shown=drop > 0.3)
    return s


def stack(n: int, u) -> Solids:
    """Three to five parts piled up, as turned wood is."""
    s, y, count = Solids(n), np.full(n, -1.0), u(2, 5)
    for k in range(5):
        high, wide = u(0.12, 0.32), u(0.25, 0.75) * (1 - 0.1 * k)
        kind = np.choose((u(0, 5)).astype(int), (ELLIPSOID, BOX, CYLINDER, TORUS, POWER))
        tube = np.minimum(high, wide * 0.45)
        high = np.where(kind == TORUS, tube, high)
        y = y + high
        s.part(kind, (0, y, 0), (wide, high, wide), shown=k <= count, rounding=np.where(kind == POWER, u(0.8, 4), 0.03))
        y = y + high * 0.85
    s.part(CYLINDER, (0, y / 2 - 0.5, 0), (0.08, (y + 1) / 2, 0.08))
    return s


def assembly(n: int, u) -> Solids:
    """Two to five parts of any kind, minus up to three."""
    s, count, cuts = Solids(n), u(1, 5), u(0, 4)
    for k in range(5):
        kind = (u(0, 6)).astype(int)
        a, b, c = u(0.2, 0.6), u(0.2, 0.6), u(0.2, 0.6)
        b = np.where(kind == TORUS, np.minimum(0.4 * a, b), np.where(kind == CAPSULE, np.maximum(b, 1.5 * a), b))
        c = np.where((kind == BOX) | (kind == ELLIPSOID) | (kind == POWER), c, a)
        rounding = np.where(kind == POWER, u(0.7, 5), u(0, 0.1))
        where = [u(-0.45, 0.45) for _ in range(3)]
        s.part(kind, where, (a, b, c), [u(-3, 3) for _ in range(3)], shown=k <= count, rounding=rounding)
    for k in range(3):
        kind = np.choose((u(0, 3)).astype(int), (ELLIPSOID, BOX, CYLINDER))
        a = u(0.15, 0.4)
        size = (a, u(0.15, 0.9), np.where(kind == CYLINDER, a, u(0.15, 0.4)))
        where = [u(-0.5, 0.5) for _ in range(3)]
        s.part(kind, where, size, [u(-3, 3) for _ in range(3)], act=CUT, shown=k < cuts - 1)
    return s


def blob(n: int, u) -> Solids:
    """Ellipsoids and capsules that run into each other."""
    s, count = Solids(n), u(2, 7)
    s.blend = u(0.05, 0.25)
    for k in range(7):
        kind = np.where(u(0, 1) < 0.5, ELLIPSOID, CAPSULE)
        a, c = u(0.12, 0.4), u(0.12, 0.4)
        b = np.where(kind == CAPSULE, a * u(1.5, 3), u(0.15, 0.6))
        where = [u(-0.42, 0.42) for _ in range(3)]
        s.part(kind, where, (a, b, np.where(kind == CAPSULE, a, c)), [u(-3, 3) for _ in range(3)], shown=k <= count)
    return s


FAMILIES = {f.__name__: f for f in (chair, table, mug, plane, lamp, stack, assembly, blob)}


def draw(count: int, rng: np.random.Generator, families: np.ndarray | None = None) -> Solids:
    """Random solids, turned about the vertical and scaled to fill the volume; `families` numbers them if given."""
    solids = Solids(count)
    families = rng.integers(len(FAMILIES), size=count) if families is None else families
    for number, family in enumerate(FAMILIES.values()):
        rows = np.flatnonzero(families == number)
        if len(rows):
            solids.put(rows, family(len(rows), lambda low, high: rng.uniform(low, high, len(rows))))
    angles = np.zeros((count, 3))
    angles[:, 1] = rng.uniform(-np.pi, np.pi, count)
    solids.turned(angles)
    solids.fit(rng.uniform(0.78, 0.92, count))
    return solids


def distance(kind: int, p, size, rounding) -> torch.Tensor:
    """About the signed distance of points `p` (x, y, z of `[P, N]`) to parts of one kind, negative inside.

    Exact for boxes, cylinders, capsules and tori; to first order at the surface for the other two.
    """
    x, y, z = p
    a, b, c = size
    if kind == ELLIPSOID:
        k0 = torch.sqrt((x / a) ** 2 + (y / b) ** 2 + (z / c) ** 2 + 1e-9)
        k1 = torch.sqrt((x / a**2) ** 2 + (y / b**2) ** 2 + (z / c**2) ** 2 + 1e-9)
        return k0 * (k0 - 1) / k1
    if kind == POWER:
        f = ((x / a).abs() ** rounding + (y / b).abs() ** rounding + (z / c).abs() ** rounding + 1e-9) ** (1 / rounding)
        return torch.sqrt(x * x + y * y + z * z + 1e-9) * (1 - 1 / f)
    if kind == CAPSULE:
        return torch.sqrt(x * x + z * z + (y.abs() - (b - a)).clamp_min(0) ** 2 + 1e-9) - a
    if kind == TORUS:
        return torch.sqrt((torch.sqrt(x * x + z * z) - (a - b)) ** 2 + y * y + 1e-9) - b
    rounding = torch.minimum(rounding, torch.minimum(a, b))
    if kind == BOX:
        q = [i.abs() - (s - rounding) for i, s in zip(p, size)]
    else:
        q = [torch.sqrt(x * x + z * z + 1e-9) - (a - rounding), y.abs() - (b - rounding)]
    outside = torch.sqrt(sum(i.clamp_min(0) ** 2 for i in q) + 1e-9)
    inside = q[0]
    for i in q[1:]:
        inside = torch.maximum(inside, i)
    return outside + inside.clamp_max(0) - rounding


@torch.no_grad()
def field(solids: Solids, rows: slice, side: int, device) -> torch.Tensor:
    """Volumes `[B, 1, side, side, side]` from 1 inside to -1 outside: distance over `TRUNCATION`, clamped."""
    kind, act = solids.kind[rows], solids.act[rows]
    batch, points = len(kind), side**3
    axis = ((torch.arange(side, device=device) + 0.5) / side * 2 - 1).float()
    z, y, x = (t.reshape(1, -1) for t in torch.meshgrid(axis, -axis, axis, indexing="ij"))

    def up(array):
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, torch.float32)

    centre, size, turn, rounding = (
        up(t[rows]) for t in (solids.centre, solids.size, solids.turn, solids.round)
    )
    every = torch.full((batch * PARTS, points), FAR, device=device)
    for number in range(6):
        chosen = np.flatnonzero(((kind == number) & (act != NONE)).reshape(-1))
        if not len(chosen):
            continue
        pick = torch.from_numpy(chosen).to(device)
        r, c = turn.reshape(-1, 3, 3)[pick], centre.reshape(-1, 3)[pick]
        moved = [t - c[:, i : i + 1] for i, t in enumerate((x, y, z))]
        local = [sum(r[:, i, j, None] * moved[i] for i in range(3)) for j in range(3)]
        s = [size.reshape(-1, 3)[pick][:, i : i + 1] for i in range(3)]
        every[pick] = distance(number, local, s, rounding.reshape(-1)[pick][:, None])
    every = every.view(batch, PARTS, points)
    blend, acts = up(solids.blend[rows])[:, None], up(act)[:, :, None]
    whole = torch.full((batch, points), FAR, device=device)
    for k in range(PARTS):
        if not (act[:, k] != NONE).any():
            continue
        part = every[:, k]
        near = (blend - (whole - part).abs()).clamp_min(0) / blend
        added = torch.minimum(whole, part) - near * near * blend / 4
        whole = torch.where(acts[:, k] == CUT, torch.maximum(whole, -part), torch.where(acts[:, k] == ADD, added, whole))
    return (-whole / TRUNCATION).clamp(-1, 1).view(batch, 1, side, side, side)
