"""Train and test a classifier on clips: fine-tuning, training from scratch, and the linear probe with augmentation.

The epoch is selected on a validation subset of the training sources. (Han et al. select on 30% of the test set.)
"""

# N videos, C classes

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from covid_cmsf import __version__
from covid_cmsf.clips.base import Clips
from covid_cmsf.evaluation.features.file import Probabilities, clips_sha256, compute_fingerprint, save_probabilities
from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.evaluation.features.protocol import EvalProtocol, build_eval_protocol
from covid_cmsf.evaluation.features.subsets import (
    SplitVideos,
    VideoTable,
    load_split,
)
from covid_cmsf.evaluation.features.video_dataset import VideoDataset
from covid_cmsf.evaluation.finetune.config import FinetuneConfig
from covid_cmsf.evaluation.finetune.dataset import ClipDataset
from covid_cmsf.evaluation.finetune.model import build_classifier
from covid_cmsf.evaluation.finetune.predict import all_window_outputs, predict_videos
from covid_cmsf.evaluation.finetune.preflight import check_finetune
from covid_cmsf.evaluation.finetune.subsets import FinetuneSubsets, choose_subsets
from covid_cmsf.evaluation.finetune.train import BEST, LAST, ClipTrainer, check_resumable
from covid_cmsf.evaluation.overlap import Overlap, check_overlap
from covid_cmsf.evaluation.probes.linear import feature_statistics
from covid_cmsf.evaluation.results import Scores, compute_scores
from covid_cmsf.models import EncoderMetadata
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.preflight import raise_problems

PROBABILITIES = "probabilities.safetensors"


@dataclass(frozen=True)
class FinetuneResult:
    """Scores of `best_epoch`, which is selected on the validation subset."""

    protocol: str
    mode: str
    num_fit: int
    num_val: int
    scores: Scores
    best_epoch: int
    history: list[dict[str, float]]
    skipped: list[tuple[str, str, str]]  # id, subset, reason
    overlap: Overlap  # of training and test
    provenance: dict[str, Any] = field(default_factory=dict)


def run_finetune(
    eval_model: EvalModel,
    clips: Clips,
    folder: Path,
    config: FinetuneConfig,
    *,
    eval_protocol: EvalProtocol | None = None,
    split: str | None = None,
    query: str = "test",
    allow_shared_sources: bool = False,
    num_workers: int = 0,
    device: torch.device | str = "cpu",
    replace: bool = False,
    on_epoch: Callable[[], None] = lambda: None,
) -> FinetuneResult:
    """Train by `config` in `folder`, resuming a killed training, and test once.

    Everything that would stop it later is a PreflightError before. The folder then has `best.pt` (encoder and
    classifier), `last.pt` (to resume) and the test probabilities.
    """
    device = torch.device(device)
    eval_protocol = build_eval_protocol(eval_model.metadata) if eval_protocol is None else eval_protocol
    options: dict[str, Any] = {"split": split, "query": query, "allow_shared_sources": allow_shared_sources}
    raise_problems(check_finetune(folder, config, eval_model, clips, eval_protocol, **options))
    split_videos = load_split(clips, split)
    videos = VideoTable.from_records(split_videos.records, split_videos.subsets)
    subsets = choose_subsets(videos, config, query=query)
    overlap = check_overlap(
        videos,
        *subsets.train_and_test_indices(),
        names=("train", query),
        allow_shared_sources=allow_shared_sources,
    )
    provenance = _build_provenance(eval_model, clips, split_videos, eval_protocol, config, query=query, device=device)
    if not replace:
        check_resumable(folder, provenance["fingerprint"])  # before the features of a probe are standardized
    folder.mkdir(parents=True, exist_ok=True)
    if replace:
        for name in (LAST, BEST, PROBABILITIES):
            (folder / name).unlink(missing_ok=True)
    data = FinetuneData(clips, split_videos, subsets, eval_protocol)
    network = build_classifier(eval_model, len(videos.class_names), config).to(device)
    if config.standardize:
        outputs = all_window_outputs(network.encoder, data.videos("fit"), num_workers=num_workers, device=device)
        network.classifier.set_statistics_(*feature_statistics(outputs.windows))
    trainer = ClipTrainer(
        network,
        _finetuned_metadata(eval_model.metadata, eval_protocol, config),
        config,
        data.training_clips(config),
        data.validation_videos(),
        folder,
        fingerprint=provenance["fingerprint"],
        num_workers=num_workers,
        device=device,
    )
    progress = trainer.run(on_epoch)
    if config.backbone_lr_factor == 0 and weights_sha256(trainer.network.encoder) != provenance["weights_sha256"]:
        raise RuntimeError("the frozen encoder changed during the training, so the result is invalid")
    test_data = data.videos("test", num_crops=config.num_crops)
    predictions = predict_videos(trainer.network, test_data, num_workers=num_workers, device=device)
    test_videos = videos.take(torch.tensor([subsets.test[index] for index in predictions.indices]))
    save_probabilities(folder / PROBABILITIES, Probabilities(test_videos, predictions.probabilities, provenance))
    test_errors = {test_data.records[index].video_id: reason for index, reason in predictions.errors.items()}
    return FinetuneResult(
        protocol=eval_protocol.name,
        mode=config.mode,
        num_fit=len(subsets.fit),
        num_val=len(subsets.val),
        scores=compute_scores(predictions.probabilities, test_videos, seed=config.seed),
        best_epoch=progress.best_epoch,
        history=progress.history,
        skipped=_skipped_videos(split_videos, progress.errors | test_errors),
        overlap=overlap,
        provenance={**provenance, "checkpoint": BEST},
    )


