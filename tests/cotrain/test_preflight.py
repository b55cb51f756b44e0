"""A plan is checked as a whole before its first stage starts; nothing is written and no table is printed."""

import os
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed import run as torchrun
from typer.testing import CliRunner, Result

from covid_cmsf.cli.app import app
from covid_cmsf.cotrain import graph as graph_module
from covid_cmsf.cotrain import preflight as cotrain_preflight
from covid_cmsf.cotrain import stage as stage_module
from covid_cmsf.cotrain.display import stage_costs, time_clip
from covid_cmsf.cotrain.executor import prepare_folder, stage_states
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.run import load_plan, prepare_plan
from covid_cmsf.cotrain.stage import (
    evaluation_devices,
    launch_torchrun,
    mask_gpus,
    run_stage,
    stage_runtime,
    videos_fingerprint,
    write_stage_key,
    write_stage_result,
)
from covid_cmsf.preflight import PreflightError
from covid_cmsf.training import preflight as training_preflight
from covid_cmsf.training.config import RuntimeConfig
from covid_cmsf.views import preflight as views_preflight
from tests.cotrain.conftest import CMSF, DEFAULTS, PRETRAIN
from tests.factories import make_table_store


def write_plan(folder: Path, clips: Path, **changes: Any) -> Path:
    """One round on two modalities: four stages."""
    values = {"rounds": 1, "first": "rgb", "pretrain": PRETRAIN, "cmsf": CMSF, "evaluation": {"windows": 1}, **changes}
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump({"defaults": {"clips": str(clips), **DEFAULTS}, **values}), encoding="utf-8")
    return path


def prepare(path: Path, *overrides: str, **options: Any) -> list[Stage]:
    plan = load_plan(path, list(overrides))
    return prepare_plan(plan, path.parent / "out", plan_dir=path.parent, **options)[1][0]


def problems(path: Path, *overrides: str, **options: Any) -> list[str]:
    with pytest.raises(PreflightError) as caught:
        prepare(path, *overrides, **options)
    lines = str(caught.value).splitlines()
    return [line.strip() for line in (lines[1:] or lines)]


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def finish(stage: Stage) -> None:
    """Leave behind what a finished stage has, with a checkpoint that is not looked into."""
    stage.checkpoint.parent.mkdir(parents=True)
    stage.checkpoint.write_bytes(b"weights")
    write_stage_key(stage.folder, stage.key)
    fingerprint = videos_fingerprint(stage.clips, stage.modality)
    write_stage_result(stage, {"r1": 1.0, "linear": 1.0, "videos_sha256": fingerprint})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_table_store(tmp_path / "clips")


