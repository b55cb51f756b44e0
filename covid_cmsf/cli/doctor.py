"""`covid-cmsf doctor`."""

import importlib.metadata
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from covid_cmsf import __version__, exit_codes
from covid_cmsf.cli.options import Json

NEXT_STEP = (
    "Next: covid-cmsf preprocess VIDEOS --out CLIPS --layout flat, for a folder of your videos; "
    "`make demo` in a clone of the repository makes and uses videos of its own."
)
STATUS_COLORS = {"ok": "green", "warning": "yellow", "error": "red"}


def doctor(
    folder: Annotated[Path, typer.Argument(help="Output folder to check.", show_default="this folder")] = Path(),
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Test the GPU instead: compare it with the CPU, time it, advise on settings.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check the installation: packages, codecs, decoders, GPUs, shared memory, output folder; exit code 1 on errors.

    \b
    covid-cmsf doctor runs
    covid-cmsf doctor --gpu
    """
    if gpu:
        raise typer.Exit(exit_codes.SUCCESS if check_gpu(as_json=as_json) else exit_codes.FAILED)
    results = list(run_checks(folder))
    errors = [result for result in results if result.status == "error"]
    if as_json:
        report = {"version": __version__, "healthy": not errors, "checks": [asdict(result) for result in results]}
        typer.echo(json.dumps(report))
    else:
        result_column = Column("result", overflow="fold")  # an address that is cut helps nobody
        table = Table("check", "", result_column, title=f"covid-cmsf {__version__}")
        for result in results:
            color = STATUS_COLORS[result.status]
            table.add_row(escape(result.name), f"[{color}]{result.status}[/]", escape(result.message))
        out = Console()
        out.print(table)
        if errors:
            out.print(f"[red]Not ready:[/] {len(errors)} errors (red lines above).")
        else:
            out.print(f"[green]Ready.[/] {NEXT_STEP}", soft_wrap=True)
    raise typer.Exit(exit_codes.FAILED if errors else exit_codes.SUCCESS)


def check_gpu(*, as_json: bool) -> bool:
    """Run the GPU's self-test and print it; return whether the GPU computes what the CPU does."""
    from covid_cmsf.devices import choose_device
    from covid_cmsf.diagnostics import gpu

    results = list(gpu.run_gpu_test(choose_device("cuda")))  # no GPU: ValueError, one line, exit code 2
    passed = all(result.passed for result in results)
    if as_json:
        report = {"version": __version__, "passed": passed, "checks": [asdict(result) for result in results]}
        typer.echo(json.dumps(report))
        return passed
    table = Table("", "check", "", "result", title=f"covid-cmsf {__version__}, GPU")
    for result in results:
        status = "" if result.kind != "correct" else "[green]ok[/]" if result.passed else "[red]error[/]"
        table.add_row(result.kind, escape(result.name), status, escape(result.message))
    out = Console()
    out.print(table)
    failed = sum(not result.passed for result in results)
    out.print("[green]The GPU computes what the CPU does.[/]" if passed else f"[red]Failed:[/] {failed} checks.")
    return passed


# The checks behind `covid-cmsf doctor`: each yields ok, warning or error, and what to do.

Status = Literal["ok", "warning", "error"]
REQUIRED = (
    "torch torchvision numpy av opencv-contrib-python-headless numba einops PyYAML pydantic typer rich safetensors "
    "scipy tensorboard matplotlib pillow optuna"
).split()
OPTIONAL = {
    "decord": "second decoder",
    "lmdb": "CoCLR's LMDB files",
    "msgpack": "CoCLR's LMDB files",
    "ray": "Ray Tune",
    "huggingface_hub": "sharing encoders",
    "wandb": "metrics for Weights & Biases",
}
CPU_INDEX = "--index-url https://download.pytorch.org/whl/cpu"
CONFLICTING_OPENCV_PACKAGES = ("opencv-python", "opencv-python-headless", "opencv-contrib-python")


@dataclass(frozen=True)
class CheckResult:
    """One line of the table."""

    name: str
    status: Status
    message: str


def run_checks(folder: Path) -> Iterator[CheckResult]:
    """Yield the results of all checks; `folder` is the output folder."""
    checks: list[Callable[[], Iterator[CheckResult]]] = [
        check_python,
        check_packages,
        check_torchvision,
        check_opencv,
        check_video_codecs,
        check_decoders,
        check_devices,
        check_shared_memory,
        lambda: check_writable(folder),
    ]
    for check in checks:
        try:
            yield from check()
        except ImportError as error:
            yield CheckResult(getattr(check, "__name__", "check"), "error", f"cannot be checked: {error}")


def check_python() -> Iterator[CheckResult]:
    """Check that the Python version is a tested one."""
    supported = (3, 10) <= sys.version_info[:2] <= (3, 13)
    message = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores"
    yield CheckResult(
        "python", "ok" if supported else "warning", message if supported else message + "; tested with 3.10 to 3.13"
    )


def check_packages() -> Iterator[CheckResult]:
    """Check that the required packages are installed."""
    for name in REQUIRED:
        version = installed_version(name)
        yield CheckResult(name, "ok" if version else "error", version or f"missing: pip install {name}")
    for name, purpose in OPTIONAL.items():
        yield CheckResult(name, "ok", installed_version(name) or f"not installed (optional: {purpose})")


def check_torchvision() -> Iterator[CheckResult]:
    """Check that torchvision was built for this torch: one from another index cannot be imported."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        advice = f"install both from one index, on a machine without CUDA: pip install torch torchvision {CPU_INDEX}"
        yield CheckResult("torchvision and torch", "error", f"they do not fit ({reason}); {advice}")


def check_opencv() -> Iterator[CheckResult]:
    """Check that cv2 has TV-L1 and that only one OpenCV package is installed."""
    others = [name for name in CONFLICTING_OPENCV_PACKAGES if installed_version(name)]
    if others:
        advice = f"pip uninstall {' '.join(others)} and reinstall opencv-contrib-python-headless"
        yield CheckResult("one OpenCV", "error", f"{', '.join(others)} overwrites the same files: {advice}")
    try:
        import cv2

        cv2.optflow.DualTVL1OpticalFlow_create()
        yield CheckResult("OpenCV TV-L1", "ok", f"cv2 {cv2.__version__} has it")
    except (ImportError, AttributeError) as error:
        yield CheckResult(
            "OpenCV TV-L1", "error", f"{error}: pip install --force-reinstall opencv-contrib-python-headless"
        )


def check_video_codecs() -> Iterator[CheckResult]:
    """Write an H.264 file and read it back."""
    import numpy as np

    from covid_cmsf.clips.decoders import open_video
    from preprocess.encode import ClipWriter

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
            yield CheckResult("H.264", "error", f"cannot write and read it with PyAV: {error}")
            return
    status: Status = "ok" if count == 3 else "error"
    yield CheckResult("H.264", status, f"written and read back with PyAV: {count} of 3 frames")


def check_decoders() -> Iterator[CheckResult]:
    """List the video decoders that are available."""
    from covid_cmsf.clips.decoders import DECODERS, choose_decoder

    for name in DECODERS:
        try:
            choose_decoder(name)
            yield CheckResult(f"decoder {name}", "ok", "ready" + (" (default)" if name == "av" else ""))
        except ValueError as error:
            yield CheckResult(f"decoder {name}", "ok", f"not available (optional): {error}")


def check_devices() -> Iterator[CheckResult]:
    """List the GPUs that PyTorch can use."""
    import torch

    if not torch.cuda.is_available():
        yield CheckResult("GPU", "warning", f"none available to torch {torch.__version__}; everything runs on the CPU")
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(index).total_memory / 2**30
        half = "bf16" if torch.cuda.is_bf16_supported() else "fp16"
        yield CheckResult(f"GPU {index}", "ok", f"{torch.cuda.get_device_name(index)}, {memory:.0f} GiB, {half}")


def check_shared_memory() -> Iterator[CheckResult]:
    """Check the size of /dev/shm, through which data loader workers pass batches; a small one ends in SIGBUS."""
    path = Path("/dev/shm")
    if path.is_dir():
        size = shutil.disk_usage(path).total / 2**30
        message = f"{size:.1f} GiB"
        small = size < 1
        yield CheckResult("/dev/shm", "warning" if small else "ok", message + (": small; enlarge it" if small else ""))


def check_writable(folder: Path) -> Iterator[CheckResult]:
    """Check that files can be written, linked and renamed in the folder, as clip stores and checkpoints need."""
    existing_parent = folder
    while not existing_parent.exists():
        existing_parent = existing_parent.parent
    try:
        with tempfile.TemporaryDirectory(dir=existing_parent) as probe:
            first, second, third = (Path(probe) / name for name in "abc")
            first.write_text("probe")
            os.link(first, second)
            first.replace(third)
        free = shutil.disk_usage(existing_parent).free / 1e9
        status: Status = "ok" if free > 5 else "warning"
        yield CheckResult(str(folder), status, f"writable, with links and renames; {free:.0f} GB free")
    except OSError as error:
        yield CheckResult(str(folder), "error", f"not usable for output: {error}")


def installed_version(package: str) -> str | None:
    """Return the installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
