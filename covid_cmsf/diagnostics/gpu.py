"""`covid-cmsf doctor --gpu`: is a GPU right, how fast is it, and which settings fit.

Right means: as the CPU computes. TF32 is off while both are compared.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from covid_cmsf.cores import available_cores
from covid_cmsf.devices import choose_devices
from covid_cmsf.diagnostics.all_reduce import time_all_reduce
from covid_cmsf.diagnostics.generated import GeneratedClips, make_config, method_names, write_guide
from covid_cmsf.models.precision import fixed_shapes, resolve_precision
from covid_cmsf.models.profile import activation_bytes
from covid_cmsf.training.build import build_components
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.data import make_loader
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.training.loop import make_step_config
from covid_cmsf.training.step import forward_backward, update
from covid_cmsf.views.batch import Batch

VIEW_TOLERANCE = 0.01  # of normalized values; one level of 255 is 0.017
FLOW_TOLERANCE = 0.02  # pixels, in the mean
LOSS_TOLERANCE = 1e-3  # relative, of the first loss that is not 0: CUDA sums in another order
BF16_BOUND = 0.02  # relative, of the same loss: docs/how-to/gpu.md
STEPS = 3
MEMORY_SHARE = 0.6  # of a GPU for activations; the rest is for weights, views, gradients and workspaces


@dataclass(frozen=True)
class GpuTest:
    """Sizes of the self-test: of the networks that are compared, and of the step that is timed."""

    encoder: str = "c21d_tiny"
    length: int = 8
    size: int = 32
    batch_size: int = 4
    timed_encoder: str = "s3d"
    timed_length: int = 16
    timed_size: int = 112
    timed_batch_size: int = 8


@dataclass(frozen=True)
class GpuResult:
    """One line of the table; `advice` and `speed` never fail."""

    kind: Literal["correct", "speed", "advice"]
    name: str
    message: str
    passed: bool = True


def run_gpu_test(device: torch.device, test: GpuTest | None = None) -> Iterator[GpuResult]:
    """Yield the results of all checks. Takes less than a minute on a GPU, as far as can be said without one."""
    test = test or GpuTest()
    with tempfile.TemporaryDirectory() as folder, _without_tf32():
        guide = write_guide(Path(folder) / "guide.pt", encoder=test.encoder, length=test.length, size=test.size)
        yield check_views(device, test, guide)
        yield check_flow(device)
        for name in method_names():
            yield from check_method(name, device, test, guide)
    yield from measure(device, test)


def check_views(device: torch.device, test: GpuTest, guide: Path) -> GpuResult:
    """Compare the views of a batch, made on both devices from the same draws."""
    batch = _batches(_config("cmsf", device, test, guide), device)[0]
    ours, theirs = batch.to("cpu"), batch.to(device)
    differences = [
        float((view - other[name].cpu()).abs().max())
        for views, other in zip(ours.views, theirs.views, strict=True)
        for name, view in views.items()
    ]
    worst = max(differences)
    message = f"largest difference {worst:.2g} of normalized values, {VIEW_TOLERANCE:g} allowed"
    return GpuResult("correct", "views", message, worst <= VIEW_TOLERANCE)


def check_flow(device: torch.device) -> GpuResult:
    """Compare TV-L1 flow of PyTorch on both devices."""
    from preprocess.flow import make_flow
    from preprocess.flow.base import FlowParameters

    frames = np.random.default_rng(0).integers(0, 256, (3, 24, 30)).astype(np.uint8)
    parameters = FlowParameters(nscales=2, warps=2, inner_iterations=4, outer_iterations=2)
    ours, theirs = (make_flow("torch", parameters, device=str(one))(frames) for one in ("cpu", device))
    worst = float(np.abs(ours - theirs).mean())
    message = f"mean difference {worst:.2g} pixels, {FLOW_TOLERANCE:g} allowed"
    return GpuResult("correct", "flow (TV-L1)", message, worst <= FLOW_TOLERANCE)


def check_method(name: str, device: torch.device, test: GpuTest, guide: Path) -> Iterator[GpuResult]:
    """Compare the losses of the first steps on both devices, and in bf16.

    The first loss that is not 0 counts: contrastive methods have no negatives before the bank has entries. Later ones
    are reported. So is bf16 beyond its bound; only a loss that is not finite fails.
    """
    config = _config(name, device, test, guide)
    batches = _batches(config, device)
    ours = first_losses(config, torch.device("cpu"), batches)
    theirs = first_losses(config, device, batches)
    drift = [_relative(one, other) for one, other in zip(theirs, ours, strict=True)]
    first = next((number for number, loss in enumerate(ours) if abs(loss) > 1e-6), 0)
    message = (
        f"loss {theirs[first]:.5f} of step {first + 1} differs by {drift[first]:.1e} ({LOSS_TOLERANCE:g} allowed), "
    )
    message += f"of step {STEPS} by {drift[-1]:.1e}"
    yield GpuResult("correct", name, message, max(drift[: first + 1]) <= LOSS_TOLERANCE)
    if resolve_precision("auto", device) != "bf16":
        return
    half = first_losses(config.model_copy(update={"precision": "bf16"}), device, batches[: first + 1])[first]
    change = _relative(half, theirs[first])
    judged = "within" if change <= BF16_BOUND else "above"
    message = f"loss of step {first + 1} differs from fp32 by {change:.2%}, {judged} the bound of {BF16_BOUND:.0%}"
    yield GpuResult("correct", f"{name}, bf16", message, bool(np.isfinite(change)))


def first_losses(config: TrainConfig, device: torch.device, batches: list[Batch]) -> list[float]:
    """Return the losses of one step per batch, from the weights of the seed."""
    dist = DistributedContext(0, 1, device)
    components = build_components(config, dist, clips=GeneratedClips())
    step_config, losses = replace(make_step_config(config), bank_warmup=0), []
    for batch in batches:
        result = forward_backward(components, batch, step_config, dist)
        update(components, step_config, lr=config.optimizer.lr, momentum=0.9)
        losses.append(float("nan") if result.loss is None else result.loss)
    return losses


def measure(device: torch.device, test: GpuTest) -> Iterator[GpuResult]:
    """Time decoding, views and steps, and derive settings from the times."""
    decoded = clips_per_second_decoded(test)
    message = f"{decoded:.1f} clips of {test.timed_length} frames at 160x213 per second and core"
    yield GpuResult("speed", "decode", message)
    timed = replace(
        test, encoder=test.timed_encoder, length=test.timed_length, size=test.timed_size,
        batch_size=test.timed_batch_size,
    )  # fmt: skip
    precision = resolve_precision("auto", device)
    config = _config("msf", device, timed, Path()).model_copy(update={"precision": precision})
    dist, batch = DistributedContext(0, 1, device), _batches(config, device)[0]
    per_view = _seconds(lambda: batch.to(device), device)
    yield GpuResult("speed", "views", f"{1000 * per_view / timed.batch_size:.2f} ms per clip, both views")
    components, step_config = build_components(config, dist, clips=GeneratedClips()), make_step_config(config)

    def step() -> None:
        forward_backward(components, batch, step_config, dist)
        update(components, step_config, lr=0.01, momentum=0.9)

    with fixed_shapes(device):  # as in training
        per_step = _seconds(step, device)
    rate = timed.batch_size / per_step
    described = f"{timed.encoder}, {timed.batch_size} clips of {timed.length}x{timed.size}x{timed.size}, {precision}"
    yield GpuResult("speed", "step", f"{rate:.1f} clips per second and GPU ({described}; views included)")
    cores, gpus = available_cores(), max(1, torch.cuda.device_count())
    workers = max(0, cores // gpus - 1)
    share = max(0.0, 1 - max(1, workers) * decoded / rate)
    yield GpuResult("speed", "data share", f"about {share:.0%} of the time with {workers} workers per GPU, by estimate")
    num_values = sum(one.numel() for one in components.network.parameters())
    yield from check_all_reduce(choose_devices("cuda"), num_values=num_values, per_step=per_step)
    yield from advise(device, timed, precision, needed=rate / decoded, workers=workers)


def check_all_reduce(devices: list[torch.device], *, num_values: int, per_step: float) -> Iterator[GpuResult]:
    """Sum the gradients of the timed network over all GPUs; a wrong sum, or none, fails."""
    if len(devices) == 1:
        yield GpuResult("speed", "all-reduce", "not timed: there is one GPU")
        return
    try:
        timing = time_all_reduce(devices, num_values=num_values)
    except RuntimeError as error:
        yield GpuResult("correct", "all-reduce", f"failed between {len(devices)} GPUs: {error}", False)
        return
    yield GpuResult("correct", "all-reduce", f"sum over {len(devices)} processes", timing.correct)
    gigabytes = 4 * num_values / 1e9
    yield GpuResult(
        "speed",
        "all-reduce",
        f"{1000 * timing.seconds:.1f} ms for {1000 * gigabytes:.0f} MB of gradients between {len(devices)} GPUs "
        f"({gigabytes / timing.seconds:.1f} GB/s), {timing.seconds / per_step:.0%} of a step if nothing overlaps",
    )


def advise(device: torch.device, timed: GpuTest, precision: str, *, needed: float, workers: int) -> Iterator[GpuResult]:
    """Yield settings in plain words; `needed` workers decode as fast as the GPU trains."""
    wanted = max(1, int(np.ceil(needed)))
    if wanted <= workers:
        message = f"runtime.workers={wanted} per GPU keep it busy"
    else:
        message = (
            f"runtime.workers=auto ({workers} per GPU); {wanted} would be needed, so the GPU waits for data: use a "
            "clip store with a small --short-edge, or runtime.cache_dir"
        )
    yield GpuResult("advice", "workers", message)
    memory = torch.cuda.get_device_properties(device).total_memory * MEMORY_SHARE
    counts = [
        int(memory // activation_bytes(
            timed.encoder, (timed.length, timed.size, timed.size), precision=precision, gradient_checkpointing=on
        ).peak)
        for on in (False, True)
    ]  # fmt: skip
    message = f"up to about {counts[0]} such clips per GPU, {counts[1]} with runtime.gradient_checkpointing=true"
    yield GpuResult("advice", "batch size", message)
    has_bf16 = precision == "bf16"
    message = "auto is bf16 here" if has_bf16 else "auto is fp32: this GPU has no bf16; fp16 is possible, not tested"
    yield GpuResult("advice", "precision", message)


def clips_per_second_decoded(test: GpuTest) -> float:
    """Return how many clips one core decodes per second, from an H.264 file at short edge 160."""
    from covid_cmsf.clips.decoders import open_video
    from preprocess.encode import ClipWriter

    rng, count = np.random.default_rng(0), test.timed_length
    background = rng.integers(0, 255, (160, 213 // 2 * 2, 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        with ClipWriter(path, fps=Fraction(25), width=background.shape[1], height=160, crf=18) as writer:
            for number in range(count):
                writer.write_rgb(np.roll(background, 2 * number, axis=1))
        start = time.perf_counter()
        with open_video(path) as video:
            frames = len(list(video.frames()))
        return frames / count / (time.perf_counter() - start)


def _config(name: str, device: torch.device, test: GpuTest, guide: Path) -> TrainConfig:
    return make_config(
        name, guide=guide, device=str(device), encoder=test.encoder, length=test.length, size=test.size,
        batch_size=test.batch_size, precision="fp32",
    )  # fmt: skip


def _batches(config: TrainConfig, device: torch.device) -> list[Batch]:
    """Return the first batches, on the CPU, with views that are made where they are sent."""
    components = build_components(config, DistributedContext(0, 1, device), clips=GeneratedClips())
    loader = make_loader(components.data, config, DistributedContext(0, 1, torch.device("cpu")))
    return [batch for _, batch in zip(range(STEPS), loader.epoch(0), strict=False)]


def _seconds(work: Callable[[], object], device: torch.device, *, repeats: int = 3) -> float:
    """Return the seconds of the fastest of some calls, after one that warms up."""
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        work()
        torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _relative(value: float, reference: float) -> float:
    """Return the relative difference; infinite if one of them is not finite, so that it is never within a bound."""
    difference = abs(value - reference) / max(abs(reference), 1e-6)
    return difference if np.isfinite(difference) else float("inf")


@contextmanager
def _without_tf32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
