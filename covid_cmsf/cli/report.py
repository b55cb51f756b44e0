"""`covid-cmsf report` and `figures`."""

import json
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from covid_cmsf.cli.options import NewFile, Seed, interrupt_on_sigterm


def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN_OR_PLAN...", help="Folders of plans or runs; several are compared.", show_default=False
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")] = Path("report"),
    serve: Annotated[bool, typer.Option("--serve", help="Serve it on localhost, updated during training.")] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="With --serve; 0: any free port.")] = 8765,
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, help="With --serve: seconds between updates.")
    ] = 5.0,
    queries: Annotated[
        int, typer.Option("--queries", min=1, help="Query videos in the gallery, from every class.")
    ] = 60,
    neighbors: Annotated[int, typer.Option("--neighbors", min=1, max=50, help="Neighbors per query.")] = 8,
    query: Annotated[
        list[str] | None,
        typer.Option("--query", help="Video id to include as a query; may be repeated.", show_default=False),
    ] = None,
    seed: Seed = 0,
    clips: Annotated[
        str | None, typer.Option("--clips", help="Clips; default: as in the run.", show_default=False)
    ] = None,
    thumbnails: Annotated[bool, typer.Option("--thumbnails/--no-thumbnails", help="Thumbnails of the videos.")] = True,
    umap: Annotated[bool, typer.Option("--umap/--no-umap", help="UMAP plots, if umap-learn is installed.")] = True,
    megabytes: Annotated[
        float, typer.Option("--megabytes", min=6, help="Size limit of the folder; thumbnails are reduced to fit.")
    ] = 25.0,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Threads that make thumbnails.")] = 2,
) -> None:
    """Write an HTML report of plans and runs: tables, curves, neighbors, feature maps, errors, data, provenance.

    It opens from disk, without a server or network. `--serve` without folders uses those of the report in --out. An
    interrupted report (exit code 75) is written anew by the same command.

    \b
    covid-cmsf report runs/demo -o report
    """
    from covid_cmsf.logs import printable
    from covid_cmsf.pages.server import serve_folder, server_url
    from covid_cmsf.report.build import Report, ReportOptions, read_metadata
    from covid_cmsf.report.serve import watch_and_rebuild

    if not paths and not serve:
        raise ValueError("which runs? covid-cmsf report RUN_OR_PLAN [...] -o report")
    chosen = list(paths or map(Path, read_metadata(out)["paths"]))
    options = ReportOptions(
        num_queries=queries,
        num_neighbors=neighbors,
        always_shown=tuple(query or ()),
        clips=clips,
        megabytes=megabytes,
        workers=workers,
        umap=umap,
        pictures=thumbnails,
        seed=seed,
    )
    start = time.monotonic()
    page = Report(chosen, out, options)
    with interrupt_on_sigterm():
        metadata = page.write(live=interval if serve else 0.0)
        for note in metadata["notes"]:
            typer.echo(printable(f"note: {note}"))
        typer.echo(f"{out / 'index.html'}: {metadata['bytes'] / 1e6:.1f} MB in {time.monotonic() - start:.0f} s")
        if not serve:
            return
        server = serve_folder(out, port)
        typer.echo(f"{server_url(server)} follows {', '.join(map(str, chosen))}; Ctrl-C ends")
        try:
            watch_and_rebuild(page, interval=interval, stop=threading.Event())
        except KeyboardInterrupt:
            page.write()
        finally:
            server.shutdown()


# `covid-cmsf figures ...`: figures of the paper from the files of runs.

figures_app = typer.Typer(
    no_args_is_help=True, help="Draw figures of the paper from runs: neighbors under label noise, noise curves."
)


@figures_app.command()
def neighbors(
    run: Annotated[Path, typer.Argument(help="Folder of a run or stage trained on images.", show_default=False)],
    out: NewFile,
    features: Annotated[
        Path | None,
        typer.Option(
            "--features",
            help="Features of the training images; default: features.safetensors in the run folder.",
            show_default=False,
        ),
    ] = None,
    label: Annotated[
        int | None, typer.Option("--label", min=0, help="Label of the queries; default: random.", show_default=False)
    ] = None,
    num_images: Annotated[int, typer.Option("--num-images", min=1, help="Images per row.")] = 10,
    seed: Seed = 0,
) -> None:
    """Draw the nearest images with the same noisy label: of a correct query, a wrong one, and random (figure 2).

    Writes a PNG file, and the data as JSON beside it.

    \b
    covid-cmsf figures neighbors runs/noisy -o neighbors.png
    """
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
    plans: Annotated[list[Path], typer.Argument(help="Folders of plans or of their stages.", show_default=False)],
    out: NewFile,
) -> None:
    """Draw accuracy over the label noise rate: a curve per method, with the spread over seeds (figure 3).

    Writes OUT.png, OUT.svg and OUT.json.

    \b
    covid-cmsf figures noise runs/noise -o noise
    """
    from covid_cmsf.report.noise_figures import draw_noise_curves, finished_stage_folders, read_points

    _check_folder(out)
    points = read_points(finished_stage_folders(plans))
    if not points:
        raise ValueError(f"no results of trained stages in {', '.join(map(str, plans))}; run the plan first")
    draw_noise_curves(points, out)
    typer.echo(f"{out}.png, {out}.svg, {out}.json: {len(points)} points")


def _check_folder(out: Path) -> None:
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no folder {out.parent} to write {out.name} to")
