"""Sets of images are clips of one frame: folders, IDX files, sets of torchvision, and their addresses."""

import inspect
import os
import pickle
import struct
import zlib
from pathlib import Path

import lmdb
import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.images.classes import CMC100, resolve_class_list
from covid_cmsf.clips.images.torchvision import SAFE_DATASETS
from covid_cmsf.clips.images.uri import is_image_uri, parse_uri
from tests.factories import encode_jpeg, make_idx_folder, make_image, make_image_folder, write_idx

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist


def test_a_folder_of_images_reads_like_torchvisions(tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "set")
    images = open_clips(root)
    peer = torchvision.datasets.ImageFolder(str(root / "train"))
    train = images.select("1", "train")
    assert [record.label for record in train] == peer.targets and len(images.select("1", "test")) == 9
    for record, (expected, _) in zip(train, peer, strict=True):
        found = images.read_raw(record, "rgb", [0, 0])
        assert found.dtype == torch.uint8 and found.shape == (2, 3, 20, 20)
        assert np.array_equal(found[1].permute(1, 2, 0).numpy(), np.asarray(expected))
    assert images.is_image and images.modalities == ("rgb",)
    assert train[0].video_id == "train/class0/train_0_0.png" and train[0].class_name == "class0"


def test_val_beside_test_stays_val(tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "set", test_name="test")
    (root / "train").rename(root / "val")
    make_image_folder(tmp_path / "other")
    (tmp_path / "other" / "train").rename(root / "train")
    images = open_clips(root)
    assert {subset: len(images.select("1", subset)) for subset in ("train", "val", "test")} == {
        "train": 24,
        "val": 24,
        "test": 9,
    }


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_are_read(tmp_path: Path, suffix: str) -> None:
    images = open_clips(make_idx_folder(tmp_path / "idx", suffix=suffix))
    train = images.select("1", "train")
    assert [record.label for record in train[:4]] == [0, 1, 2, 0] and len(images.select("1", "test")) == 9
    found = images.read_raw(train[4], "rgb", [0])
    assert np.array_equal(found[0, 2].numpy(), make_image(1, 4)[..., 0]) and torch.equal(found[0, 0], found[0, 2])


def test_idx_files_may_have_colors(tmp_path: Path) -> None:
    images = open_clips(make_idx_folder(tmp_path / "idx", color=True))
    record = images.select("1", "train")[4]
    assert np.array_equal(images.read_raw(record, "rgb", [0])[0].permute(1, 2, 0).numpy(), make_image(1, 4))
    write_idx(tmp_path / "idx" / "train-images-idx4-ubyte", np.zeros((24, 4, 4, 2), np.uint8))
    with pytest.raises(ValueError, match=r"shape \(24, 4, 4, 2\)"):
        open_clips(tmp_path / "idx")


def test_damaged_idx_files_are_named(tmp_path: Path) -> None:
    root = make_idx_folder(tmp_path / "idx", suffix="")
    path = root / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="train-images.*truncated"):
        open_clips(root)
    path.write_bytes(b"GIF89a")
    with pytest.raises(ValueError, match="not an IDX file"):
        open_clips(root)
    write_idx(path, np.zeros((3, 4, 4), np.uint8))
    with pytest.raises(ValueError, match="labels"):
        open_clips(root)
    (root / "t10k-labels-idx1-ubyte").unlink()
    write_idx(path, np.zeros((24, 4, 4), np.uint8))
    with pytest.raises(FileNotFoundError, match="t10k-labels"):
        open_clips(root)


def test_torchvision_sets_open_by_name(tmp_path: Path) -> None:
    root = make_idx_folder(tmp_path / "FashionMNIST" / "raw", suffix="")
    images = open_clips(f"torchvision:FashionMNIST?root={tmp_path}")
    again = open_clips(root)
    assert [r.label for r in images.records] == [r.label for r in again.records]
    assert images.records[0].class_name == "T-shirt/top"
    one, other = (c.read_raw(c.records[7], "rgb", [0]) for c in (images, again))
    assert torch.equal(one, other)


