"""The ten data sets as torchvision keeps them, folders of one's own, and what is said when files are missing."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import FakeData

from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.evaluation.features.video_dataset import VideoDataset, load_videos
from covid_cmsf.evaluation.transfer import factory as factory_module
from covid_cmsf.evaluation.transfer.datasets import DATASETS, SplitRule
from covid_cmsf.evaluation.transfer.factory import DatasetImages, open_datasets, open_folder, open_torchvision
from tests.evaluation.factories import small_encoder
from tests.evaluation.transfer_factories import WRITERS, accept_any_hash, color, picture

SIZES = {
    "food101": (6, 150, 4),
    "cifar10": (20, 100, 4),
    "cifar100": (20, 100, 4),
    "sun397": (4, 20, 6),
    "cars": (16, 4, 6),
    "aircraft": (16, 4, 6),
    "dtd": (8, 8, 8),
    "pets": (6, 40, 6),
    "caltech101": (50, 10, 6),
    "flowers102": (8, 8, 8),
}


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_is_read_as_its_authors_wrote_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_any_hash(monkeypatch)
    WRITERS[name](tmp_path)
    before = sorted(tmp_path.rglob("*"))
    (opened,) = open_datasets([name], tmp_path)
    images = opened.images
    assert tuple(images.sizes()[subset] for subset in ("train", "val", "test")) == SIZES[name]
    assert len(opened.differences) == 3 and "Table A2 has" in opened.differences[0]
    assert (opened.column, opened.metric) == (DATASETS[name].column, DATASETS[name].metric)
    labels = {}
    for record in images.records[::7]:
        codes = images.read_raw(record, "rgb", [0])
        assert codes.dtype == torch.uint8 and codes.shape[:2] == (1, 3)
        assert (codes[0].float().mean((1, 2)) - torch.tensor(color(record.label))).abs().max() < 4
        labels[record.label] = record.class_name
    assert set(labels) == {0, 1} and labels[0] != labels[1]
    assert sorted(tmp_path.rglob("*")) == before, "opening changed the data set"


@pytest.mark.parametrize("name", DATASETS)
def test_a_missing_data_set_is_named_with_its_place(name: str, tmp_path: Path) -> None:
    row = DATASETS[name]
    with pytest.raises(FileNotFoundError, match=f"{name}: no folder {tmp_path / row.folder}") as missing:
        open_torchvision(row, tmp_path)
    assert ("--download" in str(missing.value)) == (name != "cars")
    assert not list(tmp_path.iterdir())
    (tmp_path / row.folder).mkdir()
    with pytest.raises(FileNotFoundError, match=f"{name}: {tmp_path / row.folder} is incomplete"):
        open_torchvision(row, tmp_path)
    with pytest.raises(NotADirectoryError, match="no folder .*nowhere; --root"):
        open_torchvision(row, tmp_path / "nowhere")


def test_all_missing_data_sets_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="dtd: no folder .*; pets: no folder"):
        open_datasets(["dtd", "pets"], tmp_path)
    with pytest.raises(ValueError, match="unknown data set 'cifar'; choose from food101, cifar10"):
        open_datasets(["dtd", "cifar"], tmp_path)


def test_cars_cannot_be_downloaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be downloaded anymore"):
        open_torchvision(DATASETS["cars"], tmp_path, download=True)


def test_without_scipy_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory_module, "find_spec", lambda name: None)
    for name in ("cars", "flowers102"):
        WRITERS[name](tmp_path)
        with pytest.raises(ValueError, match=f"{name}: torchvision needs SciPy .*pip install scipy"):
            open_torchvision(DATASETS[name], tmp_path)


def test_a_missing_list_of_sun397_is_named_with_its_origin(tmp_path: Path) -> None:
    WRITERS["sun397"](tmp_path)
    (tmp_path / "Partitions").mkdir()
    (tmp_path / "SUN397" / "Training_01.txt").rename(tmp_path / "Partitions" / "Training_01.txt")
    assert open_torchvision(DATASETS["sun397"], tmp_path).images.sizes()["train"] == 4
    (tmp_path / "SUN397" / "Testing_01.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"no file Testing_01.txt in .*official lists.*Partitions.zip"):
        open_torchvision(DATASETS["sun397"], tmp_path)
    (tmp_path / "SUN397" / "Testing_01.txt").write_text("/z/zoo/sun_1.jpg\n")
    with pytest.raises(ValueError, match="Testing_01.txt, line 1: '/z/zoo/sun_1.jpg' is in no class"):
        open_torchvision(DATASETS["sun397"], tmp_path)


def test_a_missing_picture_of_a_list_keeps_its_record_and_is_an_error_when_read(tmp_path: Path) -> None:
    WRITERS["sun397"](tmp_path)
    (tmp_path / "SUN397" / "b" / "beta" / "sun_13.jpg").unlink()
    images = open_torchvision(DATASETS["sun397"], tmp_path).images
    record = next(record for record in images.records if record.video_id == "test/000004")
    assert record.class_name == "beta" and images.sizes()["test"] == 6
    with pytest.raises(FileNotFoundError):
        images.read_raw(record, "rgb", [0])


def test_pieces_that_number_classes_differently_are_refused(tmp_path: Path) -> None:
    WRITERS["dtd"](tmp_path)
    table = tmp_path / "dtd" / "dtd" / "labels" / "test1.txt"
    table.write_text("".join(line for line in table.read_text().splitlines(keepends=True) if "alpha" not in line))
    with pytest.raises(ValueError, match="dtd: train and test do not have the same classes: alpha"):
        open_torchvision(DATASETS["dtd"], tmp_path)


def test_a_folder_of_ones_own_is_known_by_the_bytes_of_its_pictures(tmp_path: Path) -> None:
    own = tmp_path / "own"
    for subset in ("train", "val", "test"):
        for label, name in enumerate(("cat", "dog")):
            picture(own / subset / name / "1.png", label)
    opened = open_folder(own)
    assert (opened.name, opened.metric, opened.differences) == ("own", "top1", ())
    assert opened.images.sizes() == {"test": 2, "train": 2, "val": 2}
    digests = [record.source_sha256 for record in opened.images.records]
    Image.new("RGB", (10, 8), (1, 2, 3)).save(own / "val" / "dog" / "1.png")
    assert [record.source_sha256 for record in open_folder(own).images.records][3] != digests[3]
    assert len(open_datasets([str(own)], Path())) == 1
    with pytest.raises(ValueError, match="data sets with the same name: own"):
        open_datasets([str(own), f"{own}/"], Path())
    shutil.rmtree(own / "val")
    with pytest.raises(FileNotFoundError, match="no folder .*own/val; a folder of images needs train, val, test"):
        open_folder(own)
    with pytest.raises(ValueError, match="has the name of one of the ten"):
        open_folder(own_copy(tmp_path, "dtd"))


def own_copy(tmp_path: Path, name: str) -> Path:
    for subset in ("train", "val", "test"):
        picture(tmp_path / name / subset / "cat" / "1.png", 0)
    return tmp_path / name


def fake(**changes: Any) -> DatasetImages:
    """Generated pictures; the labels of FakeData are drawn with the pictures, so they are asked for once."""
    data = FakeData(size=6, image_size=(3, 9, 7), num_classes=2)
    labels = [int(data[i][1]) for i in range(6)]
    given = {"source_splits": dict.fromkeys(("train", "val", "test"), data), "class_names": ("a", "b"), **changes}
    given = {"labels": dict.fromkeys(given["source_splits"], labels), "rule": SplitRule(None), **given}
    return DatasetImages(**given)


def test_images_are_clips_of_one_frame() -> None:
    images = fake()
    record = images.records[1]
    assert (record.video_id, record.source, record.num_frames, record.num_flow) == (
        "train/000001",
        "train/000001",
        1,
        0,
    )
    assert images.select("1", "val")[0].video_id == "val/000000" and images.modalities == ("rgb",)
    expected = torch.from_numpy(np.array(FakeData(size=6, image_size=(3, 9, 7))[1][0]))
    assert torch.equal(images.read_raw(record, "rgb", [0])[0], expected.permute(2, 0, 1))
    assert images.read_raw(record, "rgb", [0, 0]).shape == (2, 3, 9, 7)
    with pytest.raises(ValueError, match="has rgb frames 0 to 0; asked for 1"):
        images.read_raw(record, "rgb", [1])
    with pytest.raises(ValueError, match="no modality 'flow' in these clips"):
        images.read_raw(record, "flow", [0])


def test_gray_and_transparent_pictures_become_rgb() -> None:
    gray, clear = Image.new("L", (4, 5), 7), Image.new("RGBA", (4, 5), (1, 2, 3, 0))
    source_splits = {"train": [(gray, 0)], "val": [(clear, 0)], "test": [(gray, 0)]}
    images = DatasetImages(source_splits, {source_split: [0] for source_split in source_splits}, ["a"], SplitRule(None))
    shapes = [images.read_raw(record, "rgb", [0]).shape for record in images.records]
    assert shapes == [(1, 3, 5, 4)] * 3


def test_labels_must_fit_the_images() -> None:
    with pytest.raises(ValueError, match="train has 6 images and 2 labels"):
        fake(labels={"train": [0, 1]})
    with pytest.raises(ValueError, match="image 0 of train has label 5; there are 2 classes"):
        fake(labels={"train": [5] * 6})


@pytest.mark.slow
def test_worker_processes_read_the_same_images(tmp_path: Path) -> None:
    WRITERS["dtd"](tmp_path)
    images = open_torchvision(DATASETS["dtd"], tmp_path).images
    again = pickle.loads(pickle.dumps(images))
    assert torch.equal(again.read_raw(again.records[3], "rgb", [0]), images.read_raw(images.records[3], "rgb", [0]))
    eval_protocol = build_eval_protocol(small_encoder("frame", name="r18_cifar")[1].metadata, modality="frame")
    data = VideoDataset(images, images.records, list(images.splits["1"].values()), eval_protocol)
    for mine, theirs in zip(
        load_videos(data, [0, 9, 20], num_workers=0), load_videos(data, [0, 9, 20], num_workers=1), strict=True
    ):
        assert not mine.error and torch.equal(mine.crops[0], theirs.crops[0])
