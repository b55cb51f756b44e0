"""Write a demo set: its folder and split lists, one clip from its name, many clips in worker processes.

Shapes: T frames, H x W pixels.
"""

import io
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any
from zlib import crc32

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from covid_cmsf.config import config_differences
from covid_cmsf.files import atomic_path, read_text
from preprocess.synthetic.appearance import CLASS_BACKGROUNDS, sample_appearance
from preprocess.synthetic.config import ClipName, DemoConfig
from preprocess.synthetic.motions import MOTIONS
from preprocess.synthetic.render import render
from preprocess.synthetic.sound import RATE, make_sound
from preprocess.synthetic.trajectory import Trajectory, sample_trajectory

CONFIG_FILE = "demo.json"  # the settings, written before the first video
FORMAT_VERSION = 1  # increase it when the same settings give other bytes than before
SPLITS_FOLDER = "splits"
TEMPORARY_PATTERN = ".*.tmp"  # temporary names of `covid_cmsf.files`
SOUND_SEED = 1  # apart from those of appearances and trajectories
QUANTIZER = 3  # of 1 (best) to 31: no visible blocks
LAMBDA = 118  # FFmpeg's FF_QP2LAMBDA: its unit of `global_quality`


def clip_names(config: DemoConfig) -> list[ClipName]:
    """Return all clips of the set, ordered by class, group and clip."""
    return [
        ClipName(class_name, group, clip)
        for class_name in config.class_names
        for group in range(1, config.num_groups + 1)
        for clip in range(1, config.clips_per_group + 1)
    ]


def missing_clips(out: Path, config: DemoConfig) -> list[ClipName]:
    """Return the clips without a file (files are written atomically, so an existing one is complete)."""
    return [name for name in clip_names(config) if not (out / name.path).exists()]


def prepare_folder(out: Path, config: DemoConfig) -> None:
    """Create the folder with its settings file, or check that it was created with the same settings."""
    wanted = {"format": FORMAT_VERSION, **asdict(config)}
    if not config.audio:
        del wanted["audio"]  # as sets were marked before there was sound
    marker = out / CONFIG_FILE
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file; demo-videos needs a folder")
    if marker.exists():
        _check_same_config(out, json.loads(read_text(marker)), wanted)
    elif out.is_dir() and any(not path.match(TEMPORARY_PATTERN) for path in out.iterdir()):
        raise FileExistsError(f"{out} is not empty and not a demo set; choose a new or empty folder")
    else:
        write_bytes(marker, (json.dumps(wanted, indent=2) + "\n").encode())


def write_splits(out: Path, config: DemoConfig) -> None:
    """Write the class index and split 1 in the format of UCF-101's lists: the first groups are for testing."""
    labels = {name: label for label, name in enumerate(config.class_names, start=1)}
    names = clip_names(config)
    train = [name for name in names if name.group > config.num_test_groups]
    test = [name for name in names if name.group <= config.num_test_groups]
    splits = out / SPLITS_FOLDER
    write_lines(splits / "classInd.txt", [f"{label} {name}" for name, label in labels.items()])
    write_lines(splits / "trainlist01.txt", [f"{name.path} {labels[name.class_name]}" for name in train])
    write_lines(splits / "testlist01.txt", [name.path for name in test])


def remove_temporary_files(out: Path) -> None:
    """Remove the unfinished files of a killed run."""
    for path in out.rglob(TEMPORARY_PATTERN):
        path.unlink(missing_ok=True)


def _check_same_config(out: Path, existing: dict[str, Any], wanted: dict[str, Any]) -> None:
    if changed := config_differences(existing, wanted):
        changes = ", ".join(f"{name} is {there} there, {now} now" for name, (there, now) in changed.items())
        raise FileExistsError(f"{out} has a demo set with other settings ({changes}); choose another folder")


def render_clip(name: ClipName, config: DemoConfig) -> NDArray[np.uint8]:
    """Render RGB frames (T, H, W, 3) from the clip's name and the settings alone.

    The appearance is seeded per group, the trajectory per clip.
    """
    motion = MOTIONS[name.class_name]
    appearance = sample_appearance(
        np.random.default_rng(_group_seed(name, config)),
        kind=motion.kind,
        class_background=CLASS_BACKGROUNDS[name.class_name],
        width=config.width,
        height=config.height,
        difficulty=config.difficulty,
    )
    return render(appearance, clip_trajectory(name, config))


def clip_trajectory(name: ClipName, config: DemoConfig) -> Trajectory:
    """Draw what moves in a clip, from its name and the settings alone."""
    return sample_trajectory(
        np.random.default_rng([*_group_seed(name, config), name.clip]),
        MOTIONS[name.class_name],
        num_frames=config.num_frames,
        fps=config.fps,
        difficulty=config.difficulty,
    )


def clip_sound(name: ClipName, config: DemoConfig) -> NDArray[np.int16]:
    """Make the sound of a clip: its pitch is drawn per clip, the place that it is heard in per group."""
    seed = [*_group_seed(name, config), SOUND_SEED]
    return make_sound(
        clip_trajectory(name, config).bodies,
        fps=config.fps,
        clip=np.random.default_rng([*seed, name.clip]),
        place=np.random.default_rng(seed),
        difficulty=config.difficulty,
    )


def _group_seed(name: ClipName, config: DemoConfig) -> list[int]:
    return [config.seed, crc32(name.class_name.encode()), name.group]


def write_clip(out: Path, name: ClipName, config: DemoConfig) -> None:
    """Render a clip and write its video file below the folder `out`."""
    sound = clip_sound(name, config) if config.audio else None
    write_bytes(out / name.path, encode(render_clip(name, config), config.fps, sound))


def write_clips(out: Path, names: list[ClipName], config: DemoConfig, workers: int) -> Generator[ClipName, None, None]:
    """Write the clips, in this process or in workers; yield each one when its file exists."""
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
    """Set up a worker process: one thread, ignore Ctrl-C (the parent handles it), exit with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(1)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "only for worker processes"
    parent.join()
    os._exit(1)


def encode(frames: NDArray[np.uint8], fps: int, sound: NDArray[np.int16] | None = None) -> bytes:
    """Encode RGB frames (T, H, W, 3) as an AVI file with MPEG-4 part 2 (XVID), deterministically; sound (S,) as PCM."""
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
        audio = None if sound is None else container.add_stream("pcm_s16le", rate=RATE, layout="mono")
        for number, frame in enumerate(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            if audio is not None and sound is not None:
                first, end = (round(one * RATE / fps) for one in (number, number + 1))
                samples = av.AudioFrame.from_ndarray(sound[None, first:end], format="s16", layout="mono")
                samples.sample_rate, samples.pts, samples.time_base = RATE, first, Fraction(1, RATE)
                container.mux(audio.encode(samples))
        container.mux(stream.encode(None))
        if audio is not None:
            container.mux(audio.encode(None))
    return buffer.getvalue()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically; create missing parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_lines(path: Path, lines: list[str]) -> None:
    """Write lines that end with CRLF, as in UCF-101's lists."""
    write_bytes(path, "".join(f"{line}\r\n" for line in lines).encode("ascii"))
