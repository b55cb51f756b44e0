"""The server answers only pages of its own and survives odd requests."""

import http.client
import socket
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from covid_cmsf.pages.server import LocalHandler, serve_folder, server_url


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """A server of a folder with one file of data."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "report.js").write_text("secret")
    started = serve_folder(tmp_path, 0)
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
    assert 0 < LocalHandler.timeout <= 30
    monkeypatch.setattr(LocalHandler, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60) as silent:
        silent.sendall(b"GET / HT")
        assert silent.recv(1) == b""  # closed by the server; without a time-out there, this ends in an error after 60 s
