"""`--flow-backend auto`: what is faster, measured; and few CUDA contexts."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import preprocess.config
import preprocess.flow
from covid_cmsf.cli.app import app
from covid_cmsf.clips.records import read_store_info
from preprocess.config import make_store_info, make_worker_configs
from preprocess.flow import choose_backend, make_flow, measure
from preprocess.flow.measure import measure_backends, moving_frames, pairs_per_second
from preprocess.store import prepare_store
from tests.factories import moving_square, write_video
from tests.preprocess.test_other_flow import store_info


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    for module in (preprocess.flow, preprocess.config):
        monkeypatch.setattr(module, "count_gpus", lambda: number)


@pytest.mark.parametrize(
    ("num_gpus", "workers", "expected"),
    [(0, 64, "numba"), (1, 4, "torch"), (1, 8, "numba"), (2, 8, "torch"), (1, None, "torch"), (0, None, "numba")],
)
def test_auto_takes_what_is_faster(
    num_gpus: int, workers: int | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(monkeypatch, num_gpus)
    monkeypatch.setattr(preprocess.flow, "measure_backends", lambda: {"numba": 10.0, "torch": 80.0})
    assert choose_backend("auto", workers=workers) == expected


@pytest.mark.parametrize(
    ("num_gpus", "expected"), [(1, ["cuda:0"] * 2), (2, ["cuda:0", "cuda:1"] * 2), (0, ["cpu"] * 9)]
)
def test_a_gpu_gets_two_workers_at_most(
    num_gpus: int, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(monkeypatch, num_gpus)
    configs = make_worker_configs(store_info(tmp_path, "torch"), decoder="auto", num_workers=9)
    assert [one.device for one in configs] == expected
    assert len(make_worker_configs(store_info(tmp_path, "numba"), decoder="auto", num_workers=9)) == 9


def test_processes_that_begin_at_once_take_the_backend_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has measured for itself, at the same time on the same GPU, or on another machine."""
    write_video(tmp_path / "videos" / "a" / "x.mp4", moving_square(3))
    pretend_gpus(monkeypatch, 1)

    def measured_while_another_begins() -> dict[str, float]:
        info = make_store_info(
            tmp_path / "clips",
            modalities="rgb,flow",
            short_edge=0,
            max_frames=0,
            quality=18,
            flow_backend="numba",
            flow_bound="size",
            flow_size="stored",
            flow_parameters="",
            software="",
        )
        prepare_store(tmp_path / "clips", info)
        return {"numba": 10.0, "torch": 80.0}

    monkeypatch.setattr(preprocess.flow, "measure_backends", measured_while_another_begins)
    ended = CliRunner().invoke(
        app, ["preprocess", str(tmp_path / "videos"), "-o", str(tmp_path / "clips"), "--workers=1"]
    )
    assert ended.exit_code == 0, ended.exception
    flow = read_store_info(tmp_path / "clips").flow
    assert flow is not None and flow.backend == "numba"


def test_what_is_measured_is_the_flow_of_moving_frames() -> None:
    frames = moving_frames()
    flow = make_flow("numba")
    assert np.median(flow(frames[:3])[:, 0]) == pytest.approx(-2, abs=0.1)  # the texture moves to the left
    assert pairs_per_second(flow, frames[:3, :48, :64]) > 0


def test_a_measurement_that_fails_says_what_to_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "TIME_LIMIT", 0.01)
    with pytest.raises(RuntimeError, match=r"more than 0.01 s; name one: --flow-backend numba or torch"):
        measure_backends()
    monkeypatch.setattr(measure, "TIME_LIMIT", 60.0)
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: no driver\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: failed)
    with pytest.raises(RuntimeError, match=r"could not be measured \(RuntimeError: no driver\); name one"):
        measure_backends()


def test_choosing_without_a_driver_imports_no_torch() -> None:
    code = "import sys, preprocess.flow as f; f.choose_backend('auto', workers=4); print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.strip() == "False", ended.stderr
