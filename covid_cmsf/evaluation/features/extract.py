"""Features of all videos of a split: `covid-cmsf extract`.

The values depend on the encoder, the clips and the way they are shown, not on the number of workers, nor on whether
the extraction was killed and continued. Other batch sizes and other kinds of device change them in the last bits,
because convolutions then sum in another order.
"""

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch

from covid_cmsf import __version__
from covid_cmsf.clips.base import Clips
from covid_cmsf.evaluation.features.file import (
    Features,
    Provenance,
    clips_sha256,
    compute_fingerprint,
    load_features,
    save_features,
)
from covid_cmsf.evaluation.features.inference import FeatureExtractor, calibrate_, video_features
from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.evaluation.features.protocol import EvalProtocol, build_eval_protocol
from covid_cmsf.evaluation.features.shards import SHARD_SIZE, ShardStore
from covid_cmsf.evaluation.features.subsets import SplitVideos, VideoTable, load_split
from covid_cmsf.evaluation.features.video_dataset import DecodedVideo, VideoDataset, load_videos
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.models.precision import autocast

logger = logging.getLogger(__name__)
BATCH_SIZE, IMAGE_BATCH_SIZE = 16, 128
IMAGE_SHARD_SIZE = 2048


def extract_features(
    eval_model: EvalModel,
    clips: Clips,
    out: Path,
    *,
    eval_protocol: EvalProtocol | None = None,
    split: str | None = None,
    batch_size: int | None = None,
    num_workers: int = 0,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
    replace: bool = False,
    on_video: Callable[[], None] = lambda: None,
) -> Features:
    """Writes `out` and returns what is in it. A file that holds exactly these features already is only read.

    `eval_protocol` is what the subject's metadata says when left out, `batch_size` 16 windows or 128 images. A killed
    extraction continues; a file of other features is a FileExistsError unless `replace`. Videos that cannot be read
    are in `skipped`.
    """
    out, device = Path(out), torch.device(device)
    if batch_size is None:
        batch_size = IMAGE_BATCH_SIZE if clips.is_image else BATCH_SIZE
    if batch_size < 1:
        raise ValueError(f"batch size {batch_size}: at least 1 is needed")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no folder {out.parent} to write {out.name} into")
    autocast(precision, device)  # an unknown precision is said before anything is read
    eval_protocol = build_eval_protocol(eval_model.metadata) if eval_protocol is None else eval_protocol
    split_videos = load_split(clips, split)
    data = VideoDataset(clips, split_videos.records, split_videos.subsets, eval_protocol)
    if eval_model.needs_calibration:
        calibrate_(eval_model.network, data, device=device)
    provenance = _build_provenance(
        eval_model, clips, split_videos, eval_protocol, batch_size=batch_size, device=device, precision=precision
    )
    if out.exists():
        existing = _load_if_same(out, provenance)
        if existing is not None:
            return existing
        if not replace:
            raise FileExistsError(f"{out} is there already and holds other features; --force replaces it")
    shard_store = ShardStore(out, provenance.fingerprint)
    extractor = FeatureExtractor(eval_model.network, data, batch_size=batch_size, device=device, precision=precision)
    _extract_missing(shard_store, extractor, num_workers=num_workers, on_video=on_video)
    if weights_sha256(eval_model.network) != provenance.weights_sha256:
        raise RuntimeError(f"{eval_model.origin} has changed while it was evaluated, so its features mean nothing")
    features = _assemble(
        shard_store, split_videos, provenance, num_shards=-(-len(split_videos.records) // shard_size(clips))
    )
    save_features(out, features)
    shard_store.remove()
    return features


def shard_size(clips: Clips) -> int:
    """Videos in a shard: a kill costs at most so many. Images are quicker."""
    return IMAGE_SHARD_SIZE if clips.is_image else SHARD_SIZE


def _extract_missing(
    shard_store: ShardStore, extractor: FeatureExtractor, *, num_workers: int, on_video: Callable[[], None]
) -> None:
    """Makes the shards that are not there yet, all of them with one set of workers."""
    count = len(extractor.data)
    done = shard_store.open()
    size = shard_size(extractor.data.clips)
    shard_videos = {
        number: range(first, min(first + size, count)) for number, first in enumerate(range(0, count, size))
    }
    if done:
        logger.info("continuing: %d of %d shards are there", len(done), len(shard_videos))
    for number in sorted(done):
        for _ in shard_videos[number]:
            on_video()
    todo = [number for number in shard_videos if number not in done]
    remaining = [video for number in todo for video in shard_videos[number]]
    videos = _with_progress(load_videos(extractor.data, remaining, num_workers=num_workers), on_video)
    for number in todo:
        shard_store.save(number, extractor(islice(videos, len(shard_videos[number]))))


def _with_progress(videos: Iterator[DecodedVideo], on_video: Callable[[], None]) -> Iterator[DecodedVideo]:
    for video in videos:
        yield video
        on_video()


def _build_provenance(
    eval_model: EvalModel,
    clips: Clips,
    split_videos: SplitVideos,
    eval_protocol: EvalProtocol,
    *,
    batch_size: int,
    device: torch.device,
    precision: str,
) -> Provenance:
    fields = {
        "encoder": eval_model.metadata.encoder,
        "origin": eval_model.origin,
        "checkpoint_sha256": eval_model.checkpoint_sha256,
        "weights_sha256": weights_sha256(eval_model.network),
        "branch": eval_model.branch,
        "eval_protocol": eval_protocol.model_dump(mode="json"),
        "store_sha256": clips_sha256(clips),
        "split": split_videos.name,
        "precision": precision,
        "device": device.type,
        "batch_size": batch_size,
        "software": f"covid-cmsf {__version__}",
    }
    videos = [
        [record.video_id, subset] for record, subset in zip(split_videos.records, split_videos.subsets, strict=True)
    ]
    # The name of the file does not decide the values, its contents do.
    hashed = {key: value for key, value in fields.items() if key != "origin"}
    return Provenance(fingerprint=compute_fingerprint({**hashed, "videos": videos}), **fields)


def _load_if_same(out: Path, provenance: Provenance) -> Features | None:
    """What the file holds if it is what we were going to write."""
    try:
        existing = load_features(out)
    except ValueError:
        return None
    return existing if existing.provenance.fingerprint == provenance.fingerprint else None


def _assemble(
    shard_store: ShardStore, split_videos: SplitVideos, provenance: Provenance, *, num_shards: int
) -> Features:
    """All shards as one; videos without windows leave the table and enter `skipped`."""
    shards = [shard_store.load(number) for number in range(num_shards)]
    errors = {number: reason for shard in shards for number, reason in shard.errors.items()}
    readable = [number for number in range(len(split_videos.records)) if number not in errors]
    if not readable:
        raise ValueError(
            f"none of {len(split_videos.records)} videos could be read; the first: {next(iter(errors.values()))}"
        )
    windows = torch.cat([shard.windows for shard in shards if len(shard.windows)])
    if num_zero := int((windows == 0).all(1).sum()):
        logger.warning(
            "the features of %d of %d windows are all zero: has the encoder collapsed?", num_zero, len(windows)
        )
    index_of = {number: row for row, number in enumerate(readable)}
    window_videos = torch.tensor([index_of[int(number)] for shard in shards for number in shard.window_videos])
    skipped = [*split_videos.missing] + [
        (split_videos.records[number].video_id, split_videos.subsets[number], reason)
        for number, reason in errors.items()
    ]
    return Features(
        videos=VideoTable.from_records(split_videos.records, split_videos.subsets).take(torch.tensor(readable)),
        features=video_features(windows, window_videos, len(readable)),
        windows=windows,
        window_videos=window_videos,
        window_starts=torch.cat([shard.window_starts for shard in shards]),
        provenance=provenance,
        skipped=tuple(skipped),
    )
