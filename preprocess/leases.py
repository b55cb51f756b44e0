"""Who works on which video: leases as files, for any number of processes and machines on one shared disk.

A lease is a file `<key>.<generation>`, made with O_EXCL, which is atomic on local disks and on NFS. The holder
touches it (the heartbeat). When the newest generation goes silent, whoever first creates the next generation has
taken over; the old holder, should it come back, finds that the newest token is not its own and must not publish.

A holder on the same machine whose process is gone is known to be dead at once. Otherwise silence is measured by the
file system's own clock (a touched probe file), so clocks that differ between machines do not matter.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lease:
    """A claim that this process holds; `token` names its temporary files."""

    key: str
    generation: int
    token: str
    superseded: str | None  # token of the dead holder before, whose leftovers may go


class Leases:
    """The leases in one folder, as seen by this process. `heartbeat` must be called more often than `seconds`."""

    def __init__(self, folder: Path, *, seconds: float = 60.0) -> None:
        self._folder = folder
        self._seconds = seconds
        self._held: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self._probe = folder / f".clock-{uuid.uuid4().hex}"
        folder.mkdir(parents=True, exist_ok=True)

    def claim(self, key: str) -> Lease | None:
        """The lease on `key`, or None while someone alive holds it."""
        generation, newest = self._newest(key)
        superseded: str | None = None
        if newest is not None:
            holder = _read_holder(newest)
            if self._alive(newest, holder):
                return None
            superseded = str(holder.get("token", "")) or None
        lease = Lease(key, generation + 1, uuid.uuid4().hex, superseded)
        text = json.dumps({**_this_process(), "token": lease.token})
        try:
            descriptor = os.open(self._path(lease), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return None  # someone else was quicker
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
        except OSError:
            self._path(lease).unlink(missing_ok=True)  # an empty lease would block the key until it is stale
            raise
        with self._lock:
            self._held[key] = lease
        return lease

    def still_mine(self, lease: Lease) -> bool:
        """Whether no one has taken over; ask before publishing."""
        newest = self._newest(lease.key)[1]
        return newest is not None and _read_holder(newest).get("token") == lease.token

    def release(self, lease: Lease) -> None:
        """Gives the lease up and removes its older generations. What it protected must be recorded before."""
        with self._lock:
            self._held.pop(lease.key, None)
        if _read_holder(self._path(lease)).get("token") != lease.token:
            return  # swept away while this process was silent; the file of that name is someone else's
        for generation in range(lease.generation + 1):
            (self._folder / f"{lease.key}.{generation}").unlink(missing_ok=True)

    def sweep(self) -> set[str]:
        """Removes the leases of the dead and returns the tokens of the living."""
        tokens: set[str] = set()
        for path in self._folder.glob("*.*"):
            if path.name.startswith("."):
                continue
            holder = _read_holder(path)
            if self._alive(path, holder):
                tokens.add(str(holder.get("token", "")))
            else:
                path.unlink(missing_ok=True)
        return tokens

    def heartbeat(self) -> None:
        """Tells the others that this process is alive."""
        with self._lock:
            held = list(self._held.values())
        for lease in held:
            try:
                os.utime(self._path(lease))
            except FileNotFoundError:
                continue  # superseded and cleaned up by the new holder: `still_mine` will say so
            except OSError as error:  # a network disk that hiccups: try again at the next beat
                logger.warning("the heartbeat could not reach %s: %s", self._path(lease), error)

    def _path(self, lease: Lease) -> Path:
        return self._folder / f"{lease.key}.{lease.generation}"

    def _newest(self, key: str) -> tuple[int, Path | None]:
        generations = [int(path.name.rsplit(".", 1)[1]) for path in self._folder.glob(f"{key}.*")]
        newest = max(generations, default=-1)
        return newest, self._folder / f"{key}.{newest}" if generations else None

    def _alive(self, path: Path, holder: dict[str, object]) -> bool:
        own = _this_process()
        same_machine = holder.get("machine") == own["machine"] and bool(own["machine"])
        if same_machine and holder.get("started") != _started(holder.get("pid")):
            return False
        try:
            return self._now() - path.stat().st_mtime < self._seconds
        except FileNotFoundError:
            return True  # just released: ask again later

    def _now(self) -> float:
        self._probe.touch()
        now = self._probe.stat().st_mtime
        self._probe.unlink()
        return now


class Heart:
    """Calls `leases.heartbeat` in the background while a `with` block runs."""

    def __init__(self, leases: Leases, *, every: float) -> None:
        self._leases, self._every = leases, every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease-heartbeat", daemon=True)

    def _beat(self) -> None:
        while not self._stop.wait(self._every):
            self._leases.heartbeat()

    def __enter__(self) -> "Heart":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _this_process() -> dict[str, object]:
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "time": time.time(),
    }


def _machine() -> str:
    """Names this boot of this machine, the process namespace (containers) and the user, whose processes can all be
    seen under /proc; empty where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()} {os.getuid()}"
    except OSError:
        return ""


def _started(pid: object) -> str | None:
    """When process `pid` started, in the kernel's ticks; None if there is no such process (or no /proc)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None


def _read_holder(path: Path) -> dict[str, object]:
    """What the lease file says; empty while its maker is still writing it, or if it died doing so."""
    try:
        holder = json.loads(path.read_text())
        return holder if isinstance(holder, dict) else {}
    except (OSError, ValueError):
        return {}
