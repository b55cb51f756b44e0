"""Progress of a plan on the screen: a bar for each stage that runs, from the files that it writes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.logs import console
from covid_cmsf.training.display import in_short
from covid_cmsf.training.metrics import last_metrics

Show = Callable[[list[Stage], dict[str, str]], None]


@contextmanager
def stage_bars() -> Iterator[Show]:
    """Yields the function that brings the bars up to date; it shows nothing elsewhere than on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[Path, TaskID] = {}

        def show(stages: list[Stage], states: dict[str, str]) -> None:
            for stage in stages:
                if states[stage.name] == "running":
                    if stage.folder not in tasks:
                        total = stage.settings.schedule.epochs if stage.settings is not None else None
                        tasks[stage.folder] = bars.add_task(stage.name, total=total, facts="")
                    facts = last_metrics(stage.folder / "metrics.jsonl")
                    if facts:
                        bars.update(tasks[stage.folder], completed=facts["epoch"], facts=in_short(facts))
                elif stage.folder in tasks:
                    bars.remove_task(tasks.pop(stage.folder))

        yield show
