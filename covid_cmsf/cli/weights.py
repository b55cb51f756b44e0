"""`covid-cmsf weights`: look into weights files, bring them in, write them out for other programs."""

import json
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from covid_cmsf.models.weights.load import Loaded
    from covid_cmsf.models.weights.report import LoadReport

app = typer.Typer(no_args_is_help=True, help="Weights in and out: ours, CoCLR, torchvision, MSF, CMSF, MoCo, BYOL.")

SOURCE = typer.Argument(help="A weights file: ours, or one of the known foreign layouts.")
OUT = typer.Option(..., "--out", "-o", help="The file to write.")
PART = typer.Option(None, "--part", help="online (default), target or guide; or the file's own name: encoder_k ...")
ENCODER = typer.Option(None, "--encoder", help="Insist on this encoder of the zoo.")
CHANNELS = typer.Option(None, "--channels", help="Input channels to have afterwards; needs --adapt when they differ.")
ADAPT = typer.Option(None, "--adapt", help="Channel surgery: mean, or channels to pick such as 2,1 or zero,1,0.")
BN_EPS = typer.Option(None, "--bn-eps", help="Batch-norm epsilon, when the file's habit is not the right one.")
HEAD = typer.Option(False, "--head/--no-head", help="Keep the projection head; a file without one is then an error.")
FORCE = typer.Option(False, "--force", help="Replace the output file if it is there.")
VERBOSE = typer.Option(False, "--verbose", "-v", help="Name every key that was left over.")


class Target(str, Enum):
    """What `weights export` can write."""

    onnx = "onnx"
    torch_export = "torch-export"
    coclr = "coclr"


@app.command("show")
def show_weights(
    source: Path = SOURCE,
    part: str | None = PART,
    head: bool = HEAD,
    as_json: bool = typer.Option(False, "--json", help="Print card and report as JSON."),
    verbose: bool = VERBOSE,
) -> None:
    """Says what a file is and what is known about it, after loading it in full."""
    from covid_cmsf.models import load_weights

    loaded = load_weights(source, part=part, keep_head=head)
    if as_json:
        typer.echo(json.dumps({"card": loaded.card.model_dump(), "report": asdict(loaded.report)}))
        return
    _print_report(loaded.report, verbose)
    for field, value in loaded.card.model_dump().items():
        typer.echo(f"  {field}: {value}")


@app.command("import")
def import_weights(
    source: Path = SOURCE,
    out: Path = OUT,
    part: str | None = PART,
    encoder: str | None = ENCODER,
    channels: int | None = CHANNELS,
    adapt: str | None = ADAPT,
    bn_eps: float | None = BN_EPS,
    head: bool = HEAD,
    modality: str | None = typer.Option(None, "--modality", help="rgb, flow, ...: foreign files do not say."),
    size: str | None = typer.Option(None, "--size", help="The input it was trained on, as TxHxW."),
    mean: str | None = typer.Option(None, "--mean", help="Pixel mean a channel (pixels 0 to 1): 0.5,0.5."),
    std: str | None = typer.Option(None, "--std", help="Pixel standard deviation a channel: 0.25,0.25."),
    trained: str | None = typer.Option(None, "--trained", help="How it was trained, in a few words."),
    force: bool = FORCE,
    verbose: bool = VERBOSE,
) -> None:
    """Brings a weights file into our exchange format: safetensors with the encoder's card in the header."""
    from covid_cmsf.models import load_weights, save_encoder
    from covid_cmsf.models.encoder import parse_size
    from covid_cmsf.models.weights.card import parse_values, with_facts

    _check_output(out, force)
    loaded = load_weights(
        source, part=part, encoder=encoder, in_channels=channels, adapt=adapt, bn_eps=bn_eps, keep_head=head
    )
    card = with_facts(
        loaded.card,
        modality=modality,
        trained=trained,
        input_size=None if size is None else parse_size(size),
        mean=None if mean is None else parse_values(mean),
        std=None if std is None else parse_values(std),
    )
    save_encoder(out, loaded.encoder, card, projector=loaded.projector)
    _print_report(loaded.report, verbose)
    typer.echo(f"wrote {out}")


@app.command("export")
def export_weights(
    source: Path = SOURCE,
    out: Path = OUT,
    to: Target = typer.Option(..., "--to", help="What to write."),
    part: str | None = PART,
    channels: int | None = CHANNELS,
    adapt: str | None = ADAPT,
    head: bool = HEAD,
    force: bool = FORCE,
    verbose: bool = VERBOSE,
) -> None:
    """Writes an encoder for other programs and checks the file against our own network; a difference is an error."""
    from covid_cmsf.models import load_weights

    _check_output(out, force)
    if head and to is not Target.coclr:
        raise ValueError(f"--head goes with --to coclr; {to.value} holds the encoder alone")
    loaded = load_weights(source, part=part, in_channels=channels, adapt=adapt, keep_head=head)
    _print_report(loaded.report, verbose)
    difference = _export(to, out, loaded)
    typer.echo(f"wrote {out}; largest difference to our encoder {difference:.1e} of the largest value")


def _export(to: Target, out: Path, loaded: "Loaded") -> float:
    from covid_cmsf.models.weights.export import export_coclr, export_onnx, export_program

    if to is Target.coclr:
        return export_coclr(out, loaded)
    write = export_onnx if to is Target.onnx else export_program
    return write(out, loaded.encoder, loaded.card)


def _check_output(out: Path, force: bool) -> None:
    if out.exists() and not force:
        raise FileExistsError(f"{out} is there already; --force replaces it")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no folder {out.parent} to write {out.name} into")


def _print_report(report: "LoadReport", verbose: bool) -> None:
    for line in report.lines():
        typer.echo(line)
    for key in report.left_over if verbose else ():
        typer.echo(f"  left over: {key}")
