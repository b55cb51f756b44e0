"""Classification trained on clips: fine-tuning, training from scratch, and the linear probe with augmentation.

Epochs are chosen on a validation part of the training sources. (Han et al. choose on 30% of the test set.)
"""

# N videos, C classes

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covid_cmsf import __version__
from covid_cmsf.clips.interface import Clips
from covid_cmsf.evaluation.clip_classifier import build_classifier
from covid_cmsf.evaluation.clip_testing import class_probabilities, shown_to
from covid_cmsf.evaluation.clip_training import BEST, LAST, ClipTraining
from covid_cmsf.evaluation.compress_probe import feature_statistics
from covid_cmsf.evaluation.identity import clips_sha256, fingerprint
from covid_cmsf.evaluation.labeled_clips import LabeledClips
from covid_cmsf.evaluation.parts import VAL_SHARE, fit_and_val, part_rows
from covid_cmsf.evaluation.probabilities import Probabilities, save_probabilities
from covid_cmsf.evaluation.recipes import Recipe
from covid_cmsf.evaluation.retrieval import check_sources
from covid_cmsf.evaluation.scores import Scores, score
from covid_cmsf.evaluation.showing import Showing, showing_for
from covid_cmsf.evaluation.shown_videos import ShownVideos
from covid_cmsf.evaluation.split import SplitVideos, split_videos
from covid_cmsf.evaluation.subjects import Subject
from covid_cmsf.evaluation.videos import Videos
from covid_cmsf.models import EncoderCard
from covid_cmsf.models.fingerprint import weights_sha256

PROBABILITIES = "probabilities.safetensors"


@dataclass(frozen=True)
class ClipResult:
    """The scores are those of `best_epoch`, chosen on the validation part."""

    protocol: str
    mode: str
    num_fit: int
    num_val: int
    scores: Scores
    best_epoch: int
    history: list[dict[str, float]]
    set_aside: list[tuple[str, str, str]]  # id, part, reason
    num_shared_sources: int = 0  # in training and test; 0 unless they were allowed
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Parts:
    """Numbers of the videos to learn from, to choose by, and to test on."""

    fit: list[int]
    val: list[int]
    test: list[int]

    def learn_and_test(self) -> tuple[Tensor, Tensor]:
        """What is seen before the test, and the test."""
        return torch.tensor([*self.fit, *self.val]), torch.tensor(self.test)


def train_and_test(
    subject: Subject,
    clips: Clips,
    folder: Path,
    recipe: Recipe,
    *,
    showing: Showing | None = None,
    split: str | None = None,
    query: str = "test",
    allow_shared_sources: bool = False,
    num_workers: int = 0,
    device: torch.device | str = "cpu",
    replace: bool = False,
    on_epoch: Callable[[], None] = lambda: None,
) -> ClipResult:
    """Trains by the recipe in `folder` (a killed training continues) and tests once.

    The folder then holds `best.pt` (encoder and classifier), `last.pt` (to continue) and the test part's probabilities.
    """
    device = torch.device(device)
    showing = showing_for(subject.card) if showing is None else showing
    listed = split_videos(clips, split)
    videos = Videos.of(listed.records, listed.parts)
    parts = choose_parts(videos, recipe, query=query)
    shared = check_sources(videos, *parts.learn_and_test(), allow_shared_sources=allow_shared_sources)
    about = _about(subject, clips, listed, showing, recipe, query=query, device=device)
    folder.mkdir(parents=True, exist_ok=True)
    if replace:
        for name in (LAST, BEST, PROBABILITIES):
            (folder / name).unlink(missing_ok=True)
    network = build_classifier(subject, len(videos.class_names), recipe).to(device)
    if recipe.standardize:
        fit = _shown(clips, listed, parts.fit, showing, 1)
        assert fit is not None
        rows, _, _ = shown_to(network.encoder, fit, num_workers=num_workers, device=device)
        network.classifier.standardize_by_(*feature_statistics(rows))
    training = ClipTraining(
        network,
        _card(subject.card, showing, recipe),
        recipe,
        LabeledClips(
            clips,
            [listed.records[i] for i in parts.fit],
            showing,
            seed=recipe.seed,
            augmentation=recipe.augmentation,
        ),
        _shown(clips, listed, parts.val, showing.model_copy(update={"protocol": "clean", "num_windows": 1}), 1),
        folder,
        fingerprint=about["fingerprint"],
        num_workers=num_workers,
        device=device,
    )
    progress = training.run(on_epoch)
    if recipe.backbone_factor == 0 and weights_sha256(training.network.encoder) != about["weights_sha256"]:
        raise RuntimeError("the frozen encoder has changed during the training, so the result means nothing")
    test = _shown(clips, listed, parts.test, showing, recipe.num_crops)
    assert test is not None
    answers = class_probabilities(training.network, test, num_workers=num_workers, device=device)
    tested = videos.take(torch.tensor([parts.test[number] for number in answers.numbers]))
    unread = {test.records[number].video_id: reason for number, reason in answers.faults.items()}
    save_probabilities(folder / PROBABILITIES, Probabilities(tested, answers.probabilities, about))
    return ClipResult(
        protocol=showing.protocol,
        mode=recipe.mode,
        num_fit=len(parts.fit),
        num_val=len(parts.val),
        scores=score(answers.probabilities, tested, seed=recipe.seed),
        best_epoch=progress.best_epoch,
        history=progress.history,
        set_aside=_set_aside(listed, progress.faults | unread),
        num_shared_sources=shared,
        about={**about, "checkpoint": BEST},
    )


