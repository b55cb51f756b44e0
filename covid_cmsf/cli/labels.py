"""`covid-cmsf labels ...`: files of wrong and of few labels."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from covid_cmsf.clips.manifest import ClipRecord

app = typer.Typer(no_args_is_help=True, help="Label files: wrong labels (noise) and few labels (fraction), by a seed.")

CLIPS = typer.Argument(..., help="Images or clips: a folder, torchvision:CIFAR10?root=/data, a clip store ...")
SPLIT = typer.Option("1", "--split", help="Split of the clips; images have one.")
OUT = typer.Option(..., "--out", "-o", help="The file to write.", show_default=False)
SEED = typer.Option(0, "--seed", min=0, help="The same seed gives the same file.")


@app.command()
def noise(
    clips: str = CLIPS,
    rate: float = typer.Option(..., "--rate", min=0, max=0.999, help="Share of wrong labels: 0.5 is half of them."),
    stratified: bool = typer.Option(True, help="That share of each class, or only of all together."),
    seed: int = SEED,
    split: str = SPLIT,
    out: Path = OUT,
) -> None:
    """Write a list of all training images with labels, some of them wrong: `<path> <label>` a line.

    Train with labels.file=FILE. Beside it FILE.json keeps the true labels, how the file was made, and its hash.
    """
    from covid_cmsf.clips.labels.noise import noisy_labels, write_noisy_file

    records = _training(clips, split)
    labels = noisy_labels(records, rate=rate, seed=seed, stratified=stratified)
    changed = sum(int(label) != record.label for label, record in zip(labels, records, strict=True))
    digest = write_noisy_file(out, records, labels, rate=rate, seed=seed, stratified=stratified)
    typer.echo(f"{out}: {len(records)} images, {changed} wrong labels, sha256 {digest}")


@app.command()
def fraction(
    clips: str = CLIPS,
    share: float = typer.Option(..., "--share", min=1e-6, max=1, help="Of each class: 0.1 is a tenth, at least one."),
    seed: int = SEED,
    split: str = SPLIT,
    out: Path = OUT,
) -> None:
    """Write a list of the training images whose labels are known, one name a line. Train with labels.known=FILE."""
    import numpy as np

    from covid_cmsf.clips.labels.fractions import known_share, write_known_list

    records = _training(clips, split)
    labels = known_share(np.array([record.label for record in records]), share=share, seed=seed)
    write_known_list(out, records, labels)
    typer.echo(f"{out}: {int((labels >= 0).sum())} of {len(records)} images are labeled")


def _training(clips: str, split: str) -> "list[ClipRecord]":
    from covid_cmsf.clips import open_clips

    return open_clips(clips).select(split, "train")
