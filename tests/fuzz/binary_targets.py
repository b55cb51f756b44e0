"""Weights, features, indexes, images, and values of an LMDB."""

import argparse
import gzip
import json
import os
import struct
from collections import OrderedDict
from dataclasses import asdict
from functools import partial
from pathlib import Path

import lmdb
import torch
import torchvision  # noqa: F401 (readers import it when they need it, and no library may be loaded under watch)

from covid_cmsf.clips.formats.coclr_lmdb import CoclrLmdb, _open_environment
from covid_cmsf.clips.formats.jpeg import decode_rgb
from covid_cmsf.clips.images.idx import read_idx
from covid_cmsf.evaluation.answers import Answers, load_answers, save_answers
from covid_cmsf.evaluation.features.file import (
    Probabilities,
    load_features,
    load_probabilities,
    save_features,
    save_probabilities,
)
from covid_cmsf.files import file_sha256
from covid_cmsf.models import EncoderMetadata, create_model, load_encoder, save_encoder
from covid_cmsf.models.checkpoints.metadata import parse_metadata
from covid_cmsf.models.checkpoints.reader import read_checkpoint_file
from covid_cmsf.search.duplicates import Duplicate
from covid_cmsf.search.index import build_index, load_index, save_index
from covid_cmsf.search.page.copies import COPIES_FILE, keep_copies, read_copies
from tests.factories import encode_jpeg, moving_square, write_lmdb
from tests.fuzz import mutations
from tests.fuzz.targets import Target
from tests.search.factories import windowed_features


def encoder_metadata() -> EncoderMetadata:
    values = {"encoder": "s3d_tiny", "in_channels": 3, "input_size": (8, 64, 64), "bn_eps": 1e-5}
    return EncoderMetadata.model_validate({**values, "mean": (0.5,) * 3, "std": (0.5,) * 3})


def write_weights(folder: Path, *, zipped: bool) -> Path:
    torch.manual_seed(0)
    tensors = {"a.weight": torch.randn(3, 2), "a.bias": torch.zeros(3).half(), "b.running_var": torch.ones(2)}
    values = {"epoch": 1, "args": argparse.Namespace(lr=0.1), "state_dict": OrderedDict(tensors)}
    torch.save(values, folder / "x.pth", _use_new_zipfile_serialization=zipped)
    return folder / "x.pth"


def write_exported(folder: Path) -> Path:
    torch.manual_seed(0)
    save_encoder(folder / "x.safetensors", create_model("s3d_tiny"), encoder_metadata())
    return folder / "x.safetensors"


def write_card(folder: Path) -> Path:
    (folder / "config.json").write_text(encoder_metadata().model_dump_json(indent=1))
    return folder / "config.json"


def read_shared_card(path: Path) -> object:
    return parse_metadata(path.read_text("utf-8", "replace"), location=str(path))


def write_features(folder: Path) -> Path:
    save_features(folder / "x.safetensors", windowed_features(5, num_values=4, labeled=True))
    return folder / "x.safetensors"


def write_probabilities(folder: Path) -> Path:
    videos = windowed_features(5, num_values=4, labeled=True).videos
    values = torch.full((len(videos), len(videos.class_names)), 0.5)
    save_probabilities(folder / "x.safetensors", Probabilities(videos, values, {"protocol": "clean"}))
    return folder / "x.safetensors"


def write_answers(folder: Path) -> Path:
    sources = {"a/1": "a", "a/2": "a", "b/1": "b"}
    save_answers(folder / "x.safetensors", Answers(sources, {"R@1": {"a/1": True, "b/1": False}, "R@5": {"a/2": True}}))
    return folder / "x.safetensors"


# The index of a search


def write_index(folder: Path, name: str) -> Path:
    """Write an index whose index.json has no hash of itself, as older ones: any of its values may be changed."""
    save_index(folder, build_index({"rgb": windowed_features(5, num_values=4)}))
    content = json.loads((folder / "index.json").read_text())
    del content["content_sha256"]
    (folder / "index.json").write_text(json.dumps(content))
    return folder / name


