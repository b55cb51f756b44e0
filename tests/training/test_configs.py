"""Every file in configs/ loads, whatever it is."""

from pathlib import Path

import pytest

from covid_cmsf.config import load_config, read_yaml
from covid_cmsf.cotrain.plan import PlanConfig
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.views.config import load_view_config

CONFIGS = Path(__file__).parent.parent.parent / "configs"
FRAGMENTS = sorted(CONFIGS.rglob("base*.yaml"))  # what several runs share: not whole by themselves
FILES = sorted(set(CONFIGS.rglob("*.yaml")) - set(FRAGMENTS))
GUIDED = ["guides=[{weights: x, modality: flow}]", "init=x"]


def test_there_are_configurations() -> None:
    assert len(FILES) > 12


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CONFIGS).as_posix())
def test_a_configuration_loads(path: Path) -> None:
    values = read_yaml(path)
    if {"stages", "rounds"} & set(values):
        load_config(PlanConfig, path)
    elif "method" in values:
        load_config(TrainConfig, path)
    elif set(values) == {"views"}:
        load_view_config(path)
    else:
        raise AssertionError(f"{path} is no plan, no run and no views")


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.relative_to(CONFIGS).as_posix())
def test_a_fragment_is_whole_with_what_it_leaves_open(path: Path) -> None:
    method = read_yaml(path).get("method")
    guided = method and method["name"] in ("cmsf", "coclr") and method.get("constraint", "guide") == "guide"
    load_config(TrainConfig, path, ["method.name=byol_asym"] if method is None else GUIDED if guided else [])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CONFIGS).as_posix())
def test_a_configuration_says_how_it_is_run(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    if "views" not in path.parts:
        command = "cotrain" if {"stages", "rounds"} & set(read_yaml(path)) else "train"
        line = f"#   covid-cmsf {command} configs/{path.relative_to(CONFIGS).as_posix()}"
        assert line in path.read_text(encoding="utf-8")
