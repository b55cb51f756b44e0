"""What a plan may take: the networks' time of one step, measured on random clips, times the number of steps.

Decoding and augmentation happen beside it, in workers, and are not counted; nor is the evaluation of a stage.
"""

import time
from collections.abc import Sequence

import torch

from covid_cmsf.clips import open_clips
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.devices import choose_device
from covid_cmsf.models import create_encoder
from covid_cmsf.models.speed import autocast
from covid_cmsf.training.method_settings import WithTarget
from covid_cmsf.training.run import set_threads
from covid_cmsf.training.settings import TrainSettings
from covid_cmsf.views.modalities import modality

MEASURED = 4  # clips of the batch that is timed
Timing = tuple[float, float]  # seconds a clip: forward and backward, forward alone


def stage_costs(stages: Sequence[Stage]) -> dict[str, float | None]:
    """Seconds of training of each stage; None where nothing is trained."""
    timings: dict[tuple[object, ...], Timing] = {}
    sizes: dict[tuple[str, str, str], int] = {}
    costs: dict[str, float | None] = {}
    for stage in stages:
        settings = stage.settings
        if settings is None:
            costs[stage.name] = None
            continue
        part = (settings.clips, settings.split, settings.part)
        if part not in sizes:
            sizes[part] = len(open_clips(settings.clips).select(settings.split, settings.part))
        key = (settings.encoder, settings.modality, settings.views, settings.precision)
        if key not in timings:
            set_threads(stage.runtime)
            timings[key] = time_clip(settings)
        both, forward = timings[key]
        networks = both + forward * (isinstance(settings.method, WithTarget) + len(settings.guides))
        batches = sizes[part] * settings.repeat // settings.batch_size
        costs[stage.name] = settings.schedule.epochs * batches * settings.batch_size * networks
    return costs


def time_clip(settings: TrainSettings) -> Timing:
    """One clip of a batch through the encoder; the second of two tries."""
    seen = modality(settings.modality, flow_style=settings.views.flow_style)
    device = choose_device(settings.runtime.device)
    encoder = create_encoder(settings.encoder, in_channels=seen.num_channels).to(device)
    size = settings.views.frame_size if seen.single_frame else settings.views.size
    shape = (size, size) if seen.single_frame else (settings.views.length, size, size)
    clip = torch.randn(MEASURED, seen.num_channels, *shape, device=device)
    times = (0.0, 0.0)
    for _ in range(2):
        start = time.monotonic()
        with autocast(settings.precision, device):
            feature = encoder(clip)
        _finish(device)
        middle = time.monotonic()
        feature.float().sum().backward()
        _finish(device)
        times = (time.monotonic() - start, middle - start)
    return times[0] / MEASURED, times[1] / MEASURED


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
