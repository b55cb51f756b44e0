"""One disturbance of one command, then the same command until it is finished, and the comparison with the reference."""

import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tools.disturbances.commands import Command
from tools.disturbances.compare import differing, snapshot
from tools.disturbances.processes import Ended

Outcome = Literal["equal", "error", "kept", "finding", "skipped"]
INTERRUPTED = 75
MAX_CALLS = 4  # of the same command after a disturbance, before it counts as one that never finishes
NEVER_READ = ("log.txt", "environment.jsonl")  # and `.work/logs`: written for people only
UNVERIFIED = ("metrics.jsonl",)  # another digit there is not noticed; nothing is computed from these numbers
# A command hangs if it takes longer than this many times the reference, and more.
HANG_FACTOR, HANG_SECONDS = 20, 120.0


class FindingError(Exception):
    """Something that must not happen."""


class SkippedError(Exception):
    """A disturbance that is not possible on this machine."""


@dataclass(frozen=True)
class Reference:
    """An undisturbed run."""

    seconds: float
    files: dict[str, object]  # `compare.snapshot`
    num_bytes: int
    largest: int  # bytes of the largest file


@dataclass
class Trial:
    """A place with nothing in it, a command, what it must end with, and where random choices come from."""

    command: Command
    reference: Reference
    folder: Path
    rng: random.Random
    outputs: list[str]  # what was printed by each call, for the record
    story: list[str]  # what was done
    signals: list[str] = field(default_factory=list)  # sent while the command was running

    @property
    def out(self) -> Path:
        """What the command writes."""
        return self.folder / self.command.out

    @property
    def limit(self) -> float:
        """Seconds after which it hangs."""
        return HANG_SECONDS + HANG_FACTOR * self.reference.seconds

    def moment(self) -> float:
        """Return a random time within the command, in seconds."""
        return self.rng.uniform(0.01, 1.0) * self.reference.seconds

    def call(self, *, max_file_size: int | None = None) -> Ended:
        """Call the command and wait for its end."""
        return self.check(self.command.start(self.folder, max_file_size=max_file_size).end(self.limit))

    def check(self, ended: Ended) -> Ended:
        """Raise FindingError for what no end of a command may have: a hang, a traceback, processes that are left."""
        self.outputs.append(f"exit code {ended.code}\n{ended.output}")
        if ended.code is None:
            raise FindingError(f"it hangs: not finished after {self.limit:.0f} s")
        if ended.left:
            raise FindingError(f"{len(ended.left)} of its processes outlived it")
        if "Traceback (most recent call last)" in ended.output and ended.code != -signal.SIGKILL:
            raise FindingError("it ended with a traceback")
        return ended

    def finish(self) -> None:
        """Type the same command until it is finished; nothing disturbs it, so it has no reason to fail."""
        for _ in range(MAX_CALLS):
            ended = self.call()
            if ended.code == 0:
                return
            if ended.code != INTERRUPTED:
                raise FindingError(f"undisturbed again, it ended with code {ended.code}: {last_line(ended.output)}")
        raise FindingError(f"not finished after {MAX_CALLS} calls")

    def differences(self) -> list[str]:
        """Return the files that are not as in the reference."""
        return differing(self.reference.files, snapshot(self.out, self.command.rules))

    def finish_equal(self) -> None:
        """Finish, and raise FindingError unless everything is as in the reference."""
        self.finish()
        if found := self.differences():
            raise FindingError(f"finished with other files than undisturbed: {', '.join(found[:6])}")


