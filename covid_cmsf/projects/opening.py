"""Open a project, or begin one: its settings, its videos, and what can be checked before any long work."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from covid_cmsf.clips.records import get_column
from covid_cmsf.clips.store import ClipStore
from covid_cmsf.cores import available_cores
from covid_cmsf.devices import choose_device
from covid_cmsf.logs import format_duration
from covid_cmsf.models.named_networks import load_named_network, named_library
from covid_cmsf.preflight import available_memory, check_disk, raise_problems
from covid_cmsf.projects.sizes import SHORT_EDGE, Machine
from covid_cmsf.projects.state import Project, State
from covid_cmsf.projects.videos import FoundVideos, probe_footage, scan_videos

logger = logging.getLogger(__name__)
LONG_VIDEO = 5 * 60  # seconds; clips of a longer one have little in common
NO_IMAGE = "none"
IMAGE_SHORT_EDGE = 128  # an image network sees 224 pixels: of frames of 60 there would be little left
BYTES_PER_PIXEL = 0.2  # of a stored frame, RGB and flow together; UCF-101 at a short edge of 60: 0.16


@dataclass(frozen=True)
class Options:
    """What the user asked for; None: as the project has it, or the default."""

    layout: str | None = None
    labels: Path | None = None
    source_pattern: str | None = None
    short_edge: int | None = None
    seed: int | None = None
    image: str | None = None  # timm:NAME, or none
    guide: str | None = None  # timm:NAME
    device: str = "auto"
    workers: int | None = None
    seconds: float | None = None  # --time
    retrain: bool = False

    @property
    def num_workers(self) -> int:
        """Processes that convert videos."""
        return self.workers or available_cores()


def open_state(project: Project, videos: Path, options: Options) -> State:
    """Return the state of a project with what the options change, or that of a new project; nothing is written."""
    wanted = {
        "layout": options.layout,
        "source_pattern": options.source_pattern,
        "image": options.image,
        "guide": options.guide,
        "labels": None if options.labels is None else str(options.labels.resolve()),
    }
    changes: dict[str, Any] = {key: value for key, value in wanted.items() if value is not None}
    place = str(videos.resolve())
    if not project.exists():
        short_edge = options.short_edge or default_short_edge(options)
        return State(videos=place, short_edge=short_edge, seed=options.seed or 0, **changes)
    state = project.read()
    for name in ("short_edge", "seed"):
        value, before = getattr(options, name), getattr(state, name)
        if value is not None and value != before:
            option = name.replace("_", "-")
            raise ValueError(
                f"{project.folder} was made with --{option} {before}, which cannot change; leave --{option} out, or "
                "use another --out"
            )
    if options.guide not in (None, state.guide) and project.plan(state.generation).is_file() and not options.retrain:
        raise ValueError(
            f"{project.plan(state.generation)} is there already, without --guide {options.guide}: edit its `guides`, "
            "train once more with --retrain, or use another --out"
        )
    if place != state.videos:
        _check_same_videos(project, state, videos)
    return state.model_copy(update={**changes, "videos": place})


def default_short_edge(options: Options) -> int:
    """Return the pixels of the stored clips: what the networks need, and more for an image network."""
    wanted = SHORT_EDGE[choose_device(options.device).type]
    sees_images = options.guide is not None or options.image not in (None, NO_IMAGE)
    return max(wanted, IMAGE_SHORT_EDGE) if sees_images else wanted


def check_guide(state: State) -> None:
    """Raise an error unless the guide can be loaded: now, not after hours."""
    if state.guide is None:
        return
    if named_library(state.guide) is None:
        raise ValueError(
            f"--guide {state.guide!r}: it must be timm:NAME, timm:NAME?weights=FILE, torchvision:NAME?weights=FILE or "
            "transformers:FOLDER"
        )
    load_named_network(state.guide)


def _check_same_videos(project: Project, state: State, videos: Path) -> None:
    """Raise ValueError unless at least half of the project's videos are in the other folder, too: it was moved."""
    if not (project.clips / "manifest.csv").is_file():
        raise ValueError(f"{project.folder} is a project of {state.videos}; use another --out for {videos}")
    known = set(get_column(ClipStore.open(project.clips).records, "video_id"))
    there = {video.video_id for video in scan_videos(videos).videos}
    if len(known & there) < len(known) / 2:
        raise ValueError(
            f"{project.folder} is a project of {state.videos}, and only {len(known & there)} of its {len(known)} "
            f"videos are in {videos}; use another --out"
        )
    logger.info("the videos of %s are now in %s", project.folder, videos)


def scan(state: State) -> FoundVideos:
    """Return the videos of the project's folder, with labels if it has some."""
    return scan_videos(
        Path(state.videos),
        layout=state.layout,
        source_pattern=state.source_pattern,
        labels=None if state.labels is None else Path(state.labels),
    )


def this_machine(device: str) -> Machine:
    """Return what the sizes of a plan depend on."""
    chosen = choose_device(device)
    cores = available_cores()
    if chosen.type == "cuda":
        memory = torch.cuda.get_device_properties(chosen).total_memory / 1e9
        return Machine("cuda", memory, cores)
    return Machine("cpu", available_memory() / 1e9, cores)


def check_space(project: Project, found: FoundVideos, state: State) -> None:
    """Check the disk for the clips, roughly, before the first one is written."""
    footage = probe_footage(found.videos, short_edge=state.short_edge)
    pixels = footage.frame_bytes / 3
    needed = footage.num_videos * footage.median_frames * pixels * BYTES_PER_PIXEL
    raise_problems(check_disk(project.folder, needed, f"the clips of {footage.num_videos:,} videos"))
    if footage.median_frames > LONG_VIDEO * footage.fps:
        logger.warning(
            "half of the videos are longer than %s: two moments of one video are taken for the same thing, so cut long "
            "recordings into scenes first",
            format_duration(footage.median_frames / footage.fps),
        )


def announce_removed(project: Project, found: FoundVideos) -> None:
    """Say how many videos are gone."""
    if not (project.clips / "manifest.csv").is_file():
        return
    known = set(get_column(ClipStore.open(project.clips).records, "video_id"))
    there = {video.video_id for video in found.videos}
    if known - there:
        logger.info("%d videos are gone from the folder: they leave the index", len(known - there))
