"""The server answers only pages of its own, survives odd requests, and an interrupted report can be written again."""

import http.client
import signal
import socket
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from covid_cmsf.cli.app import app
from covid_cmsf.exit_codes import INTERRUPTED, SUCCESS, run_app
from covid_cmsf.report import build
from covid_cmsf.report.build import METADATA_FILE, prepare_folder, read_metadata
from covid_cmsf.report.curves import Line, build_lines
from covid_cmsf.report.runs import PlanRun
from covid_cmsf.report.serve import Handler, server_url, start_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """A server of a folder with one file of data."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "report.js").write_text("secret")
    started = start_server(tmp_path, 0)
    yield started
    started.shutdown()
    started.server_close()


def ask(
    server: ThreadingHTTPServer, path: str, host: str | None = None, method: str = "GET"
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_address[1]}")
    connection.endheaders()
    return connection.getresponse()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("host", ["evil.com", "evil.com:8765", "127.0.0.1.evil.com", "", "[::1]:80"])
def test_requests_under_another_name_are_refused(server: ThreadingHTTPServer, host: str, method: str) -> None:
    answer = ask(server, "/data/report.js", host or " ", method)
    assert answer.status == 403 and b"secret" not in answer.read()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST"])
def test_the_page_itself_is_served_and_kept_from_other_origins(server: ThreadingHTTPServer, name: str) -> None:
    answer = ask(server, "/data/report.js", f"{name}:{server.server_address[1]}")
    assert answer.status == 200 and answer.read() == b"secret"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert server_url(server).startswith("http://127.0.0.1:")


@pytest.mark.parametrize("path", ["/%00", "/data/report.js%00.html", "/a?%00", "/%2e%2e/%00"])
def test_a_null_character_is_a_bad_request_without_a_traceback(
    server: ThreadingHTTPServer, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ask(server, path).status == 400
    assert "Traceback" not in capfd.readouterr().err


def test_a_connection_that_says_nothing_is_closed(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < Handler.timeout <= 30
    monkeypatch.setattr(Handler, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60) as silent:
        silent.sendall(b"GET / HT")
        assert silent.recv(1) == b""  # closed by the server; without a time-out there, this ends in an error after 60 s


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
