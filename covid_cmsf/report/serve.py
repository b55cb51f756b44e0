"""Serve a report on localhost and write it again when the files of its runs change."""

import logging
import threading
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from covid_cmsf.report.build import Report
from covid_cmsf.report.file_watch import read_input_stamps

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"
NAMES = (HOST, "localhost")  # by which a browser may ask for the page
TIMEOUT = 10.0  # seconds without a byte, after which a connection is closed


class Handler(SimpleHTTPRequestHandler):
    """Serves the files of the report without caching; requests are logged at level DEBUG.

    Pages of other sites must not read the data (names and pictures of videos): a request under another name than
    localhost is refused (a foreign domain may point at this machine), and browsers keep the files from other origins.
    """

    timeout = TIMEOUT

    def send_head(self) -> Any:
        """Refuse requests that are not for this server, and paths that no file can have."""
        name = (self.headers.get("Host") or "").rsplit(":", 1)[0].lower()
        if name not in NAMES:
            self.send_error(HTTPStatus.FORBIDDEN, f"this server answers to {' and '.join(NAMES)} only")
            return None
        if "\0" in unquote(self.path):
            self.send_error(HTTPStatus.BAD_REQUEST, "the path has a null character")
            return None
        return super().send_head()

    def end_headers(self) -> None:
        """Disable caching, and reading by pages of other origins."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log a request."""
        logger.debug(format, *args)


def start_server(out: Path, port: int) -> ThreadingHTTPServer:
    """Serve the folder in a thread; port 0 is any free port. ValueError if the port is taken."""
    try:
        server = ThreadingHTTPServer((HOST, port), partial(Handler, directory=str(out)))
    except OSError as error:
        raise ValueError(f"port {port} cannot be used ({error.strerror}); choose another with --port") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def server_url(server: ThreadingHTTPServer) -> str:
    """Return the address of the page."""
    return f"http://{HOST}:{server.server_address[1]}/"


def watch_and_rebuild(report: Report, *, interval: float, stop: threading.Event) -> None:
    """Write the report again whenever a file changes, until `stop` is set; then once more, with figures.

    A running plan may move folders: an error while reading is logged, and the next change tries again.
    """
    while not stop.wait(interval):
        try:
            if read_input_stamps(report.paths) != report.input_stamps:
                report.write(live=interval, figures=False)
        except (ValueError, OSError) as error:
            logger.warning("the report could not be written, trying again: %s", error)
    report.write()
