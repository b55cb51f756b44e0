"""`covid-cmsf extract` and `covid-cmsf evaluate` as a user types them, on a small store of real files."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from covid_cmsf import exit_codes
from covid_cmsf.cli import app as cli_app
from covid_cmsf.evaluation.features import extract as extract_module
from covid_cmsf.evaluation.features.file import load_features
from covid_cmsf.evaluation.features.shards import ShardStore
from tests.evaluation.factories import small_checkpoint
from tests.factories import moving_square, write_video
from tests.models.test_image_networks import TINY, tiny_weights
from tests.preprocess.commands import preprocess

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes; group 7 is for testing, 8 to 11 for training. Read it, do not change it."""
    root = tmp_path_factory.mktemp("evaluated")
    for c, name in enumerate(("Archery", "Surfing")):
        for group in range(7, 12):
            for clip in (1, 2):
                frames = moving_square(12, seed=100 * c + 10 * group + clip)
                write_video(root / "videos" / name / f"v_{name}_g{group:02d}_c{clip:02d}.avi", frames)
    result = preprocess(root / "videos", root / "clips")
    assert result.returncode == 0, result.stderr
    return root / "clips"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def features(clips: Path, folder: Path) -> dict[str, Path]:
    """Features of both modalities and of the center frame."""
    made = {}
    for modality in ("rgb", "flow", "frame"):
        name = "r18" if modality == "frame" else "s3d_tiny"
        weights = small_checkpoint(folder / f"{modality}.safetensors", modality, name=name)
        made[modality] = folder / f"{modality}.features"
        result = run("extract", weights, clips, "--out", made[modality], "--workers", 0)
        assert result.exit_code == 0, result.output
        assert "20 videos" in result.output and "protocol clean" in result.output
    return made


def run(*args: object) -> Result:
    return CliRunner().invoke(cli_app.app, [str(arg) for arg in args])


def as_json(*args: object) -> dict[str, Any]:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output + str(result.exception)
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def check_class_lines(output: str, scores: dict[str, Any]) -> None:
    """Check that every class's figure and the confused classes are printed."""
    values, printed = scores["per_class"], " ".join(output.split())
    assert len(values) == 2
    assert "top-1 per class: " + ", ".join(f"{name} {value:.0f}" for name, value in values.items()) in printed
    (_, first_wrong), (second_wrong, _) = scores["confusion"]
    names = list(values)
    for count, (true, taken) in ((first_wrong, names), (second_wrong, names[::-1])):
        assert (f"{true} as {taken} ({count})" in printed) == (count > 0)


def test_the_center_frame_is_one_window(features: dict[str, Path]) -> None:
    loaded = load_features(features["frame"])
    assert len(loaded.windows) == 20 and set(loaded.window_starts.tolist()) == {5}


def test_retrieval_prints_a_table_and_writes_json(features: dict[str, Path], tmp_path: Path) -> None:
    result = run("evaluate", "retrieval", features["rgb"], "--out", tmp_path / "r.json")
    assert result.exit_code == 0 and "R@1" in result.output and "protocol clean" in result.output
    assert "chance" in result.output and "50.0" in result.output
    written = json.loads((tmp_path / "r.json").read_text())
    assert written == as_json("evaluate", "retrieval", features["rgb"])
    assert written["kind"] == "retrieval" and written["protocol"] == "clean" and written["num_query"] == 4
    provenance = load_features(features["rgb"]).provenance
    assert written["features"][0]["checkpoint_sha256"] == provenance.checkpoint_sha256 != ""


@pytest.mark.slow
def test_every_number_has_a_command(features: dict[str, Path]) -> None:
    linear = as_json("evaluate", "linear", features["flow"])
    assert len(linear["scores"]["confusion"]) == 2 and linear["penalty"] is not None
    assert list(as_json("evaluate", "knn", features["rgb"], "--k", 1, "--k", 3)["top1"]) == ["1", "3"]
    both = as_json("evaluate", "fusion", features["rgb"], features["flow"])
    assert both["num_common"] == 20 and both["retrieval"]["num_gallery"] == 16
    tuning = as_json("evaluate", "retrieval", features["rgb"], "--gallery", "fit", "--query", "val")
    assert tuning["num_gallery"] + tuning["num_query"] == 16
    for args in (["linear"], ["knn", "--k", 2]):
        assert run("evaluate", args[0], features["rgb"], *args[1:]).exit_code == 0
    assert run("evaluate", "fusion", features["rgb"], features["flow"]).exit_code == 0

    compared = as_json("evaluate", "compare", features["rgb"], features["flow"])
    assert [one["metric"] for one in compared["comparisons"]] == ["R@1", "R@5", "R@10", "kNN 16", "linear"]
    assert compared["comparisons"][0]["second"] == str(features["flow"])
    table = run("evaluate", "compare", *features.values())
    assert table.exit_code == 0 and "corrected for 2 comparisons" in " ".join(table.output.split())


