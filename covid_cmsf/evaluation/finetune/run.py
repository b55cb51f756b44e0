"""Train and test a classifier on clips: fine-tuning, training from scratch, and the linear probe with augmentation.

The epoch is selected on a validation subset of the training sources. (Han et al. select on 30% of the test set.)
"""

# N videos, C classes

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from covid_cmsf import __version__
from covid_cmsf.clips.base import Clips
from covid_cmsf.devices import explained_memory
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
from covid_cmsf.evaluation.finetune.predict import all_windows, predict_videos
from covid_cmsf.evaluation.finetune.preflight import check_finetune
from covid_cmsf.evaluation.finetune.process_group import ProcessGroup, run_in_group
from covid_cmsf.evaluation.finetune.subsets import FinetuneSubsets, choose_subsets
from covid_cmsf.evaluation.finetune.train import BEST, LAST, ClipTrainer, TrainProgress, check_resumable, memory_advice
from covid_cmsf.evaluation.overlap import Overlap, check_overlap
from covid_cmsf.evaluation.probes.linear import feature_statistics
from covid_cmsf.evaluation.results import Scores, compute_scores
from covid_cmsf.files import atomic_path
from covid_cmsf.models import Classifier, EncoderMetadata
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
    lrs: dict[str, float] = field(default_factory=dict)  # {learning rate: accuracy on validation}, where one is chosen
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
    lrs: Sequence[float] = (),
    num_workers: int = 0,
    device: torch.device | str | Sequence[torch.device] = "cpu",
    replace: bool = False,
    on_epoch: Callable[[], None] = lambda: None,
) -> FinetuneResult:
    """Train by `config` in `folder`, resuming a killed training, and test once.

    Everything that would stop it later is a PreflightError before. The folder then has `best.pt` (encoder and
    classifier), `last.pt` (to resume) and the test probabilities. With several `lrs`, each is trained in a folder of
    its own, and the best on the validation videos is taken. Several devices share every batch, in a process each with
    `num_workers`; all must be of one type.
    """
    devices = [torch.device(device)] if isinstance(device, torch.device | str) else list(device)
    eval_protocol = build_eval_protocol(eval_model.metadata) if eval_protocol is None else eval_protocol
    options: dict[str, Any] = {"split": split, "query": query, "allow_shared_sources": allow_shared_sources}
    options |= {"lrs": lrs, "num_processes": len(devices)}
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
    data = FinetuneData(clips, split_videos, subsets, eval_protocol, len(videos.class_names))
    trainings = []
    for lr in lrs or (config.lr,):
        chosen = config.model_copy(update={"lr": lr})
        provenance = _build_provenance(
            eval_model, clips, split_videos, eval_protocol, chosen, query=query, devices=devices
        )
        trainings.append(Training(chosen, folder / f"lr-{lr:g}" if len(lrs) > 1 else folder, provenance))
        if not replace:
            check_resumable(trainings[-1].folder, provenance["fingerprint"])
    if len(devices) > 1:
        eval_model.network.cpu()  # it is sent to the processes
    work = TrainAndTest(eval_model, data, trainings, folder, num_workers, replace)
    outcome = run_in_group(work, devices, on_epoch=on_epoch)
    provenance, probabilities = outcome.training.provenance, torch.from_numpy(outcome.probabilities)
    test_videos = videos.take(torch.tensor([subsets.test[index] for index in outcome.indices]))
    save_probabilities(folder / PROBABILITIES, Probabilities(test_videos, probabilities, provenance))
    test_records = data.videos("test").records
    test_errors = {test_records[index].video_id: reason for index, reason in outcome.errors.items()}
    return FinetuneResult(
        protocol=eval_protocol.name,
        mode=config.mode,
        num_fit=len(subsets.fit),
        num_val=len(subsets.val),
        scores=compute_scores(probabilities, test_videos, seed=config.seed),
        best_epoch=outcome.progress.best_epoch,
        lrs=outcome.accuracies if len(lrs) > 1 else {},
        history=outcome.progress.history,
        skipped=_skipped_videos(split_videos, outcome.progress.errors | test_errors),
        overlap=overlap,
        provenance={**provenance, "checkpoint": BEST},
    )


