"""Rounds in short are written out as the papers alternate."""

import pytest

from covid_cmsf.config import validate
from covid_cmsf.cotrain.plan import PlanConfig, StageConfig
from covid_cmsf.cotrain.rounds import expand_stages
from tests.cotrain.conftest import CMSF, PRETRAIN


def stages(**changes: object) -> dict[str, StageConfig]:
    values = {"rounds": 2, "first": "flow", "pretrain": PRETRAIN, "cmsf": CMSF, **changes}
    return {stage.name: stage for stage in expand_stages(validate(PlanConfig, values, origin="a test"))}


def test_the_paper_restarts_every_round_from_infonce_and_only_the_guide_advances() -> None:
    found = stages()
    assert list(found) == ["infonce-rgb", "infonce-flow", "cmsf-flow-1", "cmsf-rgb-1", "cmsf-flow-2", "cmsf-rgb-2"]
    assert {name: (stage.init, stage.guide) for name, stage in found.items() if stage.guide} == {
        "cmsf-flow-1": ("infonce-flow", "infonce-rgb"),
        "cmsf-rgb-1": ("infonce-rgb", "cmsf-flow-1"),
        "cmsf-flow-2": ("infonce-flow", "cmsf-rgb-1"),
        "cmsf-rgb-2": ("infonce-rgb", "cmsf-flow-2"),
    }


def test_coclr_goes_on_from_the_latest() -> None:
    found = stages(init="latest", first="rgb")
    assert {name: (stage.init, stage.guide) for name, stage in found.items() if stage.guide} == {
        "cmsf-rgb-1": ("infonce-rgb", "infonce-flow"),
        "cmsf-flow-1": ("infonce-flow", "cmsf-rgb-1"),
        "cmsf-rgb-2": ("cmsf-rgb-1", "cmsf-flow-1"),
        "cmsf-flow-2": ("cmsf-flow-1", "cmsf-rgb-2"),
    }


def test_controls_get_the_same_start_and_the_same_epochs() -> None:
    cmsf = {**CMSF, "schedule": {"epochs": 7}, "optimizer": {"lr": 0.5}}
    found = stages(cmsf=cmsf, controls=["continued", "msf", "oracle"])
    for control in ("continued", "msf", "oracle"):
        for modality in ("rgb", "flow"):
            stage = found[f"{control}-{modality}"]
            assert stage.init == f"infonce-{modality}" and stage.overrides["schedule"] == {"epochs": 7}
    assert found["msf-rgb"].overrides["method"] == {"name": "msf", "k": 2, "bank_size": 16}
    assert found["msf-rgb"].overrides["optimizer"] == {"lr": 0.5}
    assert found["oracle-rgb"].overrides["method"]["constraint"] == "label"
    assert found["continued-rgb"].overrides["method"] == PRETRAIN["method"]


def test_a_modality_may_have_a_start_of_its_own() -> None:
    changes = {"rgb": {"schedule": {"epochs": 9}, "method": {"temperature": 0.3}}}
    found = stages(pretrain_overrides=changes, controls=["continued"])
    assert found["infonce-rgb"].overrides["schedule"]["epochs"] == 9
    assert found["infonce-rgb"].overrides["method"] == {**PRETRAIN["method"], "temperature": 0.3}
    assert found["infonce-flow"].overrides == PRETRAIN
    assert found["continued-rgb"].overrides["method"]["temperature"] == 0.3
    assert found["continued-rgb"].overrides["schedule"] == CMSF["schedule"]


def test_baselines_stand_in_front() -> None:
    found = stages(baselines=["chance", "color", "flow", "random"], defaults={"encoder": "s3d_tiny"})
    assert list(found)[:4] == ["color-histogram", "flow-histogram", "random-rgb", "random-flow"]
    assert found["random-flow"].random == "s3d_tiny" and not found["random-flow"].trains


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 0}, "needs stages, or a number of rounds"),
        ({"pretrain": {}}, "rounds need `pretrain`"),
        ({"pretrain_overrides": {"depth": {}}}, "pretrain_overrides has 'depth'"),
        ({"first": "audio"}, "none of the modalities"),
        ({"modalities": ["rgb", "rgb"], "first": "rgb"}, "two different"),
        ({"modalities": ["rgb", "sound"], "first": "rgb"}, "unknown modality"),
        ({"round": 2}, "did you mean 'rounds'"),
        ({"stages": [{"name": "a/b"}]}, "name is a folder's"),
        ({"stages": [{"name": "a", "weights": "x", "random": "s3d"}]}, "only one of them"),
        ({"stages": [{"name": "a", "weights": "x"}]}, "which modality"),
        ({"stages": [{"name": "a", "weights": "x", "modality": "rgb", "epochs": 3}]}, "is not trained"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        stages(**changes)
