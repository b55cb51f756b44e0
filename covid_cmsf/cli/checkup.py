"""The checks behind `covid-cmsf doctor`: each looks at one thing and says good, careful or bad, and what to do."""

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

Verdict = Literal["good", "careful", "bad"]
REQUIRED = (
    "torch torchvision numpy av opencv-contrib-python-headless numba einops PyYAML pydantic typer rich safetensors "
    "tensorboard matplotlib optuna"
).split()
OPTIONAL = {
    "decord": "second decoder",
    "lmdb": "CoCLR's LMDB files",
    "msgpack": "CoCLR's LMDB files",
    "ray": "Ray Tune",
}
OTHER_OPENCVS = ("opencv-python", "opencv-python-headless", "opencv-contrib-python")


@dataclass(frozen=True)
class Finding:
    """One line of the check-up."""

    what: str
    verdict: Verdict
    words: str


def check_up(folder: Path) -> Iterator[Finding]:
    """All findings; `folder` is where the user means to write."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        python,
        packages,
        opencv,
        video_codecs,
        decoders,
        devices,
        shared_memory,
        lambda: writable(folder),
    ]
    for check in checks:
        try:
            yield from check()
        except ImportError as error:
            yield Finding(getattr(check, "__name__", "check"), "bad", f"cannot be checked: {error}")


def python() -> Iterator[Finding]:
    """The interpreter is one that we test with."""
    known = (3, 10) <= sys.version_info[:2] <= (3, 13)
    words = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores"
    yield Finding("python", "good" if known else "careful", words if known else words + "; tested with 3.10 to 3.13")


def packages() -> Iterator[Finding]:
    """Everything that is needed is installed."""
    for name in REQUIRED:
        version = version_of(name)
        yield Finding(name, "good" if version else "bad", version or f"missing: pip install {name}")
    for name, purpose in OPTIONAL.items():
        yield Finding(name, "good", version_of(name) or f"not installed (optional: {purpose})")


def opencv() -> Iterator[Finding]:
    """cv2 has TV-L1, and only one OpenCV package claims the name cv2."""
    others = [name for name in OTHER_OPENCVS if version_of(name)]
    if others:
        advice = f"pip uninstall {' '.join(others)} and reinstall opencv-contrib-python-headless"
        yield Finding("one OpenCV", "bad", f"{', '.join(others)} overwrites the same files: {advice}")
    try:
        import cv2

        cv2.optflow.DualTVL1OpticalFlow_create()
        yield Finding("OpenCV TV-L1", "good", f"cv2 {cv2.__version__} has it")
    except (ImportError, AttributeError) as error:
        yield Finding("OpenCV TV-L1", "bad", f"{error}: pip install --force-reinstall opencv-contrib-python-headless")


def video_codecs() -> Iterator[Finding]:
    """H.264 can be written and read back."""
    import numpy as np

    from covid_cmsf.clips.decoders import open_video
    from preprocess.encoding import ClipWriter

    frame = np.full((32, 48, 3), 90, np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.mp4"
        try:
            with ClipWriter(path, fps=Fraction(25), width=48, height=32, crf=18) as writer:
                for _ in range(3):
                    writer.write_rgb(frame)
            with open_video(path) as video:
                count = len(list(video.frames()))
        except (ValueError, OSError) as error:
            yield Finding("H.264", "bad", f"cannot write and read it with PyAV: {error}")
            return
    verdict: Verdict = "good" if count == 3 else "bad"
    yield Finding("H.264", verdict, f"written and read back with PyAV: {count} of 3 frames")


def decoders() -> Iterator[Finding]:
    """Which decoders can be chosen."""
    from covid_cmsf.clips.decoders import DECODERS, choose_decoder

    for name in DECODERS:
        try:
            choose_decoder(name)
            yield Finding(f"decoder {name}", "good", "ready" + (" (default)" if name == "av" else ""))
        except ValueError as error:
            yield Finding(f"decoder {name}", "good", f"not there, not needed: {error}")


def devices() -> Iterator[Finding]:
    """GPUs that torch can use."""
    import torch

    if not torch.cuda.is_available():
        yield Finding("GPU", "careful", f"none that torch {torch.__version__} can use: everything runs, on the CPU")
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(index).total_memory / 2**30
        half = "bf16" if torch.cuda.is_bf16_supported() else "fp16"
        yield Finding(f"GPU {index}", "good", f"{torch.cuda.get_device_name(index)}, {memory:.0f} GiB, {half}")


def shared_memory() -> Iterator[Finding]:
    """Data loader workers hand batches over in /dev/shm; a small one ends in SIGBUS."""
    path = Path("/dev/shm")
    if path.is_dir():
        size = shutil.disk_usage(path).total / 2**30
        words = f"{size:.1f} GiB"
        small = size < 1
        yield Finding("/dev/shm", "careful" if small else "good", words + (": small; enlarge it" if small else ""))


def writable(folder: Path) -> Iterator[Finding]:
    """A file can be made, linked and renamed in the folder: what the clip store and checkpoints rely on."""
    place = folder
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryDirectory(dir=place) as probe:
            first, second, third = (Path(probe) / name for name in "abc")
            first.write_text("probe")
            os.link(first, second)
            first.replace(third)
        free = shutil.disk_usage(place).free / 1e9
        verdict: Verdict = "good" if free > 5 else "careful"
        yield Finding(str(folder), verdict, f"writable, with links and renames; {free:.0f} GB free")
    except OSError as error:
        yield Finding(str(folder), "bad", f"not usable for output: {error}")


def version_of(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
