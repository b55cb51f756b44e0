"""A report on localhost that follows its runs: written again when their files change; the page looks for that."""

import logging
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from covid_cmsf.report.build import Report
from covid_cmsf.report.file_watch import read_input_stamps

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"


class Handler(SimpleHTTPRequestHandler):
    """Files of the report, never from a cache, without a line for each on the screen."""

    def end_headers(self) -> None:
        """Browsers ask again each time."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """To the log, at its most talkative only."""
        logger.debug(format, *args)


def start_server(out: Path, port: int) -> ThreadingHTTPServer:
    """Serves the folder in a thread; port 0 is any that is free. ValueError when the port is taken."""
    try:
        server = ThreadingHTTPServer((HOST, port), partial(Handler, directory=str(out)))
    except OSError as error:
        raise ValueError(f"port {port} cannot be used ({error.strerror}); choose another by --port") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def server_url(server: ThreadingHTTPServer) -> str:
    """What to open in a browser."""
    return f"http://{HOST}:{server.server_address[1]}/"


def watch_and_rebuild(report: Report, *, interval: float, stop: threading.Event) -> None:
    """Writes the report again whenever a file has changed, until `stop` is set; then once more, with figures.

    A plan that is being run may move folders about: what cannot be read now is tried again.
    """
    while not stop.wait(interval):
        try:
            if read_input_stamps(report.paths) != report.input_stamps:
                report.write(live=interval, figures=False)
        except (ValueError, OSError) as error:
            logger.warning("the report could not be written, trying again: %s", error)
    report.write()
