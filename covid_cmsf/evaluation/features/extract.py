"""Extract the features of all videos of a split: `covid-cmsf extract`.

The values depend on the encoder, the clips and the protocol, not on the number of workers or of processes, nor on
whether the extraction was killed and resumed. Another batch size or device type changes the last bits, because
convolutions then sum in another order.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import nn

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
from covid_cmsf.evaluation.features.inference import calibrate_, video_features, window_features
from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.evaluation.features.processes import run_on_devices
from covid_cmsf.evaluation.features.protocol import EvalProtocol, build_eval_protocol
from covid_cmsf.evaluation.features.shards import SHARD_SIZE, ShardStore
from covid_cmsf.evaluation.features.stale import relative_path
from covid_cmsf.evaluation.features.subsets import SplitVideos, VideoTable, load_split
from covid_cmsf.evaluation.features.video_dataset import VideoDataset, load_videos, with_progress
from covid_cmsf.evaluation.preflight import check_protocol
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.models.precision import autocast
from covid_cmsf.preflight import raise_problems
from covid_cmsf.views.preflight import other_flow

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
    device: torch.device | str | Sequence[torch.device] = "cpu",
    precision: str = "fp32",
    replace: bool = False,
    on_video: Callable[[], None] = lambda: None,
) -> Features:
    """Extract features, write them to `out`, and return them; if `out` has these very features, only read it.

    The default of `eval_protocol` follows from the model's metadata, that of `batch_size` is 16 windows or 128 images.
    A killed extraction is resumed; a file of other features is a FileExistsError unless `replace`. Videos that cannot
    be read are in `skipped`. `on_video` is called after every video. Several devices share the videos, in a process
    each with `num_workers`; all must be of one type.
    """
    devices = [torch.device(device)] if isinstance(device, torch.device | str) else list(device)
    out, device = Path(out), devices[0]
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
    address = str(getattr(clips, "path", "this set of clips"))
    if different := other_flow(eval_model.metadata.flow, clips, eval_protocol.resolve_modality(), address=address):
        logger.warning("%s %s", eval_model.origin, different)
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
    extraction = ShardExtraction(eval_model.network, data, out, provenance, shard_size(clips), num_workers)
    with ShardStore(out, provenance.fingerprint) as shard_store:
        extraction.extract_missing(shard_store, devices, on_video=on_video)
        if files_fingerprint(clips, clips.records, (data.modality.stored_modality,)) != provenance.videos_sha256:
            raise RuntimeError("video files changed during the extraction; run it again when they are complete")
        features = _assemble(shard_store, split_videos, provenance, num_shards=extraction.num_shards)
        save_features(out, features)
        shard_store.remove()
    return features


def shard_size(clips: Clips) -> int:
    """Return the videos per shard: the most that a kill can cost. Images are faster."""
    return IMAGE_SHARD_SIZE if clips.is_image else SHARD_SIZE


@dataclass(frozen=True)
class ShardExtraction:
    """What computes the shards of an extraction; picklable, so that several processes can share them."""

    network: nn.Module
    data: VideoDataset
    out: Path
    provenance: Provenance
    shard_size: int
    num_workers: int

    @property
    def num_shards(self) -> int:
        """Return the number of shards, all but the last of them full."""
        return -(-len(self.data) // self.shard_size)

    def extract_missing(
        self, shard_store: ShardStore, devices: Sequence[torch.device], *, on_video: Callable[[], None]
    ) -> None:
        """Extract the shards that are not in the store yet."""
        done = shard_store.open()
        if done:
            logger.info("resuming: %d of %d shards are done", len(done), self.num_shards)
        for number in sorted(done):
            for _ in self.videos(number):
                on_video()
        if len(devices) > 1:
            self.network.cpu()  # it is sent to the processes
        todo = [number for number in range(self.num_shards) if number not in done]
        run_on_devices(self, todo, devices, on_video=on_video)

    def __call__(self, shards: Sequence[int], device: torch.device, on_video: Callable[[], None]) -> None:
        """Extract some shards on one device, all with one set of workers."""
        remaining = [video for number in shards for video in self.videos(number)]
        videos = with_progress(load_videos(self.data, remaining, num_workers=self.num_workers), on_video)
        store = ShardStore(self.out, self.provenance.fingerprint)
        for number in shards:
            outputs = window_features(
                self.network,
                self.data,
                islice(videos, len(self.videos(number))),
                batch_size=self.provenance.batch_size,
                device=device,
                precision=self.provenance.precision,
            )
            store.save(number, outputs)
        next(videos, None)  # the last one is reported when the next is asked for
        if weights_sha256(self.network) != self.provenance.weights_sha256:
            raise RuntimeError(f"{self.provenance.origin} changed during the extraction, so its features are invalid")

    def videos(self, shard: int) -> range:
        """Return the indices of a shard's videos."""
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, len(self.data)))


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
