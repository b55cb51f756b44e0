"""The paper's configurations say what the paper says; what it leaves open is a choice in the row's own file."""

from pathlib import Path

import pytest
import torch

from covid_cmsf.cli.train import load_run
from covid_cmsf.config import config_dir, find_config, load_config
from covid_cmsf.cotrain.graph import build_graph
from covid_cmsf.cotrain.plan import PlanConfig
from covid_cmsf.evaluation.finetune.config import PRESETS as FINETUNE
from covid_cmsf.evaluation.finetune.config import train_augmentation
from covid_cmsf.methods.contrastive import SupConConfig
from covid_cmsf.methods.supervised import Xent, XentConfig
from covid_cmsf.models.networks import create_network
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.views.modalities import get_modality
from covid_cmsf.views.presets import get_preset

VIDEO_PLANS = ["cotraining", "ablation-n", "ablation-siblings", "guide-2d"]
VIDEO = ["infonce", "ubernce", "coclr", "msf", "cmsf", "cmsf-2d-guide"]
MEAN_SHIFT = ["video/msf", "video/cmsf", "video/cmsf-2d-guide", "images/cmsf", "images/msf", "images/cmsf-two-bank"]
MEAN_SHIFT += ["images/noisy/cmsf"]
GUIDED = {"video/cmsf": "flow", "video/cmsf-2d-guide": "frame"}


def load_row(name: str) -> TrainConfig:
    """The row with a guide and an init, which it leaves to the command line."""
    modality = GUIDED.get(name)
    guides = ["guides.0.weights=x", f"guides.0.modality={modality}"] if modality else []
    if name == "video/coclr":
        guides = ["guides=[{weights: x, modality: flow}]"]
    return load_run(f"paper/{name}", [*guides, "init=x"])[0]


def row_text(name: str) -> str:
    return find_config("runs", f"paper/{name}").read_text(encoding="utf-8")


def plan_stages(name: str) -> dict[str, TrainConfig | None]:
    path = find_config("plans", name)
    stages = build_graph(load_config(PlanConfig, path), Path("out"), plan_dir=path.parent)
    return {stage.name: stage.config for stage in stages}


@pytest.mark.parametrize("name", VIDEO)
def test_the_video_rows_have_the_mixture_of_views_of_han_et_al(name: str) -> None:
    views = load_row(f"video/{name}").views
    assert (views.pairing, views.flow_style, views.length, views.size) == ("coclr", "coclr", 32, 128)


def test_strong_views_of_flow_as_an_image_have_jitter_gray_and_blur_as_rgb_has() -> None:
    flow, rgb = get_modality("flow", flow_style="coclr"), get_modality("rgb")
    strong, weak = (get_preset(name, flow.kind) for name in ("strong", "weak"))
    assert (strong.jitter, strong.gray, strong.blur) == (0.8, 0.2, 0.5)
    assert (weak.jitter, weak.gray, weak.blur) == (0, 0, 0)
    assert all(get_preset(name, flow.kind) == get_preset(name, rgb.kind) for name in ("strong", "coclr", "finetune"))
    motion = get_modality("flow")
    assert get_preset("strong", motion.kind) == get_preset("weak", motion.kind)  # motion has no colors


def test_the_clips_of_the_video_rows_have_flow_of_native_size_as_those_of_han_et_al() -> None:
    text = (config_dir() / "runs" / "paper" / "video" / "base.yaml").read_text(encoding="utf-8")
    (command,) = [line for line in text.splitlines() if "covid-cmsf preprocess" in line]
    assert "--short-edge 160" in command and "--flow-size native" in command


def test_the_2d_rows_compare_features_of_the_backbone_also_in_their_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [guide.layer for guide in load_row("video/cmsf-2d-guide").guides] == ["encoder"]
    assert [guide.layer for guide in load_row("video/cmsf").guides] == ["projector"]
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "msf_r50.pth").write_bytes(b"only its hash is taken")
    monkeypatch.chdir(tmp_path)
    stages = plan_stages("paper/video/guide-2d")
    for name in ("2-cmsf-rgb", "3-cmsf-flow"):
        config = stages[name]
        assert config is not None and [(guide.modality, guide.layer) for guide in config.guides] == [
            ("frame", "encoder")
        ]


def test_row_1_has_the_recipe_for_fine_tuning() -> None:
    row, recipe = load_run("paper/video/xent")[0], FINETUNE["scratch"]
    assert isinstance(row.method, XentConfig)
    assert (row.method.dropout, row.optimizer.weight_decay, row.batch_size) == (0.9, 1e-3, 32)
    assert row.method.dropout == recipe.dropout and row.optimizer.weight_decay == recipe.weight_decay
    assert (row.optimizer.name, row.optimizer.lr, row.batch_size) == (recipe.optimizer, recipe.lr, recipe.batch_size)
    assert row.schedule.epochs == recipe.epochs
    assert row.schedule.milestones == tuple(round(one * recipe.epochs) for one in recipe.milestones)
    online = row.views.pairing.split("_")[1]
    assert get_preset(online, "rgb", size=128) == train_augmentation("coclr", 128)


