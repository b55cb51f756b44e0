"""How long a project takes and how large it gets, from short measurements; and the plan that fits a time budget.

Flow is timed as `preprocess --estimate` does. For the training some videos become a clip store in a temporary folder;
a few steps of InfoNCE and of mean shift are run on it, with the plan's own settings.
"""

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covid_cmsf.clips import open_clips
from covid_cmsf.cotrain.graph import build_graph
from covid_cmsf.cotrain.run import load_plan
from covid_cmsf.devices import choose_device
from covid_cmsf.evaluation.features.extract import extract_features
from covid_cmsf.evaluation.features.model import create_random_model
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.evaluation.preflight import features_bytes
from covid_cmsf.projects.plan_file import plan_text
from covid_cmsf.projects.sizes import Footage, Machine, PlanSize, Preset, shorten, size_plan
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.dry_run import dry_run
from covid_cmsf.training.footprint import meta_encoder
from preprocess.config import WorkerConfig, make_store_flow
from preprocess.estimate import Estimate, estimate
from preprocess.layouts import Collection, Video
from preprocess.run import PreprocessRun
from preprocess.store import prepare_store

NUM_SAMPLED = 6  # videos of the temporary store
SAMPLED_FRAMES = 64  # of each
TIMED_STEPS = 5
MIN_FACTOR = 0.4  # of the epochs: networks that InfoNCE has trained too briefly get worse by mean shift
PAGE_SECONDS = 0.1  # per video: index, thumbnails, page; a rough guess
MODALITIES = ("rgb", "flow")


@dataclass(frozen=True)
class StepSeconds:
    """Measured seconds: a step of each method and modality, and a video's features by a stage."""

    infonce: dict[str, float]
    cmsf: dict[str, float]
    video: float

    def to_json(self) -> dict[str, float]:
        """Return one number per measurement."""
        values = {f"infonce.{name}": value for name, value in self.infonce.items()}
        values |= {f"cmsf.{name}": value for name, value in self.cmsf.items()}
        return {**values, "video": self.video}


@dataclass(frozen=True)
class ProjectEstimate:
    """Seconds per phase and bytes on disk; `plan` is what would be trained."""

    convert: float
    train: float
    embed: float
    page: float
    bytes: float
    plan: PlanSize
    footage: Footage

    @property
    def total(self) -> float:
        """Seconds of the whole project."""
        return self.convert + self.train + self.embed + self.page


def measure_conversion(videos: list[Video], worker_configs: list[WorkerConfig]) -> Estimate:
    """Time the conversion of a few videos; long ones in part."""
    first = worker_configs[0]
    flow = make_store_flow(first.info, first.device)
    return estimate(
        videos, first.info, decoder=first.decoder, flow=flow, num_workers=len(worker_configs), max_frames=200
    )


def measure_steps(
    size: PlanSize, footage: Footage, videos: list[Video], worker_configs: list[WorkerConfig], *, device: str
) -> StepSeconds:
    """Time steps and features on a few videos, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        clips = Path(folder) / "clips"
        _sample_store(clips, videos, worker_configs)
        text = plan_text(size, footage, seed=0, device=device, clips="clips", runs="runs")
        (Path(folder) / "plan.yaml").write_text(text, encoding="utf-8")
        plan = load_plan(Path(folder) / "plan.yaml", [f"defaults.clips={clips}", "controls=[msf]"])
        stages = {one.name: one for one in build_graph(plan, Path(folder) / "runs", plan_dir=Path(folder))}
        infonce, cmsf = ({name: stages[f"{kind}-{name}"].config for name in MODALITIES} for kind in ("infonce", "msf"))
        return StepSeconds(
            infonce={name: _time_step(config) for name, config in infonce.items()},
            cmsf={name: _time_step(config) for name, config in cmsf.items()},  # a cached guide adds a table lookup
            video=_time_video(size, clips, device=device),
        )


def _sample_store(clips: Path, videos: list[Video], worker_configs: list[WorkerConfig]) -> None:
    step = max(1, len(videos) // (2 * NUM_SAMPLED))
    sample = videos[::step][: 2 * NUM_SAMPLED]  # some may be unreadable
    info = worker_configs[0].info.model_copy(update={"max_frames": SAMPLED_FRAMES})
    configs = [WorkerConfig(info, one.decoder, one.device) for one in worker_configs[:2]]
    collection = Collection(sample, {"1": {video.video_id: "train" for video in sample}})
    info = prepare_store(clips, info)
    summary = PreprocessRun(clips, collection, info).run(sample, configs, time_limit=600.0, retry_failed=False)
    if summary.interrupted:
        raise KeyboardInterrupt


def _time_step(config: TrainConfig | None) -> float:
    assert config is not None
    values: dict[str, Any] = config.model_dump(mode="json")
    values["init"] = None
    if "reuse" in values["method"]["head"]:
        values["method"]["head"]["reuse"] = False
    values["repeat"] = max(config.repeat, config.batch_size * (TIMED_STEPS + 1))
    values["schedule"]["epochs"] = 10_000  # the bank of this trial need not fill
    return dry_run(TrainConfig.model_validate(values), num_steps=TIMED_STEPS).seconds_per_step


def _time_video(size: PlanSize, clips: Path, *, device: str) -> float:
    """Return the seconds of one video's features, mean of both modalities; without what is done once."""
    opened = open_clips(clips)
    seconds = []
    for modality in MODALITIES:
        model = create_random_model(
            size.encoder, modality=modality, seed=0, input_size=(size.length, size.size, size.size), stride=size.stride
        )
        protocol = build_eval_protocol(model.metadata, num_windows=size.windows)
        for number in range(2):  # the first time warms up
            start = time.monotonic()
            out = clips.parent / f"{modality}-{number}.features"
            extract_features(model, opened, out, eval_protocol=protocol, device=choose_device(device))
            last = time.monotonic() - start
        seconds.append(last / len(opened.records))
    return sum(seconds) / len(seconds)


