"""The server of the page: only for the page itself, careful with what it is sent."""

import http.client
import io
import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from covid_cmsf.search.page import uploads
from covid_cmsf.search.page.copies import COPIES_FILE
from covid_cmsf.search.page.explorer import Explorer
from covid_cmsf.search.page.uploads import check_container, is_container, safe_suffix

Served = tuple[Explorer, ThreadingHTTPServer]
PAGE = {"X-Covid-CMSF": "page"}


def ask(
    served: Served, path: str, *, method: str = "GET", body: bytes = b"", headers: Mapping[str, str] | None = None
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", served[1].server_address[1], timeout=60)
    connection.request(method, path, body=body or None, headers=dict(headers or {}))
    return connection.getresponse()


def post(served: Served, path: str, values: Any, **headers: str) -> http.client.HTTPResponse:
    return ask(served, path, method="POST", body=json.dumps(values).encode(), headers={**PAGE, **headers})


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/data/page.js", "/api/search?video=0&by=rgb", "/api/preview?video=0&kind=rgb"])
def test_answers_are_for_this_page_only(served: Served, path: str) -> None:
    answer = ask(served, path)
    assert answer.status == 200 and answer.read()
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Cache-Control"] == "no-store"
    assert ask(served, path, headers={"Host": "evil.com"}).status == 403
    head = ask(served, path, method="HEAD")
    assert head.status == 200 and head.read() == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        {"X-Covid-CMSF": ""},
        {"Origin": "http://evil.com"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.com"},
    ],
)
@pytest.mark.parametrize("path", ["/api/labels", "/api/decision", "/api/upload", "/api/copies"])
def test_other_sites_cannot_send_anything(served: Served, path: str, headers: dict[str, str]) -> None:
    explorer = served[0]
    before = dict(explorer.labels)
    answer = post(served, path, {explorer.index.videos[0].video_id: "evil"}, **headers)
    assert answer.status == 403 and explorer.labels == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/data/..%2f..%2findex.js", 404),
        ("/data/nothing.js", 404),
        ("/assets/../serve.py", 404),
        ("/etc/passwd", 404),
        ("/%00", 400),
        ("/api/search?video=999&by=rgb", 400),
        ("/api/search?video=x&by=rgb", 400),
        ("/api/search?video=0&by=nothing", 400),
        ("/api/search?upload=unknown&by=rgb", 400),
        ("/api/search?video=0&by=rgb&start=5", 400),
        ("/api/search?video=0&by=rgb&start=5&end=5", 400),
        ("/api/search?video=0&by=rgb&start=0&end=9999", 400),
        ("/api/search?video=0&by=rgb&start=x&end=2", 400),
        ("/api/preview?video=999&kind=rgb", 404),
        ("/api/preview?video=0&kind=nothing", 404),
    ],
)
def test_odd_requests_get_an_answer_without_a_traceback(
    served: Served, path: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ask(served, path).status == status
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_wrong_labels_and_decisions_are_refused(served: Served) -> None:
    name = served[0].index.videos[0].video_id
    for path, values in (
        ("/api/labels", {"unknown": "a"}),
        ("/api/labels", {name: 5}),
        ("/api/labels", {name: "a" * 300}),
        ("/api/labels", [1]),
        ("/api/decision", {"first": name}),
        ("/api/decision", {"first": name, "second": name, "decision": "maybe"}),
    ):
        assert post(served, path, values).status == 400, values
    assert ask(served, "/api/labels", method="POST", body=b"{", headers=PAGE).status == 400
    assert served[0].labels == {}


@pytest.mark.slow
def test_uploads_are_limited_recognized_and_removed(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    large = ask(served, "/api/upload", method="POST", headers={**PAGE, "Content-Length": str(10**10)})
    assert large.status == 413 and b"at most 3 MB" in large.read()
    for data, reason in (
        (b"#EXTM3U\n/etc/passwd", "no video file"),
        (b"ffconcat version 1.0\nfile x", "no video file"),
        (b"\0\0\0\x18ftypisom" + b"\0" * 500, "wrong.mp4"),
    ):
        answer = ask(served, "/api/upload", method="POST", body=data, headers={**PAGE, "X-File-Name": "wrong.mp4"})
        text = answer.read().decode()
        assert answer.status == 400 and reason in text and str(tmp_path) not in text
    assert list(tmp_path.iterdir()) == []


def test_containers_are_told_from_playlists_and_text() -> None:
    good = [b"\0\0\0\x20ftypmp42", b"\x1aE\xdf\xa3\x01", b"RIFF\0\0\0\0AVI LIST", b"OggS", b"FLV\x01", b"GIF89a"]
    good += [b"G" + b"x" * 187 + b"G" + b"x" * 187 + b"G", b"\0\0\x01\xba!"]
    assert all(map(is_container, good))
    bad = [b"", b"#EXTM3U", b"ffconcat version 1.0", b"RIFF\0\0\0\0WAVE", b"<svg>", b"[playlist]", b"\x7fELF", b"GGGG"]
    assert not any(map(is_container, bad))
    with pytest.raises(ValueError, match="MP4, MOV"):
        check_container(b"hello")


def test_a_cut_file_and_a_full_disk_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"\0\0\0\x20ftypmp42"
    with pytest.raises(ValueError, match="cut off"), uploads.received_file(io.BytesIO(data), 99, "a"):
        pass
    monkeypatch.setattr(uploads, "SPARE", 1 << 60)
    with pytest.raises(ValueError, match="not enough space"), uploads.received_file(io.BytesIO(data), 12, "a"):
        pass


@pytest.mark.parametrize(("name", "suffix"), [("a.MP4", ".mp4"), ("a.tar.gz", ".gz"), ("../x", ""), ("a.m p", "")])
def test_only_plain_suffixes_are_kept(name: str, suffix: str) -> None:
    assert safe_suffix(name) == suffix


@pytest.mark.slow
def test_a_search_for_copies_that_failed_says_why_and_can_begin_again(page_index: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(page_index.parent, tmp_path / "project")
    (folder / "index" / COPIES_FILE).unlink()
    explorer = Explorer(folder / "index")
    assert explorer.copies.status()["state"] == "new"
    (folder / "clips" / "rgb").rename(folder / "clips" / "away")
    assert _finish(explorer)["state"] == "failed" and explorer.copies.error
    (folder / "clips" / "away").rename(folder / "clips" / "rgb")
    status = _finish(explorer)
    assert status["state"] == "done" and status["done"] == status["total"] > 0 and not status["error"]


def _finish(explorer: Explorer) -> dict[str, Any]:
    explorer.copies.start()
    deadline = time.monotonic() + 100
    while explorer.copies.status()["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.05)
    return explorer.copies.status()
