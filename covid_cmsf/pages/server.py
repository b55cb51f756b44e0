"""A server for pages on localhost, which pages of other sites cannot read."""

import logging
import threading
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"
NAMES = (HOST, "localhost")  # by which a browser may ask for the page
TIMEOUT = 10.0  # seconds without a byte, after which a connection is closed


class LocalHandler(BaseHTTPRequestHandler):
    """What all requests have in common; they are logged at level DEBUG.

    Pages of other sites must not read the data (names and pictures of videos): a request under another name than
    localhost is refused (a foreign domain may point at this machine), and browsers keep the files from other origins.
    """

    timeout = TIMEOUT

    def refuse(self) -> bool:
        """Answer requests that are not for this server, and paths that no file can have; True if that was done."""
        name = (self.headers.get("Host") or "").rsplit(":", 1)[0].lower()
        if name not in NAMES:
            self.send_error(HTTPStatus.FORBIDDEN, f"this server answers to {' and '.join(NAMES)} only")
            return True
        if "\0" in unquote(self.path):
            self.send_error(HTTPStatus.BAD_REQUEST, "the path has a null character")
            return True
        try:
            urlsplit(self.path)
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST, "the path is no address")
            return True
        return False

    def end_headers(self) -> None:
        """Disable caching, and reading by pages of other origins."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log a request."""
        logger.debug(format, *args)


class FolderHandler(LocalHandler, SimpleHTTPRequestHandler):
    """Serves the files of a folder."""

    def send_head(self) -> Any:
        """Refuse what is not for this server."""
        return None if self.refuse() else super().send_head()


def start_server(handler: Any, port: int) -> ThreadingHTTPServer:
    """Answer requests by `handler` in a thread; port 0 is any free port. ValueError if the port is taken."""
    try:
        server = ThreadingHTTPServer((HOST, port), handler)
    except OSError as error:
        raise ValueError(f"port {port} cannot be used ({error.strerror}); choose another with --port") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def serve_folder(folder: Path, port: int) -> ThreadingHTTPServer:
    """Serve the files of a folder in a thread."""
    return start_server(partial(FolderHandler, directory=str(folder)), port)


def server_url(server: ThreadingHTTPServer) -> str:
    """Return the address of the page."""
    return f"http://{HOST}:{server.server_address[1]}/"
