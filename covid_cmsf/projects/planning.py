"""Size the plan of a project: by its videos and the machine, or by a time budget; and estimate what it would take."""

import logging
import math
from pathlib import Path

from covid_cmsf.clips.records import get_column
from covid_cmsf.clips.store import ClipStore
from covid_cmsf.logs import format_duration
from covid_cmsf.projects.convert import store_settings
from covid_cmsf.projects.estimate import (
    BudgetError,
    ProjectEstimate,
    StepSeconds,
    estimate_project,
    fit_plan,
    measure_conversion,
    measure_steps,
)
from covid_cmsf.projects.opening import Options
from covid_cmsf.projects.sizes import Footage, Machine, PlanSize, describe_size, shorten, size_plan
from covid_cmsf.projects.state import Project, State
from covid_cmsf.projects.train import plan_hash, write_plan
from covid_cmsf.projects.videos import FoundVideos, probe_footage, store_footage
from preprocess.layouts import Video

logger = logging.getLogger(__name__)
RETRAIN_FACTOR = 0.5  # of the epochs: the networks know most of the videos already


class Measurements:
    """Short measurements on some of a project's videos, each made once; nothing of it stays on the disk."""

    def __init__(self, project: Project, state: State, found: FoundVideos, machine: Machine, options: Options) -> None:
        self._project, self._found, self._options = project, found, options
        self.footage: Footage = probe_footage(found.videos, short_edge=state.short_edge)
        _, self._configs = store_settings(
            project.clips, short_edge=state.short_edge, device=machine.device, workers=options.num_workers
        )
        self._steps: dict[tuple[str, int, int, int], StepSeconds] = {}

    def steps(self, size: PlanSize) -> StepSeconds:
        """Return the seconds of steps with a plan's encoder and views."""
        key = (size.encoder, size.length, size.size, size.stride)
        if key not in self._steps:
            self._steps[key] = measure_steps(
                size, self.footage, self._found.videos, self._configs, device=self._options.device
            )
        return self._steps[key]

    def project(self, size: PlanSize) -> ProjectEstimate:
        """Return seconds and bytes of the project with a plan; what is converted already takes no time."""
        pending = pending_videos(self._project, self._found.videos)
        conversion = measure_conversion(pending, self._configs) if pending else None
        return estimate_project(size, self.footage, conversion, self.steps(size))


def pending_videos(project: Project, videos: list[Video]) -> list[Video]:
    """Return the videos that are not in the clip store yet."""
    if not (project.clips / "manifest.csv").is_file():
        return videos
    store = ClipStore.open(project.clips)
    known = {*get_column(store.records, "video_id"), *(failure.video_id for failure in store.failures)}
    return [video for video in videos if video.video_id not in known]


def set_budget(state: State, measurements: Measurements, machine: Machine, seconds: float) -> State:
    """Return the state with the largest plan that fits; ValueError if the budget is too small for any."""
    footage = measurements.footage
    guess = measurements.project(size_plan(footage, machine))
    rest = guess.convert + guess.embed + guess.page
    try:
        size, training = fit_plan(footage, machine, seconds - rest, measurements.steps)
    except BudgetError as error:
        enough = math.ceil(1.1 * (rest + error.seconds) / 60)
        raise ValueError(
            f"--time {format_duration(seconds)} is too little: converting the videos takes about "
            f"{format_duration(guess.convert)}, and even the smallest plan {format_duration(error.seconds)}; "
            f"--time {enough}m would do"
        ) from None
    full = size_plan(footage, machine, preset=size.preset)
    logger.info(
        "fitted into %s: about %s for converting the videos, %s for training",
        *(format_duration(one) for one in (seconds, guess.convert, training)),
    )
    factor = size.pretrain_epochs / full.pretrain_epochs
    return state.model_copy(update={"time_seconds": seconds, "preset": size.preset, "epochs_factor": factor})


def fitted_size(state: State, footage: Footage, machine: Machine) -> PlanSize:
    """Return the size of a plan for some videos, as --time and --retrain shorten it."""
    size = size_plan(footage, machine, preset=state.preset)
    factor = state.epochs_factor * (RETRAIN_FACTOR if state.generation > 1 else 1.0)
    return shorten(size, footage, factor) if factor < 1 else size


def make_plan(project: Project, state: State, video_ids: list[str], machine: Machine, options: Options) -> None:
    """Write the plan of the present generation, sized to the videos that were readable."""
    wanted = set(video_ids)
    records = [record for record in ClipStore.open(project.clips).records if record.video_id in wanted]
    footage = store_footage(records)
    size = fitted_size(state, footage, machine)
    notes = []
    if state.generation > 1:
        notes.append(f"It goes on from the weights of {project.plan(state.generation - 1).name}, with half the epochs.")
    if state.time_seconds is not None:
        notes.append(f"Fitted into a time of {format_duration(state.time_seconds)} (--time).")
    write_plan(project, state, size, footage, video_ids, device=options.device, notes=notes)
    logger.info("%s: %s", project.plan(state.generation), describe_size(size, footage))


def is_trained(project: Project, state: State) -> bool:
    """Tell whether the present plan, as it is now, was trained and its weights are there."""
    if state.trained is None or not project.plan(state.generation).is_file():
        return False
    weights = [project.folder / path for path in state.trained.encoders.values()]
    return state.trained.plan_sha256 == plan_hash(project, state.generation) and all(map(Path.is_file, weights))
