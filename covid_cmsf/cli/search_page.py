"""`covid-cmsf search page` and `search serve`: a page to explore the videos of an index."""

import time
from pathlib import Path
from typing import Annotated

import typer

from covid_cmsf.cli.options import interrupt_on_sigterm

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="INDEX", help="A folder of `covid-cmsf search index`, or a project of `learn`.", show_default=False
    ),
]
StoreOption = Annotated[
    Path | None,
    typer.Option("--clips", help="The clip store; default: where the index says it is.", show_default=False),
]


def page(
    folder: Folder,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")] = Path("page"),
    clips: StoreOption = None,
    top: Annotated[int, typer.Option("--top", min=1, max=100, help="Neighbors per video.")] = 20,
    megabytes: Annotated[
        float, typer.Option("--megabytes", min=1, help="Size limit of the pictures; they get coarser to fit.")
    ] = 100.0,
    copies: Annotated[bool, typer.Option("--copies/--no-copies", help="Look for copies; it takes a while.")] = True,
    clusters: Annotated[
        int | None, typer.Option("--clusters", min=1, help="Number of clusters; default: the best separated.")
    ] = None,
    umap: Annotated[bool, typer.Option("--umap/--no-umap", help="Also a UMAP map, if umap-learn is installed.")] = True,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Threads that make pictures.")] = 2,
) -> None:
    """Write a page that opens from disk: neighbors, a map, clusters, copies, labels. It needs no server or network.

    \b
    covid-cmsf search page index --clips CLIPS -o page
    """
    from covid_cmsf.logs import printable
    from covid_cmsf.search.page.write import write_page
    from covid_cmsf.search.project import clips_folder, index_folder

    start = time.monotonic()
    with interrupt_on_sigterm():
        written = write_page(
            index_folder(folder),
            clips if clips is not None else clips_folder(folder),
            out,
            top=top,
            megabytes=megabytes,
            duplicates=copies,
            num_clusters=clusters,
            umap=umap,
            workers=workers,
        )
    for note in written.notes:
        typer.echo(printable(f"note: {note}"))
    share = written.picture_bytes / max(1, written.num_videos) / 1e3
    typer.echo(
        f"{written.path}: {written.num_videos} videos, {written.num_bytes / 1e6:.1f} MB "
        f"({share:.1f} kB of pictures per video) in {time.monotonic() - start:.0f} s"
    )


def serve(
    folder: Folder,
    clips: StoreOption = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free port.")] = 8766,
    max_upload: Annotated[
        int, typer.Option("--max-upload", min=0, help="Megabytes of a file that may be dropped; 0: none.")
    ] = 1000,
) -> None:
    """Serve the page on localhost: any window as a loop, and video files that are dropped on it as queries.

    Labels and decisions about copies are saved as labels.csv and copies.csv in the folder. Ctrl-C ends.

    \b
    covid-cmsf search serve index
    """
    from covid_cmsf.pages.server import server_url
    from covid_cmsf.search.page.explorer import Explorer
    from covid_cmsf.search.page.serve import serve_page

    explorer = Explorer(folder, clips, max_upload=max_upload * 1_000_000)
    server = serve_page(explorer, port)
    with interrupt_on_sigterm():
        typer.echo(f"{server_url(server)} shows {len(explorer.index.videos)} videos of {folder}; Ctrl-C ends")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            pass  # the usual way to end it
        finally:
            server.shutdown()
