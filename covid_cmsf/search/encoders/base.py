"""What computes an entry of an index: a network on windows of frames, kept in the index's folder.

An index has one entry per way of looking at videos: `rgb` and `flow` (encoders that were trained), and others such as
an image network on single frames. The encoder of an entry is stored with it, so that a video file outside of the index
can be compared with the videos inside. A new kind of entry is one subclass of `IndexEncoder` in one file of this
package, and its line in `KINDS`. It only says where its network comes from and how it is stored: windows, reading of
frames, batches and features files are the same for all.
"""

# W windows, D feature

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from typing_extensions import Self

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import ClipRecord, StoreInfo
from covid_cmsf.clips.sampling import clip_span
from covid_cmsf.config import validate
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.inference import WindowOutputs, window_features
from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.features.video_dataset import VideoDataset, with_progress
from covid_cmsf.files import file_sha256

BATCH_SIZE = 16


@dataclass(frozen=True)
class IndexEncoder(ABC):
    """The network behind an entry of an index, and how frames are prepared for it.

    A subclass sets `kind` and implements four methods. Two of them recognize their own input and return None for that
    of other kinds: `from_weights` (what users write after --weights) and `from_features` (a features file). The other
    two store the network in the index's folder: `save_network` and `load_network`.
    """

    kind: ClassVar[str]  # in index.json

    name: str  # of the entry, as --modality takes it: rgb, flow, image, ...
    model: EvalModel  # the network, in eval mode
    eval_protocol: EvalProtocol  # the windows of a video, their frames and size
    frames: StoreInfo  # how a video file is decoded for it: short edge, and how flow is computed

    @classmethod
    @abstractmethod
    def from_weights(cls, weights: str, *, num_windows: int | None) -> Self | None:
        """Return the encoder that `weights` names; None if it names none of this kind.

        Args:
            weights: a path, or a text such as timm:NAME.
            num_windows: per video; None: the default of the kind.
        """

    @classmethod
    @abstractmethod
    def from_features(cls, path: Path, features: Features) -> Self | None:
        """Return the encoder that computed a features file; None if it is of another kind, or no longer there."""

    @abstractmethod
    def save_network(self, folder: Path) -> dict[str, Any]:
        """Write what the network needs to files `self.file_name(...)` of `folder`; return JSON values for the rest."""

    @classmethod
    @abstractmethod
    def load_network(cls, folder: Path, name: str, values: Mapping[str, Any]) -> EvalModel:
        """Return the network of entry `name` from what `save_network` wrote and returned. Files are verified before."""

    @property
    def span(self) -> int:
        """Frames of a window, from its first to its last."""
        return clip_span(self.eval_protocol.length, self.eval_protocol.stride)

    def file_name(self, ending: str = "safetensors") -> str:
        """Return the name of a file of this encoder in the index's folder: rgb.encoder.safetensors."""
        return f"{self.name}.encoder.{ending}"

    def with_frames(self, info: StoreInfo | None) -> Self:
        """Return this encoder for files that are prepared as the clips with these settings; None: as they are."""
        if info is None:
            return self
        return replace(
            self, frames=info if info.quantized is not None else info.model_copy(update={"flow": self.frames.flow})
        )

    def embed(
        self,
        clips: Clips,
        records: Sequence[ClipRecord],
        *,
        device: torch.device | str = "cpu",
        batch_size: int = BATCH_SIZE,
        on_video: Callable[[], None] = lambda: None,
    ) -> WindowOutputs:
        """Return the windows (W, D) of some videos as the network gives them, and the errors of unreadable videos."""
        data = VideoDataset(clips, records, ["test"] * len(records), self.eval_protocol)

        videos = with_progress((data[number] for number in range(len(data))), on_video)
        return window_features(self.model.network, data, videos, batch_size=batch_size, device=torch.device(device))

    def to_json(self, folder: Path) -> dict[str, Any]:
        """Write the network into `folder`; return the entry's `encoder` of index.json, with the hashes of its files."""
        values = self.save_network(folder)
        files = sorted(folder.glob(f"{self.name}.encoder.*"))
        return {
            "kind": self.kind,
            "eval_protocol": self.eval_protocol.model_dump(mode="json"),
            "frames": self.frames.model_dump(mode="json"),
            "files": {path.name: file_sha256(path) for path in files},
            "network": values,
        }

    @classmethod
    def from_json(cls, folder: Path, name: str, values: Mapping[str, Any]) -> Self:
        """Return the encoder that `to_json` wrote; ValueError if a file is missing or was changed."""
        for file_name, expected in values["files"].items():
            path = folder / Path(file_name).name
            if not path.is_file() or file_sha256(path) != expected:
                raise ValueError(f"{path} is missing or was changed; `covid-cmsf search index` writes it again")
        origin = f"{folder}: the encoder of {name}"
        return cls(
            name=name,
            model=cls.load_network(folder, name, values["network"]),
            eval_protocol=validate(EvalProtocol, values["eval_protocol"], origin=origin),
            frames=validate(StoreInfo, values["frames"], origin=origin),
        )