@dataclass(frozen=True)
class Training:
    """The training with one learning rate."""

    config: FinetuneConfig
    folder: Path
    provenance: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The best training, and what it predicts for the test videos; without tensors, so that it can be sent."""

    training: Training
    progress: TrainProgress
    accuracies: dict[str, float]  # on validation, of every learning rate
    probabilities: NDArray[np.float32]  # (N, C) of the test videos that could be read
    indices: list[int]  # of these among the test videos
    errors: dict[int, str]  # {index of another one: reason}


@dataclass(frozen=True)
class TrainAndTest:
    """What each process of a group does; picklable."""

    eval_model: EvalModel
    data: "FinetuneData"
    trainings: list[Training]
    folder: Path
    num_workers: int
    replace: bool

    def __call__(self, group: ProcessGroup, device: torch.device, on_epoch: Callable[[], None]) -> Outcome:
        """Train with every learning rate, and test the best on validation once."""
        config = self.trainings[0].config
        with explained_memory(lambda: memory_advice(config, self.data.eval_protocol, num_processes=group.size)):
            return self._train_and_test(group, device, on_epoch)

    def _train_and_test(self, group: ProcessGroup, device: torch.device, on_epoch: Callable[[], None]) -> Outcome:
        accuracies: dict[str, float] = {}
        best: tuple[ClipTrainer, TrainProgress, Training] | None = None
        for training in self.trainings:
            trainer = self._make_trainer(training, group, device)
            progress = trainer.run(on_epoch)
            accuracies[f"{training.config.lr:g}"] = progress.best_accuracy
            if best is None or progress.best_accuracy > best[1].best_accuracy:
                best = trainer, progress, training
        assert best is not None
        trainer, progress, training = best
        frozen = training.config.backbone_lr_factor == 0
        if frozen and weights_sha256(trainer.network.encoder) != training.provenance["weights_sha256"]:
            raise RuntimeError("the frozen encoder changed during the training, so the result is invalid")
        if trainer.folder != self.folder and group.is_main:
            with atomic_path(self.folder / BEST) as temporary:
                shutil.copyfile(trainer.folder / BEST, temporary)
        test_data = self.data.videos("test", num_crops=training.config.num_crops)
        found = predict_videos(trainer.network, test_data, num_workers=self.num_workers, device=device, group=group)
        return Outcome(training, progress, accuracies, found.probabilities.numpy(), found.indices, found.errors)

    def _make_trainer(self, training: Training, group: ProcessGroup, device: torch.device) -> ClipTrainer:
        """Return a new training in its folder, or the one that is there, to be resumed."""
        config, folder = training.config, training.folder
        if group.is_main:
            folder.mkdir(parents=True, exist_ok=True)
            for name in (LAST, BEST, PROBABILITIES) if self.replace else ():
                (folder / name).unlink(missing_ok=True)
        network = build_classifier(self.eval_model, self.data.num_classes, config).to(device)
        if config.standardize:
            windows = all_windows(
                network.encoder, self.data.videos("fit"), num_workers=self.num_workers, device=device, group=group
            )
            statistics = group.share(None if windows is None else feature_statistics(windows))
            assert isinstance(network.classifier, Classifier) and statistics is not None
            network.classifier.set_statistics_(*statistics)
        group.share(None)  # the folder is ready
        return ClipTrainer(
            network,
            _finetuned_metadata(self.eval_model.metadata, self.data.eval_protocol, config),
            config,
            self.data.training_clips(config),
            self.data.validation_videos(),
            folder,
            fingerprint=training.provenance["fingerprint"],
            num_workers=self.num_workers,
            device=device,
            group=group,
        )


@dataclass(frozen=True)
class FinetuneData:
    """Data sets of the subsets of a split."""

    clips: Clips
    split_videos: SplitVideos
    subsets: FinetuneSubsets
    eval_protocol: EvalProtocol
    num_classes: int

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
    devices: Sequence[torch.device],
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
        "device": devices[0].type,
        "software": f"covid-cmsf {__version__}",
    }
    videos = [
        [record.video_id, subset] for record, subset in zip(split_videos.records, split_videos.subsets, strict=True)
    ]
    fingerprint = compute_fingerprint({**fields, "videos": videos})
    return {"fingerprint": fingerprint, "origin": eval_model.origin, "processes": len(devices), **fields}


def _skipped_videos(split_videos: SplitVideos, errors: dict[str, str]) -> list[tuple[str, str, str]]:
    """Return id, subset and reason of all skipped videos of the split."""
    subset_of = {
        record.video_id: subset for record, subset in zip(split_videos.records, split_videos.subsets, strict=True)
    }
    return [*split_videos.missing, *((video_id, subset_of[video_id], reason) for video_id, reason in errors.items())]
