"""Rounds expand into the stages of the papers' alternation."""

from pathlib import Path

import pytest

from covid_cmsf.config import validate
from covid_cmsf.cotrain.gains import gain_pairs
from covid_cmsf.cotrain.graph import build_graph
from covid_cmsf.cotrain.plan import PlanConfig, StageConfig
from covid_cmsf.cotrain.rounds import expand_stages
from covid_cmsf.cotrain.run import load_plan
from covid_cmsf.training.config import GuideConfig
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


def test_coclr_continues_from_the_latest_round() -> None:
    found = stages(init="latest", first="rgb")
    assert {name: (stage.init, stage.guide) for name, stage in found.items() if stage.guide} == {
        "cmsf-rgb-1": ("infonce-rgb", "infonce-flow"),
        "cmsf-flow-1": ("infonce-flow", "cmsf-rgb-1"),
        "cmsf-rgb-2": ("cmsf-rgb-1", "cmsf-flow-1"),
        "cmsf-flow-2": ("cmsf-flow-1", "cmsf-rgb-2"),
    }


def test_each_of_three_modalities_is_guided_by_the_newest_networks_of_the_others() -> None:
    found = stages(modalities=["rgb", "flow", "motion"], first="flow", rounds=2)
    assert list(found)[:3] == ["infonce-rgb", "infonce-flow", "infonce-motion"]
    assert {name: stage.guides for name, stage in found.items() if stage.guide} == {
        "cmsf-flow-1": ("infonce-rgb", "infonce-motion"),
        "cmsf-rgb-1": ("cmsf-flow-1", "infonce-motion"),
        "cmsf-motion-1": ("cmsf-rgb-1", "cmsf-flow-1"),
        "cmsf-flow-2": ("cmsf-rgb-1", "cmsf-motion-1"),
        "cmsf-rgb-2": ("cmsf-flow-2", "cmsf-motion-1"),
        "cmsf-motion-2": ("cmsf-rgb-2", "cmsf-flow-2"),
    }


def test_controls_get_the_same_init_and_epochs() -> None:
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


def test_pretraining_can_differ_per_modality() -> None:
    changes = {"rgb": {"schedule": {"epochs": 9}, "method": {"temperature": 0.3}}}
    found = stages(pretrain_overrides=changes, controls=["continued"])
    assert found["infonce-rgb"].overrides["schedule"]["epochs"] == 9
    assert found["infonce-rgb"].overrides["method"] == {**PRETRAIN["method"], "temperature": 0.3}
    assert found["infonce-flow"].overrides == PRETRAIN
    assert found["continued-rgb"].overrides["method"]["temperature"] == 0.3
    assert found["continued-rgb"].overrides["schedule"] == CMSF["schedule"]


