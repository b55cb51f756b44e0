"""Entries `rgb`, `flow`, ...: a video encoder that was trained, one per modality."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.model import EvalModel, load_eval_model
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.models import Encoder, save_encoder
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.search.encoders.base import IndexEncoder
from covid_cmsf.video_files import file_settings


@dataclass(frozen=True)
class TrainedEncoder(IndexEncoder):
    """A video encoder from a run folder or a weights file; the name of its entry is its modality."""

    kind: ClassVar[str] = "trained"

    @classmethod
    def from_weights(cls, weights: str, *, num_windows: int | None) -> Self | None:
        """Return the encoder of a run folder, a checkpoint or an exported file."""
        model = load_eval_model(weights)
        protocol = build_eval_protocol(model.metadata, num_windows=num_windows)
        return cls(protocol.modality, model, protocol, file_settings(model.metadata))

    @classmethod
    def from_features(cls, path: Path, features: Features) -> Self | None:
        """Return the encoder of the checkpoint that a features file names, if it is there and has these weights."""
        provenance = features.provenance
        checkpoint = path.parent / provenance.checkpoint_path
        if not provenance.checkpoint_path or not checkpoint.is_file():
            return None
        model = load_eval_model(checkpoint, branch=provenance.branch)
        if weights_sha256(model.network) != provenance.weights_sha256:
            return None
        protocol = provenance.eval_protocol
        return cls(protocol.modality, model, protocol, file_settings(model.metadata))

    def save_network(self, folder: Path) -> dict[str, Any]:
        """Write the weights with their metadata."""
        assert isinstance(self.model.network, Encoder)
        metadata = self.model.metadata.model_copy(update={"projector": None})
        save_encoder(folder / self.file_name(), self.model.network, metadata)
        return {"origin": self.model.origin}

    @classmethod
    def load_network(cls, folder: Path, name: str, values: Mapping[str, Any]) -> EvalModel:
        """Read the weights."""
        return load_eval_model(folder / f"{name}.encoder.safetensors")
