"""The folder of a report: complete, safe, and written again without harm."""

import hashlib
import json
import math
import re
import shlex
import shutil
import threading
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.pages.data_scripts import data_script, round_values, write_data
from covid_cmsf.pages.server import serve_folder, server_url
from covid_cmsf.preflight import PreflightError
from covid_cmsf.report.build import PLOTLY, Report, ReportOptions, read_metadata
from covid_cmsf.report.file_watch import FileCache
from covid_cmsf.report.provenance import shell_command
from covid_cmsf.report.serve import watch_and_rebuild
from tests.report.plan_factories import ODD, make_image_run


def values_in(path: Path) -> object:
    """What a data file hands over."""
    found = re.fullmatch(r"Page\.accept\((\"[^\"]+\"),(.*)\);\n", path.read_text(encoding="ascii"), re.DOTALL)
    assert found is not None
    return json.loads(found[2])


def test_names_cannot_break_out_of_a_script() -> None:
    text = data_script("x", {"name": '</script>"\u2028\udcff é'})
    assert text.isascii() and "</" not in text and "\\u2028" in text


def test_numbers_are_rounded_and_what_is_not_finite_is_none() -> None:
    assert round_values({1: [math.pi, math.nan, math.inf, 3, "a", None, (True, 1e-9)]}) == {
        "1": [3.14159, None, None, 3, "a", None, [True, 1e-9]]
    }


def test_data_of_earlier_times_is_removed_and_the_version_changes(tmp_path: Path) -> None:
    first = write_data(tmp_path, [("a", 1), ("b", 2)])
    assert write_data(tmp_path, [("a", 1), ("b", 2)]) == first
    assert write_data(tmp_path, [("a", 2)]) != first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.js", "version.js"]


def test_what_was_computed_is_kept_until_its_file_changes(tmp_path: Path) -> None:
    memory, path, calls = FileCache(), tmp_path / "file", []
    path.write_text("a")
    for text in ("a", "a", "longer"):
        path.write_text(text) if path.read_text() != text else None
        memory.get("what", path, lambda: calls.append(1))
    assert len(calls) == 2


def test_commands_are_as_one_would_type_them() -> None:
    args = ["/venv/bin/covid-cmsf", "train", "a b", "x={y: 1}"]
    assert shell_command(args) == "covid-cmsf train 'a b' 'x={y: 1}'"
    assert (
        shell_command(["/x/covid_cmsf/__main__.py", "doctor"]) == "python -m covid_cmsf doctor"
        and shell_command([]) == ""
    )


