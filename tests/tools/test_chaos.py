"""`tools/chaos.py`: it finds commands that are broken on purpose, and nothing in ours."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import pytest

from tools import chaos
from tools.disturbances import processes, trials
from tools.disturbances.commands import NETWORK_USED, Command, all_commands, refuse_network
from tools.disturbances.compare import differing, snapshot
from tools.disturbances.trials import DISTURBANCES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc"),
]
ROOT = Path(__file__).resolve().parents[2]
PIECES = 20
FEWEST_TRIALS = 8
Outcomes = Callable[..., list[chaos.Result]]


def sound() -> None:
    """Write pieces, each complete and verified when it is read; then all of them as one file."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(75))
    out = Path("out")
    out.mkdir(exist_ok=True)
    for number in range(PIECES):
        piece, wanted = out / f"{number}.piece", f"piece {number}\n" * 50
        if not piece.is_file() or piece.read_text(errors="replace") != wanted:
            time.sleep(0.01)
            replace_file(piece, wanted)
    replace_file(out / "whole.txt", "".join((out / f"{number}.piece").read_text() for number in range(PIECES)))


def replace_file(path: Path, text: str) -> None:
    temporary = Path(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        print(f"error: {path}: {error.strerror}", flush=True)
        sys.exit(1)


def believes_its_pieces() -> None:
    """As `sound`, but a piece that is there is taken for complete."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(75))
    out = Path("out")
    out.mkdir(exist_ok=True)
    for number in range(PIECES):
        if not (out / f"{number}.piece").is_file():
            time.sleep(0.01)
            (out / f"{number}.piece").write_text(f"piece {number}\n" * 50)
    (out / "whole.txt").write_text("".join((out / f"{n}.piece").read_text(errors="replace") for n in range(PIECES)))


def appends() -> None:
    """It writes in place, and what was there before stays."""
    Path("out").mkdir(exist_ok=True)
    with Path("out/lines.txt").open("a", buffering=1) as file:
        for number in range(PIECES):
            file.write(f"{number}\n")
            time.sleep(0.01)


def hangs_when_resumed() -> None:
    if Path("out").exists():
        time.sleep(3600)
    Path("out").mkdir()
    time.sleep(0.1)


def fails_when_resumed() -> None:
    Path("out").mkdir()
    time.sleep(0.1)


def leaves_a_process() -> None:
    Path("out").mkdir(exist_ok=True)
    if os.fork() == 0:
        time.sleep(3600)


def asks_the_network() -> None:
    sys.addaudithook(refuse_network)
    socket.getaddrinfo("localhost", 80)


def disturb_several(
    body: Callable[[], None], disturbance: str, work: Path, number: int, hang_seconds: float, grace: float
) -> list[chaos.Result]:
    """Run a command undisturbed, then disturb it `number` times."""
    trials.HANG_SECONDS, processes.GRACE = hang_seconds, grace
    command = Command("broken", body)
    reference = chaos.run_reference(command, work)
    return [chaos.disturb(command, disturbance, reference, work, seed=0, number=current) for current in range(number)]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Outcomes]:
    """Return `disturb_several` in a process of its own.

    Commands are forked. This one may have threads and fork handlers of other tests' libraries (Ray's), which a forked
    process does not survive.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:

        def run(
            body: Callable[[], None],
            disturbance: str,
            work: Path,
            *,
            number: int = 6,
            hang_seconds: float = trials.HANG_SECONDS,
            grace: float = processes.GRACE,
        ) -> list[chaos.Result]:
            return pool.submit(disturb_several, body, disturbance, work, number, hang_seconds, grace).result()

        yield run


