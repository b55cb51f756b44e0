"""Linear accuracy without a new probe: that of the classifier which pre-training learned (Xent, FrzProto).

The paper: "For Xent and FrzProto, we use the linear classifier trained during pre-training". Xent's head gives logits;
FrzProto's head is compared with its frozen prototypes, and the class of the nearest one is predicted.
"""

# B batch, C classes, D embedding

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covid_cmsf.clips.base import Clips
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION, VideoTable, load_split, subset_indices
from covid_cmsf.evaluation.features.video_dataset import VideoDataset
from covid_cmsf.evaluation.finetune.config import FINETUNE
from covid_cmsf.evaluation.finetune.predict import predict_videos
from covid_cmsf.evaluation.overlap import check_overlap
from covid_cmsf.evaluation.probes.linear import LinearResult
from covid_cmsf.evaluation.results import VideoHits, compute_scores, top1_hits
from covid_cmsf.models import MLP, Encoder, freeze_, load_weights
from covid_cmsf.models.checkpoints.reader import find_checkpoint, read_checkpoint_file

PROTOTYPES = "method.prototypes"  # of FrzProto, in the state of a training checkpoint


class PretrainedClassifier(nn.Module):
    """Map clips (B, ...) to logits (B, C): the head's output, or its cosines to prototypes (C, D)."""

    prototypes: Tensor | None

    def __init__(self, encoder: Encoder, head: MLP, prototypes: Tensor | None = None) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.register_buffer("prototypes", prototypes)

    @property
    def num_classes(self) -> int:
        """Return C."""
        return self.head.layout.sizes[-1] if self.prototypes is None else len(self.prototypes)

    def forward(self, clip: Tensor) -> Tensor:
        """Return the logits."""
        output: Tensor = self.head(self.encoder(clip)).float()
        return output if self.prototypes is None else F.normalize(output, dim=1) @ self.prototypes.T


def load_classifier(checkpoint: Path | str, *, branch: str | None = None) -> PretrainedClassifier:
    """Load encoder and classifier of a run, or of a torchvision file; ValueError if the file has no head."""
    path = find_checkpoint(checkpoint)
    loaded = load_weights(path, branch=branch, keep_head=True)
    assert loaded.projector is not None
    state = read_checkpoint_file(path).values.get("state", {})
    return freeze_(PretrainedClassifier(loaded.encoder, loaded.projector, state.get(PROTOTYPES)))


def _class_names(clips: Clips) -> dict[int, str]:
    return {record.label: record.class_name for record in clips.records if record.label >= 0}


def evaluate_classifier(
    network: PretrainedClassifier,
    clips: Clips,
    *,
    eval_protocol: EvalProtocol,
    split: str | None = None,
    query: str = "test",
    allow_shared_sources: bool = False,
    num_workers: int = 0,
    device: torch.device | str = "cpu",
    seed: int = 0,
    trained_on: Clips | None = None,
) -> tuple[LinearResult, VideoHits]:
    """Predict the subset `query`: softmax averaged over windows, and for videos over ten crops as in fine-tuning.

    The classes of `clips` must be those of training, which are those of `trained_on` if that is given.
    """
    split_videos = load_split(clips, split)
    videos = VideoTable.from_records(split_videos.records, split_videos.subsets)
    if network.num_classes != len(videos.class_names):
        raise ValueError(
            f"the classifier of pre-training has {network.num_classes} classes, and these clips have "
            f"{len(videos.class_names)}: it can only be tested on the classes that it was trained on"
        )
    if trained_on is not None and _class_names(trained_on) != _class_names(clips):
        raise ValueError(
            "the classifier of pre-training was trained on other classes, or in another order, than these clips have"
        )
    names = ("train", query)
    trained, tested = (subset_indices(videos, name, val_fraction=VAL_FRACTION, seed=seed) for name in names)
    overlap = check_overlap(videos, trained, tested, names=names, allow_shared_sources=allow_shared_sources)
    chosen = tested.tolist()
    data = VideoDataset(
        clips,
        [split_videos.records[index] for index in chosen],
        [split_videos.subsets[index] for index in chosen],
        eval_protocol,
        num_crops=1 if eval_protocol.resolve_modality().is_image else FINETUNE.num_crops,
    )
    device = torch.device(device)
    predictions = predict_videos(network.to(device), data, num_workers=num_workers, device=device)
    predicted = videos.take(torch.tensor([chosen[index] for index in predictions.indices]))
    result = LinearResult(
        protocol=eval_protocol.name,
        gallery="train",
        query=query,
        num_gallery=0,  # nothing is trained
        scores=compute_scores(predictions.probabilities, predicted, seed=seed),
        overlap=overlap,
        probe="classifier",
    )
    return result, top1_hits(predictions.probabilities, predicted)
