"""Where a project has its index and its clips. Whatever takes an index takes the project's folder as well.

A project is the folder that `covid-cmsf learn VIDEOS --out PROJECT` makes; it has a `project.json`.
"""

from pathlib import Path

from covid_cmsf.files import read_json

PROJECT_FILE, INDEX_FILE, STORE_FILE = "project.json", "index.json", "store.json"
INDEX_FOLDER, CLIPS_FOLDER, FEATURES_FOLDER = "index", "clips", "features"


def is_project(path: Path | str) -> bool:
    """Whether a folder is a project."""
    return (Path(path) / PROJECT_FILE).is_file()


def index_folder(path: Path | str) -> Path:
    """Return the folder of the index: that of a project, or `path` itself; FileNotFoundError if there is none."""
    path = Path(path)
    folder = path / INDEX_FOLDER if is_project(path) else path
    if (folder / INDEX_FILE).is_file():
        return folder
    if is_project(path):
        raise FileNotFoundError(f"{path} has no index yet; `covid-cmsf search index {path}` writes it")
    raise FileNotFoundError(f"{path} is no search index: it has no {INDEX_FILE}; `covid-cmsf search index` writes one")


def clips_folder(path: Path | str) -> Path | None:
    """Return the clip store behind a project or an index; None if the index was made of video files, or it is gone."""
    folder = source_folder(path)
    return folder if folder is not None and (folder / STORE_FILE).is_file() else None


def source_folder(path: Path | str) -> Path | None:
    """Return what the videos of a project or an index are in: a clip store or a folder of video files."""
    path = Path(path)
    project = path if is_project(path) else path.absolute().parent
    if is_project(project) and (project / CLIPS_FOLDER / STORE_FILE).is_file():
        return project / CLIPS_FOLDER
    folder = path / INDEX_FOLDER if is_project(path) else path
    if not (folder / INDEX_FILE).is_file():
        return None
    described = read_json(folder / INDEX_FILE)
    recorded = described.get("clips_path") if isinstance(described, dict) else None
    found = folder / str(recorded)
    return found if recorded and found.is_dir() else None
