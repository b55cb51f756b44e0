"""Model cards: what they say is in the run's files, and what is not there they call unknown."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import covid_cmsf as cc
from covid_cmsf.models import save_encoder
from covid_cmsf.sharing.run_files import without_folders
from tests.cotrain.conftest import CMSF, DEFAULTS, PRETRAIN
from tests.evaluation.factories import small_checkpoint, small_encoder
from tests.training.conftest import clips  # noqa: F401 (a fixture)


@pytest.fixture(scope="module")
def plan(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A plan that has run; read it, do not change it."""
    folder = tmp_path_factory.mktemp("plan")
    values = {
        "defaults": {"clips": str(clips), **DEFAULTS},
        "rounds": 1,
        "first": "rgb",
        "pretrain": PRETRAIN,
        "cmsf": CMSF,
        "evaluation": {"windows": 1},
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    cc.run_plan(folder / "plan.yaml", out=folder / "runs")
    return folder / "runs"


@pytest.fixture
def stage(plan: Path, tmp_path: Path) -> Path:
    """A copy of one of its stages, with the plan's gains, to be changed."""
    shutil.copy(plan / "gains.json", tmp_path)
    return Path(shutil.copytree(plan / "cmsf-rgb-1", tmp_path / "cmsf-rgb-1", symlinks=True))


def write_card(source: Path, **options: Any) -> str:
    folder = cc.save_pretrained(source, source.parent / "shared", replace=True, **options)
    return (folder / "README.md").read_text(encoding="utf-8")


def front_matter(card: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return values


def section(card: str, title: str) -> str:
    return card.split(f"\n## {title}\n")[1].split("\n## ")[0]


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.slow
def test_the_card_has_the_numbers_of_the_runs_files(stage: Path) -> None:
    retrieval, linear = (json.loads((stage / f"{name}.json").read_text()) for name in ("retrieval", "linear"))
    (gain,) = [row for row in json.loads((stage.parent / "gains.json").read_text()) if row["stage"] == stage.name]
    measures = section(write_card(stage), "Measures")
    for k, value in retrieval["recall"].items():
        low, high = retrieval["interval"][k]
        chance = retrieval["chance_recall"][k]
        assert f"| R@{k} | {value:.1f} | {low:.1f} to {high:.1f} | {chance:.1f} | 21 |" in measures
    low, high = linear["scores"]["interval"]
    assert f"| linear, top-1 | {linear['scores']['top1']:.1f} | {low:.1f} to {high:.1f} |  | 21 |" in measures
    assert f"| {gain['over']} | {gain['r1']['difference']:+.1f} [" in measures
    assert "Protocol `clean`: 1 windows of 8 frames" in measures and "gallery `train` (21 videos)" in measures


@pytest.mark.slow
def test_other_files_give_another_card(stage: Path) -> None:
    change(stage / "retrieval.json", recall={"1": 12.3}, interval={"1": [4.5, 67.8]}, num_query=99)
    config = yaml.safe_load((stage / "config.yaml").read_text())
    config["optimizer"]["lr"] = 0.0123
    (stage / "config.yaml").write_text(yaml.safe_dump(config))
    card = write_card(stage)
    assert "| R@1 | 12.3 | 4.5 to 67.8 | 33.3 | 99 |" in card and "R@5" not in card
    assert "lr: 0.0123" in section(card, "Training")


@pytest.mark.slow
def test_data_and_training_are_those_of_the_configuration(stage: Path) -> None:
    card = write_card(stage)
    shown = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", card, re.DOTALL)[0])
    written = yaml.safe_load((stage / "config.yaml").read_text())
    assert shown["method"] == written["method"] and shown["schedule"] == written["schedule"]
    assert shown["clips"] == Path(written["clips"]).name and "runtime" not in shown
    assert shown["init"] == "infonce-rgb" and shown["guides"][0]["weights"] == "infonce-flow"
    assert "| guides | infonce-flow (flow) |" in section(card, "Training")
    assert "| run finished | after 1 epochs, 5 steps |" in section(card, "Training")


@pytest.mark.slow
def test_no_folder_of_the_machine_is_in_what_is_shared(stage: Path, plan: Path) -> None:
    write_card(stage)
    for path in (stage.parent / "shared").iterdir():
        for folder in (plan, stage.parent, Path.home(), Path.cwd()):
            assert str(folder).encode() not in path.read_bytes(), path.name


@pytest.mark.slow
def test_measures_of_other_weights_are_left_out_and_named(stage: Path) -> None:
    measures = section(write_card(stage, branch="target"), "Measures")
    assert "None: the run's folder has no measures of these weights." in measures
    assert "R@1" not in measures and "gain over" not in measures
    for name in ("retrieval.json", "linear.json", "unlabeled.json"):
        assert f"`{name}` has measures of other weights" in measures


@pytest.mark.slow
def test_a_run_without_measures_says_so(stage: Path) -> None:
    for name in ("retrieval", "linear", "unlabeled", "stage"):
        (stage / f"{name}.json").unlink()
    card = write_card(stage)
    assert section(card, "Measures").strip() == "None: the run's folder has no measures of these weights."
    assert "How good its features are is not known" in section(card, "Limits")


@pytest.mark.slow
def test_a_run_without_labels_has_the_measures_that_need_none(stage: Path) -> None:
    for name in ("retrieval", "linear"):
        (stage / f"{name}.json").unlink()
    card = write_card(stage)
    assert "effective rank" in section(card, "Measures") and "R@1" not in section(card, "Measures")
    assert "No measure with labels" in section(card, "Limits")


@pytest.mark.slow
def test_limits_follow_from_the_files(stage: Path) -> None:
    before = section(write_card(stage), "Limits")
    retrieval = json.loads((stage / "retrieval.json").read_text())
    retrieval["features"][0]["num_skipped"] = 3
    retrieval["overlap"]["num_shared_sources"] = 2
    (stage / "retrieval.json").write_text(json.dumps(retrieval))
    (stage / "summary.json").unlink()
    after = section(write_card(stage), "Limits")
    for line in ("3 videos could not be read", "share 2 sources", "The run was not finished"):
        assert line in after and line not in before


@pytest.mark.slow
def test_a_checkpoint_in_a_run_is_described_by_its_run(stage: Path) -> None:
    folder = cc.save_pretrained(stage / "checkpoints" / "last.pt", stage.parent / "file")
    card = (folder / "README.md").read_text().replace("# file\n", "# shared\n")
    assert card == write_card(stage)


@pytest.mark.slow
def test_a_damaged_file_of_the_run_is_an_error(stage: Path) -> None:
    (stage / "retrieval.json").write_text("{")
    with pytest.raises(ValueError, match=r"retrieval\.json is damaged"):
        write_card(stage)


def test_a_weights_file_alone_has_an_unknown_run(tmp_path: Path) -> None:
    card = write_card(small_checkpoint(tmp_path / "encoder.safetensors"))
    for title in ("Data", "Training", "Measures"):
        assert section(card, title).strip().startswith("Unknown: these weights came as a file")
    assert "random weights of seed 0" in section(card, "Training")


def test_the_rate_that_clips_were_resampled_to_is_said(tmp_path: Path) -> None:
    encoder, eval_model = small_encoder()
    for fps, expected in ((None, False), (8.0, True)):
        save_encoder(tmp_path / "x.safetensors", encoder, eval_model.metadata.model_copy(update={"fps": fps}))
        card = write_card(tmp_path / "x.safetensors")
        assert ("frame rate | 8 frames per second |" in section(card, "Use")) is expected


def test_the_license_is_what_was_given_or_none(tmp_path: Path) -> None:
    weights = small_checkpoint(tmp_path / "encoder.safetensors")
    assert front_matter(write_card(weights, license="cc-by-4.0"))["license"] == "cc-by-4.0"
    card = write_card(weights)
    assert "license" not in front_matter(card) and "None was given" in section(card, "License")
    assert front_matter(card)["tags"] == ["covid-cmsf", "video", "s3d_tiny", "rgb"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/ucf101", "ucf101"),
        ("/data/runs/infonce-rgb/checkpoints/last.pt", "infonce-rgb"),
        ("timm:vit_tiny?weights=/home/me/vit.pth", "timm:vit_tiny?weights=vit.pth"),
        ("timm:vit_tiny?weights=hub", "timm:vit_tiny?weights=hub"),
        ("/data/a?x=/data/b", "a?x=b"),
        ("cosine", "cosine"),
    ],
)
def test_paths_are_reduced_to_names(text: str, expected: str) -> None:
    assert without_folders({"a": [text]}) == {"a": [expected]}
