"""Encoders on the Hugging Face Hub. The network is used only by `download=True` and by `push_to_hub`.

Needs the extra `huggingface_hub`; folders on disk need nothing.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from covid_cmsf import __version__
from covid_cmsf.files import check_regular_file
from covid_cmsf.models import Encoder
from covid_cmsf.sharing.folder import CARD_FILE, SHARED_FILES, load_shared

REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def from_pretrained(source: Path | str, *, revision: str | None = None, download: bool = False) -> Encoder:
    """Load a shared encoder, in eval mode, with `metadata` and `preprocess`; a damaged file is refused.

    Args:
        source: a folder of `save_pretrained`, or a repository OWNER/NAME of the Hugging Face Hub. A folder wins.
        revision: branch, tag or commit of the repository.
        download: use the network for a repository; otherwise only what is already in the hub's cache is read.

    Example:
        >>> folder = cc.save_pretrained("encoder.safetensors", "encoder-to-load")
        >>> encoder = cc.from_pretrained(folder)
        >>> frames = torch.randint(0, 256, (6, 48, 64, 3), dtype=torch.uint8)
        >>> feature = encoder(encoder.preprocess(frames)[None])  # (1, num_features)
        >>> encoder = cc.from_pretrained("OWNER/NAME", download=True)  # doctest: +SKIP
    """
    folder = Path(source)
    if not folder.is_dir():
        return load_shared(_snapshot(str(source), revision, download))
    if revision is not None or download:
        raise ValueError(f"{folder} is a folder: revision and download are for a repository of the hub")
    return load_shared(folder)


def push_to_hub(folder: Path | str, repository: str, *, public: bool = False, message: str | None = None) -> str:
    """Upload a folder of `save_pretrained` to the Hugging Face Hub and return the commit's address.

    The account is that of `hf auth login`. Only the three files of the folder are sent, after they were verified. The
    repository is created if there is none. Nothing goes to a public one without `public`.

    Args:
        folder: what `save_pretrained` wrote.
        repository: OWNER/NAME.
        public: create a public repository, or accept that it is one.
        message: of the commit.

    Example:
        >>> cc.push_to_hub("shared-encoder", "OWNER/NAME")  # doctest: +SKIP
    """
    folder = Path(folder)
    _check_repository(repository)
    load_shared(folder)
    check_regular_file(folder / CARD_FILE, "model card")
    _check_installed()
    from huggingface_hub import HfApi

    api = HfApi(library_name="covid-cmsf", library_version=__version__)
    with _hub_errors(repository):
        if not api.repo_exists(repository):
            api.create_repo(repository, private=not public)
        elif not public and not api.model_info(repository).private:
            raise ValueError(f"{repository} is public: everyone could read these files; say so with public (--public)")
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=list(SHARED_FILES),
            commit_message=message or f"Encoder, written by covid-cmsf {__version__}",
        )
    return str(commit.commit_url)


def _snapshot(repository: str, revision: str | None, download: bool) -> Path:
    """Return the folder of a repository in the hub's cache; with `download`, bring it there."""
    _check_repository(repository)
    _check_installed()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        with _hub_errors(repository, keep=() if download else (LocalEntryNotFoundError,)):
            found = snapshot_download(
                repository, revision=revision, allow_patterns=list(SHARED_FILES), local_files_only=not download
            )
    except LocalEntryNotFoundError:
        raise FileNotFoundError(
            f"no folder {repository}, and no such repository in the hub's cache; download=True downloads it"
        ) from None
    return Path(found)


def _check_repository(repository: str) -> None:
    if not REPOSITORY.fullmatch(repository):
        raise FileNotFoundError(f"no folder {repository}; a repository of the hub has the form OWNER/NAME")


def _check_installed() -> None:
    if find_spec("huggingface_hub") is None:
        raise ValueError("the hub needs huggingface_hub: pip install 'covid-cmsf[huggingface_hub]'")


@contextmanager
def _hub_errors(repository: str, *, keep: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn errors of the network and the hub, besides `keep`, into one line that names the repository."""
    from huggingface_hub.errors import HfHubHTTPError

    # OSError, and the errors of the HTTP library, which is another one in each major version
    bases = tuple(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))
    try:
        yield
    except bases as error:
        if isinstance(error, keep):
            raise
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConnectionError(f"{repository}: {first_line}") from None
