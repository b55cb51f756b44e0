"""A folder to give an encoder away: weights, metadata and model card. Nothing here uses the network.

FOLDER/
  model.safetensors   the exchange file: tensors, metadata, and their SHA-256
  config.json         the metadata once more, to be read by people and the hub
  README.md           the model card
"""

from pathlib import Path

from covid_cmsf.files import read_text, write_text_atomic
from covid_cmsf.models import Encoder, load_encoder, load_weights, save_encoder
from covid_cmsf.models.checkpoints.metadata import parse_metadata
from covid_cmsf.models.checkpoints.reader import SHARED_WEIGHTS, find_checkpoint
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.models.named_networks import named_library
from covid_cmsf.models.profile import count_parameters
from covid_cmsf.sharing.card import SharedEncoder, model_card
from covid_cmsf.sharing.run_files import find_run, read_run_files, without_folders
from covid_cmsf.verified_files import verify_tensors

METADATA_FILE, CARD_FILE = "config.json", "README.md"
SHARED_FILES = (SHARED_WEIGHTS, METADATA_FILE, CARD_FILE)


def save_pretrained(
    source: Path | str,
    folder: Path | str,
    *,
    name: str | None = None,
    license: str | None = None,
    branch: str | None = None,
    keep_head: bool = False,
    replace: bool = False,
) -> Path:
    """Write an encoder to a folder that can be given away, with a model card from its run: `covid-cmsf weights pack`.

    The card has the run's data, configuration and measures, without the folders of this machine. Nothing is sent.

    Args:
        source: a run folder, a plan's stage, a weights file, or a network of another library by name (`timm:NAME`);
            without a run, the card says so.
        folder: folder to write.
        name: title of the card; the folder's name when left out.
        license: identifier for the card, such as apache-2.0; without it, the card says that there is none.
        branch: online (default), target or guide.
        keep_head: write the projection head too.
        replace: overwrite the three files if they exist.

    Example:
        >>> folder = cc.save_pretrained("encoder.safetensors", "shared-encoder", license="apache-2.0")
        >>> sorted(path.name for path in folder.iterdir())
        ['README.md', 'config.json', 'model.safetensors']
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not replace)):
        raise FileExistsError(f"{folder} already exists and is not empty; choose another folder, or replace its files")
    loaded = load_weights(source, branch=branch, keep_head=keep_head)
    digest = weights_sha256(loaded.encoder)
    is_named = named_library(source) is not None
    if is_named and loaded.metadata.trained.startswith("untrained"):
        raise ValueError(f"{source} has random weights: there is nothing to share")
    run = None if is_named else find_run(Path(source))
    card = model_card(
        SharedEncoder(
            name=name or folder.resolve().name,
            license=license,
            metadata=loaded.metadata,
            num_features=loaded.encoder.num_features,
            num_parameters=count_parameters(loaded.encoder),
            weights_sha256=digest,
            checkpoint=without_folders(str(source)) if is_named else find_checkpoint(source).resolve().name,
            branch=loaded.report.branch.partition(" ")[0],  # without its name in the file
            run=None if run is None else read_run_files(run, digest),
        )
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomic(folder / CARD_FILE, card)
    write_text_atomic(folder / METADATA_FILE, loaded.metadata.model_dump_json(indent=1) + "\n")
    save_encoder(folder / SHARED_WEIGHTS, loaded.encoder, loaded.metadata, projector=loaded.projector)
    return folder


def load_shared(folder: Path) -> Encoder:
    """Load the encoder of a shared folder; raise ValueError if weights and metadata are not those that were written."""
    weights, metadata_file = folder / SHARED_WEIGHTS, folder / METADATA_FILE
    for path in (weights, metadata_file):
        if not path.is_file():
            raise FileNotFoundError(
                f"{folder} has no {path.name}; `covid-cmsf weights pack` writes such folders, "
                "and load_encoder reads runs and weights files"
            )
    if not verify_tensors(weights):
        raise ValueError(f"{weights} has no SHA-256 in its header: `covid-cmsf weights pack` did not write it")
    encoder = load_encoder(weights)
    assert encoder.metadata is not None
    written = parse_metadata(read_text(metadata_file), location=str(metadata_file))
    if written.model_copy(update={"projector": None}) != encoder.metadata:  # which has none: it was not loaded
        raise ValueError(f"{metadata_file} does not describe {SHARED_WEIGHTS}: one of them was replaced")
    return encoder
