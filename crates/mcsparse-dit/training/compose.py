"""Compose batches of clips on the GPU: one gather and one grid_sample for a whole layer."""

import queue
import threading

import numpy as np
import torch
import torch.nn.functional as F

from condition import condition_tokens
from scenes import CLIP_CANVAS, PHOTO_CANVAS, Scenes

REAL_SHARE = 0.65  # clips from footage; the rest pans and zooms over stills
SPRITES_ON_REAL = 0.25
SPRITES_ON_STILL = 0.85


class Plan:
    """Numbers that describe one batch, drawn on the CPU, turned into pixels by `Composer.render`."""

    def __init__(self, batch: int, frames: int):
        self.real = np.zeros(batch, np.float32)
        self.stride = np.zeros(batch, np.float32)
        self.index = np.zeros((batch, frames), np.int64)
        self.box = np.zeros((batch, frames, 3), np.float32)  # centre x, centre y, side
        self.flip = np.ones(batch, np.float32)
        self.sprite = np.zeros((2, batch), np.int64)
        self.path = np.zeros((2, batch, frames, 4), np.float32)  # x, y, size, angle
        self.shown = np.zeros((2, batch), np.float32)


class Composer:
    """Draws training batches (random) and held-out clips (from the held-out parts only)."""

    def __init__(self, scenes: Scenes, frames: int, side: int, grid: int, max_stride: int = 3):
        self.scenes, self.frames, self.side, self.grid = scenes, frames, side, grid
        self.max_stride, self.device = max_stride, scenes.frames.device

    def real_window(self, plan: Plan, b: int, shot, rng, zoom: float) -> None:
        """A random window in time and space of one shot, filled into row `b` of the plan."""
        height, frames = CLIP_CANVAS[0], self.frames
        longest = max(1, min(self.max_stride, (shot.length - 1) // (frames - 1)))
        stride = int(rng.integers(1, longest + 1))
        first = int(rng.integers(0, shot.length - (frames - 1) * stride))
        side = height / 1.25 * (1 + zoom * 0.25 * rng.random())
        x = rng.uniform(side / 2, shot.width - side / 2)
        y = rng.uniform(side / 2, height - side / 2)
        plan.real[b], plan.stride[b] = 1, stride
        plan.index[b] = shot.start + first + stride * np.arange(frames)
        plan.box[b] = (x, y, side)

    def still_window(self, plan: Plan, b: int, photo: int, rng) -> None:
        """A straight camera move over a still: pan and zoom, linear in time."""
        height, width = PHOTO_CANVAS[0], self.scenes.photo_width[photo]
        ends = []
        side = rng.uniform(0.5, 0.85) * height
        for scale in (1.0, rng.uniform(0.8, 1.18)):
            s = min(side * scale, height, width)
            ends.append((rng.uniform(s / 2, width - s / 2), rng.uniform(s / 2, height - s / 2), s))
        start, end = np.array(ends)
        pace = min(1.0, 90 / (1e-6 + np.abs(end - start)[:2].max()))
        u = np.linspace(0, pace, self.frames)[:, None]
        plan.index[b] = photo
        plan.box[b] = start * (1 - u) + end * u

    def place_sprite(self, plan: Plan, layer: int, b: int, sprite: int, rng) -> None:
        """A straight path with a little turning and growing."""
        u = np.linspace(0, 1, self.frames)
        start = rng.uniform(-0.75, 0.75, 2)
        end = np.clip(start + rng.uniform(-0.9, 0.9, 2), -0.9, 0.9)
        size = rng.uniform(0.3, 0.7) * np.array([1, rng.uniform(0.75, 1.3)])
        angle = rng.uniform(-0.5, 0.5, 2)
        plan.sprite[layer, b], plan.shown[layer, b] = sprite, 1
        for column, (a, z) in enumerate([(start[0], end[0]), (start[1], end[1]), size, angle]):
            plan.path[layer, b, :, column] = a + (z - a) * u

    def training_plan(self, batch: int, rng) -> Plan:
        """A random plan from the training parts."""
        scenes, plan = self.scenes, Plan(batch, self.frames)
        shots = [s for s in scenes.train_shots if s.length >= self.frames + 2]
        weight = np.sqrt([s.length for s in shots])
        weight /= weight.sum()
        for b in range(batch):
            if rng.random() < REAL_SHARE:
                self.real_window(plan, b, shots[rng.choice(len(shots), p=weight)], rng, 1.0)
                wanted = rng.random() < SPRITES_ON_REAL
            else:
                photos = scenes.train_photos
                if rng.random() < 0.6:
                    photos = photos[photos < scenes.real_photos]
                self.still_window(plan, b, int(rng.choice(photos)), rng)
                wanted = rng.random() < SPRITES_ON_STILL
            plan.flip[b] = rng.choice([-1, 1])
            for layer in range(int(rng.integers(1, 3)) if wanted else 0):
                self.place_sprite(plan, layer, b, int(rng.choice(scenes.train_sprites)), rng)
        return plan

    def held_out_plan(self, batch: int, rng) -> tuple[Plan, list[str]]:
        """Held-out shots in turn; every fourth clip is a held-out still with a held-out sprite."""
        scenes, plan, names = self.scenes, Plan(batch, self.frames), []
        shots = [s for s in scenes.held_shots if s.length >= self.frames]
        stills = scenes.held_photos
        for b in range(batch):
            turn, place = divmod(b, 4)
            if place < 3:
                shot = shots[(turn * 3 + place) % len(shots)]
                self.real_window(plan, b, shot, rng, 1.0)
                names.append(shot.name)
                continue
            pick = stills[stills < scenes.real_photos] if turn % 2 == 0 else stills
            photo, sprite = int(rng.choice(pick)), int(rng.choice(scenes.held_sprites))
            self.still_window(plan, b, photo, rng)
            self.place_sprite(plan, 0, b, sprite, rng)
            names.append(f"{scenes.photo_names[photo]}+{scenes.sprite_names[sprite]}")
        return plan, names

    def _layer(self, atlas, index, canvas, box, flip) -> torch.Tensor:
        """Crop `box` of the indexed pictures to square frames `[B * T, C, S, S]` in [0, 1]."""
        height, width = canvas
        theta = torch.zeros(index.numel(), 2, 3, device=self.device)
        x, y, side = box.reshape(-1, 3).unbind(-1)
        theta[:, 0, 0] = side / width * flip.repeat_interleave(index.shape[1])
        theta[:, 0, 2] = 2 * x / width - 1
        theta[:, 1, 1] = side / height
        theta[:, 1, 2] = 2 * y / height - 1
        return self._sample(atlas[index.reshape(-1)], theta)

    def _sample(self, pictures: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        size = (len(pictures), pictures.shape[1], self.side, self.side)
        grid = F.affine_grid(theta, size, align_corners=False)
        return F.grid_sample(pictures.float() / 255, grid, align_corners=False)

    def _sprite_theta(self, path: torch.Tensor) -> torch.Tensor:
        x, y, size, angle = path.reshape(-1, 4).unbind(-1)
        cos, sin = torch.cos(angle) / size, torch.sin(angle) / size
        rows = [torch.stack([cos, sin, -cos * x - sin * y], -1)]
        rows.append(torch.stack([-sin, cos, sin * x - cos * y], -1))
        return torch.stack(rows, 1)

    def render(self, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        """Clips `[B, 3, T, S, S]` in [-1, 1] and their condition tokens."""

        def up(array):
            host = torch.from_numpy(np.ascontiguousarray(array))
            if self.device.type == "cuda":
                host = host.pin_memory()
            return host.to(self.device, non_blocking=True)

        batch, frames, scenes = len(plan.real), self.frames, self.scenes
        clips = torch.empty(batch, frames, 3, self.side, self.side, device=self.device)
        for atlas, canvas, rows in (
            (scenes.frames, CLIP_CANVAS, np.flatnonzero(plan.real == 1)),
            (scenes.photos, PHOTO_CANVAS, np.flatnonzero(plan.real == 0)),
        ):
            if len(rows):
                layer = self._layer(
                    atlas, up(plan.index[rows]), canvas, up(plan.box[rows]), up(plan.flip[rows])
                )
                clips[up(rows)] = layer.unflatten(0, (len(rows), frames))
        for sprite, path, shown in zip(plan.sprite, plan.path, plan.shown):
            rows = np.flatnonzero(shown)
            if len(rows):
                pictures = scenes.sprites[up(sprite[rows].repeat(frames))]
                layer = self._sample(pictures, self._sprite_theta(up(path[rows])))
                layer, at = layer.unflatten(0, (len(rows), frames)), up(rows)
                clips[at] = clips[at] * (1 - layer[:, :, 3:]) + layer[:, :, :3]
        clips = (clips * 2 - 1).clamp(-1, 1).transpose(1, 2).contiguous()
        return clips, condition_tokens(clips, self.grid, up(plan.stride), up(plan.real))

    def held_out(self, batch: int, seed: int):
        """Clips, condition tokens and names, all from the held-out parts."""
        plan, names = self.held_out_plan(batch, np.random.default_rng(seed))
        return *self.render(plan), names


class Prefetcher:
    """Composes training batches in a thread, on a CUDA stream of its own."""

    def __init__(self, composer: Composer, batch: int, seed: int, depth: int = 4):
        self.composer, self.batch, self.rng = composer, batch, np.random.default_rng(seed)
        self.queue, self.stopped = queue.Queue(depth), threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            stream = torch.cuda.Stream()
            while not self.stopped.is_set():
                plan = self.composer.training_plan(self.batch, self.rng)
                with torch.no_grad(), torch.cuda.stream(stream):
                    clips, tokens = self.composer.render(plan)
                    done = torch.cuda.Event()
                    done.record()
                self.queue.put((clips, tokens, done))
        except Exception as error:  # handed to the training loop, which raises it
            self.queue.put(error)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The next batch; the current stream waits for its pixels, the host does not."""
        item = self.queue.get()
        if isinstance(item, Exception):
            raise item
        clips, tokens, done = item
        torch.cuda.current_stream().wait_event(done)
        for tensor in (clips, tokens):
            tensor.record_stream(torch.cuda.current_stream())
        return clips, tokens

    def stop(self) -> None:
        """End the thread and drop what it had prepared."""
        self.stopped.set()
        while self.thread.is_alive():
            try:
                self.queue.get(timeout=0.1)
            except queue.Empty:
                pass
