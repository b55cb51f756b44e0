"""`covid-cmsf extract` from a checkout: python tools/extract.py RUN CLIPS -o FILE"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # this checkout, also where another version is installed

if __name__ == "__main__":
    from covid_cmsf.cli import main

    main("extract")
