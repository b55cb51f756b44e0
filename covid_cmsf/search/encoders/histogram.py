"""Entries `motion` and `color`: histograms of optical flow and of colors, per window. They need no training.

`motion` counts in which directions and how much each part of the frame moves (`FlowHistogram`); it finds videos that
move alike, whatever they show.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.model import HISTOGRAM_PREFIX, EvalModel, create_histogram_model
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.search.encoders.base import IndexEncoder
from covid_cmsf.video_files import file_settings

ENTRIES = {"flow": "motion", "color": "color"}  # the histogram, and the name of its entry
# Of frames that are decoded from files: motion below 0.4 pixels counts as none, and that was measured at this size.
SHORT_EDGE = 60


@dataclass(frozen=True)
class HistogramEncoder(IndexEncoder):
    """A histogram: `histogram:flow` is the entry `motion`, `histogram:color` the entry `color`."""

    kind: ClassVar[str] = "histogram"

    @classmethod
    def from_weights(cls, weights: str, *, num_windows: int | None) -> Self | None:
        """Return the histogram that `histogram:flow` or `histogram:color` names."""
        if not weights.startswith(HISTOGRAM_PREFIX):
            return None
        name = weights.removeprefix(HISTOGRAM_PREFIX)
        model = create_histogram_model(name)
        protocol = build_eval_protocol(model.metadata, num_windows=num_windows)
        return cls(ENTRIES[name], model, protocol, file_settings(model.metadata, short_edge=SHORT_EDGE))

    @classmethod
    def from_features(cls, path: Path, features: Features) -> Self | None:
        """Return the histogram behind a features file."""
        name = features.provenance.encoder.removesuffix("_histogram")
        if name == features.provenance.encoder or name not in ENTRIES:
            return None
        model = create_histogram_model(name)
        frames = file_settings(model.metadata, short_edge=SHORT_EDGE)
        return cls(ENTRIES[name], model, features.provenance.eval_protocol, frames)

    def save_network(self, folder: Path) -> dict[str, Any]:
        """Write no file: a histogram has no weights."""
        return {"histogram": self.model.metadata.encoder.removesuffix("_histogram")}

    @classmethod
    def load_network(cls, folder: Path, name: str, values: Mapping[str, Any]) -> EvalModel:
        """Return the histogram."""
        return create_histogram_model(str(values["histogram"]))
