"""Requests to the page of a search: every one is answered or refused, none ends in a traceback or writes elsewhere."""

import http.client
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from covid_cmsf.pages.server import FolderHandler
from covid_cmsf.search.index import build_index, save_index
from covid_cmsf.search.page import explorer as explorer_module
from covid_cmsf.search.page.explorer import Explorer
from covid_cmsf.search.page.saved import read_decisions, read_labels
from covid_cmsf.search.page.serve import PageHandler
from tests.fuzz.mutations import TEXTS, VALUES, damaged_bytes, damaged_value
from tests.fuzz.test_readers import EXAMPLES
from tests.search.factories import windowed_features

HEADERS = b"Host: localhost\r\nX-Covid-CMSF: page\r\n"
PATHS = (
    "/", "/index.html", "/assets/explore.js", "/data/page.js", "/data/saved.js", "/data/map-rgb-pca.js", "/nothing",
    "/api/search?video=0&by=rgb&start=0&end=8", "/api/preview?video=0&kind=rgb&start=0&span=8", "/api/copies",
    "/data/..%2f..%2fx.js", "//localhost/", "http://[", "/api/search?upload=x&by=fused",
)  # fmt: skip
POSTS: dict[str, Any] = {
    "/api/labels": {"v0": "A", "v1": ""},
    "/api/decision": {"first": "v0", "second": "v1", "decision": "copy"},
    "/api/copies": {},
    "/nothing": {},
}
KNOWN = {*range(200, 600)}


class Connection:
    """A socket whose peer has sent everything and reads at the end."""

    def __init__(self, sent: bytes) -> None:
        self.sent, self.answer = sent, b""

    def makefile(self, mode: str, size: int = -1) -> io.BytesIO:
        return io.BytesIO(self.sent)

    def sendall(self, data: bytes) -> None:
        self.answer += data

    def settimeout(self, seconds: float) -> None:
        """Never wait."""


class Answer:
    """What `http.client` reads an answer from."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.data)


def send(handler: Any, request: bytes) -> list[int]:
    """Return the statuses of the answers to the requests of a connection; an exception of the server is raised."""
    connection = Connection(request)
    handler(connection, ("127.0.0.1", 1), None)
    statuses, rest = [], connection.answer
    while rest.startswith(b"HTTP/"):
        answer = http.client.HTTPResponse(Answer(rest))  # type: ignore[arg-type]
        answer.begin()
        body = answer.read()
        statuses.append(answer.status)
        start = rest.index(b"\r\n\r\n") + 4
        assert rest[start : start + len(body)] == body
        rest = rest[start + len(body) :]
    return statuses


@contextmanager
def watched_folder(folder: Path) -> Iterator[None]:
    """Want nothing to be written but labels and decisions."""
    before = {*folder.parent.rglob("*")}
    yield
    made = {path.name for path in {*folder.parent.rglob("*")} - before}
    assert made <= {"labels.csv", "copies.csv"}, made


def encode(value: Any) -> bytes:
    return json.dumps(value, default=repr).encode()


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    if draw(st.booleans()):
        path, _, query = draw(st.sampled_from(PATHS)).partition("?")
        pairs = [part.partition("=") for part in query.split("&")] if query else []
        changed = [f"{name}={draw(st.sampled_from([value, value, *TEXTS]))}" for name, _, value in pairs]
        target = path + ("?" if query else "") + "&".join(changed)
        request = b"GET %s HTTP/1.1\r\n%s\r\n" % (target.encode("utf-8", "surrogateescape"), HEADERS)
    else:
        path = draw(st.sampled_from(sorted(POSTS)))
        values = draw(damaged_value(POSTS[path]) | st.sampled_from(VALUES))
        body = draw(st.sampled_from([encode(values), encode(values), b"[" * 100_000, b"9" * 5000, b"\xff", b""]))
        length = draw(st.sampled_from([str(len(body))] * 3 + ["-1", "x", "9" * 30, "1_0", str(len(body) + 9)]))
        head = f"POST {path} HTTP/1.1\r\nContent-Length: {length}\r\n".encode()
        request = head + HEADERS + b"\r\n" + body
    return draw(damaged_bytes(request)) if draw(st.integers(0, 2)) == 0 else request


@pytest.fixture
def handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(explorer_module, "thumbnail", lambda *args, **options: b"")
    save_index(tmp_path / "index", build_index({"rgb": windowed_features(5, num_values=4)}))

    class Handler(PageHandler):
        explorer = Explorer(tmp_path / "index")

    Handler.assets = {"explore.js": b"1"}
    return Handler


@pytest.mark.slow
def test_a_served_report_gives_its_files_and_nothing_else(tmp_path: Path) -> None:
    """`report --serve` is a folder; a file beside it is never sent."""
    (tmp_path / "report" / "data").mkdir(parents=True)
    for name in ("index.html", "data/report.js"):
        (tmp_path / "report" / name).write_text("public")
    (tmp_path / "secret.txt").write_text("SECRET")
    handler = partial(FolderHandler, directory=str(tmp_path / "report"))
    valid = b"GET /data/report.js HTTP/1.0\r\n" + HEADERS + b"\r\n"
    assert send(handler, valid) == [200]
    paths = ("/data/report.js", "/../secret.txt", "/%2e%2e/secret.txt", "/data/..%2f..%2fsecret.txt", "//secret.txt")
    seeds = [valid.replace(b"/data/report.js", path.encode()) for path in paths]
    seeds += [valid.replace(b"localhost", b"example.org"), b"POST / HTTP/1.0\r\n" + HEADERS + b"\r\n"]

    server: Any = None  # a handler does not use it

    @settings(
        max_examples=EXAMPLES or 60,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(request=st.sampled_from(seeds) | st.sampled_from(seeds).flatmap(damaged_bytes))
    def run(request: bytes) -> None:
        connection: Any = Connection(request)
        handler(connection, ("127.0.0.1", 1), server)
        status = re.match(rb"HTTP/1\.[01] (\d+) ", connection.answer)
        assert status is None or int(status[1]) in KNOWN  # HTTP/0.9 has no status
        assert b"SECRET" not in connection.answer
        is_local = re.search(rb"(?im)^host: *(localhost|127\.0\.0\.1)\b", request)
        assert is_local or b"public" not in connection.answer, "sent to a page of another site"

    run()
    assert send(handler, valid) == [200]


@pytest.mark.slow
def test_every_request_is_answered_or_refused(handler: Any, tmp_path: Path) -> None:
    valid = b"GET /api/search?video=0&by=rgb HTTP/1.1\r\n" + HEADERS + b"\r\n"
    assert send(handler, valid + valid) == [200, 200]

    @settings(
        max_examples=EXAMPLES or 60,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(request=requests())
    def run(request: bytes) -> None:
        with watched_folder(tmp_path):
            assert set(send(handler, request)) <= KNOWN
        explorer = handler.explorer
        assert set(explorer.labels) <= set(explorer.number)
        assert read_labels(explorer.folder) == explorer.labels, "the file has other labels than the page"
        assert read_decisions(explorer.folder) == explorer.decisions

    run()
    assert send(handler, valid) == [200]
