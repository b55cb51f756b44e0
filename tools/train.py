"""`covid-cmsf train` from a checkout: torchrun --nproc-per-node 4 tools/train.py infonce --clips CLIPS"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # this checkout, also where another version is installed

if __name__ == "__main__":
    from covid_cmsf.cli import main

    main("train")
