"""`python -m preprocess VIDEOS --out CLIPS ...`, the same as `covid-cmsf preprocess`."""

import typer

from covid_cmsf import exit_codes
from preprocess.cli import preprocess

if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(preprocess)
    command = typer.main.get_command(app)
    exit_codes.hide_flag_types(command)
    exit_codes.run_app(command)