@pytest.mark.slow
def test_the_command_writes_a_folder_that_holds_everything(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    args = ["report", str(plan), "--out", str(out), "--queries", "5", "--neighbors", "3"]
    done = CliRunner().invoke(app, args, catch_exceptions=False)
    assert done.exit_code == 0 and "index.html" in done.output and "note" not in done.output
    assert read_metadata(out)["paths"] == [str(plan)]
    report = values_in(out / "data" / "report.js")
    assert isinstance(report, dict) and not report["notes"] and report["data"][0]["num_failures"] == 2
    page = (out / "index.html").read_text()
    for path in re.findall(r'(?:src|href)="([^#"]+)"', page):
        assert (out / path).is_file(), path
    gallery = values_in(out / "data" / "gallery-0.js")
    assert isinstance(gallery, dict)
    for files in gallery["pictures"]:
        assert (out / report["pictures"] / files[0]).is_file() or not files[0]
    assert all(all(gallery["pictures"][query][:2]) for query in gallery["shown"]), "RGB and flow"
    again = CliRunner().invoke(app, args, catch_exceptions=False)
    assert again.exit_code == 0


def test_nothing_in_the_page_names_another_place() -> None:
    folder = Path(__file__).parents[2] / "covid_cmsf" / "report" / "assets"
    files = [path for path in folder.iterdir() if path.suffix in (".js", ".css", ".html")]
    assert len(files) > 15
    for path in files:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|@import|\bfetch\(|XMLHttpRequest|innerHTML|\beval\(", text), path.name
        assert path.suffix != ".js" or f"assets/{path.name}" in (folder / "page.html").read_text()


def test_the_plotting_library_is_what_its_table_says() -> None:
    folder = Path(__file__).parents[2] / "covid_cmsf" / "report" / "vendor"
    library = (folder / PLOTLY).read_bytes()
    (row,) = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith(f"| `{PLOTLY}`")]
    _, _, origin, version, _, digest, _ = (cell.strip() for cell in row.split("|"))
    assert digest == f"`{hashlib.sha256(library).hexdigest()}`"
    assert f"(cartesian - minified) v{version}".encode() in library[:200] and "plotly.js-cartesian-dist-min" in origin
    assert "MIT License" in (folder / "plotly-LICENSE").read_text()


def test_folders_that_are_something_else_are_refused(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("dear")
    done = CliRunner().invoke(app, ["report", str(plan), "--out", str(tmp_path)])
    assert isinstance(done.exception, ValueError) and "not a report" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    done = CliRunner().invoke(app, ["report", "--out", str(tmp_path / "new")])
    assert isinstance(done.exception, ValueError) and "which runs?" in str(done.exception)
    done = CliRunner().invoke(app, ["report", "--serve", "--out", str(tmp_path / "new")])
    assert isinstance(done.exception, FileNotFoundError) and "no report in" in str(done.exception)


def test_moved_clips_are_said_plainly(plan: Path, clips: Path, tmp_path: Path) -> None:
    metadata = Report([plan], tmp_path / "a", ReportOptions(clips=str(tmp_path / "gone"), num_queries=3)).write(
        figures=False
    )
    assert (
        len(metadata["notes"]) == 1
        and "cannot be reached" in metadata["notes"][0]
        and "--clips" in metadata["notes"][0]
    )
    assert not list((tmp_path / "a" / "pictures").rglob("*.webp"))


@pytest.mark.slow
def test_a_run_without_features_says_what_would_make_them(plan: Path, clips: Path, tmp_path: Path) -> None:
    run = tmp_path / "my run"
    run.mkdir()
    for name in ("config.yaml", "metrics.jsonl"):
        shutil.copy(plan / "infonce-rgb" / name, run)
    Report([run], tmp_path / "out", ReportOptions(pictures=False)).write()
    report = values_in(tmp_path / "out" / "data" / "report.js")
    assert isinstance(report, dict)
    command = report["plans"][0]["missing"]
    assert report["plans"][0]["gallery"] is None and any(command in note for note in report["notes"])
    assert command == shlex.join(["covid-cmsf", "extract", str(run), str(clips), "-o", f"{run}/features.safetensors"])
    done = CliRunner().invoke(app, shlex.split(command)[1:])  # as printed; this run has no checkpoint
    assert isinstance(done.exception, PreflightError) and "checkpoints/last.pt" in str(done.exception)
    assert len(report["curves"]["lines"]) == 1 and report["curves"]["charts"][0]["figures"] == ["loss.png", "loss.svg"]


def test_the_r1_of_a_run_outside_of_a_plan_is_that_of_its_features(plan: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.yaml", "metrics.jsonl", "features.safetensors"):
        shutil.copy(plan / "infonce-rgb" / name, run)
    Report([run], tmp_path / "out", ReportOptions(pictures=False)).write(figures=False)
    report = values_in(tmp_path / "out" / "data" / "report.js")
    assert isinstance(report, dict)
    expected = json.loads((plan / "infonce-rgb" / "retrieval.json").read_text())["recall"]["1"]
    assert report["plans"][0]["rows"][0]["r1"] == pytest.approx(expected, abs=1e-3) and report["notes"] == []


def test_chosen_videos_are_in_the_gallery(plan: Path, tmp_path: Path) -> None:
    Report([plan], tmp_path / "a", ReportOptions(num_queries=2, pictures=False)).write(figures=False)
    gallery = values_in(tmp_path / "a" / "data" / "gallery-0.js")
    assert isinstance(gallery, dict)
    wanted = next(one for i, one in enumerate(gallery["ids"][: gallery["num_queries"]]) if i not in gallery["shown"])
    assert any(odd in wanted for odd in ODD)
    Report([plan], tmp_path / "b", ReportOptions(num_queries=2, pictures=False, always_shown=(wanted,))).write(
        figures=False
    )
    again = values_in(tmp_path / "b" / "data" / "gallery-0.js")
    assert isinstance(again, dict) and again["ids"][again["shown"][0]] == wanted and len(again["shown"]) == 2


def test_a_video_that_is_not_there_cannot_be_chosen(plan: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'nobody' is no test video"):
        Report([plan], tmp_path / "a", ReportOptions(pictures=False, always_shown=("nobody",))).write(figures=False)


@pytest.mark.slow
def test_a_served_report_follows_its_files(plan: Path, tmp_path: Path) -> None:
    copy, out = tmp_path / "plan", tmp_path / "report"
    shutil.copytree(plan, copy)
    report = Report([copy], out, ReportOptions(num_queries=3, pictures=False))
    version = report.write(live=1.0)["version"]
    stop = threading.Event()
    following = threading.Thread(target=watch_and_rebuild, args=(report,), kwargs={"interval": 0.1, "stop": stop})
    server = serve_folder(out, 0)
    try:
        with urllib.request.urlopen(f"{server_url(server)}data/version.js") as answer:
            assert version in answer.read().decode() and answer.headers["Cache-Control"] == "no-store"
        with pytest.raises(ValueError, match="choose another with --port"):
            serve_folder(out, server.server_address[1])
        following.start()
        with (copy / "cmsf-rgb-1" / "metrics.jsonl").open("a") as file:
            file.write('{"step": 999, "epoch": 2, "loss": 0.01}\n')
        for _ in range(300):
            if read_metadata(out)["version"] != version:
                break
            threading.Event().wait(0.05)
        assert read_metadata(out)["version"] != version
    finally:
        stop.set()
        server.shutdown()
        following.join(30)
    values = values_in(out / "data" / "report.js")
    assert isinstance(values, dict) and not values["live"]
    assert any(999 in line["curve"]["step"] for line in values["curves"]["lines"])


def test_images_have_the_gallery_of_figure_2(tmp_path: Path) -> None:
    run = make_image_run(tmp_path)
    Report([run], tmp_path / "report", ReportOptions(num_queries=6, num_neighbors=3)).write(figures=False)
    report = values_in(tmp_path / "report" / "data" / "report.js")
    assert isinstance(report, dict) and not report["notes"] and report["data"][0]["is_image"]
    gallery = report["noisy"][0]
    assert [row["kind"] for row in gallery["rows"]] == ["correct", "wrong", "random"]
    for row in gallery["rows"]:
        assert row["purity"] == sum(one["class"] == row["expected_class"] for one in row["neighbors"]) / len(
            row["neighbors"]
        )
        for one in row["neighbors"]:
            assert (tmp_path / "report" / "pictures" / one["picture"]).is_file()
    gallery = values_in(tmp_path / "report" / "data" / "gallery-0.js")
    assert isinstance(gallery, dict)
    assert all(files[0] and not files[1] for files in gallery["pictures"])