# From measurements to a project


def training_seconds(size: PlanSize, footage: Footage, steps: StepSeconds) -> float:
    """Return the wall-clock seconds of all stages with their evaluation.

    Side by side run the two stages of InfoNCE; the stages of a round wait for each other.
    """
    per_epoch = size.steps_per_epoch(footage.num_videos)
    evaluation = footage.num_videos * steps.video
    guides = footage.num_videos * steps.video * 4 / size.windows  # four views per video, once
    infonce = [per_epoch * size.pretrain_epochs * steps.infonce[name] + evaluation for name in MODALITIES]
    rounds = [per_epoch * size.cmsf_epochs * steps.cmsf[name] + evaluation + guides for name in MODALITIES]
    together = max(infonce) if size.parallel > 1 else sum(infonce)
    return together + size.rounds * sum(rounds)


def estimate_project(
    size: PlanSize, footage: Footage, conversion: Estimate | None, steps: StepSeconds
) -> ProjectEstimate:
    """Return seconds and bytes of a project; `conversion` is None when nothing is left to convert."""
    width = meta_encoder(size.encoder).num_features
    features = features_bytes(footage.num_videos, num_windows=size.windows, num_features=width)
    # Features: those of four stages, two files, the index; and a checkpoint or two of every stage.
    stored = (2 + 2 * size.rounds + 2 + 2) * features + (2 + 2 * size.rounds) * 2 * 30e6
    return ProjectEstimate(
        convert=0.0 if conversion is None else 3600 * conversion.hours,
        train=training_seconds(size, footage, steps),
        embed=0.0 if size.rounds else 2 * footage.num_videos * steps.video,  # the stages' own features are used
        page=PAGE_SECONDS * footage.num_videos,
        bytes=stored + (0.0 if conversion is None else 1e9 * conversion.gigabytes),
        plan=size,
        footage=footage,
    )


def fit_plan(
    footage: Footage, machine: Machine, seconds: float, measure: Callable[[PlanSize], StepSeconds]
) -> tuple[PlanSize, float]:
    """Return the largest plan whose training takes at most `seconds`, and what it takes.

    First the epochs fall, to two fifths; then the views are smaller, and the epochs fall again. If that is too much, it
    is a ValueError with the seconds that the smallest plan needs.

    Args:
        footage: the videos.
        machine: the device.
        seconds: what is left for training.
        measure: returns the seconds of steps with a plan's views; called once per size of views.
    """
    presets: Sequence[Preset] = ("cpu", "cpu-small") if machine.device == "cpu" else ("gpu", "gpu-small")
    needed = 0.0
    for preset in presets:
        full = size_plan(footage, machine, preset=preset)
        steps = measure(full)
        for percent in range(100, int(100 * MIN_FACTOR) - 1, -5):
            plan = shorten(full, footage, percent / 100)
            needed = training_seconds(plan, footage, steps)
            if needed <= seconds:
                return plan, needed
    raise BudgetError(needed)


class BudgetError(ValueError):
    """The smallest sensible plan takes longer; `seconds` is what it takes."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the smallest plan takes {seconds:.0f} s")
        self.seconds = seconds


def parse_time(text: str) -> float:
    """Return the seconds of `30m`, `2h`, `1h30m` or `90s`."""
    match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+)s)?", text.strip().lower())
    if match is None or not any(match.groups()):
        raise ValueError(f"--time {text!r}: write it as 30m, 2h or 1h30m")
    hours, minutes, rest = (float(group or 0) for group in match.groups())
    seconds = 3600 * hours + 60 * minutes + rest
    if seconds <= 0:
        raise ValueError(f"--time {text!r} is no time")
    return seconds
