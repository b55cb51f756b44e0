"""tools/cifar10_sprites.py: the sprites of an npm package become IDX files."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

from covid_cmsf.clips import open_clips
from tests.factories import write_idx
from tools.cifar10_sprites import LABELS, SPRITES, main


def make_package(folder: Path, *, width: int = 1024) -> dict[str, np.ndarray]:
    """Write sprites of 3 images and labels; return the images of each subset as (N, 1024, 3)."""
    folder.mkdir()
    pixels = {}
    for subset, names in SPRITES.items():
        images = np.random.default_rng(len(names)).integers(0, 256, (3 * len(names), width, 3), dtype=np.uint8)
        for number, name in enumerate(names):
            Image.fromarray(images[3 * number : 3 * number + 3]).save(folder / name)
        (folder / LABELS[subset]).write_text(json.dumps([i % 10 for i in range(len(images))]))
        pixels[subset] = images
    return pixels


def test_sprites_become_idx_files_in_order(tmp_path: Path) -> None:
    pixels = make_package(tmp_path / "package")
    main(tmp_path / "package", tmp_path / "cifar10")
    images = open_clips(tmp_path / "cifar10")
    for subset, expected in pixels.items():
        records = images.select("1", subset)
        assert [record.label for record in records] == [i % 10 for i in range(len(expected))]
        for record, row in zip(records, expected, strict=True):
            found = images.read_raw(record, "rgb", [0])[0]
            assert all(tuple(found[:, i // 32, i % 32].tolist()) == tuple(row[i]) for i in range(0, 1024, 37))
    twin = tmp_path / "twin"
    write_idx(twin, pixels["test"].reshape(-1, 32, 32, 3))
    assert (tmp_path / "cifar10" / "t10k-images-idx4-ubyte").read_bytes() == twin.read_bytes()


def test_what_is_no_such_package_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    make_package(tmp_path / "wide", width=900)
    with pytest.raises(ValueError, match="900 pixels wide"):
        main(tmp_path / "wide", tmp_path / "out")
    make_package(tmp_path / "package")
    (tmp_path / "package" / LABELS["test"]).write_text("[1, 2]")
    with pytest.raises(typer.BadParameter, match="3 images of test"):
        main(tmp_path / "package", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(typer.BadParameter, match="not empty"):
        main(tmp_path / "package", tmp_path / "full")
