"""A stage's key changes when one of its inputs changes, and only then."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from covid_cmsf.config import config_names, find_config, load_config
from covid_cmsf.cotrain.executor import longest_chain_first, why_replaced
from covid_cmsf.cotrain.graph import Stage, build_graph
from covid_cmsf.cotrain.plan import PlanConfig
from covid_cmsf.cotrain.run import load_plan
from covid_cmsf.cotrain.stage import write_stage_key
from covid_cmsf.training.run_dir import write_config
from tests.cotrain.conftest import DEFAULTS, PRETRAIN

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

PLANS = config_names("plans")


def graph(plan: Path, *overrides: str, out: str = "out", seed: int | None = None) -> dict[str, Stage]:
    stages = build_graph(load_plan(plan, list(overrides)), plan.parent / out, plan_dir=plan.parent, seed=seed)
    return {stage.name: stage for stage in stages}


def changed(plan: Path, *overrides: str, **others: Any) -> set[str]:
    before, after = graph(plan), graph(plan, *overrides, **others)
    return {name for name in before if before[name].key != after[name].key}


def test_a_changed_setting_changes_its_stage_and_dependents(plan: Path) -> None:
    assert changed(plan) == set()
    assert changed(plan, "cmsf.method.k=1") == {"cmsf-rgb-1", "cmsf-flow-1"}
    assert changed(plan, "pretrain.method.temperature=0.2") == set(graph(plan))
    assert changed(plan, "defaults.seed=1") == changed(plan, seed=1) == set(graph(plan))
    assert changed(plan, "evaluation.windows=2") == set()  # evaluated again, not trained again


def test_baselines_and_external_files_have_keys(plan: Path, tmp_path: Path) -> None:
    plan.write_text(plan.read_text() + "baselines: [random, color]\n")
    assert changed(plan, "defaults.split=2") == set(graph(plan))
    start = tmp_path / "start.pt"
    start.write_bytes(b"one")
    first = graph(plan, f"pretrain.init={start}")["infonce-rgb"].key
    start.write_bytes(b"two")
    assert graph(plan, f"pretrain.init={start}")["infonce-rgb"].key != first


def test_runtime_and_paths_do_not_change_keys(plan: Path) -> None:
    assert changed(plan, "defaults.runtime.workers=1", "defaults.runtime.threads=2") == set()
    assert changed(plan, "defaults.runtime.gradient_checkpointing=true") == set()
    assert changed(plan, out="elsewhere") == set()


def with_key(stage: Stage, key: str) -> None:
    """Write what tells that the stage in its folder was done, or begun, with this key."""
    assert stage.config is not None
    stage.folder.mkdir(parents=True, exist_ok=True)
    write_config(stage.folder, stage.config)
    write_stage_key(stage.folder, key)


def test_how_a_run_logs_changes_no_key(plan: Path) -> None:
    quiet, loud = "defaults.logging.interval=10", "defaults.logging.interval=3"
    assert changed(plan, loud) == changed(plan, "pretrain.logging.on_collapse=stop") == set()
    before = graph(plan, quiet)
    assert {stage.key for stage in before.values()} == {stage.old_key for stage in before.values()}, "of the defaults"


@pytest.mark.parametrize("now", [1, 7])
def test_stages_of_older_versions_stay_valid_however_they_log_now(plan: Path, now: int) -> None:
    before = graph(plan, "defaults.logging.interval=3")
    old = {name: stage.old_key for name, stage in before.items()}
    assert not any(stage.has_key(old[name]) for name, stage in graph(plan, "defaults.logging.interval=4").items())
    for name, stage in before.items():
        with_key(stage, old[name])
    after = graph(plan, f"defaults.logging.interval={now}")
    assert all(stage.has_key(old[name]) and why_replaced(stage) == "" for name, stage in after.items())
    assert not any(stage.has_key(old[name]) for name, stage in graph(plan, "defaults.seed=5").items())
    assert not after["cmsf-rgb-1"].has_key("") and not after["cmsf-rgb-1"].has_key(None)


def test_init_and_guides_are_files_of_earlier_stages(plan: Path) -> None:
    stages = graph(plan)
    config = stages["cmsf-flow-1"].config
    assert config is not None and config.init == str(plan.parent / "out/infonce-flow/checkpoints/last.pt")
    assert [guide.weights for guide in config.guides] == [str(plan.parent / "out/cmsf-rgb-1/checkpoints/last.pt")]
    assert config.guides[0].modality == "rgb" and stages["cmsf-flow-1"].needs == ("infonce-flow", "cmsf-rgb-1")


def test_the_longest_chain_of_dependent_stages_goes_first(plan: Path) -> None:
    stages = list(graph(plan, "rounds=2", "controls=[continued, msf]", "baselines=[color]").values())
    order = [stage.name for stage in longest_chain_first(stages)]
    assert sorted(order) == sorted(stage.name for stage in stages)
    # nothing depends on the last one, as on the controls, but it has a guide
    assert order[:6] == ["infonce-rgb", "infonce-flow", "cmsf-rgb-1", "cmsf-flow-1", "cmsf-rgb-2", "cmsf-flow-2"]
    for stage in stages:  # dependencies come first
        assert all(order.index(name) < order.index(stage.name) for name in stage.needs)


def write(path: Path, stages: list[dict[str, Any]], clips: str = "nowhere") -> Path:
    path.write_text(yaml.safe_dump({"defaults": {**DEFAULTS, **PRETRAIN, "clips": clips}, "stages": stages}))
    return path


def test_a_stage_may_extend_a_file_and_the_plan_wins(tmp_path: Path) -> None:
    (tmp_path / "row.yaml").write_text("modality: flow\nschedule: {epochs: 9}\noptimizer: {lr: 0.5}\n")
    plan = write(tmp_path / "plan.yaml", [{"name": "a", "config": "row.yaml", "method": {"temperature": 0.5}}])
    config = graph(plan)["a"].config
    assert config is not None and config.modality == "flow" and config.optimizer.lr == 0.5
    assert config.schedule.epochs == 1
    assert config.method.name == "infonce" and config.method.temperature == 0.5


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{"name": "a"}, {"name": "a"}], "two stages have the name 'a'"),
        ([{"name": "a", "init": "b"}, {"name": "b"}], "needs 'b', which is not an earlier stage"),
        (
            [{"name": "a", "overrides": {"optimizer": {"lrr": 1}}}],
            "unknown key 'optimizer.lrr'; did you mean 'optimizer.lr'",
        ),
        ([{"name": "a"}, {"name": "b", "guide": "a"}], "uses none"),
    ],
)
def test_invalid_stages_are_refused(tmp_path: Path, stages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        graph(write(tmp_path / "plan.yaml", stages))


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_of_ours_can_be_built(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = find_config("plans", name)
    plan = load_config(PlanConfig, path)
    for stage in plan.stages:
        if stage.weights is not None:
            Path(stage.weights).parent.mkdir(exist_ok=True)
            Path(stage.weights).write_bytes(b"weights")
    stages = build_graph(plan, tmp_path / "out", plan_dir=path.parent)
    assert stages and all(stage.clips for stage in stages)


@pytest.mark.parametrize(("table", "rows"), [("table1", 7), ("table2", 27), ("tableA1", 5), ("noisy", 15)])
def test_every_row_of_the_image_tables_has_its_published_figures(table: str, rows: int) -> None:
    plan = load_config(PlanConfig, find_config("plans", f"paper/images/{table}"))
    assert len(plan.stages) == rows
    for stage in plan.stages:
        published = stage.published
        assert published.linear and published.transfer
        if published.datasets:  # the mean is of the ten data sets
            assert len(published.datasets) == 10
            assert sum(published.datasets.values()) / 10 == pytest.approx(published.transfer, abs=0.06)


def test_a_stage_takes_how_a_guide_is_used_from_its_run_and_the_weights_from_the_plan(tmp_path: Path) -> None:
    start = {"name": "a", "config": "infonce", "modality": "flow"}
    stages = [start, {"name": "b", "config": "cmsf", "init": "a", "guide": "a"}]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump({"stages": stages}))
    config = graph(tmp_path / "plan.yaml")["b"].config
    assert config is not None and len(config.guides) == 1
    guide = config.guides[0]
    assert (guide.modality, guide.cache, guide.center) == ("flow", "mean", True)
    assert guide.weights.endswith("out/a/checkpoints/last.pt")
