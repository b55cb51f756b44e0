"""Extract the features of all videos of a split: `covid-cmsf extract`.

The values depend on the encoder, the clips and the protocol, not on the number of workers, nor on whether the
extraction was killed and resumed. Another batch size or device type changes the last bits, because convolutions then
sum in another order.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path

import torch

from covid_cmsf import __version__
from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.fingerprint import files_fingerprint
from covid_cmsf.evaluation.features.file import (
    Features,
    Provenance,
    clips_sha256,
    compute_fingerprint,
    load_features,
    save_features,
)
from covid_cmsf.evaluation.features.inference import WindowOutputs, calibrate_, video_features, window_features
from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.evaluation.features.protocol import EvalProtocol, build_eval_protocol
from covid_cmsf.evaluation.features.shards import SHARD_SIZE, ShardStore
from covid_cmsf.evaluation.features.stale import relative_path
from covid_cmsf.evaluation.features.subsets import SplitVideos, VideoTable, load_split
from covid_cmsf.evaluation.features.video_dataset import DecodedVideo, VideoDataset, load_videos, with_progress
from covid_cmsf.evaluation.preflight import check_protocol
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.models.precision import autocast
from covid_cmsf.preflight import raise_problems

logger = logging.getLogger(__name__)
BATCH_SIZE, IMAGE_BATCH_SIZE = 16, 128
IMAGE_SHARD_SIZE = 2048
COMPARED = (  # fields of the provenance that are named if they differ
    "encoder", "checkpoint_sha256", "weights_sha256", "branch", "eval_protocol", "store_sha256", "videos_sha256",
    "split", "precision", "device", "batch_size", "software",
)  # fmt: skip


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
    """Extract features, write them to `out`, and return them; if `out` has these very features, only read it.

    The default of `eval_protocol` follows from the model's metadata, that of `batch_size` is 16 windows or 128 images.
    A killed extraction is resumed; a file of other features is a FileExistsError unless `replace`. Videos that cannot
    be read are in `skipped`. `on_video` is called after every video.
    """
    out, device = Path(out), torch.device(device)
    if batch_size is None:
        batch_size = IMAGE_BATCH_SIZE if clips.is_image else BATCH_SIZE
    if batch_size < 1:
        raise ValueError(f"batch_size = {batch_size}: must be at least 1")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {out.parent} to write {out.name} to")
    autocast(precision, device)  # an unknown precision is an error before anything is read
    eval_protocol = build_eval_protocol(eval_model.metadata) if eval_protocol is None else eval_protocol
    raise_problems(
        check_protocol(
            clips,
            eval_protocol,
            address=str(getattr(clips, "path", "this set of images")),
            split=split,
            num_features=int(getattr(eval_model.network, "num_features", 0)),
            out=out,
        )
    )
    split_videos = load_split(clips, split)
    data = VideoDataset(clips, split_videos.records, split_videos.subsets, eval_protocol)
    if eval_model.needs_calibration:
        calibrate_(eval_model.network, data, device=device)
    provenance = build_provenance(
        eval_model, clips, split_videos, eval_protocol, out, batch_size=batch_size, device=device, precision=precision
    )
    if out.exists():
        existing = _load_if_same(out, provenance, replace=replace)
        if existing is not None:
            return existing
    extract = partial(
        window_features, eval_model.network, data, batch_size=batch_size, device=device, precision=precision
    )
    with ShardStore(out, provenance.fingerprint) as shard_store:
        _extract_missing(shard_store, data, extract, num_workers=num_workers, on_video=on_video)
        if weights_sha256(eval_model.network) != provenance.weights_sha256:
            raise RuntimeError(f"{eval_model.origin} changed during the extraction, so its features are invalid")
        if files_fingerprint(clips, clips.records, (data.modality.stored_modality,)) != provenance.videos_sha256:
            raise RuntimeError("video files changed during the extraction; run it again when they are complete")
        features = _assemble(
            shard_store, split_videos, provenance, num_shards=-(-len(split_videos.records) // shard_size(clips))
        )
        save_features(out, features)
        shard_store.remove()
    return features


def shard_size(clips: Clips) -> int:
    """Return the videos per shard: the most that a kill can cost. Images are faster."""
    return IMAGE_SHARD_SIZE if clips.is_image else SHARD_SIZE


def _extract_missing(
    shard_store: ShardStore,
    data: VideoDataset,
    extract: Callable[[Iterable[DecodedVideo]], WindowOutputs],
    *,
    num_workers: int,
    on_video: Callable[[], None],
) -> None:
    """Extract the missing shards, all with one set of workers."""
    done = shard_store.open()
    size = shard_size(data.clips)
    shard_videos = {
        number: range(first, min(first + size, len(data))) for number, first in enumerate(range(0, len(data), size))
    }
    if done:
        logger.info("resuming: %d of %d shards are done", len(done), len(shard_videos))
    for number in sorted(done):
        for _ in shard_videos[number]:
            on_video()
    todo = [number for number in shard_videos if number not in done]
    remaining = [video for number in todo for video in shard_videos[number]]
    videos = with_progress(load_videos(data, remaining, num_workers=num_workers), on_video)
    for number in todo:
        shard_store.save(number, extract(islice(videos, len(shard_videos[number]))))


def build_provenance(
    eval_model: EvalModel,
    clips: Clips,
    split_videos: SplitVideos,
    eval_protocol: EvalProtocol,
    out: Path,
    *,
    batch_size: int,
    device: torch.device,
    precision: str,
) -> Provenance:
    """Return what the features of these videos depend on."""
    fields = {
        "encoder": eval_model.metadata.encoder,
        "origin": eval_model.origin,
        "checkpoint_sha256": eval_model.checkpoint_sha256,
        "weights_sha256": weights_sha256(eval_model.network),
        "branch": eval_model.branch,
        "eval_protocol": eval_protocol.model_dump(mode="json"),
        "store_sha256": clips_sha256(clips),
        "videos_sha256": files_fingerprint(clips, clips.records, (eval_protocol.resolve_modality().stored_modality,)),
        "split": split_videos.name,
        "precision": precision,
        "device": device.type,
        "batch_size": batch_size,
        "software": f"covid-cmsf {__version__}",
    }
    videos = [
        [record.video_id, subset] for record, subset in zip(split_videos.records, split_videos.subsets, strict=True)
    ]
    # The values depend on the content of the checkpoint, not on its name.
    hashed = {key: value for key, value in fields.items() if key != "origin"}
    return Provenance(
        fingerprint=compute_fingerprint({**hashed, "videos": videos}),
        checkpoint_path=relative_path(eval_model.path, out),
        clips_path=relative_path(Path(clips.address) if clips.address else None, out),
        **fields,
    )


def _load_if_same(out: Path, provenance: Provenance, *, replace: bool) -> Features | None:
    """Return the features in `out` if their fingerprint is the same; None if they may be replaced."""
    try:
        existing = load_features(out)
    except ValueError as error:
        if replace:
            return None
        raise FileExistsError(f"{out} exists and is no features file ({error}); --force replaces it") from None
    if existing.provenance.fingerprint == provenance.fingerprint:
        return existing
    if replace:
        return None
    old, new = (one.model_dump(mode="json") for one in (existing.provenance, provenance))
    differing = [name for name in COMPARED if old[name] != new[name]]
    reason = (
        "its videos were replaced or changed since"
        if differing == ["videos_sha256"]
        else "other " + (", ".join(differing) or "videos")
    )
    raise FileExistsError(f"{out} exists and holds other features ({reason}); --force replaces it")


def _assemble(
    shard_store: ShardStore, split_videos: SplitVideos, provenance: Provenance, *, num_shards: int
) -> Features:
    """Concatenate all shards; videos without windows go to `skipped`."""
    shards = [shard_store.load(number) for number in range(num_shards)]
    errors = {number: reason for shard in shards for number, reason in shard.errors.items()}
    readable = [number for number in range(len(split_videos.records)) if number not in errors]
    if not readable:
        raise ValueError(
            f"none of {len(split_videos.records)} videos could be read; the first: {next(iter(errors.values()))}"
        )
    windows = torch.cat([shard.windows for shard in shards if len(shard.windows)])
    window_numbers, window_starts = (
        torch.cat([getattr(shard, name) for shard in shards]) for name in ("window_videos", "window_starts")
    )
    del shards  # a million images take gigabytes
    if num_zero := int((windows.abs().amax(1) == 0).sum()):
        logger.warning(
            "the features of %d of %d windows are all zero: has the encoder collapsed?", num_zero, len(windows)
        )
    index_of = torch.zeros(len(split_videos.records), dtype=torch.int64)
    index_of[torch.tensor(readable)] = torch.arange(len(readable))
    window_videos = index_of[window_numbers]
    skipped = [*split_videos.missing] + [
        (split_videos.records[number].video_id, split_videos.subsets[number], reason)
        for number, reason in errors.items()
    ]
    return Features(
        videos=VideoTable.from_records(split_videos.records, split_videos.subsets).take(torch.tensor(readable)),
        features=video_features(windows, window_videos, len(readable)),
        windows=windows,
        window_videos=window_videos,
        window_starts=window_starts,
        provenance=provenance,
        skipped=tuple(skipped),
    )
