"""`covid-cmsf evaluate transfer` as a user types it, on small pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
from optuna.distributions import IntDistribution
from PIL import Image
from typer.testing import CliRunner, Result

from covid_cmsf import exit_codes
from covid_cmsf.cli import app as whole
from covid_cmsf.evaluation.features.file import load_features
from covid_cmsf.evaluation.transfer import evaluate as evaluate_module
from covid_cmsf.evaluation.transfer.benchmark import summarize_results
from covid_cmsf.evaluation.transfer.datasets import DATASETS
from covid_cmsf.evaluation.transfer.evaluate import TransferResult
from covid_cmsf.evaluation.transfer.search import SEARCH_SPACE, search
from tests.evaluation.factories import small_checkpoint
from tests.evaluation.transfer_factories import WRITERS


@pytest.fixture(autouse=True)
def quick_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SEARCH_SPACE, "iterations", IntDistribution(1, 3, log=True))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("w") / "w.safetensors", "frame", name="r18")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Stripes that lie or stand: a folder with train/, val/ and test/."""
    random = np.random.default_rng(0)
    for subset, count in (("train", 6), ("val", 3), ("test", 4)):
        for name in ("lying", "standing"):
            for i in range(count):
                picture = random.integers(0, 60, (40, 48, 3), dtype=np.uint8)
                stripes = picture[::4] if name == "lying" else picture[:, ::4]
                stripes += 150
                path = tmp_path / "own" / subset / name / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture).save(path)
    return tmp_path / "own"


def run(*args: object) -> Result:
    return CliRunner().invoke(whole.app, ["evaluate", "transfer", *map(str, args)])


@pytest.mark.slow
def test_from_pictures_to_the_papers_row(weights: Path, own: Path, tmp_path: Path) -> None:
    WRITERS["dtd"](tmp_path / "data")
    out = tmp_path / "out"
    args = [weights, "--datasets", f"{own},dtd", "--root", tmp_path / "data", "--trials", 4, "--out", out]
    args += ["--workers", 0, "--device", "cpu"]
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert list(values["values"]) == ["dtd", "own"] and values["mean_over"] == "dtd, own"
    assert values["mean"] == pytest.approx((values["values"]["dtd"] + values["values"]["own"]) / 2)
    assert values["values"]["own"] == 100, "stripes can be told apart"
    assert values["datasets"][0]["differences"][0] == "train has 8 images, Table A2 has 1880"
    assert json.loads((out / "result.json").read_text()) == values
    assert {path.name for path in (out / "dtd").iterdir()} == {"features.safetensors", "trials.journal", "result.json"}
    features = load_features(out / "own" / "features.safetensors")
    assert features.provenance.eval_protocol.modality == "frame" and len(features.videos) == 26
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/*")}
    table = run(*args)
    assert table.exit_code == 0 and "DTD" in table.stdout and "Mean over dtd, own" in table.stdout
    assert "own, weakest of " in table.stdout
    assert times == {path: path.stat().st_mtime_ns for path in out.glob("*/*")}, "something was made again"
    other = small_checkpoint(tmp_path / "other.safetensors", "frame", seed=1, name="r18")
    refused = run(other, *args[1:])
    assert isinstance(refused.exception, FileExistsError) and "--force" in str(refused.exception)
    assert run(other, *args[1:], "--force").exit_code == 0


@pytest.mark.slow
def test_a_stopped_command_continues_to_the_same_result(
    weights: Path, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["--datasets", own, "--trials", 4, "--workers", 0, "--device", "cpu", "--json", "--out"]
    straight = run(weights, *args, tmp_path / "straight")

    def stopped(*rows: object, **options: object) -> object:
        search(*rows, **{**options, "num_trials": 2})  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate_module, "search", stopped)
    assert run(weights, *args, tmp_path / "out").exit_code != 0
    assert not (tmp_path / "out" / "own" / "result.json").exists()
    monkeypatch.setattr(evaluate_module, "search", search)
    assert run(weights, *args, tmp_path / "out").stdout == straight.stdout


def test_a_damaged_picture_is_listed_and_the_exit_code_is_3(weights: Path, own: Path, tmp_path: Path) -> None:
    (own / "test" / "lying" / "1.png").write_bytes(b"nothing")
    result = run(weights, "--datasets", own, "--trials", 2, "--workers", 0, "--json", "--out", tmp_path / "out")
    assert result.exit_code == exit_codes.SKIPPED_ITEMS, result.output
    values = json.loads(result.stdout)["datasets"][0]
    assert values["sizes"]["test"] == 7 and values["skipped"][0][:2] == ["test/000001", "test"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--datasets", "imagenet", "--root", "."], "unknown data set 'imagenet'; choose from food101"),
        (["--datasets", "dtd"], "--root is needed"),
        (["--datasets", ","], "no data set is named"),
        (["--datasets", "dtd", "--root", "nowhere"], "there is no folder nowhere"),
        (["--datasets", "dtd,pets", "--root", "."], "dtd: no folder dtd .*\\n  pets: no folder"),
        (["--datasets", "./none"], "no folder none/train"),
        (["--datasets", "OWN", "--normalize", "l2"], "unknown normalization 'l2'"),
        (["--datasets", "OWN", "--executor", "slurm"], "unknown executor 'slurm'"),
    ],
)
def test_wrong_use_is_said_before_anything_is_computed(
    weights: Path, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    result = run(weights, *(str(own) if arg == "OWN" else arg for arg in args), "--out", tmp_path / "out")
    assert result.exit_code != 0
    with pytest.raises((ValueError, OSError), match=message):
        raise result.exception  # type: ignore[misc]
    assert not list((tmp_path / "out").glob("*"))


def test_the_mean_of_all_ten_is_called_so() -> None:
    made = [
        TransferResult(name, row.metric, float(i), 0, 0, {}, [], 0, {}, {}, "unit", 1, 0, 0, 0, "local", "clean", "")
        for i, (name, row) in enumerate(DATASETS.items())
    ]
    result = summarize_results("r50", made[::-1])
    assert result.mean_over == "the ten data sets of Table A2" and result.mean == 4.5
    assert list(result.values) == list(DATASETS)
