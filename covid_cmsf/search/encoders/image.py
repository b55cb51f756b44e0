"""Entry `image`: an image network of timm on the center frame of every window. It finds scenes and objects."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.model import EvalModel, load_eval_model
from covid_cmsf.evaluation.features.protocol import NUM_WINDOWS, build_eval_protocol
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.models.image_networks import PREFIX, build_image_network
from covid_cmsf.models.library_weights import HUB, LibraryNetwork
from covid_cmsf.search.encoders.base import IndexEncoder
from covid_cmsf.verified_files import read_tensors, write_tensors
from covid_cmsf.video_files import file_settings

WINDOW_LENGTH = 8  # frames, as those of histograms


@dataclass(frozen=True)
class LibraryEncoder(IndexEncoder):
    """A network of another library, `PREFIX:NAME`; the index keeps a copy of its weights. `kind` names the entry."""

    prefix: ClassVar[str]
    build: ClassVar[Callable[..., LibraryNetwork]]  # (name, tensors, location=...) -> the network
    length: ClassVar[int | None] = None  # frames of a window; None: the network's

    @classmethod
    def from_weights(cls, weights: str, *, num_windows: int | None) -> Self | None:
        """Return the network that `PREFIX:NAME` names."""
        if not weights.startswith(cls.prefix):
            return None
        model = load_eval_model(weights)
        if model.needs_calibration:
            raise ValueError(f"{weights} has random weights, which find nothing")
        windows = num_windows or NUM_WINDOWS
        protocol = build_eval_protocol(model.metadata, length=cls.length, num_windows=windows)
        return cls(cls.kind, model, protocol, file_settings(model.metadata))

    @classmethod
    def from_features(cls, path: Path, features: Features) -> Self | None:
        """Return the network if its weights are still there; those of the Hub are never downloaded for this."""
        provenance = features.provenance
        if not provenance.encoder.startswith(cls.prefix) or provenance.origin.endswith(f"={HUB}"):
            return None
        try:
            model = load_eval_model(provenance.origin)
        except (ValueError, FileNotFoundError):
            return None
        if weights_sha256(model.network) != provenance.weights_sha256:
            return None
        return cls(cls.kind, model, provenance.eval_protocol, file_settings(model.metadata))

    def save_network(self, folder: Path) -> dict[str, Any]:
        """Write the weights with the library's names."""
        network = self.model.network
        assert isinstance(network, LibraryNetwork)
        tensors = {key: tensor.contiguous() for key, tensor in network.trunk[0].state_dict().items()}
        write_tensors(folder / self.file_name(), tensors, metadata={})
        return {"network": network.name, "origin": self.model.origin}

    @classmethod
    def load_network(cls, folder: Path, name: str, values: Mapping[str, Any]) -> EvalModel:
        """Build the network and read its weights; ValueError if its library is not installed."""
        path = folder / f"{name}.encoder.safetensors"
        tensors, _ = read_tensors(path, hint="`covid-cmsf search index` writes it again")
        network = cls.build(str(values["network"]).removeprefix(cls.prefix), tensors, location=str(path))
        return EvalModel(network, network.metadata, str(values["origin"]))


@dataclass(frozen=True)
class ImageEncoder(LibraryEncoder):
    """An image network `timm:NAME`."""

    kind: ClassVar[str] = "image"
    prefix: ClassVar[str] = PREFIX
    build: ClassVar[Callable[..., LibraryNetwork]] = staticmethod(build_image_network)
    length: ClassVar[int | None] = WINDOW_LENGTH
