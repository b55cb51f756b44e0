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
    superseded_token: str | None  # token of the dead holder before, whose leftovers may go


class Leases:
    """The leases in one folder, as seen by this process. `heartbeat` must be called more often than `seconds`."""

    def __init__(self, folder: Path, *, seconds: float = 60.0) -> None:
        self._folder = folder
        self._seconds = seconds
        self._held_leases: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self._clock_file = folder / f".clock-{uuid.uuid4().hex}"
        folder.mkdir(parents=True, exist_ok=True)

    def claim(self, key: str) -> Lease | None:
        """The lease on `key`, or None while someone alive holds it."""
        generation, newest = self._newest_lease(key)
        superseded_token: str | None = None
        if newest is not None:
            holder = _read_holder(newest)
            if self._is_alive(newest, holder):
                return None
            superseded_token = str(holder.get("token", "")) or None
        lease = Lease(key, generation + 1, uuid.uuid4().hex, superseded_token)
        text = json.dumps({**_process_info(), "token": lease.token})
        try:
            descriptor = os.open(self._lease_path(lease), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return None  # someone else was quicker
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
        except OSError:
            self._lease_path(lease).unlink(missing_ok=True)  # an empty lease would block the key until it is stale
            raise
        with self._lock:
            self._held_leases[key] = lease
        return lease

    def is_held(self, lease: Lease) -> bool:
        """Whether no one has taken over; ask before publishing."""
        newest = self._newest_lease(lease.key)[1]
        return newest is not None and _read_holder(newest).get("token") == lease.token

    def release(self, lease: Lease) -> None:
        """Gives the lease up and removes its older generations. What it protected must be recorded before."""
        with self._lock:
            self._held_leases.pop(lease.key, None)
        if _read_holder(self._lease_path(lease)).get("token") != lease.token:
            return  # swept away while this process was silent; the file of that name is someone else's
        for generation in range(lease.generation + 1):
            (self._folder / f"{lease.key}.{generation}").unlink(missing_ok=True)

    def remove_stale(self) -> set[str]:
        """Removes the leases of the dead and returns the tokens of the living."""
        tokens: set[str] = set()
        for path in self._folder.glob("*.*"):
            if path.name.startswith("."):
                continue
            holder = _read_holder(path)
            if self._is_alive(path, holder):
                tokens.add(str(holder.get("token", "")))
            else:
                path.unlink(missing_ok=True)
        return tokens

    def heartbeat(self) -> None:
        """Tells the others that this process is alive."""
        with self._lock:
            held = list(self._held_leases.values())
        for lease in held:
            try:
                os.utime(self._lease_path(lease))
            except FileNotFoundError:
                continue  # superseded and cleaned up by the new holder: `is_held` will say so
            except OSError as error:  # a network disk that hiccups: try again at the next beat
                logger.warning("the heartbeat could not reach %s: %s", self._lease_path(lease), error)

    def _lease_path(self, lease: Lease) -> Path:
        return self._folder / f"{lease.key}.{lease.generation}"

    def _newest_lease(self, key: str) -> tuple[int, Path | None]:
        generations = [int(path.name.rsplit(".", 1)[1]) for path in self._folder.glob(f"{key}.*")]
        newest = max(generations, default=-1)
        return newest, self._folder / f"{key}.{newest}" if generations else None

    def _is_alive(self, path: Path, holder: dict[str, object]) -> bool:
        this_process = _process_info()
        same_machine = holder.get("machine") == this_process["machine"] and bool(this_process["machine"])
        if same_machine and holder.get("started") != _process_start_time(holder.get("pid")):
            return False
        try:
            return self._filesystem_time() - path.stat().st_mtime < self._seconds
        except FileNotFoundError:
            return True  # just released: ask again later

    def _filesystem_time(self) -> float:
        self._clock_file.touch()
        now = self._clock_file.stat().st_mtime
        self._clock_file.unlink()
        return now


class Heartbeat:
    """Calls `leases.heartbeat` in the background while a `with` block runs."""

    def __init__(self, leases: Leases, *, interval: float) -> None:
        self._leases, self._interval = leases, interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-heartbeat", daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._leases.heartbeat()

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _process_info() -> dict[str, object]:
    return {
        "host": socket.gethostname(),
        "machine": _machine_id(),
        "pid": os.getpid(),
        "started": _process_start_time(os.getpid()),
        "time": time.time(),
    }


def _machine_id() -> str:
    """Names this boot of this machine, the process namespace (containers) and the user, whose processes can all be
    seen under /proc; empty where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()} {os.getuid()}"
    except OSError:
        return ""


def _process_start_time(pid: object) -> str | None:
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
