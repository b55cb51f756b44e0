"""`tools/benchmark.py scale`: every part is measured, and the fitted powers are those of the times."""

import json
import logging
import math
from pathlib import Path

import pytest
import torch

from tools.benchmarks.growth import PARTS, fitted_exponents, make_folder, measure_growth, plot_growth
from tools.benchmarks.scale import make_store


def test_the_power_of_the_times_is_found_and_small_numbers_do_not_count() -> None:
    numbers = (1_000, 10_000, 60_000, 240_000)
    times = {
        "line": {n: 3e-6 * n if n >= 10_000 else 9.0 for n in numbers},
        "n log n": {n: 1e-6 * n * math.log(n) for n in numbers},
        "square": {n: 1e-9 * n**2 for n in numbers},
    }
    found = fitted_exponents(times)
    assert found["line"] == pytest.approx(1) and found["square"] == pytest.approx(2)
    assert found["n log n"] == pytest.approx(1.09, abs=0.01)
    assert fitted_exponents({"one": {10_000: 1.0}}) == {}


@pytest.mark.slow
def test_every_part_is_measured_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "disable", lambda level: None)  # it runs in this process
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    make_store(tmp_path / "store", 700)
    make_folder(tmp_path / "videos", 700)
    measure_growth(str(tmp_path / "videos"), str(tmp_path / "store"), str(tmp_path / "out"))
    measured = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(measured) == set(PARTS) and all(value > 0 for value in measured.values())
    plot_growth({name: {700: value} for name, value in measured.items()}, {}, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 1000
