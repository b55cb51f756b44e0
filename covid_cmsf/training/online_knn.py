"""Nearest neighbors during training, on a few videos that are not trained on: does the encoder still get better?

Nothing of it reaches the run: the encoder is in eval mode, no random number of the run is drawn, and the settings are
in `runtime`. Without labels there is `window_r1`. Shapes: N videos, D feature, B batch.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from covid_cmsf.clips.records import get_column, take_records
from covid_cmsf.methods.base import Metrics
from covid_cmsf.models import Encoder
from covid_cmsf.models.input_transform import InputTransform
from covid_cmsf.training.build import TrainComponents
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.data import resolve_workers, select_held_out
from covid_cmsf.training.guides import OwnWindows
from covid_cmsf.views.dataset import usable_records
from covid_cmsf.views.loader import init_worker, worker_start_method
from covid_cmsf.views.preflight import num_usable_frames_of

logger = logging.getLogger(__name__)
NUM_WINDOWS = 2  # the first and the last


class ReadableWindows(OwnWindows):
    """Windows of videos; None for one that can't be read."""

    def __getitem__(self, video: int) -> Tensor | None:  # type: ignore[override]
        try:
            return super().__getitem__(video)
        except (ValueError, OSError) as error:
            logger.warning("left out of the nearest neighbors: %s", error)
            return None


class OnlineKnn:
    """Two windows of at most `runtime.knn_videos` videos of a subset, evenly spread over its records."""

    def __init__(self, components: TrainComponents, config: TrainConfig) -> None:
        transform, runtime = InputTransform.from_metadata(components.metadata), config.runtime
        records = usable_records(select_held_out(components.data.clips, config), [transform.modality])
        chosen = np.unique(np.linspace(0, len(records) - 1, min(len(records), runtime.knn_videos)).round().astype(int))
        records = take_records(records, chosen.tolist()) if len(records) else records
        self._data = ReadableWindows(components.data.clips, records, transform, num_windows=NUM_WINDOWS)
        self._encoder, self._every = components.network.encoder, runtime.knn_every_epochs
        self._labels = torch.tensor(get_column(records, "label"))
        sources = np.unique(get_column(records, "source"), return_inverse=True)[1]
        self._sources = torch.from_numpy(np.asarray(sources).reshape(-1))
        frames = num_usable_frames_of(records, [transform.modality]) - ((transform.length - 1) * transform.stride + 1)
        self._apart = torch.from_numpy(frames >= transform.length * transform.stride)  # windows without common frames
        self._batch_size = max(1, config.batch_size // NUM_WINDOWS)
        self._workers = runtime.workers

    def is_due(self, epoch: int, last: int) -> bool:
        """Return whether to measure at the end of this epoch (from 1 on)."""
        return epoch % self._every == 0 or epoch == last

    def measure(self, device: torch.device) -> Metrics:
        """Return percentages, as far as there are videos to ask: `knn_top1` and `window_r1` (see their functions)."""
        workers = resolve_workers(self._workers, device)
        with torch.random.fork_rng(devices=[]), evaluating(self._encoder), torch.inference_mode():
            loader: DataLoader[Any] = DataLoader(
                self._data,
                batch_size=self._batch_size,
                collate_fn=list,
                num_workers=workers,
                multiprocessing_context=worker_start_method(workers),
                worker_init_fn=init_worker,
            )
            windows = [one for batch in loader for one in embed_windows(self._encoder, batch, device)]
        readable = torch.tensor([one is not None for one in windows])
        if not readable.any():
            return {}
        features = torch.stack([one for one in windows if one is not None])  # (N, 2, D)
        labels, sources, apart = (values[readable] for values in (self._labels, self._sources, self._apart))
        found = {"knn_top1": knn_top1(features.mean(1), labels, sources), "window_r1": window_r1(features[apart])}
        return {name: value for name, value in found.items() if value is not None}


def embed_windows(encoder: Encoder, batch: list[Tensor | None], device: torch.device) -> list[Tensor | None]:
    """Return per video its unit features (2, D), or None."""
    readable = [one for one in batch if one is not None]
    if not readable:
        return list(batch)
    features = F.normalize(encoder(torch.cat(readable).to(device)).float(), dim=1).cpu().unflatten(0, (-1, NUM_WINDOWS))
    found = iter(features)
    return [None if one is None else next(found) for one in batch]


def knn_top1(features: Tensor, labels: Tensor, sources: Tensor) -> float | None:
    """Return the percentage of labeled videos whose nearest labeled video of another source has their class.

    `features` is (N, D). None where there are fewer than two classes, or no other source.
    """
    known = labels >= 0
    features, labels, sources = features[known], labels[known], sources[known]
    if len(labels.unique()) < 2 or len(sources.unique()) < 2:
        return None
    unit = centered(features, features.mean(0))
    similarity = (unit @ unit.T).masked_fill_(sources[:, None] == sources[None], -2)
    return 100 * float((labels[similarity.argmax(1)] == labels).double().mean())


def window_r1(features: Tensor) -> float | None:
    """Return the percentage of videos (N, 2, D) whose first window finds their own last one among all videos'."""
    if len(features) < 2:
        return None
    mean = features[:, 1].mean(0)
    first, last = (centered(features[:, window], mean) for window in range(NUM_WINDOWS))
    return 100 * float(((first @ last.T).argmax(1) == torch.arange(len(features))).double().mean())


def centered(features: Tensor, mean: Tensor) -> Tensor:
    """Subtract the mean and normalize."""
    return F.normalize(features - mean, dim=1)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set eval mode in the block; afterward every part has the mode that it had."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
