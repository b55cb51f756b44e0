"""Train a classifier on clips; a killed training resumes after its last complete epoch."""

# B batch, C channels, T frames, H W pixels

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.devices import send
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.features.video_dataset import DecodedVideo, VideoDataset, video_loader
from covid_cmsf.evaluation.finetune.config import FinetuneConfig
from covid_cmsf.evaluation.finetune.dataset import ClipDataset, ClipLoader, ClipSample
from covid_cmsf.evaluation.finetune.model import (
    ClipClassifier,
    build_optimizer,
    classifier_state,
    load_checkpoint,
    load_classifier_state_,
)
from covid_cmsf.evaluation.finetune.predict import predict_videos
from covid_cmsf.evaluation.finetune.process_group import ProcessGroup
from covid_cmsf.models import EncoderMetadata
from covid_cmsf.models.checkpoints.torch_file import write_torch_file
from covid_cmsf.models.precision import autocast

logger = logging.getLogger(__name__)
LAST, BEST = "last.pt", "best.pt"
UNREADABLE = -1  # instead of a label, between processes


@dataclass
class TrainProgress:
    """State of a training. `history` has loss and accuracies in percent, one entry per epoch."""

    epoch: int = 0
    best_epoch: int = -1
    best_accuracy: float = -1.0
    history: list[dict[str, float]] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)  # {id of a video that could not be read: reason}


