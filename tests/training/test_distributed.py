"""Two processes that torchrun starts hold the same bank and do what one process with the whole batch does."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.training.checkpoints import Checkpoints
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.failures import replay
from covid_cmsf.training.run import run_training
from covid_cmsf.training.signals import TORCHRUN_OPTIONS
from tests.training.command import write_config_file
from tests.training.factories import differing, losses, make_config, state

ROOT = Path(__file__).parent.parent.parent
FROZEN: dict[str, Any] = {"mode": "frozen"}


def cases(clips: Path, rgb_weights: Path, flow_weights: Path) -> dict[str, tuple[TrainConfig, TrainConfig]]:
    """By name: the settings for one process, and for two. SGD, for Adam makes much of the smallest differences."""
    guide = {"weights": str(flow_weights), "modality": "flow"}
    cmsf = {"name": "cmsf", "bank_size": 16, "k": 2, "num_candidates": 4}
    two_bank = {"name": "cmsf", "constraint": "two_bank", "bank_size": 16, "labeled_bank_size": 8, "k": 2}
    sgd = {"name": "sgd", "lr": 0.02}
    accumulate = {**sgd, "accumulate": 2, "clip_norm": 0.5}
    frozen: dict[str, dict[str, Any]] = {
        "infonce": {},
        "checkpointed": {"runtime": {"gradient_checkpointing": True}},
        "cmsf": {"method": cmsf, "guides": [guide], "runtime": {"cache_gb": 0.01, "workers": 1}},
        "cmsf_cached": {"method": cmsf, "guides": [{**guide, "cache": "views", "cached_views": 3}]},
        "two_bank": {"method": two_bank, "labels": {"fraction": 0.5}},
        "coclr": {"method": {"name": "coclr", "bank_size": 8, "bank_warmup": 0, "drop_self": 0.5}, "guides": [guide]},
        "supcon": {  # examples without a positive do not count, and each process has another number of them
            "method": {
                "name": "supcon",
                "include_target": False,
                "bank_size": 16,
                "head": {"projector": "coclr"},
            },
            "labels": {"fraction": 0.5},
        },
        "accumulated": {"method": {"name": "byol_asym", "bank_size": 16}, "optimizer": accumulate},
    }
    base: dict[str, Any] = {"init": str(rgb_weights), "optimizer": sgd}
    # New heads with batch norm have batch statistics even so: one process imitates two with groups.
    pairs = {}
    for name, more in frozen.items():
        groups = 1 if name in ("infonce", "checkpointed", "coclr", "supcon") else 2
        one, two = (make_config(clips, batch_norm={**FROZEN, "groups": n}, **{**base, **more}) for n in (groups, 1))
        pairs[name] = one, two
    base["method"] = {"name": "byol_asym", "bank_size": 16}
    halves, local = (make_config(clips, batch_norm={"shuffle": True, "groups": groups}, **base) for groups in (2, 1))
    return {**pairs, "shuffled": (halves, local)}


NAMES = list(cases(Path("clips"), Path("rgb"), Path("flow")))


@pytest.fixture(scope="module")
def done(clips: Path, rgb_weights: Path, flow_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with NAME-1 (one process) and NAME-2 (two), and runs that were stopped or went wrong."""
    root = tmp_path_factory.mktemp("two")
    jobs = []
    for name, (one, two) in cases(clips, rgb_weights, flow_weights).items():
        assert run_training(one, root / f"{name}-1") == "finished"
        written = str(write_config_file(two, root / f"{name}.yaml"))
        job = {"config": written, "folder": str(root / f"{name}-2"), "stops": [], "again": True}
        jobs.append(job)
        if name in ("infonce", "shuffled"):
            jobs.append({**job, "folder": str(root / f"{name}-stopped"), "stops": [1, 5, 7]})
        if name == "cmsf_cached":
            jobs.append({**job, "folder": str(root / "blind"), "stops": [3], "blind": True})
        if name == "infonce":
            jobs.append({**job, "folder": str(root / "left"), "stops": [3], "again": False})
    wild = make_config(clips, optimizer={"name": "sgd", "lr": 1e38}, batch_norm=FROZEN)
    jobs.append({**job, "config": str(write_config_file(wild, root / "wild.yaml")), "folder": str(root / "wild")})
    shutil.copytree(root / "infonce-1", root / "apart-0", symlinks=True)
    (root / "apart-1").mkdir()  # a machine that does not see the folder of the others
    jobs.append({**job, "config": str(root / "infonce.yaml"), "folder": str(root / "apart-RANK")})
    (root / "jobs.json").write_text(json.dumps(jobs))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    program = [str(Path(__file__).parent / "distributed_jobs.py"), str(root / "jobs.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    try:
        ended = subprocess.run(
            [*launcher, *program], capture_output=True, text=True, timeout=600, env=environment, cwd=ROOT
        )
    finally:  # processes that wait for each other forever must not wait beside all other tests
        kill_processes_of(root / "jobs.json")
    assert ended.returncode == 0, ended.stderr[:6000]
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_both_hold_the_same_bank_as_one_process(name: str, done: Path) -> None:
    first, second = (torch.load(done / f"{name}-2" / f"banks-{rank}.pt", weights_only=True) for rank in (0, 1))
    whole = {key: tensor for key, tensor in state(done / f"{name}-1").items() if key.startswith("banks.")}
    assert len(first) > 5
    for key in first:
        assert torch.equal(first[key], second[key]), key
        assert torch.allclose(first[key], whole[f"banks.{key}"], atol=1e-5), key


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_weights_equal_those_of_one_process(name: str, done: Path) -> None:
    one, two = losses(done / f"{name}-1"), losses(done / f"{name}-2")
    assert len(one) >= 8 and one == pytest.approx(two, abs=1e-5)
    whole, halves = state(done / f"{name}-1"), state(done / f"{name}-2")
    assert whole.keys() == halves.keys()
    weights = [key for key in whole if key.startswith(("online.", "target."))]
    weights = [key for key in weights if not key.endswith(("running_mean", "running_var", "num_batches_tracked"))]
    for key in weights:
        assert torch.allclose(whole[key].float(), halves[key].float(), atol=1e-5), key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["infonce", "shuffled"])
def test_two_processes_that_were_stopped_and_continued_end_bit_equal(name: str, done: Path) -> None:
    for rank in (0, 1):
        outcomes = json.loads((done / f"{name}-stopped" / f"outcomes-{rank}.json").read_text())
        assert outcomes == ["stopped", "stopped", "stopped", "finished"]
    assert differing(done / f"{name}-2", done / f"{name}-stopped") == []


@pytest.mark.slow
def test_a_guides_cache_that_only_the_first_process_sees_is_used_by_both(done: Path) -> None:
    for rank in (0, 1):
        outcomes = json.loads((done / "blind" / f"outcomes-{rank}.json").read_text())
        assert outcomes == ["stopped", "finished"]
    assert differing(done / "cmsf_cached-2", done / "blind") == []


def kill_processes_of(folder: Path) -> None:
    """A torchrun that does not handle a signal dies and leaves its processes behind, in sessions of their own."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            if str(folder).encode() in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)


@pytest.mark.slow
def test_sigusr1_to_torchrun_saves_and_the_run_resumes(clips: Path, tmp_path: Path) -> None:
    config = make_config(clips, encoder="c21d_tiny", views={"length": 2, "size": 16}, schedule={"epochs": 2000})
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *TORCHRUN_OPTIONS]
    command += [
        "-m",
        "covid_cmsf",
        "train",
        str(write_config_file(config, tmp_path / "run.yaml")),
        "--out",
        str(folder),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=tmp_path)
        try:
            while not (folder / "metrics.jsonl").is_file():
                assert process.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.05)
            saved = len(Checkpoints(folder / "checkpoints").entries())
            process.send_signal(signal.SIGUSR1)
            process.wait(timeout=120)
        finally:
            process.kill()
            process.wait()
            kill_processes_of(folder)
    said = (tmp_path / "log").read_text()
    assert "stopped at step" in said and "the same command resumes" in said, said
    assert len(Checkpoints(folder / "checkpoints").entries()) >= saved
    assert Checkpoints(folder / "checkpoints").load() is not None


@pytest.mark.slow
def test_one_process_can_continue_what_two_began(
    done: Path, clips: Path, rgb_weights: Path, flow_weights: Path
) -> None:
    assert run_training(cases(clips, rgb_weights, flow_weights)["infonce"][0], done / "left") == "finished"
    assert losses(done / "left") == pytest.approx(losses(done / "infonce-1"), abs=1e-5)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_both_and_each_step_can_be_replayed(done: Path) -> None:
    files = sorted((done / "wild").glob("failed-step-*.pt"))
    assert [path.name[-12:] for path in files] == ["process-0.pt", "process-1.pt"]
    for rank, path in enumerate(files):
        assert json.loads((done / "wild" / f"outcomes-{rank}.json").read_text()) == ["not finite"]
        assert replay(path).first_bad is not None


@pytest.mark.slow
def test_processes_that_do_not_see_the_same_folder_are_refused(done: Path) -> None:
    for rank in (0, 1):
        (error,) = json.loads((done / f"apart-{rank}" / f"outcomes-{rank}.json").read_text())
        assert "the processes see different contents" in error
