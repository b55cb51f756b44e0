"""Guides: frozen and proven so, cached or not, and always of the video that the row is about."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.clips.records import read_manifest, write_manifest
from covid_cmsf.models import Guide, create_model
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.training import run as run_module
from covid_cmsf.training.config import GuideConfig, TrainConfig
from covid_cmsf.training.guides import (
    average_and_center,
    load_guides,
    read_guide_cache,
    sample_views,
    write_guide_cache,
)
from covid_cmsf.training.loop import Run, train
from covid_cmsf.training.run import run_training
from tests.training.factories import differing, make_config, state, stop_at

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


def guided(clips: Path, weights: Path, **changes: Any) -> TrainConfig:
    method = {"name": "cmsf", "bank_size": 32, "k": 2, "num_candidates": 4}
    guide = {"weights": str(weights), "modality": "flow", **changes}
    return make_config(clips, method=method, guides=[guide], schedule={"epochs": 1})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that are trained, with all their components, for inspection afterwards."""
    seen: list[Run] = []

    def remember_and_train(run: Run) -> str:
        seen.append(run)
        return train(run)

    monkeypatch.setattr(run_module, "train", remember_and_train)
    return seen


def slow_hash(guide: Guide) -> list[tuple[str, str]]:
    tensors = [*guide.network.named_parameters(), *guide.network.named_buffers()]
    return [(name, hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()) for name, tensor in tensors]


def test_a_guide_is_the_same_after_a_run_parameters_and_batch_norm_alike(
    clips: Path, flow_weights: Path, tmp_path: Path, runs: list[Run]
) -> None:
    run_training(guided(clips, flow_weights), tmp_path / "run")
    (guide,) = runs[0].components.guides
    (fresh,) = load_guides(guided(clips, flow_weights).guides, flow_style="motion")
    assert slow_hash(guide) == slow_hash(fresh) and guide.fingerprint == fresh.fingerprint
    assert any("running_mean" in name for name, _ in slow_hash(guide))
    assert not any(weight.requires_grad for weight in guide.parameters())
    assert not any(module.training for module in guide.network.modules())
    guide.check_unchanged()


@pytest.mark.parametrize("name", ["encoder.trunk.0.weight", "encoder.trunk.1.running_var", "projector.0.bias"])
def test_a_guide_that_changes_is_noticed_at_the_end_of_the_run(
    name: str, clips: Path, flow_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_and_change(run: Run) -> str:
        outcome = train(run)
        run.components.guides[0].network.state_dict()[name].add_(1e-6)
        return outcome

    monkeypatch.setattr(run_module, "train", train_and_change)
    with pytest.raises(RuntimeError, match="weights of the frozen guide .* have changed"):
        run_training(guided(clips, flow_weights), tmp_path / "run")


def test_the_hash_sees_every_tensor_and_its_name() -> None:
    encoder = create_model("toy")
    hashes = {weights_sha256(encoder)}
    for tensor in encoder.state_dict().values():
        tensor.add_(1)
        hashes.add(weights_sha256(encoder))
    assert len(hashes) == 1 + len(encoder.state_dict())
    assert weights_sha256(torch.nn.ModuleDict({"a": encoder})) != weights_sha256(torch.nn.ModuleDict({"b": encoder}))


def test_finished_views_equal_loops() -> None:
    views = F.normalize(torch.randn(3, 5, 4), dim=2)
    middle = sum(views[v, n] for v in range(3) for n in range(5)) / 15
    centered = average_and_center(views, mean=False, center=True)
    mean = average_and_center(views, mean=True, center=True)
    for n in range(5):
        for v in range(3):
            assert torch.allclose(centered[v, n], F.normalize(views[v, n] - middle, dim=0), atol=1e-6)
        assert torch.allclose(mean[0, n], F.normalize(views[:, n].mean(0) - middle, dim=0), atol=1e-6)
    assert torch.allclose(average_and_center(views, mean=False, center=False), views, atol=1e-6) and mean.shape == (
        1,
        5,
        4,
    )


def test_each_video_gets_one_of_its_own_views() -> None:
    views = torch.arange(3 * 5).view(3, 5, 1).float().expand(-1, -1, 2)
    videos, seen = torch.tensor([4, 0, 4, 2]), set()
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        picked = sample_views(views, videos, generator)[:, 0].long()
        assert (picked % 5).tolist() == videos.tolist()
        seen |= set(picked.tolist())
    assert seen == {4, 9, 14, 0, 5, 10, 2, 7, 12}


def test_a_cache_is_read_only_for_what_it_was_written_for(tmp_path: Path) -> None:
    views, path = torch.randn(2, 3, 4), tmp_path / "cache"
    assert read_guide_cache(path, "key") is None
    write_guide_cache(path, views, "key")
    found = read_guide_cache(path, "key")
    assert found is not None and torch.equal(found, views)
    assert read_guide_cache(path, "other") is None
    sound = path.read_bytes()
    path.write_bytes(sound[:50])
    assert read_guide_cache(path, "key") is None
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 2]))  # one flipped bit of one embedding
    assert read_guide_cache(path, "key") is None


def rows_are_of_their_videos(run: Run) -> None:
    """Every row's guide column is one of the cached views of the video that the row is about."""
    assert run.components.banks is not None
    bank, views = run.components.banks.main, run.components.cached["guide_flow"]
    assert views.shape[1] == len(run.components.data.views)
    for row, video in zip(bank.embeddings("guide_flow"), bank.ids("videos").tolist(), strict=True):
        assert any(torch.equal(row, view) for view in views[:, video])


