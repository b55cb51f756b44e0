"""The plan that compares second modalities: three stores, one start, and stages that another plan has trained."""

import shutil
from pathlib import Path

import pytest

from covid_cmsf.config import find_config
from covid_cmsf.cotrain.graph import Stage, build_graph
from covid_cmsf.cotrain.preflight import PlanClips, check_plan
from covid_cmsf.cotrain.run import load_plan
from tests.factories import make_table_store

STORES = {"ucf101-ten": ("rgb", "flow"), "ucf101-ten-dis": ("rgb", "flow"), "ucf101-ten-motion": ("rgb", "motion")}
SAME = {
    "infonce-rgb": "infonce-rgb",
    "infonce-tvl1": "infonce-residual_flow",
    "rgb-by-tvl1": "cmsf-rgb-1",
    "tvl1-by-rgb": "cmsf-residual_flow-1",
}


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the tables of the three stores below `clips/`, large enough for the recipe."""
    for name, modalities in STORES.items():
        store = make_table_store(tmp_path / "clips" / name, train=140, test=4, modalities=modalities)  # type: ignore[arg-type]
        shutil.copy(store / "splits" / "1.csv", store / "splits" / "2.csv")
        if name.endswith("-dis"):
            text = (store / "store.json").read_text()
            assert '"tvl1"' in text
            (store / "store.json").write_text(text.replace('"tvl1"', '"dis"'))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stages_of(name: str) -> dict[str, Stage]:
    path = find_config("plans", name)
    graph = build_graph(load_plan(path, []), Path("out"), plan_dir=path.parent, seed=0, split="2")
    return {stage.name: stage for stage in graph}


def test_networks_of_the_main_plan_are_reused(stores: Path) -> None:
    compared, main = stages_of("real/ucf101-ten-second-modality"), stages_of("real/ucf101-ten")
    assert {name: compared[name].key for name in SAME} == {name: main[other].key for name, other in SAME.items()}
    assert compared["infonce-dis"].key != compared["infonce-tvl1"].key


def test_every_second_modality_is_trained_and_guides_on_clips_that_have_it(stores: Path) -> None:
    stages = stages_of("real/ucf101-ten-second-modality")
    found = check_plan(list(stages.values()), {stage.id: "waiting" for stage in stages.values()}, PlanClips())
    assert [one for one in found if one.severity == "error"] == []
    for name in ("tvl1", "dis", "motion", "rgbdiff"):
        alone, guided, second = (stages[one] for one in (f"infonce-{name}", f"rgb-by-{name}", f"{name}-by-rgb"))
        assert alone.clips == guided.clips == second.clips
        assert guided.needs == ("infonce-rgb", f"infonce-{name}") and guided.modality == "rgb"
        assert second.needs == (f"infonce-{name}", f"rgb-by-{name}") and second.modality == alone.modality
    assert {stage.clips for stage in stages.values()} == {f"clips/{name}" for name in STORES}
