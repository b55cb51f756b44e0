"""`covid-cmsf report`."""

import json
import threading
import time
from pathlib import Path

import typer

QUERY_HELP = "Show this video in the gallery, whatever is drawn; may be given several times."


def report(
    paths: list[Path] = typer.Argument(
        None, metavar="RUN_OR_PLAN...", help="Folders of plans or runs; several are compared.", show_default=False
    ),
    out: Path = typer.Option(Path("report"), "--out", "-o", help="The folder to write."),
    serve: bool = typer.Option(False, "--serve", help="Show it on localhost, and follow training."),
    port: int = typer.Option(8765, "--port", min=0, max=65535, help="With --serve; 0: any that is free."),
    interval: float = typer.Option(
        5.0, "--interval", min=0.2, help="With --serve: seconds between looks at the files."
    ),
    queries: int = typer.Option(60, "--queries", min=1, help="Videos in the gallery, some of every class."),
    neighbors: int = typer.Option(8, "--neighbors", min=1, max=50, help="Neighbors shown of each."),
    query: list[str] = typer.Option([], "--query", help=QUERY_HELP, show_default=False),
    seed: int = typer.Option(0, "--seed", min=0, help="Draws the videos of the gallery."),
    clips: str | None = typer.Option(None, "--clips", help="Where the clips are now, if they have moved."),
    thumbnails: bool = typer.Option(True, help="Thumbnails of the videos."),
    umap: bool = typer.Option(True, help="Maps by UMAP too, where umap-learn is installed."),
    megabytes: float = typer.Option(25.0, "--megabytes", min=6, help="Of the folder: thumbnails are made to fit."),
    workers: int = typer.Option(2, "--workers", min=1, help="Threads that make thumbnails."),
) -> None:
    """Write a page about plans and runs: tables, curves, neighbors, maps, errors, data, provenance.

    The folder is complete: it opens from disk, without a server or network. `--serve` without folders follows those of
    the report that is in --out already.
    """
    from covid_cmsf.report.build import Report, ReportOptions, read_metadata
    from covid_cmsf.report.serve import server_url, start_server, watch_and_rebuild

    if not paths and not serve:
        raise ValueError("which runs? covid-cmsf report RUN_OR_PLAN [...] --out report")
    chosen = list(paths or map(Path, read_metadata(out)["paths"]))
    options = ReportOptions(
        num_queries=queries,
        num_neighbors=neighbors,
        always_shown=tuple(query),
        clips=clips,
        megabytes=megabytes,
        workers=workers,
        umap=umap,
        pictures=thumbnails,
        seed=seed,
    )
    start = time.monotonic()
    page = Report(chosen, out, options)
    metadata = page.write(live=interval if serve else 0.0)
    for note in metadata["notes"]:
        typer.echo(f"note: {note}")
    typer.echo(f"{out / 'index.html'}: {metadata['bytes'] / 1e6:.1f} MB in {time.monotonic() - start:.0f} s")
    if serve:
        server = start_server(out, port)
        typer.echo(f"{server_url(server)} follows {', '.join(map(str, chosen))}; Ctrl-C ends")
        stop = threading.Event()
        try:
            watch_and_rebuild(page, interval=interval, stop=stop)
        except KeyboardInterrupt:
            page.write()
        finally:
            server.shutdown()


# `covid-cmsf figures ...`: figures of the paper from the files of runs.

figures_app = typer.Typer(
    no_args_is_help=True, help="Figures of the paper from runs: neighbors under noise, noise curves."
)


@figures_app.command()
def neighbors(
    run: Path = typer.Argument(..., help="Folder of a run or stage that was trained on images.", show_default=False),
    features: Path | None = typer.Option(
        None, "--features", help="Features of its training images; by default features.safetensors in the folder."
    ),
    label: int | None = typer.Option(None, "--label", min=0, help="Of this label; by default drawn by the seed."),
    num_images: int = typer.Option(10, "--num-images", min=1, help="Images in a row."),
    seed: int = typer.Option(0, "--seed", min=0, help="Draws label and queries."),
    out: Path = typer.Option(..., "--out", "-o", help="The PNG to write; a JSON file of the data goes beside it."),
) -> None:
    """Nearest images with the same (partly wrong) label: of a right query, of a wrong one, and random (figure 2)."""
    from covid_cmsf.files import write_text_atomic
    from covid_cmsf.report.noise_figures import draw_gallery
    from covid_cmsf.report.noisy_gallery import gallery_to_dict, run_gallery

    _check_folder(out)
    gallery = run_gallery(
        run, features or run / "features.safetensors", label=label, num_neighbors=num_images, seed=seed
    )
    draw_gallery(gallery.rows, gallery.pictures, gallery.class_names, out)
    values = gallery_to_dict(gallery.rows, gallery.class_names)
    write_text_atomic(out.with_suffix(".json"), json.dumps(values, indent=1) + "\n")
    purity = ", ".join(f"{row.kind} {100 * row.purity:.0f}%" for row in gallery.rows)
    typer.echo(f"{out}: same true class: {purity}")


@figures_app.command()
def noise(
    plans: list[Path] = typer.Argument(..., help="Folders of plans (or of their stages).", show_default=False),
    out: Path = typer.Option(..., "--out", "-o", help="Name of the figure: .png, .svg and .json are added."),
) -> None:
    """Accuracy over the share of wrong labels, a curve a method, with the spread over seeds (figure 3)."""
    from covid_cmsf.report.noise_figures import draw_noise_curves, finished_stage_folders, read_points

    _check_folder(out)
    points = read_points(finished_stage_folders(plans))
    if not points:
        raise ValueError("none of these stages was trained, so there is no noise to show")
    draw_noise_curves(points, out)
    typer.echo(f"{out}.png, {out}.svg, {out}.json: {len(points)} points")


def _check_folder(out: Path) -> None:
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no folder {out.parent} to write {out.name} into")
