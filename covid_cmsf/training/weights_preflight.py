"""Checks of the weights of a run: guides and `init` exist, and see what they were trained on."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import FlowInfo
from covid_cmsf.exit_codes import USER_ERRORS
from covid_cmsf.models.checkpoints.load import extract_state
from covid_cmsf.models.checkpoints.reader import find_checkpoint
from covid_cmsf.models.named_networks import load_named_network, named_library
from covid_cmsf.preflight import Problem
from covid_cmsf.training.config import GuideConfig, TrainConfig
from covid_cmsf.views.config import ViewConfig
from covid_cmsf.views.modalities import MODALITIES, Modality, get_modality
from covid_cmsf.views.preflight import other_flow


@dataclass(frozen=True)
class TrainedOn:
    """The input of a network; `view` is (length, stride, size), None where its file does not say."""

    modality: str  # "unknown" where its file does not say
    in_channels: int
    view: tuple[int, int, int] | None
    flow: FlowInfo | None = None


Planned = Mapping[str, TrainedOn]  # {weights: what they will be trained on}, of files that do not exist yet


def check_weights(config: TrainConfig, planned: Planned) -> list[Problem]:
    """Check that guides and `init` exist, and were trained on what they will be given."""
    problems = []
    for number, guide in enumerate(config.guides):
        place = f"guides.{number}"
        try:
            trained = planned.get(guide.weights) or trained_on(
                guide.weights, branch=guide.branch, keep_head=guide.layer == "projector"
            )
            problems += check_guide(guide, trained, config.views, place=place)
        except USER_ERRORS as error:
            advice = "" if named_library(guide.weights) else "; train the guide first, or name another one with --guide"
            problems.append(Problem(f"{place}: {error}{advice}"))
    if config.init is not None and named_library(config.init) is not None:
        problems.append(Problem(f"init: {config.init} can be a guide, but it is not trained further here"))
    elif config.init is not None:
        try:
            reuse = config.method.head is not None and config.method.head.reuse
            trained = planned.get(config.init) or trained_on(config.init, branch=config.init_branch, keep_head=reuse)
            problems += check_init(config, trained)
        except USER_ERRORS as error:
            problems.append(Problem(f"init: {error}; train that run first, or leave init out for random weights"))
    return problems


def check_flow(config: TrainConfig, planned: Planned, clips: Clips) -> list[Problem]:
    """Check that guides and `init` get flow of the algorithm that they were trained on; `check_weights` came before."""
    problems = []
    for number, guide in enumerate(config.guides):
        trained = planned.get(guide.weights) or trained_on(
            guide.weights, branch=guide.branch, keep_head=guide.layer == "projector"
        )
        different = other_flow(trained.flow, clips, get_modality(guide.modality), address=config.clips)
        if different and not guide.allow_other_views:
            advice = f"compute it as it was, or set guides.{number}.allow_other_views=true"
            problems.append(Problem(f"guides.{number}: {guide.weights} {different}; {advice}"))
    if config.init is not None:
        trained = planned.get(config.init) or trained_on(config.init, branch=config.init_branch)
        different = other_flow(trained.flow, clips, get_modality(config.modality), address=config.clips)
        problems += [Problem(f"init: {config.init} {different}", "warning")] if different else []
    return problems


def trained_on(weights: str, *, branch: str | None = None, keep_head: bool = False) -> TrainedOn:
    """Read from a weights file what its network was trained on; raise an error if it can't be loaded."""
    if (library := named_library(weights)) is not None:
        file = library.weights_file(weights)
        return _named_trained_on(weights, file.stat().st_mtime_ns if file is not None and file.exists() else 0)
    path = find_checkpoint(weights)
    modified = path.stat().st_mtime_ns if path.exists() else 0
    return _read_trained_on(path, branch, keep_head, modified)


@cache
def _named_trained_on(address: str, modified: int) -> TrainedOn:
    metadata = load_named_network(address).network.metadata
    return TrainedOn(metadata.modality, metadata.in_channels, None)  # any view: it has its own preprocessing


@cache
def _read_trained_on(path: Path, branch: str | None, keep_head: bool, modified: int) -> TrainedOn:
    state = extract_state(path, branch=branch, encoder=None, keep_head=keep_head)
    if keep_head and not state.head.state:
        raise ValueError(f"{path} has no projection head for this encoder (layer=encoder needs none)")
    metadata = state.metadata
    length, height, _ = metadata.input_size
    has_own_view = named_library(metadata.encoder) is not None  # any view: it has its own preprocessing
    view = (length, metadata.stride, height) if state.layout.has_metadata and not has_own_view else None
    return TrainedOn(metadata.modality, metadata.in_channels, view, metadata.flow)


def check_guide(guide: GuideConfig, trained: TrainedOn, views: ViewConfig, *, place: str) -> list[Problem]:
    """Check that a guide sees the modality and, unless others are allowed, the views that it was trained on."""
    seen = get_modality(guide.modality, flow_style=views.flow_style)
    if trained.in_channels != seen.num_channels:
        return [
            Problem(
                f"{place}: {guide.weights} takes {trained.in_channels} channels (trained on {trained.modality}), and "
                f"{seen.name} has {seen.num_channels}; for CoCLR's flow networks set views.flow_style=coclr"
            )
        ]
    if trained.modality not in ("unknown", seen.name) and {trained.modality, seen.name} != {"rgb", "frame"}:
        return [Problem(f"{place}: {guide.weights} was trained on {trained.modality}, not on {seen.name}")]
    given = given_view(views, seen)
    if trained.view is None or guide.allow_other_views or _same_view(trained.view, given):
        return []
    return [
        Problem(
            f"{place}: {guide.weights} was trained on {_view_text(trained.view)}, and would see {_view_text(given)}; "
            f"set views as they were, or {place}.allow_other_views=true"
        )
    ]


def given_view(views: ViewConfig, modality: Modality) -> tuple[int, int, int]:
    """Return length, stride and size of the views of a modality."""
    return (1, 1, views.frame_size) if modality.single_frame else (views.length, views.stride, views.size)


def _same_view(trained: tuple[int, int, int], given: tuple[int, int, int]) -> bool:
    if trained[0] == given[0] == 1:  # single frames have no stride
        return trained[2] == given[2]
    return trained == given


def _view_text(view: tuple[int, int, int]) -> str:
    length, stride, size = view
    return f"{length} frame{'s' if length != 1 else ''} with stride {stride} at {size} pixels"


def check_init(config: TrainConfig, trained: TrainedOn) -> list[Problem]:
    """Check that `init` is a network for this modality."""
    seen = get_modality(config.modality, flow_style=config.views.flow_style)
    known = MODALITIES.get(trained.modality)
    same_kind = known is None or known.is_flow == seen.is_flow
    if trained.in_channels == seen.num_channels and same_kind:
        return []
    return [
        Problem(
            f"init: {config.init} is a network for {trained.modality} ({trained.in_channels} channels), and this run "
            f"is on {seen.name} ({seen.num_channels} channels); start from a network for {seen.name}, or convert it "
            "with `covid-cmsf weights import --channels --adapt`"
        )
    ]
