"""`learn`: from a folder of videos to encoders, an index and a page. Every phase resumes where it was stopped.

Each phase looks at what is there and does what is missing, so the same call resumes after any kill, takes in videos
that were added, and leaves out those that are gone. Only training looks back: it is done once per plan.
"""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

from covid_cmsf.clips.records import Failure
from covid_cmsf.clips.store import ClipStore
from covid_cmsf.cotrain.table import Row
from covid_cmsf.files import remove_temporary
from covid_cmsf.projects.convert import convert_videos, open_failures
from covid_cmsf.projects.embed import embed_videos, image_entry, index_key, trained_entries, write_index, write_page
from covid_cmsf.projects.estimate import ProjectEstimate
from covid_cmsf.projects.measures import EncoderMeasures, measure_encoders
from covid_cmsf.projects.opening import (
    Options,
    announce_removed,
    check_guide,
    check_space,
    open_state,
    scan,
    this_machine,
)
from covid_cmsf.projects.planning import Measurements, fitted_size, is_trained, make_plan, set_budget
from covid_cmsf.projects.sizes import Machine, size_plan
from covid_cmsf.projects.state import Project, State, check_place
from covid_cmsf.projects.train import announce_plan, open_plan, read_rows, train_plan
from covid_cmsf.projects.videos import FoundVideos, check_count, present_ids
from covid_cmsf.training.run_dir import lock_dir

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LearnResult:
    """What `learn` ends with.

    Example:
        >>> result = cc.learn("videos", "project")  # doctest: +SKIP
        >>> result.measures["rgb"].unlabeled.window_r1  # doctest: +SKIP
    """

    folder: Path
    num_videos: int
    num_embedded: int  # by this call, after training
    encoders: dict[str, Path]  # {modality: checkpoint}
    measures: dict[str, EncoderMeasures]
    skipped: list[Failure] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)  # the plan's table


def learn(videos: Path, out: Path, options: Options) -> LearnResult:
    """Do whatever is missing in the project `out` of the folder `videos`.

    Raises:
        KeyboardInterrupt: a signal came; call again to resume.
    """
    project, state, found, machine = _open(videos, out, options)
    if not project.exists():
        check_space(project, found, state)
    state = _next_generation(project, state, options)
    state = _fit_time(project, state, found, machine, options)
    out.mkdir(parents=True, exist_ok=True)
    with lock_dir(out):
        remove_temporary(project.features)
        return _run_phases(project, project.write(state), found, machine, options)


def estimate_learning(videos: Path, out: Path, options: Options) -> ProjectEstimate:
    """Measure how long `learn` would take and how much it would write; nothing stays on the disk."""
    project, state, found, machine = _open(videos, out, options)
    measurements = Measurements(project, state, found, machine, options)
    size = size_plan(measurements.footage, machine)
    if options.seconds is not None:
        state = set_budget(state, measurements, machine, options.seconds)
        size = fitted_size(state, measurements.footage, machine)
    guess = measurements.project(size)
    return replace(guess, train=0.0) if is_trained(project, state) and not options.retrain else guess


def _open(videos: Path, out: Path, options: Options) -> tuple[Project, State, FoundVideos, Machine]:
    """Check what can be checked at once, and return where everything is; nothing is written."""
    check_place(out, videos)
    project = Project(out)
    machine = this_machine(options.device)
    state = open_state(project, videos, options)
    found = scan(state)
    check_count(len(found.videos), videos, what="video files")
    check_guide(state)
    image_entry(state)  # an unknown network is an error now, not after hours
    return project, state, found, machine


def _next_generation(project: Project, state: State, options: Options) -> State:
    """With --retrain, begin another training once the last one has reached its end."""
    if not options.retrain:
        return state
    if state.trained is None or state.finished < state.generation:
        logger.info("--retrain: the training of %s is not finished: going on with it", project.folder)
        return state
    return state.model_copy(update={"generation": state.generation + 1, "time_seconds": None, "epochs_factor": 1.0})


def _fit_time(project: Project, state: State, found: FoundVideos, machine: Machine, options: Options) -> State:
    """Choose the size of the plan by --time, unless that was done before this call was interrupted."""
    if options.seconds is None or options.seconds == state.time_seconds:
        return state
    plan = project.plan(state.generation)
    if plan.is_file():
        logger.warning("--time changes nothing: %s is there already; edit its epochs", plan)
        return state
    return set_budget(state, Measurements(project, state, found, machine, options), machine, options.seconds)


def _run_phases(project: Project, state: State, found: FoundVideos, machine: Machine, options: Options) -> LearnResult:
    announce_removed(project, found)
    num_converted = convert_videos(
        project.clips,
        found.collection,
        short_edge=state.short_edge,
        device=machine.device,
        workers=options.num_workers,
    )
    store = ClipStore.open(project.clips)
    present = present_ids(found.videos, store.records)
    check_count(len(present), Path(state.videos), what="readable videos")
    if num_converted and is_trained(project, state):
        logger.info(
            "%d new videos: they are embedded and indexed, and the networks stay as they are (--retrain trains them on "
            "all %d)",
            *(num_converted, len(present)),
        )
    if not project.plan(state.generation).is_file():
        make_plan(project, state, present, machine, options)
    state, rows, num_windows = _train(project, state, machine, options)
    trained = state.trained
    assert trained is not None
    entries = [*trained_entries(project, trained.encoders, num_windows), *image_entry(state, num_windows)]
    features, num_embedded = embed_videos(project, entries, present, found.labels, options=options)
    key = index_key(features)
    if state.index_key != key:
        write_index(project, entries)
        state = project.write(state.model_copy(update={"index_key": key}))
    if state.page_key != key:
        write_page(project)
        state = project.write(state.model_copy(update={"page_key": key}))
    project.write(state.model_copy(update={"finished": state.generation}))
    return LearnResult(
        folder=project.folder,
        num_videos=len(present),
        num_embedded=num_embedded,
        encoders={name: project.folder / path for name, path in trained.encoders.items()},
        measures=measure_encoders(features),
        skipped=open_failures(project.clips, store.failures),
        rows=rows,
    )


def _train(project: Project, state: State, machine: Machine, options: Options) -> tuple[State, list[Row], int | None]:
    """Run the plan, unless it was run as it is now; return its table and the windows per video."""
    plan = open_plan(project, state.generation, device=options.device)
    if is_trained(project, state):
        return state, read_rows(project, state.generation), plan.evaluation.windows
    announce_plan(project, state, plan)
    parallel = 2 if machine.device == "cpu" and machine.cores > 1 else 1
    state, rows = train_plan(project, state, plan, parallel=parallel)
    return state, rows, plan.evaluation.windows
