"""Classification trained on clips: fine-tuning, training from scratch, and the linear probe with augmentation.

Epochs are chosen on a validation subset of the training sources. (Han et al. choose on 30% of the test set.)
"""

# N videos, C classes

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covid_cmsf import __version__
from covid_cmsf.clips.base import Clips
from covid_cmsf.evaluation.features.file import Probabilities, clips_sha256, compute_fingerprint, save_probabilities
from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.evaluation.features.protocol import EvalProtocol, build_eval_protocol
from covid_cmsf.evaluation.features.subsets import (
    VAL_FRACTION,
    SplitVideos,
    VideoTable,
    load_split,
    split_fit_val,
    subset_indices,
)
from covid_cmsf.evaluation.features.video_dataset import VideoDataset
from covid_cmsf.evaluation.finetune.config import FinetuneConfig
from covid_cmsf.evaluation.finetune.dataset import ClipDataset
from covid_cmsf.evaluation.finetune.model import build_classifier
from covid_cmsf.evaluation.finetune.predict import predict_videos, window_outputs
from covid_cmsf.evaluation.finetune.train import BEST, LAST, ClipTrainer
from covid_cmsf.evaluation.probes.linear import feature_statistics
from covid_cmsf.evaluation.results import Scores, compute_scores
from covid_cmsf.evaluation.retrieval import check_shared_sources
from covid_cmsf.models import EncoderMetadata
from covid_cmsf.models.encoder import weights_sha256

PROBABILITIES = "probabilities.safetensors"


@dataclass(frozen=True)
class FinetuneResult:
    """The scores are those of `best_epoch`, chosen on the validation subset."""

    protocol: str
    mode: str
    num_fit: int
    num_val: int
    scores: Scores
    best_epoch: int
    history: list[dict[str, float]]
    skipped: list[tuple[str, str, str]]  # id, subset, reason
    num_shared_sources: int = 0  # in training and test; 0 unless they were allowed
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FinetuneSubsets:
    """Numbers of the videos to learn from, to choose by, and to test on."""

    fit: list[int]
    val: list[int]
    test: list[int]

    def train_and_test_indices(self) -> tuple[Tensor, Tensor]:
        """What is seen before the test, and the test."""
        return torch.tensor([*self.fit, *self.val]), torch.tensor(self.test)


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
    """Trains by the recipe in `folder` (a killed training continues) and tests once.

    The folder then holds `best.pt` (encoder and classifier), `last.pt` (to continue) and the test probabilities.
    """
    device = torch.device(device)
    eval_protocol = build_eval_protocol(eval_model.metadata) if eval_protocol is None else eval_protocol
    split_videos = load_split(clips, split)
    videos = VideoTable.from_records(split_videos.records, split_videos.subsets)
    subsets = choose_subsets(videos, config, query=query)
    num_shared = check_shared_sources(
        videos, *subsets.train_and_test_indices(), allow_shared_sources=allow_shared_sources
    )
    provenance = _build_provenance(eval_model, clips, split_videos, eval_protocol, config, query=query, device=device)
    folder.mkdir(parents=True, exist_ok=True)
    if replace:
        for name in (LAST, BEST, PROBABILITIES):
            (folder / name).unlink(missing_ok=True)
    network = build_classifier(eval_model, len(videos.class_names), config).to(device)
    if config.standardize:
        fit = _make_dataset(clips, split_videos, subsets.fit, eval_protocol, 1)
        assert fit is not None
        rows, _, _ = window_outputs(network.encoder, fit, num_workers=num_workers, device=device)
        network.classifier.set_statistics_(*feature_statistics(rows))
    training = ClipTrainer(
        network,
        _finetuned_metadata(eval_model.metadata, eval_protocol, config),
        config,
        ClipDataset(
            clips,
            [split_videos.records[i] for i in subsets.fit],
            eval_protocol,
            seed=config.seed,
            augmentation=config.augmentation,
        ),
        _make_dataset(
            clips, split_videos, subsets.val, eval_protocol.model_copy(update={"name": "clean", "num_windows": 1}), 1
        ),
        folder,
        fingerprint=provenance["fingerprint"],
        num_workers=num_workers,
        device=device,
    )
    progress = training.run(on_epoch)
    if config.backbone_lr_factor == 0 and weights_sha256(training.network.encoder) != provenance["weights_sha256"]:
        raise RuntimeError("the frozen encoder has changed during the training, so the result means nothing")
    test = _make_dataset(clips, split_videos, subsets.test, eval_protocol, config.num_crops)
    assert test is not None
    predictions = predict_videos(training.network, test, num_workers=num_workers, device=device)
    test_videos = videos.take(torch.tensor([subsets.test[number] for number in predictions.indices]))
    unread = {test.records[number].video_id: reason for number, reason in predictions.errors.items()}
    save_probabilities(folder / PROBABILITIES, Probabilities(test_videos, predictions.probabilities, provenance))
    return FinetuneResult(
        protocol=eval_protocol.name,
        mode=config.mode,
        num_fit=len(subsets.fit),
        num_val=len(subsets.val),
        scores=compute_scores(predictions.probabilities, test_videos, seed=config.seed),
        best_epoch=progress.best_epoch,
        history=progress.history,
        skipped=_skipped_videos(split_videos, progress.errors | unread),
        num_shared_sources=num_shared,
        provenance={**provenance, "checkpoint": BEST},
    )


def choose_subsets(videos: VideoTable, config: FinetuneConfig, *, query: str = "test") -> FinetuneSubsets:
    """Test is the query subset; of the training subset some sources are for choosing. Test is never looked at."""
    fraction = config.val_fraction or VAL_FRACTION
    test = subset_indices(videos, query, val_fraction=fraction, seed=config.seed)
    train = subset_indices(videos, "fit" if query == "val" else "train", val_fraction=fraction, seed=config.seed)
    if config.val_fraction == 0:
        return FinetuneSubsets(train.tolist(), [], test.tolist())
    fit, val = split_fit_val(videos.take(train), val_fraction=config.val_fraction, seed=config.seed)
    return FinetuneSubsets(train[fit].tolist(), train[val].tolist(), test.tolist())


def _finetuned_metadata(
    metadata: EncoderMetadata, eval_protocol: EvalProtocol, config: FinetuneConfig
) -> EncoderMetadata:
    """The metadata of the encoder after this training."""
    updates = {
        "modality": eval_protocol.modality,
        "input_size": (eval_protocol.length, eval_protocol.size, eval_protocol.size),
        "stride": eval_protocol.stride,
        "trained": f"{metadata.trained}; then {config.mode} on labels",
    }
    return metadata.model_copy(update=updates)


def _make_dataset(
    clips: Clips, split_videos: SplitVideos, indices: list[int], eval_protocol: EvalProtocol, num_crops: int
) -> VideoDataset | None:
    if not indices:
        return None
    records, subsets = [split_videos.records[i] for i in indices], [split_videos.subsets[i] for i in indices]
    return VideoDataset(clips, records, subsets, eval_protocol, num_crops=num_crops)


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
    """All videos of the split that were skipped, with the reason."""
    subset_of = {
        record.video_id: subset for record, subset in zip(split_videos.records, split_videos.subsets, strict=True)
    }
    return [*split_videos.missing, *((video_id, subset_of[video_id], reason) for video_id, reason in errors.items())]
