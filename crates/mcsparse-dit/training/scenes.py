"""The data on the GPU: clips, photographs and sprites, split once into training and held-out."""

import dataclasses
import pathlib

import cv2
import numpy as np
import torch
import torch.nn.functional as F

CLIP_CANVAS = (160, 288)  # height and width kept of every clip frame
PHOTO_CANVAS = (256, 384)
MARGIN = 4  # frames beside a held-out range that nothing uses
HELD_OUT_PHOTOS = ("china", "rocket")
HELD_OUT_SPRITE_FAMILIES = 64
# bikes.mp4 is cut: its shots are separate clips, and one whole shot is never trained on.
SHOTS = {"bikes": [(0, 30), (30, 76), (76, 137), (137, 187), (187, 242)]}
HELD_OUT_SHOTS = {("bikes", 4)}


@dataclasses.dataclass
class Shot:
    """A run of frames in the atlas; `width` is the part of the canvas that holds picture."""

    name: str
    start: int
    length: int
    width: int


def split_shot(shot: Shot, whole: bool) -> tuple[Shot | None, Shot | None]:
    """Training part and held-out part of a shot: the last 15 % (20 frames at least) are held out.

    Shots of a cut clip (`whole`) are short and stay in one piece, all for training.
    """
    if whole:
        return shot, None
    held = max(20, round(0.15 * shot.length))
    train = dataclasses.replace(shot, length=shot.length - held - MARGIN)
    return train, dataclasses.replace(shot, start=shot.start + shot.length - held, length=held)


def read_clip(path: pathlib.Path) -> tuple[np.ndarray, int]:
    """All frames, scaled to the canvas height, centre-cropped or zero-padded to its width."""
    height, canvas_width = CLIP_CANVAS
    capture, frames, width = cv2.VideoCapture(str(path)), [], 0
    while True:
        ok, frame = capture.read()
        if not ok:
            break
        scaled = round(frame.shape[1] * height / frame.shape[0])
        frame = cv2.resize(frame, (scaled, height), interpolation=cv2.INTER_AREA)
        width = min(scaled, canvas_width)
        left = (scaled - width) // 2
        out = np.zeros((height, canvas_width, 3), np.uint8)
        out[:, :width] = frame[:, left : left + width, ::-1]
        frames.append(out)
    return np.stack(frames), width


def read_photo(path: pathlib.Path) -> tuple[np.ndarray, int]:
    """One photograph, scaled to the photo canvas height."""
    height, canvas_width = PHOTO_CANVAS
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)[..., ::-1]
    scaled = round(image.shape[1] * height / image.shape[0])
    image = cv2.resize(image, (scaled, height), interpolation=cv2.INTER_AREA)
    width = min(scaled, canvas_width)
    left = (scaled - width) // 2
    out = np.zeros((height, canvas_width, 3), np.uint8)
    out[:, :width] = image[:, left : left + width]
    return out, width


def procedural(count: int, seed: int) -> np.ndarray:
    """Smooth random colour fields: backgrounds that no photograph has."""
    generator = torch.Generator().manual_seed(seed)
    low = torch.rand(count, 3, 3, 4, generator=generator)
    mid = torch.rand(count, 3, 8, 12, generator=generator)
    fields = F.interpolate(low, PHOTO_CANVAS, mode="bicubic") * 0.8
    fields += F.interpolate(mid, PHOTO_CANVAS, mode="bicubic") * 0.2
    return (fields.clamp(0, 1) * 255).byte().permute(0, 2, 3, 1).numpy()


def split_sprites(names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Indices for training and held-out; emoji that share a first code point stay together."""
    families = np.array([n.split("-")[0] for n in names])
    order = np.random.default_rng(2024).permutation(np.unique(families))
    held = np.isin(families, order[:HELD_OUT_SPRITE_FAMILIES])
    return np.flatnonzero(~held), np.flatnonzero(held)


class Scenes:
    """Everything the composer draws from. `pool` shrinks all pictures, for the small canvas of nano."""

    def __init__(self, root: pathlib.Path, device: str, pool: int = 1):
        frames, self.train_shots, self.held_shots, start = [], [], [], 0
        for path in sorted((root / "clips").iterdir()):
            clip, width = read_clip(path)
            cuts = SHOTS.get(path.stem, [(0, len(clip))])
            for number, (first, end) in enumerate(cuts):
                shot = Shot(path.stem, start + first, end - first, width)
                if (path.stem, number) in HELD_OUT_SHOTS:
                    self.held_shots.append(shot)
                    continue
                train, held = split_shot(shot, whole=len(cuts) > 1)
                self.train_shots.append(train)
                if held is not None:
                    self.held_shots.append(held)
            frames.append(clip)
            start += len(clip)
        photos = [(p.stem, *read_photo(p)) for p in sorted((root / "photos").iterdir())]
        fields = procedural(96, seed=7)
        names = [p[0] for p in photos] + [f"field{i}" for i in range(len(fields))]
        self.photo_width = np.array([p[2] for p in photos] + [PHOTO_CANVAS[1]] * len(fields))
        held = [n in HELD_OUT_PHOTOS or (n[:5] == "field" and int(n[5:]) >= 80) for n in names]
        self.photo_names, self.held_photos = names, np.flatnonzero(held)
        self.train_photos = np.flatnonzero(~np.array(held))
        self.real_photos = len(photos)
        sprites = np.load(root / "sprites.npz")
        self.sprite_names = [str(n) for n in sprites["names"]]
        self.train_sprites, self.held_sprites = split_sprites(self.sprite_names)
        stills = np.concatenate([np.stack([p[1] for p in photos]), fields])
        self.frames = self._atlas(np.concatenate(frames), device, pool)
        self.photos = self._atlas(stills, device, pool)
        self.sprites = self._atlas(sprites["images"].transpose(0, 2, 3, 1), device, pool)

    @staticmethod
    def _atlas(pictures: np.ndarray, device: str, pool: int) -> torch.Tensor:
        """`[N, H, W, C]` uint8 pictures to `[N, C, H / pool, W / pool]` uint8 on the device."""
        parts = []
        for chunk in torch.from_numpy(np.ascontiguousarray(pictures)).split(256):
            chunk = chunk.to(device).permute(0, 3, 1, 2)
            if pool > 1:
                chunk = F.avg_pool2d(chunk.float(), pool).round().byte()
            parts.append(chunk.contiguous())
        return torch.cat(parts)
