"""Training a classifier on clips, epoch by epoch; a killed training continues after its last whole epoch."""

# B batch, C channels, T frames, H W pixels

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.evaluation.clip_classifier import (
    ClipClassifier,
    build_optimizer,
    load_state_,
    load_values,
    save_values,
    state_of,
)
from covid_cmsf.evaluation.clip_testing import class_probabilities
from covid_cmsf.evaluation.labeled_clips import ClipLoader, LabeledClip, LabeledClips
from covid_cmsf.evaluation.recipes import Recipe
from covid_cmsf.evaluation.shown_videos import ShownVideos
from covid_cmsf.models import EncoderCard
from covid_cmsf.models.speed import autocast

logger = logging.getLogger(__name__)
LAST, BEST = "last.pt", "best.pt"


@dataclass
class Progress:
    """How far a training is. `history` has loss and accuracies in percent, one entry an epoch."""

    epoch: int = 0
    best_epoch: int = -1
    best_accuracy: float = -1.0
    history: list[dict[str, float]] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)  # id of a video that could not be read: reason


class ClipTraining:
    """A network in training and everything that its next epoch depends on, kept in `folder`."""

    def __init__(
        self,
        network: ClipClassifier,
        card: EncoderCard,
        recipe: Recipe,
        data: LabeledClips,
        val: ShownVideos | None,
        folder: Path,
        *,
        fingerprint: str,
        num_workers: int,
        device: torch.device,
    ) -> None:
        self.network, self.card, self.recipe = network.to(device), card, recipe
        self.data, self.val, self.folder = data, val, folder
        self._fingerprint, self._num_workers, self._device = fingerprint, num_workers, device
        self.optimizer = build_optimizer(network, recipe)
        self.progress = Progress()

    def run(self, on_epoch: Callable[[], None] = lambda: None) -> Progress:
        """Trains to the end and leaves the network as it was in the best epoch (the last one, without validation)."""
        self._continue_()
        for _ in range(self.progress.epoch):
            on_epoch()
        loader = ClipLoader(self.data, batch_size=self.recipe.batch_size, num_workers=self._num_workers)
        while self.progress.epoch < self.recipe.epochs:
            self._epoch_(loader)
            on_epoch()
        load_state_(self.network, load_values(self.folder / BEST, self._device))
        return self.progress

    def _epoch_(self, loader: ClipLoader) -> None:
        """One epoch, its validation, and the files after it."""
        progress, epoch = self.progress, self.progress.epoch
        rate = self.recipe.learning_rate(epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(1_000_003 * (self.recipe.seed + 1) + epoch)  # dropout
            losses, right, seen = [], 0, 0
            self.network.train()
            for batch in loader.epoch(epoch):
                loss, answers, labels = self._step_(batch)
                losses.append(loss)
                right, seen = right + int((answers == labels).sum()), seen + len(labels)
        entry = {"epoch": epoch, "lr": rate, "loss": sum(losses) / len(losses), "train": 100 * right / max(seen, 1)}
        if self.val is not None:
            entry["val"] = self._validate()
        progress.history.append(entry)
        progress.epoch += 1
        if self.val is None or entry["val"] > progress.best_accuracy:
            progress.best_accuracy, progress.best_epoch = entry.get("val", -1.0), epoch
            save_values(self.folder / BEST, state_of(self.network, self.card))
        self._save()

    def _step_(self, batch: Sequence[LabeledClip]) -> tuple[float, Tensor, Tensor]:
        """Loss, answers and labels of a batch; clips that could not be read are left out of it and noted."""
        faults = {self.data.records[clip.video].video_id: clip.fault for clip in batch if clip.fault}
        self.progress.faults |= faults
        readable = [clip for clip in batch if not clip.fault]
        if len(readable) < 2:
            raise RuntimeError(f"{len(faults)} of {len(batch)} clips of a batch could not be read: {faults}")
        views = torch.stack([self.data.finished(clip, self._device) for clip in readable])
        labels = torch.tensor([clip.label for clip in readable], device=self._device)
        with autocast(self.recipe.precision, self._device):
            scores = self.network(views)
        loss = F.cross_entropy(scores.float(), labels)
        value = loss.item()
        if not math.isfinite(value):
            raise RuntimeError(f"the loss is {value} in epoch {self.progress.epoch}: a smaller lr may help")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return value, scores.argmax(1), labels

    def _validate(self) -> float:
        assert self.val is not None
        answers = class_probabilities(self.network, self.val, num_workers=0, device=self._device)
        self.progress.faults |= {self.val.records[i].video_id: reason for i, reason in answers.faults.items()}
        labels = torch.tensor([self.val.records[number].label for number in answers.numbers])
        return 100 * float((answers.probabilities.argmax(1) == labels).double().mean())

    def _save(self) -> None:
        values: dict[str, Any] = state_of(self.network, self.card)
        values |= {"optimizer": self.optimizer.state_dict(), "progress": asdict(self.progress)}
        save_values(self.folder / LAST, {**values, "fingerprint": self._fingerprint})

    def _continue_(self) -> None:
        """Takes up what lies in the folder, if it is a training of exactly this kind."""
        path = self.folder / LAST
        if not path.is_file():
            return
        values = load_values(path, self._device)
        if values.get("fingerprint") != self._fingerprint:
            raise FileExistsError(
                f"{self.folder} holds a training with other settings, weights or clips; "
                "name another folder, or --force to begin anew"
            )
        load_state_(self.network, values)
        self.optimizer.load_state_dict(values["optimizer"])
        self.progress = Progress(**values["progress"])
        logger.info("continuing %s after epoch %d of %d", self.folder, self.progress.epoch, self.recipe.epochs)
