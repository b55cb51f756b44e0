"""A step of cross-modal CMSF with a live guide (the paper's way) and with a cache of the guide's views."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import typer

from benchmarks.measure import seconds, show, spread
from covid_cmsf.config import load_config
from covid_cmsf.models import MLP, EncoderCard, create_encoder, projector_layout, save_encoder
from covid_cmsf.training.data import make_loader
from covid_cmsf.training.loop import how_of
from covid_cmsf.training.parts import Parts, build_parts
from covid_cmsf.training.processes import Processes
from covid_cmsf.training.run import fill_caches_
from covid_cmsf.training.settings import TrainSettings
from covid_cmsf.training.step import How, forward_backward, update
from covid_cmsf.views.batch import Batch
from covid_cmsf.views.loader import ViewLoader
from covid_cmsf.views.modalities import modality


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
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Both ways in turns, in one process: decoding, views, both networks, loss, optimizer. RGB is trained."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "guide.safetensors"
        _random_guide(weights, encoder, (length, size, size), stride)
        sides, filling = {}, 0.0
        alone = Processes(0, 1, torch.device("cpu"))
        for cache in ("none", "views"):
            settings = _settings(clips, weights, cache, encoder, length, stride, size, batch, views)
            parts = build_parts(settings, alone)
            start = time.perf_counter()
            fill_caches_(parts, settings, alone, None)
            filling = time.perf_counter() - start
            batches = _endless(make_loader(parts.data, settings, alone))
            sides[cache] = _stepper(parts, batches, how_of(settings), alone)
        times: dict[str, list[float]] = {"none": [], "views": []}
        for _ in range(steps + 1):
            for cache, step in sides.items():
                times[cache] += seconds(step, repeats=1)
    live, cached = (spread(times[cache][1:]) for cache in ("none", "views"))
    saved = live["median_s"] - cached["median_s"]
    show(
        {
            **{f"live_{name}": value for name, value in live.items()},
            **{f"cached_{name}": value for name, value in cached.items()},
            "ratio": live["median_s"] / cached["median_s"],
            "filling_s": filling,
            "pays_after_steps": filling / saved if saved > 0 else float("inf"),
        },
        as_json=as_json,
    )


def _settings(
    clips: Path, weights: Path, cache: str, encoder: str, length: int, stride: int, size: int, batch: int, views: int
) -> TrainSettings:
    words = [
        f"clips={clips}",
        f"encoder={encoder}",
        "modality=rgb",
        "method={name: cmsf, bank_rows: 256}",
        f"guides=[{{weights: {weights}, modality: flow, cache: {cache}, cached_views: {views}}}]",
        f"views={{length: {length}, stride: {stride}, size: {size}}}",
        f"batch_size={batch}",
        "runtime={workers: 0, device: cpu}",
    ]
    return load_config(TrainSettings, None, words)


def _random_guide(path: Path, encoder: str, input_size: tuple[int, int, int], stride: int) -> None:
    flow = modality("flow")
    network = create_encoder(encoder, in_channels=flow.num_channels)
    projector = MLP(projector_layout(network.num_features))
    card = EncoderCard(
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
    save_encoder(path, network, card, projector=projector)


def _endless(loader: ViewLoader) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from loader.epoch(epoch)
        epoch += 1


def _stepper(parts: Parts, batches: Iterator[Batch], how: How, alone: Processes) -> Callable[[], None]:
    def step() -> None:
        forward_backward(parts, next(batches), how, alone)
        update(parts, how, rate=1e-3, momentum=0.99)

    return step