def seal_index(path: Path) -> None:
    """Let index.json have the hashes of the files beside it."""
    description = path.with_name("index.json")
    content = json.loads(description.read_text())
    content["videos_sha256"] = file_sha256(path.with_name("videos.csv"))
    content["modalities"]["rgb"]["sha256"] = file_sha256(path.with_name("rgb.safetensors"))
    description.write_text(json.dumps(content))


def write_copies(folder: Path) -> Path:
    write_index(folder, "index.json")
    keep_copies(folder, [])
    content = json.loads((folder / COPIES_FILE).read_text())
    pair = Duplicate(0, 1, "copy", 0.9, 1.0, (0.0, 1.0), (0.5, 1.5), 1.0, False)
    (folder / COPIES_FILE).write_text(json.dumps({**content, "pairs": [asdict(pair)]}))
    return folder / COPIES_FILE


# Images


def write_idx_file(folder: Path) -> Path:
    (folder / "x-ubyte").write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, 2, 3, 4) + bytes(24))
    return folder / "x-ubyte"


def write_idx_gzip(folder: Path) -> Path:
    (folder / "x.gz").write_bytes(gzip.compress(write_idx_file(folder).read_bytes(), mtime=0))
    return folder / "x.gz"


def write_jpeg(folder: Path) -> Path:
    (folder / "x.jpg").write_bytes(encode_jpeg(moving_square(1, width=16, height=16)[0]))
    return folder / "x.jpg"


# LMDB: one value of the file is damaged


def write_value(folder: Path, key: str) -> Path:
    jpeg = encode_jpeg(moving_square(1, width=16, height=16)[0])
    path = folder / "x_frame.lmdb"
    write_lmdb(path, {"A/v_A_g01_c01": [jpeg, jpeg], "B/b": [jpeg]})
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment, environment.begin() as reads:
        value = reads.get(key.encode())
    assert value is not None
    (folder / f"{key}.value").write_bytes(value)
    return folder / f"{key}.value"


def put_value(path: Path) -> None:
    """Put the damaged value into the LMDB."""
    target = path.with_name("x_frame.lmdb")
    if _open_environment.cache_info().currsize:  # an LMDB is opened once per process
        _open_environment(target, os.getpid()).close()
        _open_environment.cache_clear()
    with lmdb.open(str(target), subdir=False, map_size=1 << 28) as environment, environment.begin(write=True) as file:
        file.put(path.stem.encode(), path.read_bytes())


def read_value(path: Path) -> object:
    clips = CoclrLmdb.open(path.with_name("x_frame.lmdb"))
    return [clips.read_raw(record, "rgb", range(min(record.num_frames, 3))) for record in clips.records]


def lmdb_target(key: str) -> Target:
    write = partial(write_value, key=key)
    return Target(f"lmdb {key}", write, read_value, mutations.damaged_msgpack, "x_frame.lmdb", put_value)


def read_index(path: Path) -> object:
    return load_index(path.parent)


BINARY_TARGETS = [
    Target("weights zip", partial(write_weights, zipped=True), read_checkpoint_file, mutations.damaged_archive),
    Target("weights old", partial(write_weights, zipped=False), read_checkpoint_file),
    Target("weights safetensors", write_exported, load_encoder, mutations.damaged_tensors),
    Target("card", write_card, read_shared_card, mutations.damaged_json),
    Target("features", write_features, load_features, mutations.damaged_tensors),
    Target("probabilities", write_probabilities, load_probabilities, mutations.damaged_tensors),
    Target("answers", write_answers, load_answers, mutations.damaged_tensors),
    Target("index", partial(write_index, name="index.json"), read_index, mutations.damaged_json, "rgb.safetensors"),
    Target(
        "index vectors",
        partial(write_index, name="rgb.safetensors"),
        read_index,
        mutations.damaged_tensors,
        prepare=seal_index,
    ),
    Target(
        "index videos", partial(write_index, name="videos.csv"), read_index, mutations.damaged_table, prepare=seal_index
    ),
    Target("copies", write_copies, lambda path: read_copies(path.parent), mutations.damaged_json),
    Target("idx", write_idx_file, read_idx),
    Target("idx gzip", write_idx_gzip, read_idx, mutations.damaged_gzip),
    Target("jpeg", write_jpeg, lambda path: decode_rgb(path.read_bytes(), str(path))),
    *map(lmdb_target, ("__keys__", "__order__", "__vlen__", "000000000")),
]
