"""Disturb the commands at random, and check that the same command then ends with the same result (Linux only).

    python tools/chaos.py --minutes 2 --seed 0
    python tools/chaos.py --minutes 10 --only train,preprocess     only these commands
    python tools/chaos.py --seed 0 --number 17                     only this disturbance, as after a finding

Each command runs once undisturbed. Then it is killed, its files are damaged, its disk is full, or it races with itself;
the same command follows until it is finished, and its files are compared with the undisturbed ones. The exit code is 1
if something differs, if an error does not say what is wrong, or if a process hangs; the folder is then kept.
"""

import itertools
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the checkout: `tools` is not installed

from tools.disturbances.commands import Command, all_commands, import_everything, write_inputs
from tools.disturbances.compare import snapshot
from tools.disturbances.trials import DISTURBANCES, FindingError, Outcome, Reference, SkippedError, Trial

COLUMNS: tuple[Outcome, ...] = ("equal", "error", "kept", "skipped", "finding")
HEADINGS = ("tries", "equal", "clear error", "left as is", "skipped", "FINDINGS")


@dataclass(frozen=True)
class Result:
    """What came of one disturbance."""

    number: int
    command: str
    disturbance: str
    outcome: Outcome
    detail: str
    seconds: float
    signals: tuple[str, ...] = ()  # sent while the command was running: SIGKILL or SIGTERM


def plan(commands: Sequence[Command], seed: int) -> Iterator[tuple[Command, str]]:
    """Yield commands and disturbances without end: every pair, as often as the command's weight, then all again."""
    pairs = [(command, name) for command in commands for name in DISTURBANCES for _ in range(command.weight)]
    for cycle in itertools.count():
        rng = random.Random(f"{seed}/cycle {cycle}")
        yield from rng.sample(pairs, len(pairs))


def run_reference(command: Command, work: Path) -> Reference:
    """Run a command undisturbed, and keep its files where later commands find them."""
    folder, kept = work / "site", work / "reference" / command.name
    folder.mkdir()
    began = time.monotonic()
    ended = command.start(folder).end(1800)
    seconds = time.monotonic() - began
    if ended.code != 0 or ended.left:
        raise RuntimeError(f"undisturbed, {command.name} ended with code {ended.code}: {ended.output}")
    out = folder / command.out
    sizes = [path.stat().st_size for path in ([out] if out.is_file() else out.rglob("*")) if path.is_file()]
    files = snapshot(out, command.rules)
    kept.parent.mkdir(exist_ok=True)
    folder.rename(kept)
    return Reference(seconds, files, sum(sizes), max(sizes, default=0))


def disturb(command: Command, name: str, reference: Reference, work: Path, *, seed: int, number: int) -> Result:
    """Do one disturbance in an empty folder; the folder of a finding is kept."""
    folder = work / "site"
    folder.mkdir()
    trial = Trial(command, reference, folder, random.Random(f"{seed}/{number}"), [], [])
    began = time.monotonic()
    outcome: Outcome
    try:
        outcome, detail = DISTURBANCES[name](trial), ""
    except SkippedError as reason:
        outcome, detail = "skipped", str(reason)
    except FindingError as reason:
        outcome, detail = "finding", f"{reason} ({'; '.join(trial.story)})"
    if outcome == "finding":
        (folder / "printed.txt").write_text("\n".join([*trial.story, *trial.outputs]))
        kept = work / "findings" / str(number)
        kept.parent.mkdir(exist_ok=True)
        folder.rename(kept)
    else:
        shutil.rmtree(folder)
    return Result(number, command.name, name, outcome, detail, time.monotonic() - began, tuple(trial.signals))


def format_table(results: Sequence[Result]) -> str:
    """Return a table with a line per command and disturbance."""
    counts = Counter((result.command, result.disturbance, result.outcome) for result in results)
    pairs = sorted({(result.command, result.disturbance) for result in results})
    lines = [f"{'command':14}{'disturbance':14}" + "".join(f"{heading:>13}" for heading in HEADINGS)]
    for pair in pairs:
        numbers = [counts[(*pair, outcome)] for outcome in COLUMNS]
        lines.append(
            f"{pair[0]:14}{pair[1]:14}" + "".join(f"{number or '':>13}" for number in (sum(numbers), *numbers))
        )
    numbers = [sum(result.outcome == outcome for result in results) for outcome in COLUMNS]
    lines.append(f"{'all':28}" + "".join(f"{number:>13}" for number in (len(results), *numbers)))
    return "\n".join(lines)


