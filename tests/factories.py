"""Small video files and image sets for tests.

A video is a textured square that moves over a textured ground; the classes of an image set differ in color and in the
position of a bar. Shapes: T frames, H x W pixels.
"""

import fcntl
import gzip
import os
import resource
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path

import av
import cv2
import lmdb
import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from covid_cmsf.clips.audio_info import AudioInfo
from covid_cmsf.clips.records import (
    MOTION_VECTORS,
    ClipRecord,
    FlowInfo,
    StoredModality,
    StoreInfo,
    clip_path,
    info_to_json,
    write_manifest,
    write_split,
)
from preprocess.convert import convert
from preprocess.synthetic import DemoConfig
from preprocess.synthetic.dataset import clip_names, write_clip


def moving_square(num_frames: int, *, width: int = 64, height: int = 48, seed: int = 0) -> NDArray[np.uint8]:
    """Return RGB frames (T, H, W, 3), all different."""
    rng = np.random.default_rng(seed)
    ground = cv2.GaussianBlur(rng.integers(0, 256, (height, width, 3)).astype(np.uint8), (0, 0), 2)
    patch = cv2.GaussianBlur(rng.integers(0, 256, (height // 3, width // 3, 3)).astype(np.uint8), (0, 0), 1)
    frames = np.repeat(ground[None], num_frames, axis=0)
    for number, frame in enumerate(frames):
        x, y = 1 + number % (width // 2), height // 4 + (number // (width // 2)) % (height // 3)
        frame[y : y + patch.shape[0], x : x + patch.shape[1]] = patch
    return frames


def write_video(
    path: Path,
    frames: NDArray[np.uint8],
    *,
    codec: str = "mpeg4",
    container: str | None = None,
    fps: int = 25,
    pixel_format: str = "yuv420p",
    times: list[int] | None = None,
    metadata: dict[str, str] | None = None,
    options: dict[str, object] | None = None,
) -> Path:
    """Encode RGB frames; `times` (in units of 1/fps) makes the frame rate variable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format=container) as file:
        file.metadata.update(metadata or {})
        stream = file.add_stream(codec, rate=fps)
        assert isinstance(stream, av.VideoStream), codec
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pixel_format
        stream.options = options or {}
        stream.codec_context.bit_rate = 4_000_000
        file.start_encoding()  # else a file without frames would not even be made
        for number, frame in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            picture.pts, picture.time_base = (times[number] if times else number), Fraction(1, fps)
            file.mux(stream.encode(picture))
        file.mux(stream.encode(None))
    return path


def write_sound_video(
    path: Path,
    frames: NDArray[np.uint8],
    sound: NDArray[np.float32],
    *,
    rate: int = 16_000,
    codec: str = "aac",
    fps: int = 25,
    times: list[int] | None = None,
    sound_start: float = 0.0,
) -> Path:
    """Encode RGB frames and sound (channels, samples), -1 to 1; `times` as in `write_video`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    layout = {1: "mono", 2: "stereo"}[len(sound)]
    with av.open(str(path), "w") as file:
        video = file.add_stream("mpeg4", rate=fps)
        audio = file.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(video, av.VideoStream) and isinstance(audio, av.AudioStream), codec
        video.height, video.width, video.pix_fmt = *frames.shape[1:3], "yuv420p"
        if codec == "aac":
            audio.codec_context.bit_rate = 128_000
        for number, frame in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            picture.pts, picture.time_base = (times[number] if times else number), Fraction(1, fps)
            file.mux(video.encode(picture))
        file.mux(video.encode(None))
        size = audio.codec_context.frame_size or 1024
        resampler = av.AudioResampler(format=audio.codec_context.format, layout=layout, rate=rate, frame_size=size)
        samples = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound), format="fltp", layout=layout)
        samples.sample_rate, samples.time_base, samples.pts = rate, Fraction(1, rate), round(sound_start * rate)
        for one in (*resampler.resample(samples), *resampler.resample(None)):
            file.mux(audio.encode(one))
        file.mux(audio.encode(None))
    return path


def make_ucf(root: Path, *, classes: int = 2, groups: int = 3, clips: int = 1, num_frames: int = 6) -> Path:
    """Write a small collection in the layout of UCF-101 below `root`; return root."""
    names = ["Archery", "bowling", "Surfing", "YoYo"][:classes]
    for c, name in enumerate(names):
        for group in range(1, groups + 1):
            for clip in range(1, clips + 1):
                frames = moving_square(num_frames, seed=1000 * c + 10 * group + clip)
                write_video(root / name / f"v_{name}_g{group:02d}_c{clip:02d}.avi", frames)
    return root


def make_table_store(
    root: Path,
    *,
    classes: int = 3,
    train: int = 7,
    test: int = 2,
    num_frames: int = 20,
    modalities: tuple[StoredModality, ...] = ("rgb", "flow"),
    labeled: bool = True,
) -> Path:
    """Write the tables of a clip store without any video, for what only looks at records; return root."""
    flow = FlowInfo(backend="none", version="", parameters={}, bound=20) if "flow" in modalities else None
    motion = FlowInfo(algorithm=MOTION_VECTORS, backend="pyav", version="", parameters={}, bound=20)
    moving = {"flow": flow, "motion": motion if "motion" in modalities else None}
    info = StoreInfo(modalities=modalities, short_edge=0, max_frames=0, quality=18, **moving)
    records, split = [], {}
    for label in range(classes):
        for number in range(train + test):
            video_id = f"class{label}/v_g{number:02d}_c01"
            name, shown = (f"class{label}", label) if labeled else ("", -1)
            num_flow = num_frames - 1 if info.quantized is not None else 0
            records.append(ClipRecord(video_id, video_id, name, shown, num_frames, num_flow, 25.0, 64, 48, ""))
            split[video_id] = "train" if number < train else "test"
    (root / "splits").mkdir(parents=True)
    (root / "store.json").write_text(info_to_json(info))
    write_manifest(root / "manifest.csv", records)
    write_split(root / "splits" / "1.csv", split)
    return root


def make_sound_store(root: Path, *, groups: int = 5, num_frames: int = 24) -> Path:
    """Generate videos with sound and convert them to `root`/clips, as `covid-cmsf preprocess` does; return root."""
    config = DemoConfig(num_classes=2, num_groups=groups, clips_per_group=2, num_frames=num_frames, width=48, height=36)
    config = replace(config, audio=True)
    info = StoreInfo(modalities=("rgb", "audio"), short_edge=0, max_frames=0, quality=18, audio=AudioInfo(version=""))
    records, split = [], {}
    for name in clip_names(config):
        write_clip(root / "videos", name, config)
        video_id = name.path.removesuffix(".avi")
        targets: dict[str, Path] = {
            modality: clip_path(root / "clips", modality, video_id) for modality in info.modalities
        }
        for target in targets.values():
            target.parent.mkdir(parents=True, exist_ok=True)
        made = asdict(convert(root / "videos" / name.path, targets, info, decoder="av", flow=None))
        del made["header_frames"]
        label = config.class_names.index(name.class_name)
        records.append(ClipRecord(video_id, f"{name.class_name}{name.group}", name.class_name, label, **made))
        split[video_id] = "test" if name.group == 1 else "train"
    (root / "clips" / "splits").mkdir()
    (root / "clips" / "store.json").write_text(info_to_json(info))
    write_manifest(root / "clips" / "manifest.csv", records)
    write_split(root / "clips" / "splits" / "1.csv", split)
    return root


def make_image(label: int, number: int, *, size: int = 20) -> NDArray[np.uint8]:
    """Return noise (size, size, 3) with the class's color and bar."""
    rng = np.random.default_rng([label, number])
    image = rng.integers(0, 60, (size, size, 3))
    image[..., label % 3] += 90
    image[:, (4 * label + 2) % size] += 60
    return image.astype(np.uint8)


def make_image_folder(root: Path, *, classes: int = 3, train: int = 8, test: int = 3, test_name: str = "val") -> Path:
    """Write `root/train/class0/train_0_0.png` and so on; return root."""
    for subset, count, first in (("train", train, 0), (test_name, test, 1000)):
        for label in range(classes):
            folder = root / subset / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(make_image(label, first + number)).save(folder / f"{subset}_{label}_{number}.png")
    return root


def write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    """Write an IDX file of bytes, gzipped if its name ends with .gz."""
    data = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def make_idx_folder(
    root: Path, *, classes: int = 3, train: int = 8, test: int = 3, suffix: str = ".gz", color: bool = False
) -> Path:
    """Write IDX files with images, gray or in color, and labels of both subsets; return root."""
    root.mkdir(parents=True, exist_ok=True)
    for name, count, first in (("train", train, 0), ("t10k", test, 1000)):
        labels = np.arange(classes * count) % classes
        images = np.stack([make_image(int(label), first + i) for i, label in enumerate(labels)])
        write_idx(root / f"{name}-images-idx{3 + color}-ubyte{suffix}", images if color else images[..., 0])
        write_idx(root / f"{name}-labels-idx1-ubyte{suffix}", labels.astype(np.uint8))
    return root


def encode_jpeg(picture: NDArray[np.uint8]) -> bytes:
    """Return a picture, (H, W) or (H, W, 3) in OpenCV's order of colors, as JPEG."""
    written, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 100])
    assert written
    return bytes(data)