@dataclass(frozen=True)
class FinetuneData:
    """Data sets of the subsets of a split."""

    clips: Clips
    split_videos: SplitVideos
    subsets: FinetuneSubsets
    eval_protocol: EvalProtocol

    def training_clips(self, config: FinetuneConfig) -> ClipDataset:
        """Return random, augmented clips of the subset `fit`."""
        records = [self.split_videos.records[i] for i in self.subsets.fit]
        return ClipDataset(self.clips, records, self.eval_protocol, seed=config.seed, augmentation=config.augmentation)

    def validation_videos(self) -> VideoDataset | None:
        """Return the center window of the videos of `val`; None if there are none."""
        one_window = self.eval_protocol.model_copy(update={"name": "clean", "num_windows": 1})
        return dataclasses.replace(self, eval_protocol=one_window).videos("val") if self.subsets.val else None

    def videos(self, subset: Literal["fit", "val", "test"], *, num_crops: int = 1) -> VideoDataset:
        """Return all windows and crops of the videos of `fit`, `val` or `test`."""
        indices: list[int] = getattr(self.subsets, subset)
        records = [self.split_videos.records[i] for i in indices]
        subsets = [self.split_videos.subsets[i] for i in indices]
        return VideoDataset(self.clips, records, subsets, self.eval_protocol, num_crops=num_crops)


def _finetuned_metadata(
    metadata: EncoderMetadata, eval_protocol: EvalProtocol, config: FinetuneConfig
) -> EncoderMetadata:
    """Return the metadata of the trained encoder."""
    updates = {
        "modality": eval_protocol.modality,
        "input_size": (eval_protocol.length, eval_protocol.size, eval_protocol.size),
        "stride": eval_protocol.stride,
        "trained": f"{metadata.trained}; then {config.mode} on labels",
    }
    return metadata.model_copy(update=updates)


def _build_provenance(
    eval_model: EvalModel,
    clips: Clips,
    split_videos: SplitVideos,
    eval_protocol: EvalProtocol,
    config: FinetuneConfig,
    *,
    query: str,
    device: torch.device,
) -> dict[str, Any]:
    fields = {
        "protocol": eval_protocol.name,
        "encoder": eval_model.metadata.encoder,
        "checkpoint_sha256": eval_model.checkpoint_sha256,
        "weights_sha256": weights_sha256(eval_model.network),
        "branch": eval_model.branch,
        "eval_protocol": eval_protocol.model_dump(mode="json"),
        "config": config.model_dump(mode="json"),
        "store_sha256": clips_sha256(clips),
        "split": split_videos.name,
        "query": query,
        "device": device.type,
        "software": f"covid-cmsf {__version__}",
    }
    videos = [
        [record.video_id, subset] for record, subset in zip(split_videos.records, split_videos.subsets, strict=True)
    ]
    return {"fingerprint": compute_fingerprint({**fields, "videos": videos}), "origin": eval_model.origin, **fields}


def _skipped_videos(split_videos: SplitVideos, errors: dict[str, str]) -> list[tuple[str, str, str]]:
    """Return id, subset and reason of all skipped videos of the split."""
    subset_of = {
        record.video_id: subset for record, subset in zip(split_videos.records, split_videos.subsets, strict=True)
    }
    return [*split_videos.missing, *((video_id, subset_of[video_id], reason) for video_id, reason in errors.items())]
