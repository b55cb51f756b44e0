"""The command `covid-cmsf`: one file per group of commands, which parses options, calls the packages and prints."""

from covid_cmsf.cli.app import main

__all__ = ["main"]
