"""A small clip store and two trained runs on it, made once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covid_cmsf.models import EncoderMetadata, create_model, save_encoder
from covid_cmsf.training.run import run_training
from covid_cmsf.views.modalities import IMAGENET_MEAN, IMAGENET_STD
from tests.factories import build_once, make_ucf
from tests.preprocess.commands import preprocess
from tests.training.factories import add_toy, make_config, remove_toy

# Enough that embeddings of different videos are not all but the same, so that neighbors are not chosen by rounding.
TRAINED: dict[str, Any] = {"optimizer": {"lr": 0.01}, "schedule": {"epochs": 3}}


@pytest.fixture(scope="package", autouse=True)
def _toy() -> Iterator[None]:
    """The zoo has the encoder `toy` while these tests run."""
    add_toy()
    yield
    remove_toy()


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, seven training videos each, 20 frames. Read it, do not change it."""

    def build(root: Path) -> None:
        make_ucf(root / "videos", classes=3, groups=14, num_frames=20)
        done = preprocess(root / "videos", root / "clips")
        assert done.returncode == 0, done.stderr

    return build_once(tmp_path_factory, "training", build) / "clips"


@pytest.fixture(scope="package")
def flow_weights(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of an InfoNCE run on flow: a guide."""
    folder = tmp_path_factory.mktemp("flow_run")
    assert run_training(make_config(clips, modality="flow", **TRAINED), folder) == "finished"
    return folder / "checkpoints" / "last.pt"


@pytest.fixture(scope="package")
def rgb_weights(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of an InfoNCE run on RGB: a start, or a guide."""
    folder = tmp_path_factory.mktemp("rgb_run")
    assert run_training(make_config(clips, **TRAINED), folder) == "finished"
    return folder / "checkpoints" / "last.pt"


@pytest.fixture(scope="session")
def frame_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 2D network without a projector, as a picture guide."""
    path = tmp_path_factory.mktemp("frame") / "r18.safetensors"
    encoder = create_model("r18")
    metadata = EncoderMetadata(
        encoder="r18",
        in_channels=3,
        input_size=(1, 32, 32),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        modality="frame",
        bn_eps=1e-5,
    )
    save_encoder(path, encoder, metadata)
    return path