@pytest.mark.parametrize("disturbance", [name for name in DISTURBANCES if name != "full disk"])
def test_a_sound_command_passes(disturbance: str, outcomes: Outcomes, tmp_path: Path) -> None:
    found = outcomes(sound, disturbance, tmp_path)
    assert {result.outcome for result in found} <= {"equal", "error"}, found
    assert not (tmp_path / "findings").exists() and not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("body", "disturbance", "message"),
    [
        (believes_its_pieces, "truncate", "ended quietly with other files"),
        (believes_its_pieces, "flip a bit", "ended quietly with other files"),
        (appends, "kill", "finished with other files than undisturbed: lines.txt"),
        (appends, "SIGTERM", "SIGTERM ended it with code -15, not 75"),
        (appends, "race", "finished with other files"),
        (hangs_when_resumed, "kill", "it hangs"),
        (fails_when_resumed, "kill", "it ended with a traceback"),
    ],
)
def test_a_broken_command_is_found_out(
    body: Callable[[], None], disturbance: str, message: str, outcomes: Outcomes, tmp_path: Path
) -> None:
    number = 2 if body is hangs_when_resumed else 6
    found = outcomes(body, disturbance, tmp_path, number=number, hang_seconds=2)
    findings = [result for result in found if result.outcome == "finding"]
    assert findings and any(message in result.detail for result in findings), found
    kept = tmp_path / "findings" / str(findings[0].number)
    assert "exit code" in (kept / "printed.txt").read_text()


def test_kills_of_a_running_command_are_counted(outcomes: Outcomes, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    killed = outcomes(sound, "kill", tmp_path / "a", number=3)
    assert all(set(result.signals) <= {"SIGKILL"} and len(result.signals) <= 3 for result in killed)
    assert any(result.signals for result in killed)
    assert not any(result.signals for result in outcomes(sound, "file limit", tmp_path / "b", number=2))


def test_a_command_that_asks_the_network_is_found(outcomes: Outcomes, tmp_path: Path) -> None:
    """No command may: chaos would not even finish its undisturbed run."""
    with pytest.raises(RuntimeError, match=f"ended with code {NETWORK_USED}: NETWORK: socket.getaddrinfo"):
        outcomes(asks_the_network, "kill", tmp_path)


def test_processes_that_outlive_their_command_are_found(outcomes: Outcomes, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="undisturbed, broken ended with code 0"):
        outcomes(leaves_a_process, "kill", tmp_path, grace=0.2)


def test_the_seed_decides_what_is_disturbed() -> None:
    commands = all_commands()
    first, again, other = (
        [(command.name, name) for command, name in islice(chaos.plan(commands, seed), 200)] for seed in (0, 0, 1)
    )
    assert first == again != other
    counts = Counter(first[: sum(command.weight for command in commands) * len(DISTURBANCES)])
    assert set(counts) == {(command.name, name) for command in commands for name in DISTURBANCES}


def test_the_comparison_leaves_out_times_and_sees_everything_else(tmp_path: Path) -> None:
    for name, loss, seconds in (("a", 1.0, 5.0), ("b", 1.0, 6.0), ("c", 1.5, 5.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": loss, "seconds": seconds}) + "\n")
        (tmp_path / name / "log.txt").write_text(f"{seconds} s")
    one, same, other = (snapshot(tmp_path / name, "run") for name in "abc")
    assert differing(one, same) == [] and differing(one, other) == ["metrics.jsonl"]
    (tmp_path / "b" / "extra").touch()
    assert differing(one, snapshot(tmp_path / "b", "run")) == ["extra"]


@pytest.mark.slow
def test_two_minutes_of_disturbances_change_no_result(tmp_path: Path) -> None:
    """The undisturbed runs take about another minute; a busy machine takes as long as the fewest trials need."""
    command = [sys.executable, str(ROOT / "tools" / "chaos.py"), "--minutes", "2", "--seed", "0"]
    command += ["--trials", str(FEWEST_TRIALS)]
    files = ["--work", str(tmp_path / "work"), "--json", str(tmp_path / "figures.json")]
    ended = subprocess.run([*command, *files], capture_output=True, text=True, timeout=3600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    trials = figures["trials"]
    assert figures["signals"].get("SIGKILL", 0) == sum(trial["signals"].count("SIGKILL") for trial in trials)
    assert len(trials) >= FEWEST_TRIALS and figures["signals"]["SIGKILL"] >= 1
    outcomes = Counter(trial["outcome"] for trial in trials)
    assert outcomes["equal"] >= 1 and outcomes["skipped"] <= len(trials) // 2, outcomes


def test_chaos_goes_on_until_there_were_enough_trials_and_a_kill() -> None:
    sound, killed = (chaos.Result(0, "a", "kill", "equal", "", 1.0, signals) for signals in ((), ("SIGKILL",)))
    assert chaos.is_enough([], 0) and chaos.is_enough([sound, killed], 2)
    assert not chaos.is_enough([sound] * 9, 2) and not chaos.is_enough([killed], 2)