def test_cached_rows_are_of_the_right_video(clips: Path, flow_weights: Path, tmp_path: Path, runs: list[Run]) -> None:
    run_training(guided(clips, flow_weights, cache="views", cached_views=3), tmp_path / "run")
    rows_are_of_their_videos(runs[0])
    views = runs[0].components.cached["guide_flow"]
    assert views.shape[0] == 3 and not torch.equal(views[0], views[1])


def test_videos_that_the_guide_cannot_see_do_not_shift_its_cache(
    clips: Path, flow_weights: Path, tmp_path: Path, runs: list[Run]
) -> None:
    shutil.copytree(clips, tmp_path / "clips")
    records = read_manifest(tmp_path / "clips" / "manifest.csv")
    short = next(record for record in records if "_g09_" in record.video_id)
    changed = [replace(one, num_frames=1, num_flow=0) if one == short else one for one in records]
    write_manifest(tmp_path / "clips" / "manifest.csv", changed)
    for cache in ("none", "views"):
        run_training(guided(tmp_path / "clips", flow_weights, cache=cache), tmp_path / cache)
    assert [len(run.components.data.views) for run in runs] == [20, 20]
    rows_are_of_their_videos(runs[1])


@pytest.mark.slow
def test_a_run_with_its_cache_already_there_is_the_same_run(
    clips: Path, flow_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = guided(clips, flow_weights, cache="mean", center=True)
    run_training(chosen, tmp_path / "one")
    (tmp_path / "two").mkdir()
    shutil.copy(tmp_path / "one" / "guide_flow.safetensors", tmp_path / "two")  # killed before its first checkpoint
    run_training(chosen, tmp_path / "two")
    assert differing(tmp_path / "one", tmp_path / "two") == []
    with monkeypatch.context() as patch:
        stop_at(patch, 2)
        run_training(chosen, tmp_path / "three")
    (tmp_path / "three" / "guide_flow.safetensors").write_bytes(b"damaged")
    run_training(chosen, tmp_path / "three")
    assert differing(tmp_path / "one", tmp_path / "three") == []


def test_a_cache_of_other_content_is_not_used(clips: Path, flow_weights: Path, tmp_path: Path, runs: list[Run]) -> None:
    store = tmp_path / "clips"
    shutil.copytree(clips, store)
    chosen = guided(store, flow_weights, cache="mean")
    run_training(chosen, tmp_path / "one")
    records = runs[0].components.data.views.records
    one, other = next((a, b) for a in records for b in records if a != b and a.num_flow == b.num_flow)
    content = {name: getattr(other, name) for name in ("flow_bytes", "flow_sha256", "flow_bound")}
    shutil.copy(clips / "flow" / f"{other.video_id}.mp4", store / "flow" / f"{one.video_id}.mp4")
    table = [
        replace(record, **content) if record == one else record for record in read_manifest(store / "manifest.csv")
    ]
    write_manifest(store / "manifest.csv", table)
    (tmp_path / "two").mkdir()
    shutil.copy(tmp_path / "one" / "guide_flow.safetensors", tmp_path / "two")  # killed before its first checkpoint
    run_training(chosen, tmp_path / "two")
    before, after = (run.components.cached["guide_flow"] for run in runs)
    changed = [not torch.equal(before[:, video], after[:, video]) for video in range(len(records))]
    assert changed == [record == one for record in records]


def test_the_columns_of_several_guides_are_apart(
    clips: Path, flow_weights: Path, frame_weights: Path, tmp_path: Path
) -> None:
    guides = [
        {"weights": str(flow_weights), "modality": "flow"},
        {"weights": str(flow_weights), "modality": "flow", "branch": "target"},
        {"weights": str(frame_weights), "modality": "frame", "layer": "encoder"},
    ]
    chosen = make_config(clips, method={"name": "cmsf", "bank_size": 16}, guides=guides, schedule={"epochs": 1})
    run_training(chosen, tmp_path / "run")
    columns = {key: tensor.shape[1] for key, tensor in state(tmp_path / "run").items() if "column_guide" in key}
    place = "banks.main.column_guide_"
    assert columns == {f"{place}flow": 128, f"{place}flow_2": 128, f"{place}frame": 512}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modality": "rgb"}, "takes 2 channels, and rgb has 3"),
        ({"layer": "encoder", "weights": "nowhere.pt"}, "nowhere.pt"),
        ({"branch": "guide"}, "guide"),
    ],
)
def test_a_guide_that_does_not_fit_is_refused(changes: dict[str, str], message: str, flow_weights: Path) -> None:
    chosen = GuideConfig.model_validate({"weights": str(flow_weights), "modality": "flow", **changes})
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_guides([chosen], flow_style="motion")


def test_a_guide_of_another_modality_with_as_many_channels_is_refused(rgb_weights: Path, frame_weights: Path) -> None:
    chosen = GuideConfig(weights=str(rgb_weights), modality="rgbdiff")
    with pytest.raises(ValueError, match="was trained on rgb, not on rgbdiff"):
        load_guides([chosen], flow_style="motion")
    with pytest.raises(ValueError, match="has no projection head"):
        load_guides([GuideConfig(weights=str(frame_weights), modality="frame")], flow_style="motion")
