"""Small copies of the ten data sets in the formats of their authors. A picture's color tells its label."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image
from scipy.io import savemat

NAMES = ("alpha", "beta")  # the classes; label 0 and 1


def color(label: int) -> tuple[int, int, int]:
    """What a picture of this label looks like."""
    return 60 + 120 * label, 100, 200


def picture(path: Path, label: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 8), color(label)).save(path)


def write_food101(root: Path) -> None:
    base = root / "food-101"
    for split, numbers in (("train", range(78)), ("test", range(78, 80))):
        listed = {name: [f"{name}/{i}" for i in numbers] for name in NAMES}
        for label, name in enumerate(NAMES):
            for entry in listed[name]:
                picture(base / "images" / f"{entry}.jpg", label)
        (base / "meta").mkdir(exist_ok=True)
        (base / "meta" / f"{split}.json").write_text(json.dumps(listed))


def write_cifar(root: Path, folder: str, files: dict[str, int], meta: str, key: str, labels: str) -> None:
    base = root / folder
    base.mkdir()
    for name, count in files.items():
        wanted = [i % 2 for i in range(count)]
        data = np.stack([np.repeat(np.array(color(label), np.uint8), 1024) for label in wanted])
        (base / name).write_bytes(pickle.dumps({"data": data, labels: wanted}))
    (base / meta).write_bytes(pickle.dumps({key: list(NAMES)}))


def write_cifar10(root: Path) -> None:
    files = {f"data_batch_{i}": 24 for i in range(1, 6)} | {"test_batch": 4}
    write_cifar(root, "cifar-10-batches-py", files, "batches.meta", "label_names", "labels")


def write_cifar100(root: Path) -> None:
    write_cifar(root, "cifar-100-python", {"train": 120, "test": 4}, "meta", "fine_label_names", "fine_labels")


def write_sun397(root: Path) -> None:
    base = root / "SUN397"
    for split, numbers in (("Training_01.txt", range(12)), ("Testing_01.txt", range(12, 15))):
        lines = [f"/{name[0]}/{name}/sun_{i}.jpg" for name in NAMES for i in numbers]
        for line in lines:
            picture(base / line[1:], NAMES.index(line.split("/")[2]))
        (base / split).write_text("\n".join(lines) + "\n")
    (base / "ClassName.txt").write_text("".join(f"/{name[0]}/{name}\n" for name in NAMES))


def write_cars(root: Path) -> None:
    base = root / "stanford_cars"
    kind = [("fname", object), ("class", object)]
    (base / "devkit").mkdir(parents=True)
    for split, table, count in (
        ("cars_train", base / "devkit" / "cars_train_annos.mat", 20),
        ("cars_test", base / "cars_test_annos_withlabels.mat", 6),
    ):
        rows = [(f"{i:05d}.jpg", i % 2 + 1) for i in range(count)]
        for name, label in rows:
            picture(base / split / name, label - 1)
        savemat(table, {"annotations": np.array(rows, dtype=kind)})
    savemat(base / "devkit" / "cars_meta.mat", {"class_names": np.array(NAMES, dtype=object)})


def write_aircraft(root: Path) -> None:
    base = root / "fgvc-aircraft-2013b" / "data"
    base.mkdir(parents=True)
    (base / "variants.txt").write_text("\n".join(NAMES) + "\n")
    for split, numbers in (("trainval", range(20)), ("test", range(20, 26))):
        lines = [f"{i:07d} {NAMES[i % 2]}" for i in numbers]
        (base / f"images_variant_{split}.txt").write_text("\n".join(lines) + "\n")
        for i in numbers:
            picture(base / "images" / f"{i:07d}.jpg", i % 2)


def write_dtd(root: Path) -> None:
    base = root / "dtd" / "dtd"
    (base / "labels").mkdir(parents=True)
    for start, split in enumerate(("train", "val", "test")):
        lines = [f"{name}/{name}_{4 * start + i}.jpg" for name in NAMES for i in range(4)]
        (base / "labels" / f"{split}1.txt").write_text("\n".join(lines) + "\n")
        for line in lines:
            picture(base / "images" / line, NAMES.index(line.split("/")[0]))


def write_pets(root: Path) -> None:
    base = root / "oxford-iiit-pet"
    (base / "annotations").mkdir(parents=True)
    for split, numbers in (("trainval", range(46)), ("test", range(46, 52))):
        lines = [f"{NAMES[i % 2]}_{i} {i % 2 + 1} 1 1" for i in numbers]
        (base / "annotations" / f"{split}.txt").write_text("\n".join(lines) + "\n")
        for i in numbers:
            picture(base / "images" / f"{NAMES[i % 2]}_{i}.jpg", i % 2)


def write_caltech101(root: Path) -> None:
    for label, name in enumerate(("BACKGROUND_Google", "accordion")):
        for i in range(1, 34):
            picture(root / "caltech101" / "101_ObjectCategories" / name / f"image_{i:04d}.jpg", label)
    (root / "caltech101" / "101_ObjectCategories" / "BACKGROUND_Google" / "tmp").write_text("not a picture")


def write_flowers102(root: Path) -> None:
    base = root / "flowers-102"
    labels = [i % 2 for i in range(24)]
    for i, label in enumerate(labels, start=1):
        picture(base / "jpg" / f"image_{i:05d}.jpg", label)
    savemat(base / "imagelabels.mat", {"labels": np.array(labels) + 1})
    numbers = np.arange(1, 25)
    savemat(base / "setid.mat", {"trnid": numbers[:8], "valid": numbers[8:16], "tstid": numbers[16:]})


WRITERS: dict[str, Callable[[Path], None]] = {
    "food101": write_food101,
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
    "sun397": write_sun397,
    "cars": write_cars,
    "aircraft": write_aircraft,
    "dtd": write_dtd,
    "pets": write_pets,
    "caltech101": write_caltech101,
    "flowers102": write_flowers102,
}


def accept_any_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision compares the files of three data sets with the hashes of the real ones."""
    for kind in (torchvision.datasets.CIFAR10, torchvision.datasets.CIFAR100):
        for field in ("train_list", "test_list"):
            monkeypatch.setattr(kind, field, [[name, None] for name, _ in getattr(kind, field)])
        monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": None})
    files = {key: (name, None) for key, (name, _) in torchvision.datasets.Flowers102._file_dict.items()}
    monkeypatch.setattr(torchvision.datasets.Flowers102, "_file_dict", files)
