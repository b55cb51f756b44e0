"""Clips from memory and settings of tiny runs for self-tests: no files but a guide's weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.config import validate
from covid_cmsf.methods.registry import MethodConfig
from covid_cmsf.models import EncoderMetadata, create_model, save_encoder
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.views.modalities import MODALITIES

FRAMES, HEIGHT, WIDTH = 20, 48, 64
SMALL_BANK = {
    "bank_size": 16,
    "labeled_bank_size": 16,
    "bank_warmup": 0,
    "k": 2,
    "num_candidates": 8,
    "num_clusters": 4,
}


class GeneratedClips(Clips):
    """Twelve videos of three classes: noise with a moving bar, and noise as flow."""

    def __init__(self) -> None:
        self.records = [
            ClipRecord(f"c{c}/s{s}", f"c{c}_s{s}", f"c{c}", c, FRAMES, FRAMES - 1, 25.0, WIDTH, HEIGHT, "")
            for c in range(3)
            for s in range(4)
        ]
        self.splits: dict[str, dict[str, str]] = {"1": {record.video_id: "train" for record in self.records}}
        self.modalities, self.flow_bound = ("rgb", "flow"), 20.0

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """Return uint8 frames (T, C, H, W)."""
        rng = np.random.default_rng(list(record.video_id.encode()))
        channels = 2 if modality == "flow" else 3
        frames = np.repeat(rng.integers(0, 200, (1, channels, HEIGHT, WIDTH)), len(frame_indices), axis=0)
        for position, number in enumerate(frame_indices):
            frames[position, :, :, (3 * number + record.label) % WIDTH] += 50
        return torch.from_numpy(frames.astype(np.uint8))


def write_guide(path: Path, *, encoder: str, length: int, size: int) -> Path:
    """Write a flow encoder with random weights, for methods with a guide."""
    flow = MODALITIES["flow"]
    torch.manual_seed(1)
    metadata = EncoderMetadata(
        encoder=encoder,
        in_channels=flow.num_channels,
        input_size=(length, size, size),
        mean=flow.mean,
        std=flow.std,
        modality="flow",
        bn_eps=1e-5,
    )
    save_encoder(path, create_model(encoder, in_channels=flow.num_channels), metadata)
    return path


def method_names() -> list[str]:
    """Return the names of all methods."""
    classes = get_args(get_args(MethodConfig)[0])
    return [get_args(one.model_fields["name"].annotation)[0] for one in classes]


def make_config(
    name: str, *, guide: Path, device: str, encoder: str, length: int, size: int, batch_size: int, precision: str
) -> TrainConfig:
    """Return the settings of a tiny run of a method."""
    classes = {get_args(one.model_fields["name"].annotation)[0]: one for one in get_args(get_args(MethodConfig)[0])}
    method: dict[str, Any] = {"name": name}
    method |= {key: value for key, value in SMALL_BANK.items() if key in classes[name].model_fields}
    if "bank_size" in method:
        method["bank_size"] = max(16, batch_size)
    guided = validate(classes[name], method, origin=name).uses_guides
    values = {
        "clips": "generated",
        "encoder": encoder,
        "method": method,
        "guides": [{"weights": str(guide), "modality": "flow", "layer": "encoder"}] if guided else [],
        "views": {"length": length, "stride": 1, "size": size, "frame_size": size},
        "batch_size": batch_size,
        "precision": precision,
        "optimizer": {"name": "sgd", "lr": 0.01},
        "runtime": {"device": device, "workers": 0},
    }
    return validate(TrainConfig, values, origin="the self-test")
