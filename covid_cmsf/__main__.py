"""`python -m covid_cmsf` is the command `covid-cmsf` (torchrun needs a module)."""

from covid_cmsf.cli import main

if __name__ == "__main__":
    main()
