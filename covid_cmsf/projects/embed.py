"""The last phases of a project: features of every video that is there, the index, the page."""

import json
import logging
import shutil
from collections.abc import Mapping, Sequence

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.records import write_split
from covid_cmsf.cotrain.answers import FEATURES_FILE
from covid_cmsf.devices import choose_device
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.update import update_features
from covid_cmsf.logs import progress_bar
from covid_cmsf.models.image_networks import is_image_network
from covid_cmsf.projects.opening import NO_IMAGE, Options
from covid_cmsf.projects.state import Project, State, text_hash
from covid_cmsf.search.build import index_features
from covid_cmsf.search.encoders import open_encoder
from covid_cmsf.search.encoders.base import IndexEncoder
from covid_cmsf.search.index import save_index
from covid_cmsf.search.page.write import PAGE_FILE
from covid_cmsf.search.page.write import write_page as write_search_page

logger = logging.getLogger(__name__)
SPLIT_FILE = "videos.csv"
FLOW_HISTOGRAM = "histogram:flow"


def trained_entries(project: Project, encoders: Mapping[str, str], windows: int | None) -> list[IndexEncoder]:
    """Return the networks that the plan has trained."""
    return [open_encoder(str(project.folder / path), num_windows=windows) for path in encoders.values()]


def image_entry(state: State, windows: int | None = None) -> list[IndexEncoder]:
    """Return the image network of --image and a flow histogram, if there is one; ValueError if it is none.

    Beside an image network `fused` uses the histogram: docs/concepts/what-finds-what.md has the measurement.
    """
    if state.image in (None, NO_IMAGE):
        return []
    if not is_image_network(str(state.image)):
        raise ValueError(f"--image {state.image!r}: it must be timm:NAME, timm:NAME?weights=FILE or {NO_IMAGE}")
    return [open_encoder(weights, num_windows=windows) for weights in (str(state.image), FLOW_HISTOGRAM)]


def embed_videos(
    project: Project,
    entries: Sequence[IndexEncoder],
    video_ids: Sequence[str],
    labels: Mapping[str, str],
    *,
    options: Options,
) -> tuple[dict[str, Features], int]:
    """Write one features file per entry of the index; return them, and how many videos were embedded.

    Features that the plan has computed for its own evaluation are used.
    """
    project.features.mkdir(exist_ok=True)
    device = choose_device(options.device)
    split = project.features / SPLIT_FILE
    write_split(split, dict.fromkeys(video_ids, "train"))
    clips = open_clips(project.clips)
    found: dict[str, Features] = {}
    most = 0
    for entry in entries:
        path = entry.model.path
        with progress_bar(f"{entry.name} of videos", len(video_ids)) as advance:
            found[entry.name], count = update_features(
                entry.model,
                clips,
                project.features / f"{entry.name}.features",
                eval_protocol=entry.eval_protocol,
                split=str(split),
                known=[] if path is None else [path.parent.parent / FEATURES_FILE],
                labels=labels,
                num_workers=0 if device.type == "cpu" else min(8, options.num_workers),
                device=device,
                on_video=advance,
            )
        most = max(most, count)
    for path in project.features.glob("*.features"):  # of an entry that there was before
        if path.stem not in found:
            path.unlink()
    return found, most


def index_key(features: Mapping[str, Features]) -> str:
    """Return a hash of what the index is made from: videos, labels and vectors."""
    parts = []
    for name, one in sorted(features.items()):
        parts += [name, one.provenance.fingerprint, json.dumps(one.videos.labels.tolist()), *one.videos.class_names]
        parts += one.videos.sources
    return text_hash(*parts)


def write_index(project: Project, entries: Sequence[IndexEncoder]) -> None:
    """Write the search index of the features files, with the encoders behind them."""
    paths = [project.features / f"{entry.name}.features" for entry in entries]
    index, encoders = index_features(paths, clips=project.clips, encoders=entries)
    save_index(project.index, index, encoders)


def write_page(project: Project) -> None:
    """Write the page; one that a kill left before it was marked as a page is written anew."""
    if project.page.is_dir() and not (project.page / PAGE_FILE).is_file():
        shutil.rmtree(project.page)
    written = write_search_page(project.index, project.clips, project.page)
    for note in written.notes:
        logger.warning("page: %s", note)