def test_baselines_come_first() -> None:
    found = stages(baselines=["chance", "color", "flow", "random"], defaults={"encoder": "s3d_tiny"})
    assert list(found)[:4] == ["color-histogram", "flow-histogram", "random-rgb", "random-flow"]
    assert found["random-flow"].random == "s3d_tiny" and not found["random-flow"].trains


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "needs stages, a number of rounds, or guides"),
        ({"pretrain": {}}, "rounds and guides need `pretrain`"),
        ({"pretrain_overrides": {"depth": {}}}, "pretrain_overrides has 'depth'"),
        ({"first": "audio"}, "none of the modalities"),
        ({"modalities": ["rgb", "rgb"], "first": "rgb"}, "two or more different"),
        ({"modalities": ["rgb", "flow", "rgb"]}, "two or more different"),
        ({"modalities": ["rgb"], "first": "rgb"}, "two or more different"),
        ({"modalities": ["rgb", "flow", "rgbdiff"], "controls": ["coclr"]}, "one guide"),
        ({"modalities": ["rgb", "sound"], "first": "rgb"}, "unknown modality"),
        ({"round": 2}, "did you mean 'rounds'"),
        ({"stages": [{"name": "a/b"}]}, "name is also its folder"),
        ({"stages": [{"name": "a", "weights": "x", "random": "s3d"}]}, "only one of weights"),
        ({"stages": [{"name": "a", "weights": "x"}]}, "modality is missing"),
        ({"stages": [{"name": "a", "weights": "x", "modality": "rgb", "epochs": 3}]}, "is not trained"),
    ],
)
def test_invalid_plans_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stages(**changes)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cmsf.optimizer.lrr=1", "section cmsf): unknown key 'optimizer.lrr'; did you mean 'optimizer.lr'?"),
        (
            "cmsf.method.num_candidate=9",
            "section cmsf): unknown key 'method.num_candidate'; did you mean 'method.num_cand",
        ),
        ("cmsf.batch_sise=4", "section cmsf): unknown key 'batch_sise'; did you mean 'batch_size'?"),
        ("cmsf.guides=[{cach: mean}]", "unknown key 'cach'; did you mean 'cache'?"),
        ("cmsf.method.k=0", "section cmsf): method.k = 0"),
        ("cmsf.method.name=cmfs", "section cmsf): method.name = 'cmfs': did you mean 'cmsf'?"),
        (
            "pretrain.schedule.epoch=9",
            "section pretrain): unknown key 'schedule.epoch'; did you mean 'schedule.epochs'?",
        ),
        ("pretrain.modality=sound", "section pretrain): modality = 'sound': unknown modality"),
        ("pretrain_overrides.rgb.encodr=s3d", "section pretrain_overrides.rgb): unknown key 'encodr'; did you mean"),
        ("defaults.views.lenght=4", "section defaults): unknown key 'views.lenght'; did you mean 'views.length'?"),
        ("stages=[{name: a, overrides: {sed: 1}}]", "section stage a): unknown key 'sed'; did you mean 'seed'?"),
        ("stages=[{name: a, method: {temprature: 1}}]", "section stage a): unknown key 'method.temprature'; did you"),
        ("stages=[{name: a, guide_overrides: {layr: x}}]", "section stage a, guide_overrides): unknown key 'layr'"),
    ],
)
def test_a_typo_in_a_training_section_is_an_error_when_the_plan_is_loaded(
    plan: Path, override: str, message: str
) -> None:
    load_plan(plan, [])
    with pytest.raises(ValueError) as caught:
        load_plan(plan, [override])
    assert message in str(caught.value) and str(plan) in str(caught.value)


def test_a_section_need_not_be_a_whole_training_configuration(plan: Path) -> None:
    loaded = load_plan(plan, ["cmsf.method.bank_size=1", "cmsf.labels.noise=0.5", "cmsf.guides=[{center: true}]"])
    assert loaded.cmsf_train_values["method"]["bank_size"] == 1 and "guide" not in loaded.cmsf_train_values


def test_the_control_coclr_is_guided_by_the_other_pretrained_network() -> None:
    cmsf = {**CMSF, "guides": [{"cache": "mean"}], "optimizer": {"lr": 0.5}}
    own = {"method": {"temperature": 0.2}, "optimizer": {"lr": 0.1}}
    found = stages(cmsf=cmsf, controls=["msf", "coclr"], control_overrides={"coclr": own})
    stage = found["coclr-rgb"]
    assert (stage.init, stage.guide, stage.guide_overrides) == ("infonce-rgb", "infonce-flow", {"cache": "mean"})
    assert stage.overrides["method"] == {"name": "coclr", "bank_size": 16, "temperature": 0.2}
    assert stage.overrides["optimizer"] == {"lr": 0.1} and stage.overrides["schedule"] == CMSF["schedule"]
    assert found["msf-rgb"].overrides["optimizer"] == {"lr": 0.5}


def test_overrides_of_a_control_that_is_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="control_overrides has 'coclr', none of the controls msf"):
        stages(controls=["msf"], control_overrides={"coclr": {"batch_size": 8}})