def write_lmdb(path: Path, videos: dict[str, list[bytes]], *, old: bool = False) -> None:
    """Write {video id: JPEG frames} in CoCLR's format; `old` is msgpack 0.6, which had one type for bytes and text."""

    def pack(value: object) -> bytes:
        return bytes(msgpack.packb(value, use_bin_type=not old))

    names = sorted(videos, reverse=True)  # ids are shuffled there, so not in the order of the names here
    keys = {name: b"%09d" % number for number, name in enumerate(names)}
    insertion = sorted(names)
    with lmdb.open(str(path), subdir=False, map_size=1 << 28) as environment, environment.begin(write=True) as file:
        for name in names:
            file.put(keys[name], pack(videos[name]))
        file.put(b"__keys__", pack([keys[name] for name in insertion]))
        file.put(b"__len__", pack(len(names)))
        file.put(b"__order__", pack(names))
        file.put(b"__vlen__", pack([len(videos[name]) for name in insertion]))


def build_once(tmp_path_factory: pytest.TempPathFactory, name: str, build: Callable[[Path], None]) -> Path:
    """Return the folder that `build` filled, built by one of xdist's processes and shared by all: only read it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, built = shared / name, shared / f"{name}.built"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            folder.mkdir()
            build(folder)
            built.touch()
    return folder


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let the kernel refuse longer files, as it does on a full disk or beyond a quota."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