def test_missing_sets_say_where_they_were_sought(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"CIFAR10.*download=true"):
        open_clips(f"torchvision:CIFAR10?root={tmp_path}")
    with pytest.raises(FileNotFoundError, match="DTD"):
        open_clips(f"torchvision:DTD?root={tmp_path}")
    with pytest.raises(ValueError, match=r"torchvision:CIFAR11 is not a data set .* CIFAR10, "):
        open_clips(f"torchvision:CIFAR11?root={tmp_path}")
    with pytest.raises(ValueError, match=r"root is missing"):
        open_clips("torchvision:CIFAR10")
    with pytest.raises(FileNotFoundError, match="no images at"):
        open_clips(f"{tmp_path}/nowhere?per_class=3")


class Payload:
    """Runs code when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.marker,)


def test_an_address_never_runs_code_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d").mkdir()
    lmdb.open("d/bedroom_train_lmdb").close()
    Path("_cache_dbedroomtrainlmdb").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    with pytest.raises(ValueError, match="torchvision:LSUN is not a data set that can be opened by name: CIFAR10"):
        open_clips("torchvision:LSUN?root=d")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", sorted(set(torchvision.datasets.__all__) - set(SAFE_DATASETS)))
def test_other_classes_of_torchvision_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"torchvision:{name} is not"):
        open_clips(f"torchvision:{name}?root={tmp_path}")


@pytest.mark.parametrize("name", SAFE_DATASETS)
def test_the_sets_of_the_list_exist_and_unpickle_nothing_unchecked(name: str) -> None:
    source = inspect.getsource(inspect.getmodule(getattr(torchvision.datasets, name)))  # type: ignore[arg-type]
    if name.startswith("CIFAR"):
        assert source.index("if not self._check_integrity()") < source.index("pickle.load")
    else:
        assert "pickle" not in source and "np.load(" not in source
    assert source.count("torch.load(") == source.count("weights_only=True")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("/x?clases=a", "unknown option 'clases'; choose from classes, per_class"),
        ("/x?root=a", "unknown option 'root'"),
        ("torchvision:X?rot=a", "choose from root, download"),
    ],
)
def test_typos_in_uris_are_errors(uri: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_uri(uri)


def test_bad_values_in_uris_are_errors(tmp_path: Path) -> None:
    root = make_idx_folder(tmp_path / "idx")
    with pytest.raises(ValueError, match="per_class = 'many'"):
        open_clips(f"{root}?per_class=many")
    with pytest.raises(ValueError, match="download = 'yes'"):
        open_clips(f"torchvision:FashionMNIST?root={root}&download=yes")


def test_ordinary_clips_are_no_images(tmp_path: Path) -> None:
    (tmp_path / "why?").mkdir()
    assert not is_image_uri(str(tmp_path / "why?"))
    assert not is_image_uri(str(tmp_path)) and not is_image_uri(str(tmp_path / "nothing"))


def test_classes_and_counts_can_be_chosen(tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "set", classes=4)
    (tmp_path / "list.txt").write_text("class3\nclass1\n")
    images = open_clips(f"{root}?classes={tmp_path / 'list.txt'}&per_class=2")
    assert {(r.class_name, r.label) for r in images.records} == {("class1", 0), ("class3", 1)}
    assert len(images.select("1", "train")) == 4 and len(images.select("1", "test")) == 6
    with pytest.raises(FileNotFoundError, match="cmc100, official100"):
        open_clips(f"{root}?classes=cmc10")
    with pytest.raises(ValueError, match="100 classes that the set does not have"):
        open_clips(f"{root}?classes=cmc100")


def test_official100_is_numpys_permutation_of_seed_1234_and_cmc100_has_a_hundred_classes() -> None:
    assert len(set(CMC100)) == 100
    there = sorted({*CMC100, *(f"n9{i:07d}" for i in range(900))})
    picked = resolve_class_list("official100", there)
    numbers = np.random.RandomState(1234).permutation(1000)[:100]
    assert picked == sorted(there[i] for i in numbers) and len(set(picked)) == 100
    with pytest.raises(ValueError, match="1000 classes; this set has 3"):
        resolve_class_list("official100", ["a", "b", "c"])


def test_broken_images_are_errors_with_their_path(tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "set")
    broken = root / "train" / "class1" / "train_1_0.png"
    broken.write_bytes(b"no picture")
    images = open_clips(root)
    record = next(r for r in images.records if r.video_id.endswith("train_1_0.png"))
    with pytest.raises(ValueError, match=r"train_1_0.png is not a readable image"):
        images.read_raw(record, "rgb", [0])


def png_header(width: int, height: int) -> bytes:
    """A PNG file of a few bytes that claims to be large."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


