"""Leases as files: assign each video to one of many processes, on one or several machines with a shared disk.

A lease is a file `<key>.<generation>`, created with O_EXCL, which is atomic on local disks and on NFS. The holder
touches it regularly (the heartbeat). When the newest generation has had no heartbeat for too long, the first process
to create the next generation takes over; the old holder, if it is still running, finds that the newest token is not
its own and must not publish its result.

A holder on the same machine whose process is gone counts as dead at once. Otherwise the time since the last heartbeat
is measured with the file system's clock (by touching a file), so the machines' clocks need not agree.
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
    """A lease held by this process; `token` is the name of its temporary folder."""

    key: str
    generation: int
    token: str
    superseded_token: str | None  # token of the dead previous holder, whose temporary files may be removed


class Leases:
    """The leases in one folder. Call `heartbeat` more often than every `seconds`."""

    def __init__(self, folder: Path, *, seconds: float = 60.0) -> None:
        self._folder = folder
        self._seconds = seconds
        self._held_leases: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self._clock_file = folder / f".clock-{uuid.uuid4().hex}"
        folder.mkdir(parents=True, exist_ok=True)

    def claim(self, key: str) -> Lease | None:
        """Acquire the lease on `key`; return None if a live process holds it."""
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
            return None  # another process was faster
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
        except OSError:
            self._lease_path(lease).unlink(missing_ok=True)  # an empty lease would block the key until it expires
            raise
        with self._lock:
            self._held_leases[key] = lease
        return lease

    def is_held(self, lease: Lease) -> bool:
        """Return whether the lease is still this process's; check before publishing a result."""
        newest = self._newest_lease(lease.key)[1]
        return newest is not None and _read_holder(newest).get("token") == lease.token

    def release(self, lease: Lease) -> None:
        """Release the lease and remove its older generations. Record the result before."""
        with self._lock:
            self._held_leases.pop(lease.key, None)
        if _read_holder(self._lease_path(lease)).get("token") != lease.token:
            return  # it expired and was removed; the file of that name belongs to another process
        for generation in range(lease.generation + 1):
            (self._folder / f"{lease.key}.{generation}").unlink(missing_ok=True)

    def remove_stale(self) -> set[str]:
        """Remove the leases of dead processes; return the tokens of the live ones."""
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
        """Touch all leases of this process, to keep them.

        A lease that expired may have been removed, and its name used again by another process: its token tells.
        """
        with self._lock:
            held = list(self._held_leases.values())
        for lease in held:
            try:
                if _read_holder(self._lease_path(lease)).get("token") == lease.token:
                    os.utime(self._lease_path(lease))
            except FileNotFoundError:
                continue  # taken over and removed by the new holder: `is_held` returns False
            except OSError as error:  # a temporary fault of a network disk: retry at the next heartbeat
                logger.warning("heartbeat: could not touch %s: %s", self._lease_path(lease), error)

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
            return True  # just released: check again later

    def _filesystem_time(self) -> float:
        self._clock_file.touch()
        now = self._clock_file.stat().st_mtime
        self._clock_file.unlink()
        return now


class Heartbeat:
    """Call `leases.heartbeat` in a background thread while a `with` block runs."""

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
    """Return an id of this boot of this machine, the PID namespace (containers) and the user; "" without /proc.

    Processes with the same id can see each other under /proc.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()} {os.getuid()}"
    except OSError:
        return ""


def _process_start_time(pid: object) -> str | None:
    """Return the start time of process `pid` in clock ticks; None if there is no such process (or no /proc)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None


def _read_holder(path: Path) -> dict[str, object]:
    """Return the content of a lease file; {} if it is not written yet, or never was because its process died."""
    try:
        holder = json.loads(path.read_text())
        return holder if isinstance(holder, dict) else {}
    except (OSError, ValueError):
        return {}
