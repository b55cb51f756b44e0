"""`python -m preprocess VIDEOS --out CLIPS ...`, the same as `covid-cmsf preprocess`."""

import typer

from covid_cmsf import boundary
from preprocess.command import preprocess

if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(preprocess)
    boundary.run(app)
