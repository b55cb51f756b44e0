"""The kinds of encoders that an index can have, and which of them some weights or a features file belong to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.search.encoders.base import IndexEncoder
from covid_cmsf.search.encoders.histogram import HistogramEncoder
from covid_cmsf.search.encoders.image import ImageEncoder
from covid_cmsf.search.encoders.trained import TrainedEncoder
from covid_cmsf.search.encoders.video import TransformerEncoder, VideoEncoder

# In the order in which they are asked whether some weights are theirs; the last takes any path.
KINDS: tuple[type[IndexEncoder], ...] = (
    ImageEncoder,
    VideoEncoder,
    TransformerEncoder,
    HistogramEncoder,
    TrainedEncoder,
)


def open_encoder(weights: str, *, num_windows: int | None = None) -> IndexEncoder:
    """Return the encoder that users name by --weights; FileNotFoundError or ValueError if there is none."""
    found = (kind.from_weights(weights, num_windows=num_windows) for kind in KINDS)
    encoder = next((one for one in found if one is not None), None)
    assert encoder is not None, "the last kind takes any path or raises"
    return encoder


def features_encoder(path: Path, features: Features) -> IndexEncoder | None:
    """Return the encoder behind a features file; None if it is not there any more."""
    found = (kind.from_features(path, features) for kind in KINDS)
    return next((one for one in found if one is not None), None)


def encoder_from_json(folder: Path, name: str, values: Mapping[str, Any]) -> IndexEncoder:
    """Return the encoder of an entry from index.json and the files beside it."""
    kinds = {kind.kind: kind for kind in KINDS}
    if values.get("kind") not in kinds:
        raise ValueError(f"{folder}: {name} has an encoder of kind {values.get('kind')!r}, which this version lacks")
    return kinds[values["kind"]].from_json(folder, name, values)