def test_rounds_are_compared_with_coclr_but_coclr_is_not_with_itself() -> None:
    def compared(**changes: object) -> set[tuple[str, str]]:
        specs = [(stage, str(stage.modality)) for stage in stages(**changes).values()]
        return {(pair.stage, pair.over) for pair in gain_pairs(specs) if not pair.is_start and pair.modality == "rgb"}

    assert compared(controls=["msf", "coclr"]) == {
        ("coclr-rgb", "msf-rgb"),
        *((f"cmsf-rgb-{number}", control) for number in (1, 2) for control in ("msf-rgb", "coclr-rgb")),
    }
    assert compared(cmsf={**CMSF, "method": {"name": "coclr", "bank_size": 16}}) == set()


def test_a_network_of_another_library_guides_a_stage_per_modality_from_the_same_start() -> None:
    section = {**CMSF, "guides": [{"layer": "projector", "center": True, "cache": "views"}]}
    address = "timm:resnet18?weights=w.pth"
    found = stages(rounds=0, cmsf=section, guides=[address])
    assert list(found) == ["infonce-rgb", "infonce-flow", "resnet18", "cmsf-rgb-resnet18", "cmsf-flow-resnet18"]
    assert (found["resnet18"].weights, found["resnet18"].modality) == (address, "frame")
    for modality in ("rgb", "flow"):
        stage = found[f"cmsf-{modality}-resnet18"]
        assert (stage.init, stage.guides, stage.modality) == (f"infonce-{modality}", ("resnet18",), modality)
    defaults = {"clips": "clips", "batch_size": 4}
    values = {"defaults": defaults, "pretrain": PRETRAIN, "cmsf": section, "guides": [address]}
    config = build_graph(validate(PlanConfig, values, origin="a test"), Path("runs"), plan_dir=Path())[-1].config
    assert config is not None and config.guides[0] == GuideConfig.model_validate(
        {"weights": address, "center": True, "cache": "views"}
    )
    with pytest.raises(ValueError, match=r"guides has 'flow.pt', which is no network of another library"):
        stages(guides=["flow.pt"])


def test_a_listed_stage_takes_a_section_of_the_plan_beneath_its_own_keys() -> None:
    cmsf = {**CMSF, "optimizer": {"lr": 0.5}, "guides": [{"cache": "mean", "center": True}]}
    listed = [
        {"name": "rgb", "section": "pretrain", "modality": "rgb"},
        {"name": "flow", "section": "pretrain", "modality": "flow", "overrides": {"schedule": {"epochs": 2}}},
        {
            "name": "few",
            "section": "cmsf",
            "modality": "rgb",
            "init": "rgb",
            "guide": "flow",
            "method": {"num_candidates": 2},
            "guide_overrides": {"center": False},
        },
    ]
    changes = {"rgb": {"schedule": {"epochs": 9}}}
    found = stages(rounds=0, cmsf=cmsf, pretrain_overrides=changes, stages=listed)
    assert list(found) == ["rgb", "flow", "few"]
    assert found["rgb"].overrides == {**PRETRAIN, "schedule": {"epochs": 9}}
    assert found["flow"].overrides == {**PRETRAIN, "schedule": {"epochs": 2}}
    few = found["few"]
    assert few.overrides == {key: value for key, value in cmsf.items() if key != "guides"}
    assert few.method == {"num_candidates": 2} and few.guide_overrides == {"cache": "mean", "center": False}


def test_a_section_must_be_in_the_plan_and_the_stage_be_trained() -> None:
    listed = {"name": "few", "section": "cmsf", "modality": "rgb"}
    with pytest.raises(ValueError, match="stage few has section: cmsf, which the plan leaves empty"):
        stages(rounds=0, cmsf={}, stages=[listed])
    with pytest.raises(ValueError, match="is not trained, so it has no init, .* section"):
        stages(rounds=0, stages=[{**listed, "random": "s3d_tiny"}])
