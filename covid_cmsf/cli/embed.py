"""`covid-cmsf embed`: video files in, a table of embeddings out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covid_cmsf.cli.options import Device, Force, NewFile, Windows, interrupt_on_sigterm, report_skipped

if TYPE_CHECKING:
    from covid_cmsf.embeddings import EmbeddingTable


def embed(
    videos: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES|FOLDER", help="Video files, or a folder of them; or one features file.", show_default=False
        ),
    ],
    out: NewFile,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights", help="The encoder: a run folder or a weights file. Not of a features file.", show_default=False
        ),
    ] = None,
    per_window: bool = typer.Option(False, "--per-window", help="A row per window, instead of one per video."),
    windows: Windows = None,
    batch_size: int = typer.Option(16, "--batch-size", min=1, help="Windows that pass the network together."),
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Write the embeddings of video files to a table: .parquet, .csv, or .npy with the names beside it.

    No clip store is needed: frames and flow are prepared as the encoder was trained. Files that cannot be read are
    listed and left out, and the exit code is 3. After a stop, the same command goes on. Features that `extract` has
    written become a table with classes, sources and subsets, and the stored clips where these are still in place.

    \b
    covid-cmsf embed my_videos --weights runs/rgb -o embeddings.parquet
    covid-cmsf embed rgb.features -o rgb.csv
    """
    from covid_cmsf.embeddings import check_table_path, embed_files, features_clips, features_table, save_embeddings
    from covid_cmsf.evaluation.features.file import load_features
    from covid_cmsf.logs import progress_bar

    check_table_path(out)
    beside = [out.with_suffix(".csv")] if out.suffix == ".npy" else []
    existing = next((path for path in [out, *beside] if path.exists()), None)
    if existing is not None and not force:
        raise FileExistsError(f"{existing} exists; --force replaces it")
    if weights is None:
        if len(videos) != 1 or videos[0].is_dir() or per_window or windows is not None:
            raise ValueError("videos need --weights, their encoder; only one features file is a table without it")
        features = load_features(videos[0])
        table = features_table(features, clips=features_clips(videos[0], features))
        save_embeddings(out, table)
        _tell(out, table, per_window=False)
        return
    with interrupt_on_sigterm():
        table = embed_files(
            videos[0] if len(videos) == 1 else videos,
            weights,
            per_window=per_window,
            windows=windows,
            device=device,
            batch_size=batch_size,
            out=out,
            progress=progress_bar,
        )
    _tell(out, table, per_window=per_window)


def _tell(out: Path, table: "EmbeddingTable", *, per_window: bool) -> None:
    rows, size = table.vectors.shape
    typer.echo(f"{out}: {rows} {'windows' if per_window else 'videos'}, {size} values each")
    report_skipped(table.skipped)
