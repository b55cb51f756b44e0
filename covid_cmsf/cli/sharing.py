"""`covid-cmsf weights pack` and `push`: share an encoder with its model card."""

from pathlib import Path
from typing import Annotated

import typer

from covid_cmsf.cli.models import Head, Source
from covid_cmsf.cli.options import Branch, NewFolder


def pack(
    source: Source,
    out: NewFolder,
    name: Annotated[
        str | None, typer.Option("--name", help="Title of the model card; default: the folder's.", show_default=False)
    ] = None,
    license_name: Annotated[
        str | None, typer.Option("--license", help="License of the weights, as apache-2.0.", show_default=False)
    ] = None,
    branch: Branch = None,
    head: Head = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the files of a folder that exists.")] = False,
) -> None:
    """Write a folder to give away: weights, metadata, and a model card from the run's files. Nothing is sent.

    \b
    covid-cmsf weights pack runs/demo/cmsf-rgb-1 -o shared-rgb --license apache-2.0
    """
    from covid_cmsf.sharing.folder import SHARED_FILES, save_pretrained

    save_pretrained(source, out, name=name, license=license_name, branch=branch, keep_head=head, replace=force)
    typer.echo(f"wrote {', '.join(SHARED_FILES)} to {out}; nothing was sent")


def push(
    folder: Annotated[Path, typer.Argument(help="A folder of `covid-cmsf weights pack`.", show_default=False)],
    repository: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="Repository of the Hugging Face Hub.", show_default=False)
    ],
    public: Annotated[bool, typer.Option("--public", help="Let everyone read it; default: a private one.")] = False,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Message of the commit.", show_default=False)
    ] = None,
) -> None:
    """Upload such a folder to the Hugging Face Hub, with the account of `hf auth login`.

    \b
    covid-cmsf weights push shared-rgb OWNER/NAME
    """
    from covid_cmsf.sharing.hub import push_to_hub

    typer.echo(f"sent to {push_to_hub(folder, repository, public=public, message=message)}")