def choose_parts(videos: Videos, recipe: Recipe, *, query: str = "test") -> Parts:
    """Test is the query part; of the training part a share of the sources is for choosing. Test is never looked at."""
    share = recipe.val_share or VAL_SHARE
    test = part_rows(videos, query, val_share=share, seed=recipe.seed)
    learn = part_rows(videos, "fit" if query == "val" else "train", val_share=share, seed=recipe.seed)
    if recipe.val_share == 0:
        return Parts(learn.tolist(), [], test.tolist())
    fit, val = fit_and_val(videos.take(learn), val_share=recipe.val_share, seed=recipe.seed)
    return Parts(learn[fit].tolist(), learn[val].tolist(), test.tolist())


def _card(card: EncoderCard, showing: Showing, recipe: Recipe) -> EncoderCard:
    """The card of the encoder after this training."""
    facts = {
        "modality": showing.modality,
        "input_size": (showing.length, showing.size, showing.size),
        "stride": showing.stride,
        "trained": f"{card.trained}; then {recipe.mode} on labels",
    }
    return card.model_copy(update=facts)


def _shown(
    clips: Clips, listed: SplitVideos, numbers: list[int], showing: Showing, num_crops: int
) -> ShownVideos | None:
    if not numbers:
        return None
    records, parts = [listed.records[i] for i in numbers], [listed.parts[i] for i in numbers]
    return ShownVideos(clips, records, parts, showing, num_crops=num_crops)


def _about(
    subject: Subject,
    clips: Clips,
    listed: SplitVideos,
    showing: Showing,
    recipe: Recipe,
    *,
    query: str,
    device: torch.device,
) -> dict[str, Any]:
    known = {
        "protocol": showing.protocol,
        "encoder": subject.card.encoder,
        "checkpoint_sha256": subject.checkpoint_sha256,
        "weights_sha256": weights_sha256(subject.network),
        "part": subject.part,
        "showing": showing.model_dump(mode="json"),
        "recipe": recipe.model_dump(mode="json"),
        "store_sha256": clips_sha256(clips),
        "split": listed.name,
        "query": query,
        "device": device.type,
        "software": f"covid-cmsf {__version__}",
    }
    videos = [[record.video_id, part] for record, part in zip(listed.records, listed.parts, strict=True)]
    return {"fingerprint": fingerprint({**known, "videos": videos}), "origin": subject.origin, **known}


def _set_aside(listed: SplitVideos, faults: dict[str, str]) -> list[tuple[str, str, str]]:
    """All videos of the split that did not take part, with the reason."""
    part_of = {record.video_id: part for record, part in zip(listed.records, listed.parts, strict=True)}
    return [*listed.missing, *((video_id, part_of[video_id], reason) for video_id, reason in faults.items())]
