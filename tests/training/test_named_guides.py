"""Guides by name: frozen networks of other libraries, with their own preprocessing, embedded once per video."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.cli.train import load_run
from covid_cmsf.clips import open_clips
from covid_cmsf.clips.flow_codec import COCLR_LEVELS
from covid_cmsf.clips.sampling import spread_windows
from covid_cmsf.models import Guide, load_guide
from covid_cmsf.models.image_networks import PACKAGES, load_image_network
from covid_cmsf.models.input_transform import InputTransform
from covid_cmsf.models.named_networks import load_named_network
from covid_cmsf.models.video_networks import NETWORKS
from covid_cmsf.training import run as run_module
from covid_cmsf.training.config import GuideConfig, TrainConfig
from covid_cmsf.training.dry_run import dry_run
from covid_cmsf.training.loop import Run, train
from covid_cmsf.training.preflight import check_training
from covid_cmsf.training.run import run_training
from covid_cmsf.views.modalities import MODALITIES, normalize_
from tests.models.test_image_networks import LITE0, TINY, tiny_weights
from tests.training.factories import make_config

pytest.importorskip("timm", reason="the extra timm is not installed")
pytestmark = pytest.mark.slow  # they train


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("timm") / "tiny.safetensors"
    tiny_weights(path)
    return f"timm:{TINY}?weights={path}"


def guided(clips: Path, weights: str, *, modality: str = "flow", **changes: Any) -> TrainConfig:
    method = {"name": "cmsf", "bank_size": 16, "k": 2, "num_candidates": 4}
    guides = [{"weights": weights, **changes}]
    return make_config(clips, modality=modality, method=method, guides=guides, schedule={"epochs": 1})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    seen: list[Run] = []

    def remember_and_train(run: Run) -> str:
        network = run.components.guides[0].network  # its cache is filled
        network.register_forward_hook(lambda *_: pytest.fail("a cached guide was run in a step"))
        seen.append(run)
        return train(run)

    monkeypatch.setattr(run_module, "train", remember_and_train)
    return seen


@pytest.mark.parametrize("modality", ["rgb", "flow"])
def test_its_cache_has_frames_of_the_whole_video_as_the_network_takes_them(
    modality: str, clips: Path, address: str, tmp_path: Path, runs: list[Run]
) -> None:
    run_training(guided(clips, address, modality=modality, cache="views", cached_views=3), tmp_path / "run")
    components = runs[0].components
    network, store = load_image_network(address).network, open_clips(clips)
    views = components.cached["guide_frame"]
    assert views.shape == (3, len(components.data.views), network.num_features)
    for video, record in enumerate(components.data.views.records[:4]):
        last = record.num_frames - 1
        for view, frame in enumerate((0, round(last / 2), last)):
            raw = store.read_raw(record, "rgb", [frame])
            with torch.inference_mode():
                expected = F.normalize(network(network.preprocess(raw)[None]), dim=1)[0]
            assert torch.allclose(views[view, video], expected, atol=1e-5)
    assert not torch.allclose(views[0], views[1], atol=1e-3)


def test_its_mean_over_frames_is_the_default(clips: Path, address: str, tmp_path: Path, runs: list[Run]) -> None:
    config = guided(clips, address)
    assert config.guides[0].model_dump(include={"modality", "layer", "cache", "cached_views"}) == {
        "modality": "frame",
        "layer": "encoder",
        "cache": "mean",
        "cached_views": 4,
    }
    run_training(config, tmp_path / "run")
    cached = runs[0].components.cached["guide_frame"]
    assert cached.shape[0] == 1 and torch.allclose(cached.norm(dim=2), torch.ones(1), atol=1e-5)
    assert (tmp_path / "run" / "guide_frame.safetensors").is_file()


def test_views_of_training_are_normalized_anew_for_a_guide_that_runs_in_every_step(address: str) -> None:
    guide = load_guide(address)
    transform = guide.transform
    assert isinstance(transform, InputTransform) and transform.std != MODALITIES["frame"].std
    frames = torch.randint(0, 256, (2, 3, transform.size, transform.size), dtype=torch.uint8)
    views = torch.stack([normalize_(frame[None] / 255, MODALITIES["frame"])[0] for frame in frames])
    own = torch.stack([(frame / 255 - torch.tensor(transform.mean)[:, None, None]) for frame in frames])
    own /= torch.tensor(transform.std)[:, None, None]
    assert torch.allclose(transform.from_view(views), own, atol=1e-5)
    assert torch.allclose(guide(views), guide.embed(own), atol=1e-5)
    small = F.interpolate(views, size=(20, 20), mode="bilinear", antialias=True)
    assert transform.from_view(small).shape == own.shape
    clip = torch.stack([views, views], dim=2)
    assert torch.allclose(transform.from_view(clip)[:, :, 1], own, atol=1e-5)
    whole = transform.from_stored(frames[:1], levels=COCLR_LEVELS)
    assert whole.shape == (3, transform.size, transform.size)


def test_a_dry_run_embeds_one_video(clips: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    embed = Guide.embed

    def count_and_embed(guide: Guide, clip: torch.Tensor) -> Any:
        calls.append(len(clip))
        return embed(guide, clip)

    monkeypatch.setattr(Guide, "embed", count_and_embed)
    entries = dry_run(guided(clips, address)).entries
    assert address in entries["guide guide_frame"] and calls == [4]


def test_what_does_not_fit_is_one_line_before_the_run(clips: Path, address: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has neither a projector nor branches"):
        GuideConfig.model_validate({"weights": address, "layer": "projector"})
    with pytest.raises(ValueError, match="sees frame, not rgb"):
        GuideConfig.model_validate({"weights": address, "modality": "rgb"})
    (missing,) = check_training(guided(clips, f"timm:{TINY}?weights={tmp_path / 'missing.pth'}"))
    assert "guides.0: no run folder or weights file" in missing.message and "train the guide" not in missing.message
    (unknown,) = check_training(guided(clips, "timm:resnet_18"))
    assert "timm has no network 'resnet_18'" in unknown.message or "no weights for timm:resnet_18" in unknown.message
    (init,) = check_training(make_config(clips, init=address))
    assert "can be a guide, but it is not trained further here" in init.message


def test_the_option_guide_takes_its_name(clips: Path, address: str) -> None:
    config, _ = load_run("paper/video/cmsf", ["init=null"], clips=str(clips), modality="flow", guides=[address])
    assert config.guides == (GuideConfig.model_validate({"weights": address}),)
    config, _ = load_run("cmsf", ["method.head.reuse=false"], clips=str(clips), guides=[address])
    assert config.guides[0].center and config.guides[0].cache == "mean"


def test_a_network_trained_on_imagenet_guides_flow(clips: Path, tmp_path: Path, runs: list[Run]) -> None:
    pytest.importorskip(PACKAGES[LITE0][0], reason="the package with the weights is not installed")
    assert run_training(guided(clips, f"timm:{LITE0}", cached_views=1), tmp_path / "run") == "finished"
    assert runs[0].components.cached["guide_frame"].shape[2] == 1280


def test_a_video_network_of_torchvision_guides_with_windows_of_its_own(
    clips: Path, tmp_path: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NETWORKS, "r3d_18", replace(NETWORKS["r3d_18"], length=2, size=32))  # of 16 and 112
    config = guided(clips, "torchvision:r3d_18?weights=random", cached_views=1)
    assert config.guides[0].modality == "rgb"
    run_training(config, tmp_path / "run")
    components, network = runs[0].components, load_named_network(config.guides[0].weights).network
    record = components.data.views.records[3]
    (window,) = spread_windows(record.num_frames, length=2, stride=2, num_windows=1)
    raw = open_clips(clips).read_raw(record, "rgb", [*range(window[0], window[1] + 1)])
    with torch.inference_mode():
        expected = F.normalize(network(network.preprocess(raw)[None]), dim=1)[0]
    assert torch.allclose(components.cached["guide_rgb"][0, 3], expected, atol=1e-5)


@pytest.mark.parametrize("architecture", ["VideoMAEForPreTraining", "VJEPA2Model"])
def test_a_video_network_of_transformers_guides_with_windows_of_its_own(
    architecture: str, clips: Path, tmp_path: Path, runs: list[Run]
) -> None:
    pytest.importorskip("transformers", reason="the extra transformers is not installed")
    from tests.models.transformers_factories import save_tiny

    save_tiny(tmp_path / "tiny", architecture)
    address = f"transformers:{tmp_path / 'tiny'}?stride=1"
    config = guided(clips, address, cached_views=1)
    assert config.guides[0].modality == "rgb" and not check_training(config)
    run_training(config, tmp_path / "run")
    components, network = runs[0].components, load_named_network(address).network
    record = components.data.views.records[3]
    (window,) = spread_windows(record.num_frames, length=4, stride=1, num_windows=1)
    raw = open_clips(clips).read_raw(record, "rgb", [*window])
    with torch.inference_mode():
        expected = F.normalize(network(network.preprocess(raw)[None]), dim=1)[0]
    assert torch.allclose(components.cached["guide_rgb"][0, 3], expected, atol=1e-5)
    (problem,) = check_training(guided(clips, f"transformers:{tmp_path / 'nothing'}"))
    assert "guides.0: " in problem.message and "there is no folder" in problem.message