def test_dropout_acts_on_the_feature_in_training_only() -> None:
    method = XentConfig(name="xent", dropout=0.5).build(num_classes=3, embedding_dim=3)
    assert isinstance(method, Xent) and method.feature_dropout == 0.5
    network = create_network("c21d_tiny", head="linear")
    view = torch.randn(2, 3, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    network.eval()
    expected = network(view)
    network.dropout = method.feature_dropout
    assert torch.equal(network(view), expected)
    network.projector.train()
    network.training = True  # only the network itself: batch norm stays in eval mode
    torch.manual_seed(0)
    feature = network.encoder(view)
    torch.manual_seed(0)
    found = network(view)
    torch.manual_seed(0)
    kept = torch.nn.functional.dropout(feature, 0.5)
    assert (kept == 0).any()
    assert torch.allclose(found, torch.nn.functional.normalize(network.projector(kept), dim=1))


def test_supcon_says_what_becomes_of_a_target_that_is_no_positive() -> None:
    for name, expected in (("b1-supcon-base", False), ("b2-supcon-strong", False), ("b3-supcon-target", True)):
        config = plan_stages("paper/images/table2")[name]
        assert config is not None and isinstance(config.method, SupConConfig)
        assert config.method.include_target == expected and not config.method.own_key_negative
    assert "own_key_negative" in row_text("images/supcon")


@pytest.mark.parametrize("name", MEAN_SHIFT)
def test_a_mean_shift_row_says_what_happens_on_collapse_and_adds_nothing_unpublished(name: str) -> None:
    row = load_row(name)
    assert "on_collapse" in row.logging.model_fields_set and row.logging.on_collapse == "warn"
    assert row.method.head is not None and not row.method.head.output_batch_norm
    assert row.optimizer.predictor_lr_factor == 1
    assert "collapse" in row_text(name).lower()


@pytest.mark.parametrize("name", ["video/msf", "video/cmsf", "video/cmsf-2d-guide"])
def test_a_video_row_decides_about_siblings(name: str) -> None:
    method = load_row(name).method
    assert "include_siblings" in method.model_fields_set and method.include_siblings  # type: ignore[union-attr]
    assert "siblings" in row_text(name).lower()


def test_the_video_plans_train_the_same_infonce_networks_so_that_they_can_reuse_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "msf_r50.pth").write_bytes(b"only its hash is taken")
    monkeypatch.chdir(tmp_path)
    files = [find_config("plans", f"paper/video/{name}") for name in VIDEO_PLANS]
    assert {file.stem for file in files[0].parent.glob("*.yaml")} == {*VIDEO_PLANS, "base"}
    keys: dict[str, set[str]] = {"rgb": set(), "flow": set()}
    for file in files:
        stages = build_graph(load_config(PlanConfig, file), Path(f"out-{file.stem}"), plan_dir=file.parent)
        infonce = [stage for stage in stages if stage.config is not None and stage.config.method.name == "infonce"]
        assert [stage.modality for stage in infonce] == ["rgb", "flow"]
        for stage in infonce:
            keys[stage.modality].add(stage.key)
    assert [len(shared) for shared in keys.values()] == [1, 1] and keys["rgb"] != keys["flow"]


@pytest.mark.parametrize("plan", ["demo-siblings", "paper/video/ablation-siblings"])
def test_the_plans_of_siblings_differ_in_nothing_else(plan: str) -> None:
    stages = plan_stages(plan)
    pairs = [(name, name.replace("allowed", "excluded")) for name in stages if "allowed" in name]
    assert len(pairs) >= 2
    for allowed, excluded in pairs:
        one, other = stages[allowed], stages[excluded]
        assert one is not None and other is not None
        values = [config.model_dump() for config in (one, other)]
        assert [value["method"].pop("include_siblings") for value in values] == [True, False]
        assert values[0] == values[1]


def test_the_demos_plan_of_siblings_has_the_demos_recipe() -> None:
    demo, siblings = plan_stages("demo"), plan_stages("demo-siblings")
    for name, twin in (
        ("infonce-rgb", "infonce-rgb"),
        ("infonce-flow", "infonce-flow"),
        ("cmsf-rgb-1", "excluded-rgb"),
    ):
        one, other = demo[name], siblings[twin]
        assert one is not None and other is not None
        assert one.model_dump(exclude={"init", "guides"}) == other.model_dump(exclude={"init", "guides"})
        assert [guide.cache for guide in one.guides] == [guide.cache for guide in other.guides]
