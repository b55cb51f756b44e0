"""An interrupted report can be written again."""

import signal
import sys
from pathlib import Path

import pytest

from covid_cmsf.cli.app import app
from covid_cmsf.exit_codes import INTERRUPTED, SUCCESS, run_app
from covid_cmsf.report import build
from covid_cmsf.report.build import METADATA_FILE, prepare_folder, read_metadata
from covid_cmsf.report.curves import Line, build_lines
from covid_cmsf.report.runs import PlanRun


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_report_ends_with_75_and_is_written_by_the_same_command(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    out = tmp_path / "report"
    monkeypatch.setattr(sys, "argv", ["covid-cmsf", "report", str(plan), "--out", str(out), "--no-thumbnails"])

    def stop(plans: list[PlanRun]) -> list[Line]:
        signal.raise_signal(number)
        return build_lines(plans)

    monkeypatch.setattr(build, "draw_curve_figures", lambda lines, folder: {})
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    with monkeypatch.context() as interrupted:
        interrupted.setattr(build, "build_lines", stop)
        with pytest.raises(SystemExit) as end:
            run_app(app)
    signal.signal(signal.SIGINT, inherited)
    assert end.value.code == INTERRUPTED and (out / "index.html").is_file()
    assert read_metadata(out)["unfinished"] and read_metadata(out)["paths"]
    with pytest.raises(SystemExit) as end:
        run_app(app)
    assert end.value.code == SUCCESS and "unfinished" not in read_metadata(out)


def test_a_folder_is_marked_before_anything_else_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report"
    monkeypatch.setattr(build, "write_text_atomic", lambda path, text: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        prepare_folder(out, [tmp_path])
    assert list(out.iterdir()) == []  # empty: the next attempt may use it
    monkeypatch.undo()
    prepare_folder(out, [tmp_path])
    assert (out / METADATA_FILE).is_file()
