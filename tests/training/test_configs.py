"""Every file in configs/ loads, has a name, and says how it is run."""

from pathlib import Path
from typing import get_args

import pytest

from covid_cmsf.cli.train import load_run
from covid_cmsf.config import Kind, config_dir, config_kind, config_names, find_config, load_config, read_yaml
from covid_cmsf.cotrain.plan import PlanConfig
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.views.config import load_view_config

CONFIGS = Path(__file__).parent.parent.parent / "configs"
FRAGMENTS = sorted(CONFIGS.rglob("base*.yaml"))
KINDS: tuple[Kind, ...] = get_args(Kind)
NAMED = [(kind, name) for kind in KINDS for name in config_names(kind)]
RUNS = config_names("runs")
COMMANDS = {"runs": "train {}", "plans": "cotrain {}", "views": "views show CLIPS --config {}"}
# What a run on the demo's clips takes from the demo's plan.
DEMO = ["infonce", "cmsf", "cmsf-labels", "cmsf-two-bank", "msf", "byol-asym", "coclr", "moco", "ubernce", "supcon"]
DEMO += ["protonw", "frzproto", "xent"]


def overrides_for(name: str) -> list[str]:
    """The start and the guide that a run file leaves to the command line."""
    values = read_yaml(find_config("runs", name))
    method = values["method"]
    guided = method["name"] in ("cmsf", "coclr") and method.get("constraint", "guide") == "guide"
    weights = "weights: x, modality: flow"
    guides = [f"guides=[{{{weights}}}]"] if guided else []
    return [*guides, "init=x"] if method.get("head", {}).get("reuse") else guides


def test_there_are_configurations_and_every_file_is_one_or_a_fragment() -> None:
    assert config_dir() == CONFIGS
    assert len(config_names("runs")) > 20 and len(config_names("plans")) > 8 and len(config_names("views")) == 3
    files = {CONFIGS / kind / f"{name}.yaml" for kind, name in NAMED} | set(FRAGMENTS)
    assert files == set(CONFIGS.rglob("*.yaml"))


@pytest.mark.parametrize(("kind", "name"), NAMED, ids=["/".join(pair) for pair in NAMED])
def test_a_named_configuration_loads_and_lies_in_the_folder_of_its_kind(kind: Kind, name: str) -> None:
    path = find_config(kind, name)
    assert config_kind(read_yaml(path)) == kind
    if kind == "plans":
        load_config(PlanConfig, path)
    elif kind == "runs":
        load_run(name, overrides_for(name))
    else:
        load_view_config(path)


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.relative_to(CONFIGS).as_posix())
def test_a_fragment_is_extended_by_something(path: Path) -> None:
    others = [other for other in CONFIGS.rglob("*.yaml") if other != path]
    extending = [
        other
        for other in others
        for line in other.read_text(encoding="utf-8").splitlines()
        if "extends:" in line and path.name in line
        for word in line.replace("[", " ").replace("]", " ").replace(",", " ").replace("}", " ").split()
        if word.endswith(".yaml") and (other.parent / word).resolve() == path.resolve()
    ]
    assert extending


@pytest.mark.parametrize(("kind", "name"), NAMED, ids=["/".join(pair) for pair in NAMED])
def test_a_configuration_says_what_it_is_and_how_it_is_run(kind: Kind, name: str) -> None:
    lines = find_config(kind, name).read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ") and len(lines[0]) > 20
    launcher = f"tools/train.py {name} "
    command = f"#   covid-cmsf {COMMANDS[kind].format(name)}"
    assert any(f"{line} ".startswith(f"{command} ") or launcher in line for line in lines)


@pytest.mark.parametrize("name", DEMO)
def test_the_demos_single_runs_have_the_demos_clips_views_and_encoder(name: str) -> None:
    plan = load_config(PlanConfig, find_config("plans", "demo"))
    config, _ = load_run(name, overrides_for(name))
    assert config.clips == plan.defaults["clips"] and config.encoder == plan.defaults["encoder"]
    views = config.views
    assert (views.length, views.stride, views.size, views.blur) == (4, 4, 36, 0)
    assert views.model_dump(exclude_unset=True, mode="json") == plan.defaults["views"]


def test_the_demos_plan_and_the_single_runs_have_one_recipe() -> None:
    plan = load_config(PlanConfig, find_config("plans", "demo"))
    infonce, _ = load_run("infonce")
    cmsf, _ = load_run("cmsf", overrides_for("cmsf"))
    assert infonce.method == TrainConfig.model_validate({**plan.defaults, **plan.pretrain}).method
    assert cmsf.method.model_dump(exclude_unset=True, mode="json") == plan.cmsf["method"]
    assert (cmsf.method.k, cmsf.method.num_candidates, cmsf.schedule.epochs) == (5, 20, 34)  # type: ignore[union-attr]


def test_ucf101_mini_is_the_demos_plan_with_other_sizes() -> None:
    demo, mini = (load_config(PlanConfig, find_config("plans", name)) for name in ("demo", "real/ucf101-mini"))
    assert demo.pretrain["method"] == mini.pretrain["method"] and demo.controls == mini.controls
    assert mini.cmsf["method"] == {**demo.cmsf["method"], "num_candidates": 10, "bank_size": 96}
    assert mini.evaluation.windows is None and mini.pretrain_overrides == {}


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_published_figures_are_not_repeated_in_comments(path: Path) -> None:
    comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip().startswith("#")]
    assert not any("Published:" in line or "mean transfer" in line for line in comments)