def last_line(output: str) -> str:
    """Return the last line of what was printed that is not empty."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "(nothing printed)"


def kill(trial: Trial) -> Outcome:
    """SIGKILL to the whole group at a random moment, up to three times."""
    for _ in range(trial.rng.randint(1, 3)):
        _interrupt(trial, signal.SIGKILL)
    trial.finish_equal()
    return "equal"


def terminate(trial: Trial) -> Outcome:
    """SIGTERM to the whole group: the exit code says that it can be resumed."""
    ended = _interrupt(trial, signal.SIGTERM)
    if ended.code not in (0, INTERRUPTED):
        raise FindingError(f"SIGTERM ended it with code {ended.code}, not {INTERRUPTED}: {last_line(ended.output)}")
    trial.finish_equal()
    return "equal"


def _interrupt(trial: Trial, number: signal.Signals) -> Ended:
    seconds = trial.moment()
    running = trial.command.start(trial.folder)
    if running.wait(seconds):
        running.signal_group(number)
        trial.signals.append(number.name)
    trial.story.append(f"{number.name} after {seconds:.2f} s")
    return trial.check(running.end(trial.limit))


def truncate(trial: Trial) -> Outcome:
    """A file of the output loses its end."""
    return _damage(trial, lambda data, rng: data[: rng.randrange(len(data))])


def flip(trial: Trial) -> Outcome:
    """One bit of a file of the output is changed."""

    def flip_bit(data: bytes, rng: random.Random) -> bytes:
        place = rng.randrange(len(data))
        return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]

    return _damage(trial, flip_bit, without=UNVERIFIED)


def _damage(trial: Trial, change: Callable[[bytes, random.Random], bytes], *, without: tuple[str, ...] = ()) -> Outcome:
    """Damage a file while the command is half done, or afterward.

    It must be repaired, or the command must name it, in an error or a warning; or, if the command does not read it any
    more, it must be the only difference.
    """
    if trial.rng.random() < 0.6:
        _interrupt(trial, signal.SIGKILL)
    if not _damageable(trial.out, without):
        trial.story.append("nothing was written yet: finished first")
        trial.finish()
    path = _choose_file(trial, without)
    whole = path.read_bytes()
    damaged = change(whole, trial.rng)
    path.write_bytes(damaged)
    name = path.relative_to(trial.folder).as_posix()
    trial.story.append(f"{name}: {len(whole)} bytes, then {len(damaged)}")
    ended = trial.call()
    if ended.code != 0:
        if path.name not in "".join(ended.output.split()):  # lines are wrapped anywhere
            raise FindingError(f"{name} is damaged, and the error does not name it: {last_line(ended.output)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(whole)  # as from a backup
        trial.finish_equal()
        return "error"
    found = trial.differences()
    if not found:
        return "equal"
    inside = path.relative_to(trial.out).as_posix() if path != trial.out else path.name
    if found == [inside] and path.name in "".join(ended.output.split()):
        return "error"  # a warning that names it
    if path.is_file() and path.read_bytes() == damaged and found == [inside]:
        return "kept"
    raise FindingError(f"{name} was damaged, and the command ended quietly with other files: {', '.join(found[:6])}")


def _damageable(out: Path, without: tuple[str, ...]) -> list[Path]:
    paths = [out] if out.is_file() else sorted(out.rglob("*"))
    files = [path for path in paths if path.is_file() and not path.is_symlink() and path.stat().st_size]
    return [path for path in files if path.name not in (*NEVER_READ, *without) and "/.work/logs/" not in str(path)]


def _choose_file(trial: Trial, without: tuple[str, ...]) -> Path:
    """Choose a kind of file first: there are many more videos than tables."""
    paths = _damageable(trial.out, without)
    kind = trial.rng.choice(sorted({path.suffix for path in paths}))
    return trial.rng.choice([path for path in paths if path.suffix == kind])


def limit_files(trial: Trial) -> Outcome:
    """Files cannot grow beyond a random size, as with a quota."""
    size = int(trial.rng.uniform(0.02, 1.0) ** 2 * trial.reference.largest)
    trial.story.append(f"no file can have more than {size} bytes")
    ended = trial.call(max_file_size=size)
    return _after_full_disk(trial, ended)


def fill_disk(trial: Trial) -> Outcome:
    """The disk of the output is full before the command is finished; then it is made larger."""
    size = int(trial.rng.uniform(0.05, 1.0) * trial.reference.num_bytes) // 4096 + 1
    trial.story.append(f"a disk of {4 * size} kB")
    with _small_disk(trial.folder, 4 * size) as enlarge:
        ended = trial.call()
        enlarge()
        return _after_full_disk(trial, ended)


def _after_full_disk(trial: Trial, ended: Ended) -> Outcome:
    if ended.code == 0:
        trial.finish_equal()
        return "equal"
    text = " ".join(ended.output.split()).lower()
    if not any(reason in text for reason in ("no space", "file too large", "disk", "quota")):
        raise FindingError(f"the disk is full, and the error does not say so: {last_line(ended.output)}")
    trial.finish_equal()
    return "error"


@contextmanager
def _small_disk(folder: Path, kilobytes: int) -> Iterator[Callable[[], None]]:
    """Mount a disk at `folder`; yield a function that makes it large."""

    def mount(options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        return shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0

    if not mount(f"size={kilobytes}k"):
        raise SkippedError("no permission to mount a small disk")
    try:
        yield lambda: None if mount("remount,size=1g") else _cannot_enlarge()
    finally:
        kept = folder.with_name(f"{folder.name}.kept")
        shutil.copytree(folder, kept, symlinks=True)  # a finding's files outlive the disk
        subprocess.run(["umount", str(folder)], check=True, capture_output=True)
        folder.rmdir()
        kept.rename(folder)


def _cannot_enlarge() -> None:
    raise SkippedError("the small disk could not be enlarged")


def race(trial: Trial) -> Outcome:
    """Start the same command twice: both finish, or one is refused in a line that says why."""
    delay = trial.moment() * trial.rng.random()
    first = trial.command.start(trial.folder)
    first.wait(delay)
    second = trial.command.start(trial.folder)
    trial.story.append(f"a second process after {delay:.2f} s")
    ends = [trial.check(one.end(trial.limit)) for one in (first, second)]
    codes = [end.code for end in ends]
    if 0 not in codes:
        raise FindingError(f"two processes, and neither finished: exit codes {codes}, {last_line(ends[0].output)}")
    refused = [end for end in ends if end.code != 0]
    if refused and "another process" not in " ".join(refused[0].output.split()):
        raise FindingError(f"refused beside another process without saying so: {last_line(refused[0].output)}")
    trial.finish_equal()
    return "error" if refused else "equal"


DISTURBANCES: dict[str, Callable[[Trial], Outcome]] = {
    "kill": kill,
    "SIGTERM": terminate,
    "truncate": truncate,
    "flip a bit": flip,
    "file limit": limit_files,
    "full disk": fill_disk,
    "race": race,
}