@pytest.mark.parametrize("options", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_missing_clips_are_one_line(store: Path, tmp_path: Path, options: list[str]) -> None:
    """Newcomer 10: there were 30 lines of errors and an empty table."""
    path = write_plan(tmp_path, store, baselines=["chance", "color", "flow", "random"])
    done = command("cotrain", path, "defaults.clips=nope", "--out", tmp_path / "out", *options)
    assert isinstance(done.exception, PreflightError) and done.output == ""
    assert str(done.exception).startswith("8 stages: no clips at nope: name them with --clips CLIPS")
    assert "\n" not in str(done.exception) and not (tmp_path / "out").exists()


def test_clips_of_the_evaluation_are_checked_too(store: Path, tmp_path: Path) -> None:
    path = write_plan(tmp_path, store)
    (line,) = problems(path, "evaluation.clips=nope")
    assert line.startswith("4 stages: evaluation: no clips at nope")
    (line,) = problems(path, "evaluation.split=7")
    assert line.startswith("4 stages: evaluation: there is no split '7'")


def test_a_store_without_flow_has_no_flow_stages(tmp_path: Path) -> None:
    """Newcomer 11: the dry run planned them, with times."""
    path = write_plan(tmp_path, make_table_store(tmp_path / "clips", modalities=("rgb",)))
    (line,) = problems(path)
    assert line.startswith("stages infonce-flow, cmsf-rgb-1, cmsf-flow-1: ") and "has no flow, which modality" in line


def test_problems_of_several_stages_are_told_at_once(store: Path, tmp_path: Path) -> None:
    lines = problems(write_plan(tmp_path, store), "cmsf.method.k=9", "pretrain.subset=val")
    assert [line.split(": ")[0] for line in lines] == [
        "stages infonce-rgb, infonce-flow",
        "stages cmsf-rgb-1, cmsf-flow-1",
    ]
    assert "no video in subset 'val'" in lines[0]
    assert "method.k=9 neighbors cannot be chosen among method.num_candidates (n)=4" in lines[1]


def test_guides_of_other_views_are_found_before_they_are_trained(store: Path, tmp_path: Path) -> None:
    """Newcomer 5, in a plan: the guide's file does not exist yet, but its stage says what it will be trained on."""
    path = write_plan(tmp_path, store, pretrain_overrides={"flow": {"views": {"length": 9}}})
    (line,) = problems(path)
    assert line.startswith("stage cmsf-rgb-1: guides.0: ") and "was trained on 9 frames with stride 1" in line
    assert prepare(path, "cmsf.guides=[{allow_other_views: true}]")


def test_a_bank_that_never_fills_is_found_in_every_stage(store: Path, tmp_path: Path) -> None:
    (line,) = problems(write_plan(tmp_path, store), "cmsf.method.bank_size=64", "cmsf.method.bank_warmup=full")
    assert line.startswith("stages cmsf-rgb-1, cmsf-flow-1: cmsf trains nothing before the bank has 64 entries")


def weights_plan(tmp_path: Path, store: Path) -> Path:
    stages = [
        {"name": "given", "weights": str(tmp_path / "gone.pt"), "modality": "rgb"},
        {"name": "flow", "modality": "flow", "overrides": PRETRAIN},
        {"name": "guided", "modality": "flow", "guide": "given", "overrides": CMSF, "init": "flow"},
    ]
    return write_plan(tmp_path, store, stages=stages, rounds=0)


def test_a_missing_weights_file_blocks_only_the_stages_that_read_it(store: Path, tmp_path: Path) -> None:
    """Audit 1.8: it blocked the whole plan, `--only` of another stage included."""
    path = weights_plan(tmp_path, store)
    lines = problems(path)
    assert len(lines) == 2 and all("gone.pt" in line for line in lines)
    assert lines[0].startswith("stage given: weights: ") and lines[1].startswith("stage guided: guides.0: ")
    assert prepare(path, only="flow")
    done = command("cotrain", path, "--only", "flow", "--dry-run", "--out", tmp_path / "out")
    assert done.exit_code == 0 and "flow" in done.output and "given" not in done.output


def test_a_stage_alone_needs_what_it_builds_on(store: Path, tmp_path: Path) -> None:
    path = write_plan(tmp_path, store)
    assert problems(path, only="cmsf-rgb-1") == [
        "stage cmsf-rgb-1: it needs stage infonce-rgb, which is not done and not selected: use --only infonce-rgb "
        "first, or --from infonce-rgb",
        "stage cmsf-rgb-1: it needs stage infonce-flow, which is not done and not selected: use --only infonce-flow "
        "first, or --from infonce-flow",
    ]


def test_a_deleted_checkpoint_is_trained_again_where_it_is_needed(store: Path, tmp_path: Path) -> None:
    """Faults, low: the stage counted as done, and those after it said "train the guide first"."""
    stages = {stage.name: stage for stage in prepare(write_plan(tmp_path, store))}
    for name in ("infonce-rgb", "infonce-flow"):
        finish(stages[name])
    everything = set(stages)
    assert list(stage_states(list(stages.values()), everything).values()) == ["done", "done", "waiting", "waiting"]
    stages["infonce-flow"].checkpoint.unlink()
    states = stage_states(list(stages.values()), everything)
    assert states["infonce-rgb"] == "done" and states["infonce-flow"] == "waiting"
    prepare_folder(stages["infonce-flow"])
    assert not (stages["infonce-flow"].folder / "stage.json").exists()
    assert list((tmp_path / "out" / "replaced").glob("infonce-flow-*/stage.json"))
    for name in ("cmsf-rgb-1", "cmsf-flow-1"):  # once nothing needs it any more, it may be gone
        finish(stages[name])
    finish_again = stages["infonce-flow"]
    finish(finish_again)
    finish_again.checkpoint.unlink()
    assert set(stage_states(list(stages.values()), everything).values()) == {"done"}


# Without labels (audit 1.1, newcomer 9).


def test_rows_that_need_labels_are_left_out_of_rounds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clips = make_table_store(tmp_path / "clips", labeled=False, test=0)
    path = write_plan(tmp_path, clips, controls=["msf", "oracle"], baselines=["chance", "color"])
    names = [stage.name for stage in prepare(path)]
    assert "msf-rgb" in names and "color-histogram" in names and not any("oracle" in name for name in names)
    assert f"{clips} has no labels: left out of the plan: oracle, chance" in caplog.text


def test_a_listed_stage_that_needs_labels_is_refused(tmp_path: Path) -> None:
    clips = make_table_store(tmp_path / "clips", labeled=False)
    stages = [{"name": "supervised", "modality": "rgb", "method": {"name": "xent"}}]
    (line,) = problems(write_plan(tmp_path, clips, stages=stages, rounds=0))
    assert line == f"stage supervised: xent learns from labels, and {clips} has none"


def test_labels_without_a_test_subset_are_told_before(tmp_path: Path) -> None:
    clips = make_table_store(tmp_path / "clips", test=0)
    (line,) = problems(write_plan(tmp_path, clips))
    assert line.startswith("4 stages: ") and "subset 'test' is empty; subsets with videos: train" in line


def test_disk_space_is_that_of_all_stages_together(store: Path, tmp_path: Path) -> None:
    runtime = {**DEFAULTS["runtime"], "keep_every_epochs": 1, "keep": 10**9}
    overrides = [f"defaults.runtime={runtime}".replace("'", '"'), "pretrain.schedule.epochs=1000000000"]
    (line,) = problems(write_plan(tmp_path, store), *[text.replace("False", "false") for text in overrides])
    assert line.startswith("checkpoints and features of 4 stages need about")


def test_thirty_stages_open_and_read_their_clips_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 10,000 videos the whole check takes about 2 s."""
    path = write_plan(tmp_path, make_table_store(tmp_path / "clips"), rounds=14)
    calls: Counter[str] = Counter()
    for module, name in (
        (views_preflight, "open_clips"),
        (training_preflight, "training_records"),
        (cotrain_preflight, "split_table"),
        (cotrain_preflight, "check_extraction"),
        (graph_module, "file_sha256"),
    ):
        monkeypatch.setattr(module, name, counted(getattr(module, name), calls))
    assert len(prepare(path)) == 30
    # training_records: rgb alone, flow alone, and both of them for the rounds in either order
    # check_extraction: rgb and flow; file_sha256: store.json, manifest, split
    once = {"open_clips": 1, "split_table": 1}
    assert calls == {**once, "training_records": 4, "check_extraction": 2, "file_sha256": 3}


def counted(function: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    def wrapper(*args: Any, **options: Any) -> Any:
        calls[function.__name__] += 1
        return function(*args, **options)

    return wrapper


def test_an_encoder_is_timed_once_for_all_stages_and_seeds(store: Path, tmp_path: Path) -> None:
    """Newcomer 21: the paper's plan showed no cost table within a minute."""
    stages = prepare(write_plan(tmp_path, store, rounds=2, baselines=["color"]))
    time_clip.cache_clear()
    costs = [stage_costs(stages) for _ in range(2)]
    assert time_clip.cache_info().misses == 1 and costs[0] == costs[1]
    assert costs[0]["color-histogram"] is None and all(value for name, value in costs[0].items() if "cmsf" in name)


# GPUs (audit 1.7): nothing of it needs one.


@pytest.mark.parametrize(
    ("slot", "devices"),
    [("cuda:2,3", ["cuda:2", "cuda:3"]), ("cuda:1", ["cuda:1"]), ("cpu#2", ["cpu"])],
    ids=lambda value: str(value),
)
def test_a_stage_is_measured_on_all_of_its_own_devices(
    slot: str, devices: list[str], store: Path, tmp_path: Path
) -> None:
    for configured in ("auto", "cuda"):
        (stage,) = [s for s in _stages(store, tmp_path, configured) if s.name == "infonce-rgb"]
        assert evaluation_devices(stage, slot) == devices
    (stage,) = [s for s in _stages(store, tmp_path, "cpu") if s.name == "infonce-rgb"]
    assert evaluation_devices(stage, slot) == ["cpu"]


def _stages(store: Path, tmp_path: Path, device: str) -> list[Stage]:
    from covid_cmsf.cotrain.graph import build_graph

    plan = load_plan(write_plan(tmp_path, store), [f"defaults.runtime.device={device}"])
    return build_graph(plan, tmp_path / "out", plan_dir=tmp_path)


def test_a_mask_of_gpus_is_divided_not_replaced() -> None:
    assert mask_gpus("0,1", None) == "0,1" and mask_gpus("2", "") == "2"
    assert mask_gpus("0,1", "4,5,6,7") == "4,5" and mask_gpus("2,3", "4,5,6,7") == "6,7"
    uuids = ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-0ea7e5d2", "MIG-1b4c", "GPU-77"]
    assert mask_gpus("2,3", ",".join(uuids)) == "MIG-1b4c,GPU-77"


def test_a_stage_is_given_its_own_device_and_its_part_of_the_mask(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two stages with two processes each, under a mask of the user's; nothing is trained."""
    (stage,) = [s for s in _stages(store, tmp_path, "auto") if s.name == "infonce-rgb"]
    stage.folder.mkdir(parents=True)
    found: dict[str, Any] = {}

    class Torchrun:
        def __init__(self, command: list[str], *, env: dict[str, str], **options: Any) -> None:
            found["mask"] = env["CUDA_VISIBLE_DEVICES"]

        def wait(self) -> int:
            return 0

    def evaluate(stage: Stage, runtime: Any, devices: list[str]) -> dict[str, Any]:
        found["devices"] = devices
        return {}

    for name in ("setup_logging", "set_threads", "add_text_file"):
        monkeypatch.setattr(stage_module, name, lambda *arguments, **options: None)
    monkeypatch.setattr(subprocess, "Popen", Torchrun)
    monkeypatch.setattr(stage_module, "evaluate_stage", evaluate)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    run_stage(stage, "cuda:2,3", num_processes=2, num_slots=2)
    assert found == {"mask": "6,7", "devices": ["cuda:2", "cuda:3"]}
    run_stage(stage, "cuda:0,1", num_processes=2, num_slots=2)
    assert found == {"mask": "4,5", "devices": ["cuda:0", "cuda:1"]}


def test_the_threads_of_a_stage_do_not_depend_on_workers(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults 8, in a plan: the number of threads changes the last bits of a result, the number of workers must not."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    stage = _stages(store, tmp_path, "cpu")[0]
    threads = []
    for runtime in (*(RuntimeConfig(workers=workers) for workers in (0, 2, 7)), RuntimeConfig(threads=5)):
        placed = stage_runtime(replace(stage, runtime=runtime), "cpu#1", num_processes=1, num_slots=1)
        threads.append(placed.threads)
    assert threads == [4, 4, 4, 5]
    halved = stage_runtime(replace(stage, runtime=RuntimeConfig()), "cpu#2", num_processes=1, num_slots=2)
    assert halved.threads == 2


def test_a_folder_whose_name_begins_with_a_dash_is_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is read as torchrun reads it, and what it starts as the command line reads that."""
    commands: list[list[str]] = []

    def refuse(command: list[str], **options: Any) -> None:
        commands.append(command)
        raise OSError("not started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(OSError, match="not started"):
        launch_torchrun(Path("--help"), num_processes=2, gpus=None)
    parsed = torchrun.parse_args(commands[0][3:])  # without python -m torch.distributed.run
    assert (parsed.training_script, parsed.module) == ("covid_cmsf", True)
    result = CliRunner().invoke(app, parsed.training_script_args)
    assert result.exit_code != 0 and str(tmp_path / "--help") in str(result.exception)
