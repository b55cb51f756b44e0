"""Watch a command and every Python process that it starts, forked or spawned, for attempts to use the network.

A `sitecustomize` on PYTHONPATH is imported by every interpreter; processes that are forked inherit its audit hook.
Sockets of C libraries are not seen.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REFUSED = 99  # exit code
# Every attempt to reach another machine, or to look up its name, is written down and ends the process.
SITECUSTOMIZE = f"""
import os, sys
from pathlib import Path
FOLDER, LOCAL = Path(__file__).parent, ("localhost", "127.0.0.1", "::1")

def note(name, text):
    with (FOLDER / name).open("a") as file:
        file.write(f"{{os.getpid()}} {{text}}\\n")

def refuse(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]  # a path for a socket file of this machine, None for a socket that is connected
        local = address is None or isinstance(address, str | bytes) or address[0] in LOCAL
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        local = arguments[0] in (None, *LOCAL)
    else:
        local = True
    if not local:
        note("attempts", f"{{event}} {{arguments[1:]}}")
        os._exit({REFUSED})

note("watched", repr(sys.orig_argv))
sys.addaudithook(refuse)
"""


@dataclass(frozen=True)
class Watched:
    """How a watched command ended."""

    code: int
    stderr: str
    processes: list[str]  # "pid command line" of every interpreter that was started
    attempts: list[str]  # "pid event arguments"


def run_watched(script: str, *args: object, folder: Path, environment: Mapping[str, str] | None = None) -> Watched:
    """Run a Python script in `folder` under watch."""
    watch = folder / ".watch"
    watch.mkdir()
    (watch / "sitecustomize.py").write_text(SITECUSTOMIZE)
    variables = {**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join([str(watch), str(ROOT)])}
    command = [sys.executable, "-c", script, *map(str, args)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, env=variables, cwd=folder)
    noted = [path.read_text().splitlines() if path.exists() else [] for path in (watch / "watched", watch / "attempts")]
    return Watched(ended.returncode, ended.stderr, *noted)
