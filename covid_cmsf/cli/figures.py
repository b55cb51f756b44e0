"""`covid-cmsf figures ...`: figures of the paper from the files of runs."""

import json
from pathlib import Path

import typer

app = typer.Typer(no_args_is_help=True, help="Figures of the paper from runs: neighbors under noise, noise curves.")


@app.command()
def neighbors(
    run: Path = typer.Argument(..., help="Folder of a run or stage that was trained on images.", show_default=False),
    features: Path | None = typer.Option(
        None, "--features", help="Features of its training images; by default features.safetensors in the folder."
    ),
    label: int | None = typer.Option(None, "--label", min=0, help="Of this label; by default drawn by the seed."),
    number: int = typer.Option(10, "--number", min=1, help="Images in a row."),
    seed: int = typer.Option(0, "--seed", min=0, help="Draws label and queries."),
    out: Path = typer.Option(..., "--out", "-o", help="The PNG to write; a JSON file of the data goes beside it."),
) -> None:
    """Nearest images with the same (partly wrong) label: of a right query, of a wrong one, and random (figure 2)."""
    from covid_cmsf.atomic import write_text_atomic
    from covid_cmsf.report.gallery_picture import draw_gallery
    from covid_cmsf.report.noisy_neighbors import as_values
    from covid_cmsf.report.noisy_run import run_gallery

    _check_folder(out)
    found = run_gallery(run, features or run / "features.safetensors", label=label, num_found=number, seed=seed)
    draw_gallery(found.rows, found.pictures, found.class_names, out)
    values = as_values(found.rows, found.class_names)
    write_text_atomic(out.with_suffix(".json"), json.dumps(values, indent=1) + "\n")
    purity = ", ".join(f"{row.kind} {100 * row.purity:.0f}%" for row in found.rows)
    typer.echo(f"{out}: same true class: {purity}")


@app.command()
def noise(
    plans: list[Path] = typer.Argument(..., help="Folders of plans (or of their stages).", show_default=False),
    out: Path = typer.Option(..., "--out", "-o", help="Name of the figure: .png, .svg and .json are added."),
) -> None:
    """Accuracy over the share of wrong labels, a curve a method, with the spread over seeds (figure 3)."""
    from covid_cmsf.report.noise_curves import draw_noise_curves, read_points, stage_folders

    _check_folder(out)
    points = read_points(stage_folders(plans))
    if not points:
        raise ValueError("none of these stages was trained, so there is no noise to show")
    draw_noise_curves(points, out)
    typer.echo(f"{out}.png, {out}.svg, {out}.json: {len(points)} points")


def _check_folder(out: Path) -> None:
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no folder {out.parent} to write {out.name} into")
