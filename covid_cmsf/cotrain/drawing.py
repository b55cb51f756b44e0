"""A plan as a picture in text: which stage trains what, from which start, under which guide, at which cost."""

from collections.abc import Sequence

from rich.table import Table
from rich.tree import Tree

from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.stage_files import is_done
from covid_cmsf.cotrain.table import model_words


def graph_of(stages: Sequence[Stage]) -> Tree:
    """Each stage below the one it starts from; guides are named beside it."""
    tree = Tree("plan")
    branches: dict[str, Tree] = {}
    for stage in stages:
        parent = branches.get(stage.chosen.init or "", tree)
        guided = f"  ← guided by {', '.join(stage.chosen.guides)}" if stage.chosen.guides else ""
        branches[stage.name] = parent.add(f"{stage.name}: {model_words(stage)} on {stage.modality}{guided}")
    return tree


def cost_table(stages: Sequence[Stage], costs: dict[str, float | None]) -> Table:
    """What is done, and what the rest may take; seconds by stage, None where nothing is trained."""
    table = Table("stage", "state", "epochs", "training, about")
    for stage in stages:
        epochs = "" if stage.settings is None else str(stage.settings.schedule.epochs)
        seconds = costs[stage.name]
        state = "done" if is_done(stage) else "to do"
        table.add_row(stage.name, state, epochs, "" if seconds is None else duration(seconds))
    left = sum(costs[stage.name] or 0 for stage in stages if not is_done(stage))
    table.add_section()
    table.add_row("to do", "", "", duration(left))
    return table


def duration(seconds: float) -> str:
    """In words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
