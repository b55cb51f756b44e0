"""`covid-cmsf cotrain`."""

from pathlib import Path

import typer
from rich.console import Console


def cotrain(
    plan: Path = typer.Argument(
        ..., help="A YAML file: stages, or rounds. configs/demo and configs/paper have some.", show_default=False
    ),
    overrides: list[str] = typer.Argument(None, help="Changes, for example rounds=1 settings.batch_size=64."),
    out: Path | None = typer.Option(
        None, "--out", help="Folder of the plan. By default runs/ and the file's name.", show_default=False
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the stages as a graph, with cost estimates."),
    only: str | None = typer.Option(None, "--only", help="Do this stage and nothing else.", show_default=False),
    start: str | None = typer.Option(None, "--from", help="Do the stages from this one on.", show_default=False),
    parallel: int = typer.Option(1, "--parallel", min=1, help="Stages side by side: each on a GPU of its own."),
    num_processes: int = typer.Option(1, "--processes", min=1, help="Processes of each stage, under torchrun."),
) -> None:
    """Run co-training rounds: every stage trains one network, from a start, under the guidance of others.

    It behaves like a build system. What is done is not done again; a changed setting redoes its stage and those that
    need it; a killed plan continues in the middle of a stage. After each stage features are extracted and measured,
    and the table of the plan is printed and written to table.md, table.csv and table.json.
    """
    from covid_cmsf.cotrain.run import graphs_of, load_plan

    chosen = load_plan(plan, list(overrides or []))
    folder = out or Path("runs") / plan.stem
    console = Console()
    if dry_run:
        from covid_cmsf.cotrain.costs import stage_costs
        from covid_cmsf.cotrain.drawing import cost_table, graph_of
        from covid_cmsf.cotrain.executor import ready_for

        for stages in graphs_of(chosen, folder, place=plan.parent):
            wanted = ready_for(stages, only=only, start=start)
            stages = [stage for stage in stages if stage.name in wanted] if only or start else stages
            console.print(graph_of(stages))
            console.print(cost_table(stages, stage_costs(stages)))
        return
    from covid_cmsf.cotrain.bars import stage_bars
    from covid_cmsf.cotrain.run import run_plan
    from covid_cmsf.cotrain.table import screen_table

    with stage_bars() as show:
        code, rows = run_plan(
            chosen,
            folder,
            place=plan.parent,
            only=only,
            start=start,
            parallel=parallel,
            num_processes=num_processes,
            show=show,
        )
    title = f"{plan.stem}: R@1 and linear in percent, protocol {chosen.evaluation.protocol}"
    console.print(screen_table(rows, title, width=console.width))
    console.print(f"everything is in {folder}: table.md, table.csv, table.json, and a folder for each stage")
    raise typer.Exit(code)