def is_enough(results: Sequence[Result], trials: int) -> bool:
    """Return whether there were so many disturbances, and a kill of a running command among them."""
    return not trials or (len(results) >= trials and any("SIGKILL" in result.signals for result in results))


def run(
    commands: Sequence[Command], work: Path, *, minutes: float, seed: int, number: int | None, trials: int = 0
) -> list[Result]:
    """Disturb the commands, whose references are made here, for some minutes or only once; print every finding."""
    references = {command.name: run_reference(command, work) for command in commands}
    seconds = ", ".join(f"{name} {reference.seconds:.1f} s" for name, reference in references.items())
    print(f"undisturbed: {seconds}", flush=True)
    results: list[Result] = []
    end = time.monotonic() + 60 * minutes
    for current, (command, name) in enumerate(plan(commands, seed)):
        over = time.monotonic() >= end and is_enough(results, trials) if number is None else current > number
        if over:
            break
        if number not in (None, current):
            continue
        result = disturb(command, name, references[command.name], work, seed=seed, number=current)
        results.append(result)
        if result.detail:
            print(f"{current}: {command.name}, {name}: {result.outcome}: {result.detail}", flush=True)
    return results


def main(
    minutes: float = typer.Option(2.0, min=0.0, help="How long to disturb, after the undisturbed runs."),
    seed: int = typer.Option(0, help="Of all random choices; times still depend on the machine."),
    only: str = typer.Option("", help="Only these commands, as train,extract; those that they need run undisturbed."),
    number: int | None = typer.Option(None, help="Only the disturbance of this number."),
    trials: int = typer.Option(0, min=0, help="Go on after that time until there were so many, and a SIGKILL."),
    work: Path | None = typer.Option(None, help="Empty folder for everything; default: a temporary one."),
    json_file: Path | None = typer.Option(None, "--json", help="Also write all outcomes to this file."),
) -> None:
    """Disturb commands at random, and check that each ends with the same result all the same."""
    os.environ["OMP_NUM_THREADS"] = "1"  # the last bits of sums depend on the number of threads
    commands = all_commands()
    names = [command.name for command in commands]
    chosen = [name.strip() for name in only.split(",")] if only else names
    if unknown := set(chosen) - set(names):
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(names)}")
    if work is not None and work.exists() and any(work.iterdir()):
        raise typer.BadParameter(f"{work} is not empty")
    place = Path(tempfile.mkdtemp(prefix="chaos-")) if work is None else work.resolve()
    import_everything()
    write_inputs(place / "inputs")
    for command in commands:
        if command.name in {"preprocess", "train"} - set(chosen):  # inputs of the others
            run_reference(command, place)
    began = time.time()
    selected = [command for command in commands if command.name in chosen]
    results = run(selected, place, minutes=minutes, seed=seed, number=number, trials=trials)
    print(format_table(results))
    sent = Counter(signal for result in results for signal in result.signals)
    print(f"signals to running commands: {sent['SIGKILL']} SIGKILL, {sent['SIGTERM']} SIGTERM")
    if json_file is not None:
        minutes = round((time.time() - began) / 60, 1)  # with the undisturbed runs
        figures = {"seed": seed, "minutes": minutes, "signals": sent, "trials": [*map(asdict, results)]}
        json_file.write_text(json.dumps(figures, indent=1) + "\n")
    findings = [result for result in results if result.outcome == "finding"]
    for result in findings:
        again = f"python tools/chaos.py --seed {seed}{f' --only {only!r}' if only else ''} --number {result.number}"
        print(f"finding {result.number}: {place / 'findings' / str(result.number)}; to repeat it: {again}")
    if not findings and work is None:
        shutil.rmtree(place)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    typer.run(main)