class ClipTrainer:
    """Trains a network; everything that the next epoch depends on is saved in `folder`."""

    def __init__(
        self,
        network: ClipClassifier,
        metadata: EncoderMetadata,
        config: FinetuneConfig,
        data: ClipDataset,
        val: VideoDataset | None,
        folder: Path,
        *,
        fingerprint: str,
        num_workers: int,
        device: torch.device,
        group: ProcessGroup | None = None,
    ) -> None:
        self.network, self.metadata, self.config = network.to(device), metadata, config
        self.group = group or ProcessGroup()
        self.data, self.val, self.folder = data, val, folder
        self._fingerprint, self._num_workers, self._device = fingerprint, num_workers, device
        self.optimizer = build_optimizer(network, config)
        self.progress = TrainProgress()
        self._val_loader: Iterable[DecodedVideo] | None = None  # its workers live as long as the training

    def run(self, on_epoch: Callable[[], None] = lambda: None) -> TrainProgress:
        """Train all epochs and load the weights of the best one (without validation: the last one)."""
        self._resume_()
        for _ in range(self.progress.epoch):
            on_epoch()
        loader = ClipLoader(
            self.data,
            batch_size=self.config.batch_size // self.group.size,
            num_workers=self._num_workers,
            rank=self.group.rank,
            world_size=self.group.size,
        )
        while self.progress.epoch < self.config.epochs:
            self._train_epoch_(loader)
            on_epoch()
        self.group.share(None)  # the first process has written the files
        load_classifier_state_(self.network, load_checkpoint(self.folder / BEST))
        return self.progress

    def _train_epoch_(self, loader: ClipLoader) -> None:
        """Train one epoch, validate, and save."""
        progress, epoch = self.progress, self.progress.epoch
        lr = self.config.lr_at(epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["scale"]
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(1_000_003 * (self.config.seed + 1) + epoch)  # dropout
            losses, num_correct, num_samples = [], 0, 0
            self.network.train()
            for batch in loader.epoch(epoch):
                loss, predictions, labels = self._train_step_(batch)
                losses.append(loss)
                num_correct, num_samples = num_correct + int((predictions == labels).sum()), num_samples + len(labels)
        entry = {
            "epoch": epoch,
            "lr": lr,
            "loss": sum(losses) / len(losses),
            "train": 100 * num_correct / max(num_samples, 1),
        }
        self.group.copy_buffers_(self.network)
        if self.val is not None:
            entry["val"] = self._validate()
        for errors in self.group.collect(progress.errors):
            progress.errors |= errors
        progress.history.append(entry)
        progress.epoch += 1
        if self.val is None or entry["val"] > progress.best_accuracy:
            progress.best_accuracy, progress.best_epoch = entry.get("val", -1.0), epoch
            if self.group.is_main:
                write_torch_file(self.folder / BEST, classifier_state(self.network, self.metadata))
        if self.group.is_main:
            self._save()

    def _train_step_(self, batch: Sequence[ClipSample]) -> tuple[float, Tensor, Tensor]:
        """Take one step; return loss, predictions and labels. Clips that could not be read are skipped and recorded."""
        errors = {self.data.records[clip.video].video_id: clip.error for clip in batch if clip.error}
        self.progress.errors |= errors
        readable = [clip for clip in batch if not clip.error]
        if len(readable) < (2 if self.group.size == 1 else 1):
            raise RuntimeError(f"{len(errors)} of {len(batch)} clips of a batch could not be read: {errors}")
        views = self.data.to_views(readable, self._device)
        labels = send(torch.tensor([clip.label for clip in readable]), self._device)
        with autocast(self.config.precision, self._device):
            features, labels = self._gathered(self.network.features(views), labels, len(batch))
            logits = self.network.classifier(features)
        loss = F.cross_entropy(logits.float(), labels)
        value = loss.item()
        if not math.isfinite(value):
            raise RuntimeError(f"the loss is {value} in epoch {self.progress.epoch}: try a smaller lr")
        self.optimizer.zero_grad()
        loss.backward()
        self.group.sum_gradients_(self.network.classifier.parameters(), own=self.network.encoder.parameters())
        self.optimizer.step()
        return value, logits.argmax(1), labels

    def _gathered(self, features: Tensor, labels: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return features and labels of the samples of all processes that could be read."""
        if self.group.size == 1:
            return features, labels
        missing = batch_size - len(labels)  # every process sends as many
        labels = self.group.gather(F.pad(labels, (0, missing), value=UNREADABLE))
        features = self.group.gather(torch.cat([features, features.new_zeros(missing, *features.shape[1:])]))
        readable = labels != UNREADABLE
        return features[readable], labels[readable]

    def _validate(self) -> float:
        assert self.val is not None
        if self._val_loader is None:
            part = self.group.part(len(self.val))
            self._val_loader = video_loader(self.val, part, num_workers=self._num_workers)
        predictions = predict_videos(
            self.network,
            self.val,
            num_workers=self._num_workers,
            device=self._device,
            videos=self._val_loader,
            group=self.group,
        )
        self.progress.errors |= {self.val.records[i].video_id: reason for i, reason in predictions.errors.items()}
        labels = torch.tensor([self.val.records[number].label for number in predictions.indices])
        return 100 * float((predictions.probabilities.argmax(1) == labels).double().mean())

    def _save(self) -> None:
        values: dict[str, Any] = classifier_state(self.network, self.metadata)
        values |= {"optimizer": self.optimizer.state_dict(), "progress": asdict(self.progress)}
        write_torch_file(self.folder / LAST, {**values, "fingerprint": self._fingerprint})

    def _resume_(self) -> None:
        """Load the last checkpoint of the folder."""
        values = check_resumable(self.folder, self._fingerprint)
        self.group.share(None)  # before the first process writes another one
        if values is None:
            return
        load_classifier_state_(self.network, values)
        self.optimizer.load_state_dict(values["optimizer"])
        self.progress = TrainProgress(**values["progress"])
        logger.info("resuming %s after epoch %d of %d", self.folder, self.progress.epoch, self.config.epochs)


def check_resumable(folder: Path, fingerprint: str) -> dict[str, Any] | None:
    """Return the last checkpoint of the folder, None without one; FileExistsError if it is of another training."""
    if not (folder / LAST).is_file():
        return None
    values = load_checkpoint(folder / LAST)
    if values.get("fingerprint") != fingerprint:
        raise FileExistsError(
            f"{folder} holds a training with other settings, weights or clips; "
            "give another folder, or --force to start again"
        )
    return values


def memory_advice(config: FinetuneConfig, eval_protocol: EvalProtocol, *, num_processes: int) -> str:
    """Return what a training holds and what needs less memory; see `explained_memory`."""
    own, size = config.batch_size // num_processes, eval_protocol.size
    advice = [f"--batch-size {config.batch_size // 2} (another training: --lr may have to follow)"] if own > 1 else []
    advice += ["--precision bf16"] if config.precision == "fp32" else []
    advice += ["more GPUs, which share a batch", "nothing else on the GPU (nvidia-smi lists it)"]
    described = f"{own} clips of {eval_protocol.length}x{size}x{size} per GPU, {config.mode}, {config.precision}"
    return f"({described}); less is needed with {'; '.join(advice)}"
