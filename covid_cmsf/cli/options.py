"""Options and arguments that several commands share."""

import typer

BRANCH = typer.Option(None, "--branch", help="Which network of the file: online (default), target or guide.")
MODALITY = typer.Option(None, "--modality", help="rgb, flow, rgbdiff or frame (center frame, for 2D networks).")
LENGTH = typer.Option(None, "--length", min=1, help="Frames of a window, if not as trained.")
SIZE = typer.Option(None, "--size", min=8, help="Pixels, if not as trained.")
STRIDE = typer.Option(None, "--stride", min=1, help="Frames from one to the next, if not as trained.")
WINDOWS = typer.Option(None, "--windows", min=1, help="Windows of a video, evenly spread; 4 when left out.")
PROTOCOL = typer.Option("clean", "--protocol", help="clean, or coclr: what the code of Han et al. does.")
SPLIT = typer.Option(None, "--split", help="Name of a split of the clips, or a CSV file: video_id,split.")
WORKERS = typer.Option(2, "--workers", min=0, help="Processes that read clips; 0: none but this one.")
DEVICE = typer.Option("auto", "--device", help="cpu, cuda, cuda:1, ...; auto: a GPU where there is one.")
SEED = typer.Option(0, "--seed", min=0, help="Of whatever is random.")
FORCE = typer.Option(False, "--force", help="Replace the output if it is there and something else.")

FEATURES = typer.Argument(..., help="A file that `covid-cmsf extract` wrote.", show_default=False)
GALLERY = typer.Option("train", "--gallery", help="Subset to search in or learn from: train, or fit for tuning.")
QUERY = typer.Option("test", "--query", help="Subset to evaluate: test, or val for tuning.")
CENTER = typer.Option(None, "--center", help="train, own or none; by default train (clean), own (coclr).")
ALLOW_SHARED_SOURCES = typer.Option(
    False, "--allow-shared-sources", help="Also if footage is in both subsets; the result says so."
)
VAL_FRACTION = typer.Option(0.2, "--val-fraction", help="Fraction of the training sources that `val` is.")
OUT = typer.Option(None, "--out", "-o", help="JSON file for the result.")
JSON = typer.Option(False, "--json", help="Print the result as JSON instead of a table.")
