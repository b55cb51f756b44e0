"""Entries `video` and `transformer`: a video network that others have trained. It finds actions of its data set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.models import transformers_networks, video_networks
from covid_cmsf.models.library_weights import LibraryNetwork
from covid_cmsf.models.transformers_networks import TransformersNetwork, build_transformers_network
from covid_cmsf.models.video_networks import build_video_network
from covid_cmsf.search.encoders.image import LibraryEncoder
from covid_cmsf.verified_files import read_tensors


@dataclass(frozen=True)
class VideoEncoder(LibraryEncoder):
    """A video network `torchvision:NAME`."""

    kind: ClassVar[str] = "video"
    prefix: ClassVar[str] = video_networks.PREFIX
    build: ClassVar[Callable[..., LibraryNetwork]] = staticmethod(build_video_network)


@dataclass(frozen=True)
class TransformerEncoder(LibraryEncoder):
    """A video network `transformers:FOLDER`; the index also keeps its configuration and preprocessing."""

    kind: ClassVar[str] = "transformer"
    prefix: ClassVar[str] = transformers_networks.PREFIX

    def save_network(self, folder: Path) -> dict[str, Any]:
        """Write the weights; return what makes the network of them."""
        network = self.model.network
        assert isinstance(network, TransformersNetwork)
        return {**super().save_network(folder), "settings": network.settings}

    @classmethod
    def load_network(cls, folder: Path, name: str, values: Mapping[str, Any]) -> EvalModel:
        """Build the network and read its weights; ValueError if transformers is not installed."""
        path = folder / f"{name}.encoder.safetensors"
        tensors, _ = read_tensors(path, hint="`covid-cmsf search index` writes it again")
        network = build_transformers_network(str(values["network"]), tensors, values["settings"], location=str(path))
        return EvalModel(network, network.metadata, str(values["origin"]))