def test_the_coclr_protocol_is_named_everywhere(clips: Path, folder: Path) -> None:
    weights, out = small_checkpoint(folder / "c.safetensors"), folder / "coclr.features"
    assert run("extract", weights, clips, "--out", out, "--workers", 0, "--protocol", "coclr").exit_code == 0
    assert as_json("evaluate", "retrieval", out)["centering"] == "own"
    probe = as_json("evaluate", "linear", out)
    assert probe["protocol"] == "coclr" and probe["best_on_test"] >= probe["scores"]["top1"] - 50
    assert "selected on test as Han et al. do" in run("evaluate", "linear", out).output.replace("\n", " ")


@pytest.mark.slow
def test_training_on_clips(clips: Path, folder: Path) -> None:
    quick = ["--epochs", 1, "--batch-size", 4, "--crops", 5, "--workers", 0, "--val-fraction", 0.3]
    weights = small_checkpoint(folder / "t.safetensors")
    probe = as_json("evaluate", "linear", weights, clips, *quick, "--out", folder / "probe")
    assert probe["kind"] == "linear" and probe["mode"] == "linear" and probe["scores"]["num_videos"] == 4
    control = as_json(
        "evaluate", "finetune", clips, "--from-scratch", "s3d_tiny", "--modality", "flow", "--length", 6, "--size", 24,
        *quick, "--out", folder / "scratch",
    )  # fmt: skip
    assert control["mode"] == "scratch" and control["provenance"]["eval_protocol"]["modality"] == "flow"
    names = {path.name for path in (folder / "scratch").iterdir()}
    assert names == {"best.pt", "last.pt", "probabilities.safetensors", "result.json"}
    answers = [folder / name / "probabilities.safetensors" for name in ("probe", "scratch")]
    assert as_json("evaluate", "fusion", *answers)["num_common"] == 4
    tuned = run("evaluate", "finetune", weights, clips, *quick, "--out", folder / "tuned")
    assert tuned.exit_code == 0
    check_class_lines(tuned.output, json.loads((folder / "tuned" / "result.json").read_text())["scores"])


@pytest.mark.slow
def test_an_attentive_probe_of_an_image_network_of_timm(clips: Path, folder: Path) -> None:
    pytest.importorskip("timm", reason="the extra timm is not installed")
    tiny_weights(folder / "tiny.safetensors")
    address = f"timm:{TINY}?weights={folder / 'tiny.safetensors'}"
    quick = ["--epochs", 1, "--batch-size", 4, "--workers", 0, "--val-fraction", 0.3, "--lr", 0.001, "--lr", 0.01]
    result = run("evaluate", "attentive", address, clips, *quick, "--out", folder / "attentive")
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    assert "attentive, protocol clean: 12 training, 4 validation" in printed
    assert "scores of epoch 0, learning rate 0.0" in printed and "(on validation 0.001: " in printed
    answer = json.loads((folder / "attentive" / "result.json").read_text())
    assert answer["mode"] == "attentive" and set(answer["lrs"]) == {"0.001", "0.01"}
    assert len(answer["scores"]["confusion"]) == 2 and answer["provenance"]["encoder"] == f"timm:{TINY}"
    check_class_lines(result.output, answer["scores"])
    out = folder / "probed.features"
    assert run("extract", folder / "attentive" / "best.pt", clips, "--out", out, "--workers", 0).exit_code == 0
    assert load_features(out).provenance.eval_protocol.modality == "frame"


@pytest.mark.slow
def test_baselines_and_random_weights(clips: Path, folder: Path) -> None:
    result = as_json("evaluate", "baselines", clips, "--workers", 0, "--features", folder / "baselines")
    assert [row["name"] for row in result["baselines"]][:2] == ["chance", "color-histogram"]
    assert len(list((folder / "baselines").iterdir())) == 4
    args = ["--random", "s3d_tiny", "--seed", 3, "--length", 6, "--size", 24, "--workers", 0]
    assert run("extract", clips, *args, "--out", folder / "random.features").exit_code == 0
    assert load_features(folder / "random.features").provenance.origin == "random weights of seed 3"


