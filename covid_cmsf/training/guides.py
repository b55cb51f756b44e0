"""Guides: frozen encoders of other modalities, live or with cached embeddings. Verified unchanged after the run.

A cache holds a guide's embeddings of a few views per video. It saves the guide's decoding, augmentation and forward
pass in every step; the price is that the same few views are used throughout. A network of another library sees windows
that are evenly spread over the video and prepared as it was trained; others see views as in training.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.clips.sampling import spread_windows
from covid_cmsf.devices import send
from covid_cmsf.logs import progress_bar
from covid_cmsf.models import Guide, InputTransform, load_weights, make_guide
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.models.named_networks import named_library
from covid_cmsf.models.networks import make_named_guide
from covid_cmsf.training.config import GuideConfig
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.verified_files import DamagedFileError, read_tensors, write_tensors
from covid_cmsf.views.batch import Batch
from covid_cmsf.views.dataset import SampleKey, ViewDataset, num_usable_frames, required_frames
from covid_cmsf.views.loader import init_worker, worker_start_method
from covid_cmsf.views.modalities import Modality, get_modality

logger = logging.getLogger(__name__)

# B batch, V views, N videos, D embedding

CACHE_EPOCH = 2**31  # views of epochs that no run reaches, so that they differ from the run's own


def load_guides(chosen: Sequence[GuideConfig], *, flow_style: str) -> list[Guide]:
    """Load the guides of a run, each for a bank column named after its modality."""
    guides: list[Guide] = []
    for number, config in enumerate(chosen):
        same = sum(one.modality == config.modality for one in chosen[:number])
        column = f"guide_{config.modality}" + (f"_{same + 1}" if same else "")
        if named_library(config.weights) is not None:
            guides.append(make_named_guide(config.weights, column=column))
            continue
        if not Path(config.weights).exists():
            raise FileNotFoundError(f"guides[{number}].weights: no file {config.weights}; train the guide first")
        loaded = load_weights(config.weights, branch=config.branch, keep_head=config.layer == "projector")
        _check_guide(loaded.metadata, get_modality(config.modality, flow_style=flow_style), config)  # type: ignore[arg-type]
        guides.append(make_guide(loaded, path=config.weights, modality=config.modality, column=column))
    return guides


def _check_guide(metadata: EncoderMetadata, seen: Modality, config: GuideConfig) -> None:
    """Raise ValueError unless the guide was trained on the modality that it will be given."""
    if metadata.in_channels != seen.num_channels:
        raise ValueError(
            f"guide {config.weights} takes {metadata.in_channels} channels, and {seen.name} has {seen.num_channels}; "
            "for CoCLR's flow networks set views.flow_style=coclr"
        )
    if metadata.modality not in ("unknown", seen.name) and {metadata.modality, seen.name} != {"rgb", "frame"}:
        raise ValueError(f"guide {config.weights} was trained on {metadata.modality}, not on {seen.name}")


def embed_views(
    guide: Guide, data: ViewDataset, *, num_views: int, batch_size: int, workers: int, dist: DistributedContext
) -> Tensor:
    """Return the guide's embeddings (V, N, D) of `num_views` target views of every video.

    Each process embeds a shard; all get the whole. A video that cannot be read is an error.
    """
    keys = [SampleKey(CACHE_EPOCH + view, video, video) for view in range(num_views) for video in range(len(data))]
    embed = partial(_embed_batch, guide, device=dist.device)
    embeddings = _embed_items(
        data,
        keys,
        embed,
        collate_fn=data.collate_fn(),
        what=f"embedding {num_views} views per video with the guide",
        batch_size=batch_size,
        workers=workers,
        dist=dist,
    )
    return embeddings.view(num_views, len(data), guide.dim)


class OwnWindows(Dataset[Tensor]):
    """Windows of videos, evenly spread and prepared by a network's own `transform`: video -> (V, C, ...)."""

    def __init__(
        self, clips: Clips, records: Sequence[ClipRecord], transform: InputTransform, *, num_windows: int
    ) -> None:
        self.clips, self.records, self.transform, self.num_windows = clips, records, transform, num_windows

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, video: int) -> Tensor:
        record, transform = self.records[video], self.transform
        modality = transform.modality
        windows = spread_windows(
            num_usable_frames(record, [modality]),
            length=transform.length,
            stride=transform.stride,
            num_windows=self.num_windows,
        )
        frames = [required_frames(modality, window, single=len(window) // 2) for window in windows]
        ordered = sorted({number for one in frames for number in one})
        try:
            raw = self.clips.read_raw(record, modality.stored_modality, ordered)
        except (ValueError, OSError) as error:
            raise ValueError(f"the guide's cache needs every video: {record.video_id}: {error}") from error
        levels = self.clips.flow_levels(record)
        views = [transform.from_stored(raw[[ordered.index(number) for number in one]], levels=levels) for one in frames]
        return torch.stack(views * (self.num_windows // len(views)))  # a video shorter than a window has only one


def embed_own_windows(
    guide: Guide, data: OwnWindows, *, batch_size: int, workers: int, dist: DistributedContext
) -> Tensor:
    """Return the guide's embeddings (V, N, D) of windows of every video, for a guide with its own preprocessing."""
    embeddings = _embed_items(
        data,
        range(len(data)),
        partial(_embed_windows, guide, device=dist.device),
        collate_fn=torch.stack,
        what=f"embedding {data.num_windows} windows per video with the guide",
        batch_size=max(1, batch_size // data.num_windows),
        workers=workers,
        dist=dist,
    )
    return embeddings.transpose(0, 1).contiguous()


def _embed_items(
    data: Dataset[Any],
    items: Sequence[Any],
    embed: Callable[[Any], Tensor],
    *,
    collate_fn: Callable[[Any], Any],
    what: str,
    batch_size: int,
    workers: int,
    dist: DistributedContext,
) -> Tensor:
    """Return `embed` of all items of a data set in their order, (len(items), ...), computed by all processes."""
    own = items[dist.rank :: dist.world_size]
    batches = [list(own[start : start + batch_size]) for start in range(0, len(own), batch_size)]
    loader: DataLoader[Any] = DataLoader(
        data,
        batch_sampler=batches,
        collate_fn=collate_fn,
        num_workers=workers,
        pin_memory=dist.device.type == "cuda",
        multiprocessing_context=worker_start_method(workers),
        worker_init_fn=init_worker,
    )
    chunks = []
    with progress_bar(what, len(batches)) as advance:
        for batch in loader:
            chunks.append(embed(batch))
            advance()
    gathered = dist.gather_objects(torch.cat(chunks))
    embeddings = torch.empty(len(items), *gathered[0].shape[1:])
    for rank, chunk in enumerate(gathered):
        embeddings[rank :: dist.world_size] = chunk
    return embeddings


def _embed_batch(guide: Guide, batch: Batch, *, device: torch.device) -> Tensor:
    if batch.read_error:
        raise ValueError(f"the guide's cache needs every video: {batch.read_error}")
    embedding: Tensor = guide(batch.to(device).target[guide.modality])
    return embedding.cpu()


def _embed_windows(guide: Guide, views: Tensor, *, device: torch.device) -> Tensor:
    """Map windows (B, V, C, ...) to embeddings (B, V, D)."""
    embeddings: Tensor = guide.embed(views.flatten(0, 1).to(device))
    return embeddings.view(*views.shape[:2], -1).cpu()


def average_and_center(views: Tensor, *, mean: bool, center: bool) -> Tensor:
    """Average the views (V, N, D) of each video (`mean`), subtract the mean over all videos (`center`), normalize."""
    views = views - views.mean(dim=(0, 1)) if center else views
    views = views.mean(0, keepdim=True) if mean else views
    return torch.nn.functional.normalize(views, dim=2)


def sample_views(views: Tensor, videos: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random view (B, D) of each of the batch's videos (B,)."""
    which = torch.randint(len(views), (len(videos),), generator=generator)
    return views[send(which, views.device), videos.to(views.device)]


def write_guide_cache(path: Path, views: Tensor, key: str) -> None:
    """Write the embeddings; `key` identifies guide, data and configuration."""
    write_tensors(path, {"views": views}, metadata={"key": key})


def read_guide_cache(path: Path, key: str) -> Tensor | None:
    """Return what `write_guide_cache` wrote under the same key; None if there is nothing valid."""
    if not path.is_file():
        return None
    try:
        tensors, metadata = read_tensors(path, hint="it is computed again")
    except DamagedFileError as error:
        logger.warning("%s", error)
        return None
    return tensors.get("views") if metadata.get("key") == key else None
