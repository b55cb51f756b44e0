"""The folder of a demo set: what belongs in it, what is missing, and whether we may write into it."""

import io
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zlib import crc32

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from covid_cmsf.files import atomic_path
from preprocess.synthetic.appearance import CLASS_BACKGROUNDS, sample_appearance
from preprocess.synthetic.config import ClipName, DemoConfig
from preprocess.synthetic.motions import MOTIONS
from preprocess.synthetic.render import render
from preprocess.synthetic.trajectory import sample_trajectory

CONFIG_FILE = "demo.json"  # the settings, written before the first video
FORMAT_VERSION = 1  # raise it when the same settings begin to give other bytes
SPLITS_FOLDER = "splits"
TEMPORARY_PATTERN = ".*.tmp"  # what `covid_cmsf.files` calls a file before it is whole


def clip_names(config: DemoConfig) -> list[ClipName]:
    """Every clip of the set, by class, group and clip."""
    return [
        ClipName(class_name, group, clip)
        for class_name in config.class_names
        for group in range(1, config.num_groups + 1)
        for clip in range(1, config.clips_per_group + 1)
    ]


def missing_clips(out: Path, config: DemoConfig) -> list[ClipName]:
    """The clips that have no file yet; a file that is there is whole."""
    return [name for name in clip_names(config) if not (out / name.path).exists()]


def prepare_folder(out: Path, config: DemoConfig) -> None:
    """Makes the folder and marks it with the settings, or makes sure that it was made with the same ones."""
    wanted = {"format": FORMAT_VERSION, **asdict(config)}
    marker = out / CONFIG_FILE
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file; demo-videos needs a folder")
    if marker.exists():
        _check_same_config(out, json.loads(marker.read_text(encoding="utf-8")), wanted)
    elif out.is_dir() and any(not path.match(TEMPORARY_PATTERN) for path in out.iterdir()):
        raise FileExistsError(f"{out} is not empty and not a demo set; choose a new or empty folder")
    else:
        write_bytes(marker, (json.dumps(wanted, indent=2) + "\n").encode())


def write_splits(out: Path, config: DemoConfig) -> None:
    """Writes the class index and split 1 as UCF-101's official lists: the first groups are for testing."""
    labels = {name: label for label, name in enumerate(config.class_names, start=1)}
    names = clip_names(config)
    train = [name for name in names if name.group > config.num_test_groups]
    test = [name for name in names if name.group <= config.num_test_groups]
    splits = out / SPLITS_FOLDER
    write_lines(splits / "classInd.txt", [f"{label} {name}" for name, label in labels.items()])
    write_lines(splits / "trainlist01.txt", [f"{name.path} {labels[name.class_name]}" for name in train])
    write_lines(splits / "testlist01.txt", [name.path for name in test])


def remove_temporary_files(out: Path) -> None:
    """Removes what a killed run had begun to write."""
    for path in out.rglob(TEMPORARY_PATTERN):
        path.unlink(missing_ok=True)


def _check_same_config(out: Path, existing: dict[str, Any], wanted: dict[str, Any]) -> None:
    changed_keys = [name for name in wanted if existing.get(name) != wanted[name]]
    if changed_keys:
        changes = ", ".join(f"{name} {existing.get(name)} there and {wanted[name]} asked for" for name in changed_keys)
        raise FileExistsError(f"{out} holds a demo set with other settings ({changes}); choose another folder")


# One clip of the set, from its name alone: neither other clips nor the number of workers change it.


def render_clip(name: ClipName, config: DemoConfig) -> NDArray[np.uint8]:
    """RGB frames (T, H, W, 3): the look is drawn by group, the shot by clip."""
    motion = MOTIONS[name.class_name]
    group_seed = [config.seed, crc32(name.class_name.encode()), name.group]
    appearance = sample_appearance(
        np.random.default_rng(group_seed),
        kind=motion.kind,
        class_background=CLASS_BACKGROUNDS[name.class_name],
        width=config.width,
        height=config.height,
        difficulty=config.difficulty,
    )
    trajectory = sample_trajectory(
        np.random.default_rng([*group_seed, name.clip]),
        motion,
        num_frames=config.num_frames,
        fps=config.fps,
        difficulty=config.difficulty,
    )
    return render(appearance, trajectory)


def write_clip(out: Path, name: ClipName, config: DemoConfig) -> None:
    """Draws a clip and writes its video file under the folder `out`."""
    write_bytes(out / name.path, encode(render_clip(name, config), config.fps))


# Clips in worker processes: one thread each, deaf to Ctrl-C (the parent decides), gone when the parent is.


def write_clips(out: Path, names: list[ClipName], config: DemoConfig, workers: int) -> Generator[ClipName, None, None]:
    """Writes the clips, here or in worker processes, and yields each one when it is there."""
    if workers == 1 or len(names) < 2:
        for name in names:
            write_clip(out, name, config)
            yield name
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=init_worker)
    try:
        futures = {pool.submit(write_clip, out, name, config): name for name in names}
        for future in as_completed(futures):
            future.result()
            yield futures[future]
    finally:
        pool.shutdown(cancel_futures=True)


def init_worker() -> None:
    """Runs first in every worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(1)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "only for worker processes"
    parent.join()
    os._exit(1)


# Files of a demo set: encoded videos and the official lists. A file has its name only when it is whole.
#
# # T frames, H W pixels

QUANTIZER = 3  # of 1 (best) to 31: the eye sees no blocks
LAMBDA = 118  # FFmpeg's FF_QP2LAMBDA: its unit of `global_quality`


def encode(frames: NDArray[np.uint8], fps: int) -> bytes:
    """An AVI file with RGB frames (T, H, W, 3) as MPEG-4 part 2, as XviD writes it; deterministic."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="avi", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.codec_tag = "XVID"
        stream.codec_context.thread_count = 1
        stream.codec_context.options = {
            "flags": "+bitexact+qscale",
            "global_quality": str(QUANTIZER * LAMBDA),
            "g": "12",
        }
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, and the folders above it where they are missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_lines(path: Path, lines: list[str]) -> None:
    """Writes a list with CRLF at the end of every line, as UCF-101's lists have it."""
    write_bytes(path, "".join(f"{line}\r\n" for line in lines).encode("ascii"))
