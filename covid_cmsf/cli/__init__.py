"""The command `covid-cmsf`: one file a group of commands; rooms do the work, this only asks and prints."""

from covid_cmsf.cli.app import main

__all__ = ["main"]
