"""A step of cross-modal CMSF with a live guide (the paper's way) and with a cache of the guide's views."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import typer

from covid_cmsf.config import load_config
from covid_cmsf.models import MLP, EncoderMetadata, create_model, projector_layout, save_encoder
from covid_cmsf.training.build import TrainComponents, build_components
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.data import make_loader
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.training.loop import make_step_config
from covid_cmsf.training.run import fill_guide_caches_
from covid_cmsf.training.step import StepConfig, forward_backward, update
from covid_cmsf.views.batch import Batch
from covid_cmsf.views.loader import ViewLoader
from covid_cmsf.views.modalities import get_modality
from tools.benchmarks.measure import JsonFile, print_results, summarize_times, time_calls


def command(
    clips: Path = typer.Argument(..., help="A clip store with RGB and flow."),
    encoder: str = typer.Option("s3d_tiny", help="Of the trained network and of the guide."),
    length: int = typer.Option(8, help="Frames of a clip."),
    stride: int = typer.Option(2, help="Frames from one to the next."),
    size: int = typer.Option(48, help="Pixels."),
    batch: int = typer.Option(32, help="Examples of a step."),
    steps: int = typer.Option(20, help="Steps that are timed, in turns."),
    views: int = typer.Option(4, help="Cached views of a video."),
    threads: int = typer.Option(1, help="Of the training process; decoding happens in it too."),
    json_file: JsonFile = None,
) -> None:
    """Both ways in turns, in one process: decoding, views, both networks, loss, optimizer. RGB is trained."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "guide.safetensors"
        _random_guide(weights, encoder, (length, size, size), stride)
        variants, fill_seconds = {}, 0.0
        dist = DistributedContext(0, 1, torch.device("cpu"))
        for cache in ("none", "views"):
            config = _make_config(clips, weights, cache, encoder, length, stride, size, batch, views)
            components = build_components(config, dist)
            start = time.perf_counter()
            fill_guide_caches_(components, config, dist, None)
            fill_seconds = time.perf_counter() - start
            batches = _repeat_epochs(make_loader(components.data, config, dist))
            variants[cache] = _make_step(components, batches, make_step_config(config), dist)
        times: dict[str, list[float]] = {"none": [], "views": []}
        for _ in range(steps + 1):
            for cache, step in variants.items():
                times[cache] += time_calls(step, repeats=1)
    live, cached = (summarize_times(times[cache][1:]) for cache in ("none", "views"))
    saved = live["median_s"] - cached["median_s"]
    print_results(
        {
            **{f"live_{name}": value for name, value in live.items()},
            **{f"cached_{name}": value for name, value in cached.items()},
            "ratio": live["median_s"] / cached["median_s"],
            "filling_s": fill_seconds,
            "pays_after_steps": fill_seconds / saved if saved > 0 else float("inf"),
        },
        json_file=json_file,
    )


def _make_config(
    clips: Path, weights: Path, cache: str, encoder: str, length: int, stride: int, size: int, batch: int, views: int
) -> TrainConfig:
    overrides = [
        f"clips={clips}",
        f"encoder={encoder}",
        "modality=rgb",
        "method={name: cmsf, bank_size: 256}",
        f"guides=[{{weights: {weights}, modality: flow, cache: {cache}, cached_views: {views}}}]",
        f"views={{length: {length}, stride: {stride}, size: {size}}}",
        f"batch_size={batch}",
        "runtime={workers: 0, device: cpu}",
    ]
    return load_config(TrainConfig, None, overrides)


def _random_guide(path: Path, encoder: str, input_size: tuple[int, int, int], stride: int) -> None:
    flow = get_modality("flow")
    network = create_model(encoder, in_channels=flow.num_channels)
    projector = MLP(projector_layout(network.num_features))
    metadata = EncoderMetadata(
        encoder=encoder,
        in_channels=flow.num_channels,
        input_size=input_size,
        stride=stride,
        mean=flow.mean,
        std=flow.std,
        modality="flow",
        bn_eps=1e-5,
        projector=projector.layout,
    )
    save_encoder(path, network, metadata, projector=projector)


def _repeat_epochs(loader: ViewLoader) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from loader.epoch(epoch)
        epoch += 1


def _make_step(
    components: TrainComponents, batches: Iterator[Batch], step_config: StepConfig, dist: DistributedContext
) -> Callable[[], None]:
    def step() -> None:
        forward_backward(components, next(batches), step_config, dist)
        update(components, step_config, lr=1e-3, momentum=0.99)

    return step
