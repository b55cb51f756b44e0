"""`covid-cmsf report`."""

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
    every: float = typer.Option(5.0, "--every", min=0.2, help="With --serve: seconds between looks at the files."),
    queries: int = typer.Option(60, "--queries", min=1, help="Videos in the gallery, some of every class."),
    neighbors: int = typer.Option(8, "--neighbors", min=1, max=50, help="Neighbors shown of each."),
    query: list[str] = typer.Option([], "--query", help=QUERY_HELP, show_default=False),
    seed: int = typer.Option(0, "--seed", min=0, help="Draws the videos of the gallery."),
    clips: str | None = typer.Option(None, "--clips", help="Where the clips are now, if they have moved."),
    pictures: bool = typer.Option(True, help="Thumbnails of the videos."),
    umap: bool = typer.Option(True, help="Maps by UMAP too, where umap-learn is installed."),
    megabytes: float = typer.Option(25.0, "--megabytes", min=6, help="Of the folder: thumbnails are made to fit."),
    workers: int = typer.Option(2, "--workers", min=1, help="Threads that make thumbnails."),
) -> None:
    """Write a page about plans and runs: tables, curves, neighbors, maps, errors, data, provenance.

    The folder is complete: it opens from disk, without a server or network. `--serve` without folders follows those of
    the report that is in --out already.
    """
    from covid_cmsf.report.building import Report
    from covid_cmsf.report.options import Options
    from covid_cmsf.report.page import read_mark
    from covid_cmsf.report.serving import address_of, follow, start_server

    if not paths and not serve:
        raise ValueError("which runs? covid-cmsf report RUN_OR_PLAN [...] --out report")
    chosen = list(paths or map(Path, read_mark(out)["of"]))
    options = Options(
        num_queries=queries,
        num_neighbors=neighbors,
        always=tuple(query),
        clips=clips,
        megabytes=megabytes,
        workers=workers,
        umap=umap,
        pictures=pictures,
        seed=seed,
    )
    start = time.monotonic()
    made = Report(chosen, out, options)
    mark = made.write(live=every if serve else 0.0)
    for note in mark["notes"]:
        typer.echo(f"note: {note}")
    typer.echo(f"{out / 'index.html'}: {mark['bytes'] / 1e6:.1f} MB in {time.monotonic() - start:.0f} s")
    if serve:
        server = start_server(out, port)
        typer.echo(f"{address_of(server)} follows {', '.join(map(str, chosen))}; Ctrl-C ends")
        stop = threading.Event()
        try:
            follow(made, every=every, stop=stop)
        except KeyboardInterrupt:
            made.write()
        finally:
            server.shutdown()