def jpeg_header(width: int, height: int) -> bytes:
    data = bytearray(encode_jpeg(np.zeros((8, 8, 3), np.uint8)))
    start = data.index(b"\xff\xc0")
    data[start + 5 : start + 9] = struct.pack(">HH", height, width)
    return bytes(data)


BAD_IMAGES = {
    "bomb.png": png_header(30_000, 30_000),
    "large.png": png_header(12_000, 10_000),
    "bomb.jpg": jpeg_header(65_000, 65_000),
    "cut.png": None,
    "empty.jpg": b"",
    "fifo.png": None,
    "loop.png": None,
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_one_bad_image_is_named_and_leaves_the_others_readable(tmp_path: Path, name: str) -> None:
    root = make_image_folder(tmp_path / "set")
    path, content = root / "train" / "class0" / name, BAD_IMAGES[name]
    if content is not None:
        path.write_bytes(content)
    elif name == "cut.png":
        path.write_bytes((root / "train" / "class0" / "train_0_0.png").read_bytes()[:-100])
    elif name == "fifo.png":
        os.mkfifo(path)
    else:
        path.symlink_to(path)
    images = open_clips(root)
    (record,) = [r for r in images.records if r.video_id.endswith(name)]
    with pytest.raises((ValueError, OSError), match=rf"{name}"):
        images.read_raw(record, "rgb", [0])
    assert images.read_raw(images.records[1 if images.records[0] is record else 0], "rgb", [0]).shape == (1, 3, 20, 20)


@pytest.mark.parametrize("name", ["bomb.jpg", "empty.jpg", "fifo.png"])
def test_one_bad_frame_of_a_jpeg_folder_is_named(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "frames" / "a" / "one"
    folder.mkdir(parents=True)
    for number in (1, 3):
        (folder / f"img_{number:05d}.jpg").write_bytes(encode_jpeg(make_image(0, number)))
    bad = folder / "img_00002.jpg"
    os.mkfifo(bad) if name == "fifo.png" else bad.write_bytes(BAD_IMAGES[name] or b"")
    clips = open_clips(tmp_path / "frames")
    assert clips.read_raw(clips.records[0], "rgb", [0, 2]).shape == (2, 3, 20, 20)
    with pytest.raises(ValueError, match="img_00002.jpg"):
        clips.read_raw(clips.records[0], "rgb", [0, 1])


def test_gray_and_transparent_files_become_rgb(tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "set")
    Image.fromarray(np.full((9, 7), 100, np.uint8)).save(root / "train" / "class0" / "a.png")
    Image.fromarray(np.full((9, 7, 4), 200, np.uint8)).save(root / "train" / "class0" / "b.png")
    images = open_clips(root)
    for name in ("a", "b"):
        record = next(r for r in images.records if r.video_id.endswith(f"{name}.png"))
        assert images.read_raw(record, "rgb", [0]).shape == (1, 3, 9, 7)


def test_images_travel_to_worker_processes(tmp_path: Path) -> None:
    for uri in (make_image_folder(tmp_path / "a"), make_idx_folder(tmp_path / "b")):
        images = open_clips(uri)
        there = pickle.loads(pickle.dumps(images))
        record = images.records[3]
        assert torch.equal(there.read_raw(record, "rgb", [0]), images.read_raw(record, "rgb", [0]))


@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed")
def test_fashion_mnist_is_whole() -> None:
    images = open_clips(FASHION_MNIST)
    assert len(images.select("1", "train")) == 60000 and len(images.select("1", "test")) == 10000
    assert np.bincount([r.label for r in images.records]).tolist() == [7000] * 10
    assert images.read_raw(images.records[0], "rgb", [0]).shape == (1, 3, 28, 28)