def test_a_damaged_video_is_listed_and_the_exit_code_is_3(clips: Path, tmp_path: Path) -> None:
    copy = tmp_path / "clips"
    subprocess.run(["cp", "-r", str(clips), str(copy)], check=True)
    (copy / "rgb" / "Archery" / "v_Archery_g08_c01.mp4").write_bytes(b"nothing")
    (copy / "rgb" / "Archery" / "v_Archery_g09_c01.mp4").unlink()
    weights = small_checkpoint(tmp_path / "w.safetensors")
    result = run("extract", weights, copy, "--out", tmp_path / "f", "--workers", 0)
    assert result.exit_code == exit_codes.SKIPPED_ITEMS
    assert len(load_features(tmp_path / "f").videos) == 18
    retrieval = run("evaluate", "retrieval", tmp_path / "f", "--json")
    assert retrieval.exit_code == exit_codes.SKIPPED_ITEMS
    assert json.loads(retrieval.stdout)["num_gallery"] == 14
    assert json.loads(retrieval.stdout)["features"][0]["num_skipped"] == 2
    other = small_checkpoint(tmp_path / "o.safetensors", seed=1)
    assert run("extract", other, copy, "--out", tmp_path / "g", "--workers", 0).exit_code == exit_codes.SKIPPED_ITEMS
    fusion = run("evaluate", "fusion", tmp_path / "f", tmp_path / "g")
    assert fusion.exit_code == exit_codes.SKIPPED_ITEMS and "2 videos have no result" in fusion.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["extract", "no.pt", "CLIPS", "--out", "f"], "no run folder or weights file no.pt"),
        (["extract", "WEIGHTS", "nowhere", "--out", "f"], "no clips at nowhere"),
        (["extract", "WEIGHTS", "--out", "f"], "two arguments are needed"),
        (["extract", "WEIGHTS", "CLIPS", "--out", "no/f"], "no folder no to write f to"),
        (["extract", "WEIGHTS", "CLIPS", "--out", "f", "--branch", "target"], "'target'"),
        (
            ["extract", "WEIGHTS", "CLIPS", "--out", "f", "--modality", "flow"],
            "was trained on rgb, so it can't be used",
        ),
        (["extract", "WEIGHTS", "CLIPS", "--out", "f", "--split", "9"], "no split '9'; the clips have: 1, 2, 3"),
        (["extract", "WEIGHTS", "CLIPS", "--out", "f", "--device", "cuda:x"], "unknown device 'cuda:x'"),
        (["extract", "WEIGHTS", "CLIPS", "--out", "f", "--precision", "fp8"], "unknown precision 'fp8'"),
        (["extract", "CLIPS", "--random", "s3d_huge", "--out", "f"], "unknown encoder 's3d_huge'"),
        (["extract", "WEIGHTS", "CLIPS", "--random", "s3d", "--out", "f"], "name the clips only"),
        (["evaluate", "retrieval", "no"], "no file no; `covid-cmsf extract` writes"),
        (["evaluate", "retrieval", "WEIGHTS"], "not a features file"),
        (["evaluate", "linear", "WEIGHTS", "CLIPS"], "needs --out"),
        (["evaluate", "linear", "WEIGHTS", "--epochs", "3"], "--epochs goes with CLIPS"),
        (["evaluate", "linear", "WEIGHTS", "--protocol", "coclr"], "--protocol goes with CLIPS"),
        (["evaluate", "linear", "WEIGHTS", "--processes", "2"], "--processes goes with CLIPS"),
        (["evaluate", "linear", "WEIGHTS", "CLIPS", "--gallery", "fit"], "leave --gallery out"),
        (["evaluate", "fusion", "no", "no"], "no file no"),
        (["evaluate", "finetune", "WEIGHTS", "CLIPS", "--out", "x", "--crops", "3"], "num_crops = 3"),
    ],
)
def test_wrong_use_is_an_error_for_the_user(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = {"CLIPS": clips, "WEIGHTS": small_checkpoint(tmp_path / "w.safetensors")}
    result = run(*(paths.get(arg, arg) for arg in args))
    assert isinstance(result.exception, ValueError | OSError) and message in str(result.exception), result.exception


# Small pieces and a long pause after the second, so that the signal hits the middle.
SLOW = """
import time
from covid_cmsf.evaluation.features import extract as extract_module
from covid_cmsf.evaluation.features import shards as shards_module
from covid_cmsf.cli import main

def slowly(self, number, shard, save=shards_module.ShardStore.save):
    save(self, number, shard)
    time.sleep(3600 if number == 1 else 0)

extract_module.SHARD_SIZE, shards_module.ShardStore.save = 4, slowly
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_command_continues_to_the_same_file(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    weights = small_checkpoint(tmp_path / "w.safetensors")
    args = ["extract", str(weights), str(clips), "--workers", "0", "--out"]
    process = subprocess.Popen([sys.executable, "-c", SLOW, *args, str(tmp_path / "killed")])
    second = tmp_path / ".killed.shards" / "000001.safetensors"
    while not second.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    code = process.wait(timeout=900)
    assert code == (-number if number == signal.SIGKILL else exit_codes.INTERRUPTED)
    assert second.exists() and not (tmp_path / "killed").exists()
    written = second.stat().st_mtime_ns
    monkeypatch.setattr(extract_module, "SHARD_SIZE", 4)
    monkeypatch.setattr(ShardStore, "remove", lambda self: None)
    for name in ("killed", "whole"):
        assert run(*args, tmp_path / name).exit_code == 0
    assert second.stat().st_mtime_ns == written, "a finished piece was made again"
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_help_comes_without_torch() -> None:
    code = "import sys, covid_cmsf.cli.extract, covid_cmsf.cli.evaluate; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
