"""Read CoCLR's published LMDB files: one value per video, a msgpack list of JPEG frames.

The RGB file is `..._frame.lmdb`, the flow file `..._tvl1_frame.lmdb` in the same folder. A flow image, read as RGB, is
(128, y, x): blue holds x, green holds y, red is constant. Files written by msgpack 0.6 (raw bytes) and by 1.0 and
later (text for names) are both read.
Shapes: T frames, H x W pixels.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covid_cmsf.clips.base import Clips, check_request
from covid_cmsf.clips.flow_codec import FULL_BOUND
from covid_cmsf.clips.formats.jpeg import decode_rgb
from covid_cmsf.clips.names import check_video_ids, guess_source
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.files import check_regular_file

MAX_FRAMES = 1 << 31


def is_lmdb(path: Path) -> bool:
    """Return whether `path` looks like an LMDB: a file `*.lmdb`, or a folder with a data.mdb."""
    return (path.is_file() and path.suffix == ".lmdb") or (path / "data.mdb").is_file()


class CoclrLmdb(Clips):
    """Clips in CoCLR's files. The files hold no splits; pass {name: {video_id: subset}} if you have them.

    The object has no open file, so it can be sent to worker processes; each process opens a file once.
    """

    def __init__(self, paths: dict[str, Path], splits: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._paths = paths
        self.splits = splits or {}
        self.flow_bound, self.modalities = FULL_BOUND, tuple(paths)
        indexes = {modality: _read_index(path) for modality, path in paths.items()}
        self._keys = {modality: {name: key for name, (key, _) in index.items()} for modality, index in indexes.items()}
        self.records = _make_records(indexes)

    @classmethod
    def open(
        cls, rgb: Path, flow: Path | None = None, *, splits: Mapping[str, Mapping[str, str]] | None = None
    ) -> "CoclrLmdb":
        """Open the RGB file and its flow file, by default `*_tvl1_frame.lmdb` in the same folder if it exists."""
        flow_path = rgb.with_name(rgb.name.replace("_frame", "_tvl1_frame"))
        if flow is None and flow_path != rgb and flow_path.exists():
            flow = flow_path
        return cls({"rgb": rgb, **({"flow": flow} if flow is not None else {})}, splits)

    def files(self, record: ClipRecord, modality: str) -> list[Path]:
        """Return the modality's LMDB."""
        path = self._paths[modality]
        return [path / "data.mdb" if path.is_dir() else path]

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """Return stored uint8 values: `rgb` (T, 3, H, W); `flow` (T, 2, H, W), x first."""
        check_request(record, modality, frame_indices, self.modalities)
        path, key = self._paths[modality], self._keys[modality][record.video_id]
        environment = _open_environment(path, os.getpid())
        with _readable(path), environment.begin() as transaction:
            jpegs = _unpack(transaction.get(key))
            chosen = [bytes(jpegs[number]) for number in frame_indices]
        location = f"{record.video_id} in {path}"
        frames = np.stack([decode_rgb(jpeg, location) for jpeg in chosen])  # (T, H, W, 3)
        if modality == "flow":
            frames = np.ascontiguousarray(frames[..., [2, 1]])  # blue is x, green is y
        return torch.from_numpy(frames).permute(0, 3, 1, 2)


@cache
def _open_environment(path: Path, process: int) -> Any:
    """Open an LMDB once per process: LMDB allows one handle per process, which must not be used after a fork."""
    if not path.exists():
        raise FileNotFoundError(f"no LMDB at {path}")
    try:
        import lmdb
        import msgpack  # noqa: F401 (used later: without it every value would look damaged)
    except ImportError:
        raise ValueError("reading LMDB files needs `pip install covid-cmsf[coclr]`") from None
    data = path / "data.mdb" if path.is_dir() else path
    check_regular_file(data)
    try:
        environment = lmdb.open(
            str(path), subdir=path.is_dir(), readonly=True, lock=False, readahead=False, meminit=False
        )
    except lmdb.Error as error:
        raise ValueError(f"{path} is not a readable LMDB: {error}") from None
    # LMDB maps the file into memory: a page beyond its end would end the process with SIGBUS.
    expected = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if data.stat().st_size < expected:
        environment.close()
        raise ValueError(f"{path} is truncated: it has {data.stat().st_size} bytes of {expected}")
    return environment


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what damaged pages and values lead to in the block into a ValueError that names the file."""
    import lmdb
    import msgpack

    damage = (lmdb.Error, msgpack.UnpackException, ValueError, TypeError, LookupError, AttributeError)
    try:
        yield
    except (*damage, OverflowError, MemoryError) as error:  # the last two: sizes that nothing has
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _unpack(value: bytes | None) -> Any:
    import msgpack

    if value is None:
        raise ValueError("it lacks an entry that it should have")
    # raw: text comes back as bytes, whichever msgpack wrote it
    return msgpack.unpackb(value, raw=True, strict_map_key=False)


def _read_index(path: Path) -> dict[str, tuple[bytes, int]]:
    """Return {video_id: (key, number of frames)}.

    `__vlen__` has the order of `__keys__`; entry i of `__order__` is the name of the video with key `%09d` of i.
    """
    environment = _open_environment(path, os.getpid())
    with _readable(path), environment.begin() as transaction:
        keys, order, lengths = (_unpack(transaction.get(name)) for name in (b"__keys__", b"__order__", b"__vlen__"))
        if not all(isinstance(one, list) and len(one) == len(keys) for one in (keys, order, lengths)):
            raise ValueError("its entries __keys__, __order__ and __vlen__ are not lists of one length")
        length_of = dict(zip(keys, lengths, strict=True))
        if any(
            isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_FRAMES for count in lengths
        ):
            raise ValueError("a number of frames in __vlen__ is none")
        names = [name.decode("utf-8", "surrogateescape") for name in order]
        index = {name: (b"%09d" % i, int(length_of[b"%09d" % i])) for i, name in enumerate(names)}
    check_video_ids(names, path)
    return index


def _make_records(indexes: dict[str, dict[str, tuple[bytes, int]]]) -> list[ClipRecord]:
    """Return records of the videos in all files with at least one frame, sorted; labels follow sorted class names."""
    common = set.intersection(*(set(index) for index in indexes.values()))
    classes = sorted({name.split("/")[0] for name in common})
    records = []
    for name in sorted(common):
        num_frames = indexes["rgb"][name][1]
        num_flow = min(indexes["flow"][name][1], num_frames) if "flow" in indexes else 0
        if num_frames:
            class_name = name.split("/")[0]
            source, label = guess_source(name), classes.index(class_name)
            records.append(ClipRecord(name, source, class_name, label, num_frames, num_flow, 0.0, 0, 0, ""))
    return records
