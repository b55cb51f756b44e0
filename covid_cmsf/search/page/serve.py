"""Serve the page on localhost: its files, and answers to searches, dropped files, labels and decisions."""

import json
import logging
import secrets
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from covid_cmsf.pages.asset_files import read_assets, read_page
from covid_cmsf.pages.server import LocalHandler, server_url, start_server
from covid_cmsf.search.page.explorer import Explorer
from covid_cmsf.search.page.uploads import received_file
from covid_cmsf.search.page.write import PACKAGE

logger = logging.getLogger(__name__)
MAX_JSON = 4_000_000  # bytes of a request other than a file
MAX_UPLOAD = 1_000_000_000
TYPES = {".js": "text/javascript", ".css": "text/css", ".png": "image/png", ".html": "text/html"}
TOKEN_HEADER = "X-Covid-CMSF"  # other sites cannot send it without asking first, and nobody answers
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class PageHandler(LocalHandler):
    """Answers the page. GET changes nothing; POST is for the page itself only."""

    explorer: Explorer
    assets: dict[str, bytes]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer with a file of the page, data, a picture, or the results of a search."""
        if self.refuse():
            return
        address = urlsplit(self.path)
        folder, _, name = address.path.lstrip("/").rpartition("/")
        options = {key: values[0] for key, values in parse_qs(address.query).items()}
        try:
            if address.path in ("/", "/index.html"):
                self._send(read_page(PACKAGE), "text/html")
            elif folder == "assets" and name in self.assets:
                self._send(self.assets[name], TYPES[Path(name).suffix])
            elif folder == "data" and name.endswith(".js"):
                self._send(self.explorer.script(unquote(name[:-3])), "text/javascript")
            elif address.path == "/api/preview":
                self._send(self._picture(options), "image/webp")
            elif address.path == "/api/search":
                self._send_json(self._search(options))
            elif address.path == "/api/copies":
                self._send_json(self.explorer.copies.status())
            else:
                self._send(None, "")
        except (ValueError, KeyError, OSError) as error:
            self._fail(HTTPStatus.BAD_REQUEST, str(error))

    def do_POST(self) -> None:
        """Take a dropped file, labels, or a decision."""
        if self.refuse():
            return
        if not self._from_the_page():
            self._fail(HTTPStatus.FORBIDDEN, "only the page itself may send this")
            return
        try:
            length = int(self.headers.get("Content-Length") or -1)
        except ValueError:
            length = -1
        path = urlsplit(self.path).path
        limit = self.explorer.max_upload if path == "/api/upload" else MAX_JSON
        if length < 0:
            self._fail(HTTPStatus.LENGTH_REQUIRED, "how long is it?")
        elif length > limit:
            what = f"at most {limit / 1e6:.0f} MB" if limit else "this index takes no files: it has no encoders"
            self._fail(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what)
        else:
            try:
                self._answer_post(path, length)
            except RecursionError:
                self._fail(HTTPStatus.BAD_REQUEST, "nested too deeply")
            except (ValueError, KeyError, TypeError, OSError) as error:
                self._fail(HTTPStatus.BAD_REQUEST, str(error))

    def _answer_post(self, path: str, length: int) -> None:
        if path == "/api/upload":
            name = unquote(self.headers.get("X-File-Name") or "video")[:200]
            with received_file(self.rfile, length, name) as file:
                self._send_json(self.explorer.embed(file, name, secrets.token_urlsafe(8)))
            return
        values: Any = json.loads(self.rfile.read(length) or b"{}")
        if path == "/api/labels":
            self._send_json({"file": self.explorer.save_labels(dict(values))})
        elif path == "/api/decision":
            self._send_json(
                {"file": self.explorer.save_decision(values["first"], values["second"], values["decision"])}
            )
        elif path == "/api/copies":
            self.explorer.copies.start()
            self._send_json(self.explorer.copies.status())
        else:
            self._send(None, "")

    def _from_the_page(self) -> bool:
        """Whether the page sends this: by its own header, from its own origin."""
        own = {None, f"http://{self.headers.get('Host')}"}
        site = self.headers.get("Sec-Fetch-Site") or "same-origin"
        return bool(self.headers.get(TOKEN_HEADER)) and self.headers.get("Origin") in own and site == "same-origin"

    def _search(self, options: dict[str, str]) -> Any:
        video = int(options["video"]) if "video" in options else None
        part = (int(options["start"]), int(options["end"])) if "start" in options or "end" in options else None
        return self.explorer.search(options.get("by", ""), video=video, upload=options.get("upload"), part=part)

    def _picture(self, options: dict[str, str]) -> bytes | None:
        kind = options.get("kind", "")
        if "upload" in options:
            upload = self.explorer.uploads.get(options["upload"])
            return upload.pictures.get(kind) if upload else None
        start = int(options["start"]) if "start" in options else None
        return self.explorer.preview(int(options.get("video", "-1")), kind, start, int(options.get("span", "32")))

    def _send_json(self, values: Any) -> None:
        self._send(json.dumps(values).encode(), "application/json")

    def _send(self, data: bytes | None, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        if data is None:
            self._fail(HTTPStatus.NOT_FOUND, "there is no such thing")
            return
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if kind.startswith(("text/", "appl")) else kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _fail(self, status: HTTPStatus, reason: str) -> None:
        self.close_connection = True  # the rest of the request is not read
        self._send(json.dumps({"error": reason}).encode(), "application/json", status)


def serve_page(explorer: Explorer, port: int) -> ThreadingHTTPServer:
    """Serve the page of an index in a thread; port 0 is any free port."""
    values = {"explorer": explorer, "assets": read_assets(PACKAGE)}
    server = start_server(type("BoundHandler", (PageHandler,), values), port)
    logger.debug("%s serves %s", server_url(server), explorer.folder)
    return server
