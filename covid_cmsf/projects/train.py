"""The plan of a project: make it, say what it would do, run it, and find the encoders that it ends with."""

import json
import logging
from collections.abc import Sequence

from covid_cmsf import exit_codes
from covid_cmsf.cotrain.display import stage_bars
from covid_cmsf.cotrain.executor import stage_states
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.plan import PlanConfig
from covid_cmsf.cotrain.run import load_plan, prepare_plan, run_plan
from covid_cmsf.cotrain.table import Row, table_notes
from covid_cmsf.files import read_text, write_text_atomic
from covid_cmsf.projects.plan_file import plan_text
from covid_cmsf.projects.sizes import Footage, PlanSize
from covid_cmsf.projects.state import Project, State, Trained, text_hash
from covid_cmsf.projects.tables import write_training_tables

logger = logging.getLogger(__name__)


def write_plan(
    project: Project,
    state: State,
    size: PlanSize,
    footage: Footage,
    video_ids: Sequence[str],
    *,
    device: str,
    notes: Sequence[str] = (),
) -> None:
    """Fix the videos to train on, then write the plan: if the plan is there, so are its videos."""
    generation = state.generation
    write_training_tables(project.clips, project.trained_on(generation), video_ids)
    init = None
    if generation > 1:
        assert state.trained is not None
        init = state.trained.encoders
    text = plan_text(
        size,
        footage,
        seed=state.seed,
        device=device,
        clips=project.trained_on(generation).name,
        runs=project.runs(generation).name,
        init=init,
        guide=state.guide,
        notes=tuple(notes),
    )
    write_text_atomic(project.plan(generation), text)


def open_plan(project: Project, generation: int, *, device: str | None = None) -> PlanConfig:
    """Read the plan as it is now, also if it was edited; clips and weights are looked up in the project's folder."""
    path = project.plan(generation)
    changes = [f"defaults.clips={json.dumps(str(project.trained_on(generation)))}"]
    if device is not None:
        changes.append(f"defaults.runtime.device={json.dumps(device)}")
    plan = load_plan(path, changes)
    overrides = {
        modality: {**values, "init": str(project.folder / values["init"])} if "init" in values else values
        for modality, values in plan.pretrain_overrides.items()
    }
    return plan.model_copy(update={"pretrain_overrides": overrides})


def plan_hash(project: Project, generation: int) -> str:
    """Return the hash of the plan's text."""
    return text_hash(read_text(project.plan(generation)))


def announce_plan(project: Project, state: State, plan: PlanConfig) -> None:
    """Check the plan and say which stages will be trained; raise all its problems at once."""
    generation = state.generation
    _, graphs = prepare_plan(plan, project.runs(generation), plan_dir=project.folder)
    waiting, done = [], []
    for stages in graphs:
        states = stage_states(stages, {stage.id for stage in stages})
        waiting += [name for name, one in states.items() if one == "waiting"]
        done += [name for name, one in states.items() if one == "done"]
    name = project.plan(generation).name
    if state.trained is not None and state.finished == generation and waiting:
        logger.info("%s was changed: training %s again%s", name, ", ".join(waiting), _kept(done))
    elif waiting:
        logger.info("training %d stages of %s: %s%s", len(waiting), name, ", ".join(waiting), _kept(done))


def _kept(done: list[str]) -> str:
    return f"; done: {', '.join(done)}" if done else ""


def train_plan(project: Project, state: State, plan: PlanConfig, *, parallel: int) -> tuple[State, list[Row]]:
    """Run the stages that are not done; return the state with the encoders.

    Raises:
        KeyboardInterrupt: a signal came; call again to resume.
        RuntimeError: a stage failed.
    """
    generation = state.generation
    with stage_bars() as show:
        code, rows = run_plan(plan, project.runs(generation), plan_dir=project.folder, parallel=parallel, show=show)
    if code == exit_codes.INTERRUPTED:
        raise KeyboardInterrupt
    if code == exit_codes.FAILED:
        raise RuntimeError("; ".join(note.strip() for note in table_notes(rows)))
    stages = final_stages(project, plan, generation)
    encoders = {name: str(stage.checkpoint.relative_to(project.folder)) for name, stage in stages.items()}
    trained = Trained(plan_sha256=plan_hash(project, generation), encoders=encoders)
    return project.write(state.model_copy(update={"trained": trained})), rows


def final_stages(project: Project, plan: PlanConfig, generation: int) -> dict[str, Stage]:
    """Return the last trained stage of each modality; with several seeds, of the first one."""
    _, graphs = prepare_plan(plan, project.runs(generation), plan_dir=project.folder)
    found = {stage.modality: stage for stage in graphs[0] if stage.config is not None}
    if not found:
        raise ValueError(f"{project.plan(generation)} trains no network")
    return found


def read_rows(project: Project, generation: int) -> list[Row]:
    """Return the table that the plan has written."""
    path = project.runs(generation) / "table.json"
    rows: list[Row] = json.loads(read_text(path)) if path.is_file() else []
    return rows
