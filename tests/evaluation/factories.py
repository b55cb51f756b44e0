"""Synthetic clips and features: small, quick, and with separable classes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.evaluation.features.file import Features, Provenance
from covid_cmsf.evaluation.features.model import EvalModel, create_random_encoder
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.models import freeze_, save_encoder
from covid_cmsf.models.encoder import Encoder

SIZE = (6, 24, 24)  # of the clips that the small encoders see


class SyntheticClips(Clips):
    """Frames in the color of their class with a bar that moves; flow in the direction of its class.

    Every class has `num_sources` sources of two videos; the first quarter of the sources (one at least) is for testing.
    """

    def __init__(
        self,
        num_classes: int = 3,
        num_sources: int = 4,
        num_frames: int = 15,
        broken: Sequence[int] = (),
    ) -> None:
        self.records = [
            ClipRecord(f"c{c}/s{s}_{i}", f"c{c}_s{s}", f"c{c}", c, num_frames, num_frames - 1, 25.0, 32, 28, "")
            for c in range(num_classes)
            for s in range(num_sources)
            for i in range(2)
        ]
        num_test = max(1, num_sources // 4)
        subsets = {r.video_id: "test" if int(r.source.split("_s")[1]) < num_test else "train" for r in self.records}
        self.splits: dict[str, dict[str, str]] = {"1": subsets}
        self.modalities, self.flow_bound = ("rgb", "flow"), 20.0
        self.broken = {self.records[i].video_id for i in broken}

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        if record.video_id in self.broken:
            raise ValueError("damaged")
        rng = np.random.default_rng(list(record.video_id.encode()))
        channels = 2 if modality == "flow" else 3
        noise = rng.integers(0, 60, (channels, 28, 32))
        frames = np.stack([noise + 20 for _ in frame_indices])
        frames[:, record.label % channels] += 100 if record.label < channels else 50
        for place, number in enumerate(frame_indices):
            frames[place, :, :, (2 * number) % 32] += 40
        return torch.from_numpy(frames.clip(0, 255).astype(np.uint8))


def small_encoder(modality: str = "rgb", *, seed: int = 0, name: str = "s3d_tiny") -> tuple[Encoder, EvalModel]:
    """An encoder whose batch norms have moved, ready to be evaluated."""
    size = (1, 32, 32) if modality == "frame" else SIZE
    encoder, metadata = create_random_encoder(name, modality=modality, seed=seed, input_size=size)
    noise = torch.randn(8, encoder.in_channels, *size, generator=torch.Generator().manual_seed(seed))
    for module in encoder.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum = None
    with torch.no_grad():
        encoder.train()(noise)
    return encoder, EvalModel(freeze_(encoder), metadata, "synthetic")


def small_checkpoint(path: Path, modality: str = "rgb", *, seed: int = 0, name: str = "s3d_tiny") -> Path:
    """The same encoder in an exchange file."""
    encoder, eval_model = small_encoder(modality, seed=seed, name=name)
    save_encoder(path, encoder, eval_model.metadata)
    return path


def synthetic_features(
    num_classes: int = 4,
    num_sources: int = 6,
    *,
    num_values: int = 16,
    noise: float = 1.0,
    seed: int = 0,
    protocol: str = "clean",
) -> Features:
    """Features of a class's center plus noise; two thirds of the sources are for training, two videos each."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(num_classes, num_values))
    records, subsets, rows = [], [], []
    for c in range(num_classes):
        for s in range(num_sources):
            for i in range(2):
                records.append(ClipRecord(f"c{c}/s{s}_{i}", f"c{c}_s{s}", f"c{c}", c, 9, 8, 25.0, 8, 8, ""))
                subsets.append("test" if s < num_sources // 3 else "train")
                rows.append(centers[c] + noise * rng.normal(size=num_values))
    values = torch.tensor(np.array(rows), dtype=torch.float32)
    unit = torch.nn.functional.normalize(values, dim=1)
    eval_protocol = EvalProtocol.model_validate(
        {"name": protocol, "modality": "rgb", "mean": (0, 0, 0), "std": (1, 1, 1), "length": 8, "stride": 1,
         "size": 8, "num_windows": 1}
    )  # fmt: skip
    provenance = Provenance(
        fingerprint=f"f{seed}", encoder="none", origin="synthetic", checkpoint_sha256="", weights_sha256=f"w{seed}",
        branch="online", eval_protocol=eval_protocol, store_sha256="s", split="1", precision="fp32",
        device="cpu", batch_size=1,
        software="test",
    )  # fmt: skip
    return Features(
        VideoTable.from_records(records, subsets),
        unit,
        values,
        torch.arange(len(rows)),
        torch.zeros(len(rows), dtype=torch.int64),
        provenance,
    )
