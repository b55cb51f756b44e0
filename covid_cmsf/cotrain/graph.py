"""Build the graph of a plan: stages with resolved configurations, file paths, dependencies and cache keys."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from covid_cmsf.config import find_config, read_yaml, validate
from covid_cmsf.cotrain.plan import EvaluationConfig, PlanConfig, StageConfig, Values, merge_layers
from covid_cmsf.cotrain.rounds import expand_stages
from covid_cmsf.files import file_sha256, read_text
from covid_cmsf.models.checkpoints.reader import find_checkpoint
from covid_cmsf.models.named_networks import named_library
from covid_cmsf.training.config import LoggingConfig, RuntimeConfig, TrainConfig
from covid_cmsf.training.run_dir import CONFIG_FILE, config_to_dict
from covid_cmsf.views.config import ViewConfig
from covid_cmsf.yaml_files import read_yaml_file

GUIDE_CHECKS = ("weights", "allow_other_views")  # of a guide's settings: do not change what a stage computes
CLASSIFIERS = ("xent", "frzproto")  # methods that train a classifier
CONTENT = 1  # increment when what a stage computes changes: all stages of existing plans are then redone


@dataclass(frozen=True)
class Stage:
    """A resolved stage.

    `config` is None if nothing is trained. `key` is a hash of all inputs: a stage is redone when it changes. `old_key`
    is the one that versions would have given to what is in the folder for which `logging` was an input, too.
    """

    spec: StageConfig
    number: int
    folder: Path
    modality: str
    config: TrainConfig | None
    needs: tuple[str, ...]
    key: str
    clips: str
    split: str
    views: ViewConfig
    seed: int
    evaluation: EvaluationConfig
    runtime: RuntimeConfig
    repetition: str = ""  # `split-2/seed-0` in a plan with splits and seeds
    old_key: str = ""

    @property
    def name(self) -> str:
        """Name of the stage and of its folder."""
        return self.spec.name

    @property
    def id(self) -> str:
        """Name of the stage among all splits and seeds of the plan, such as `split-2/seed-0/cmsf-rgb-1`."""
        return self._id_of(self.name)

    def has_key(self, key: object) -> bool:
        """Return whether a key, as it was recorded, is the stage's."""
        return isinstance(key, str) and key != "" and key in (self.key, self.old_key)

    @property
    def needed_ids(self) -> tuple[str, ...]:
        """Ids of the stages that must be done before."""
        return tuple(self._id_of(name) for name in self.needs)

    def _id_of(self, name: str) -> str:
        return f"{self.repetition}/{name}" if self.repetition else name

    @property
    def lock(self) -> Path:
        """Held by the process that runs the stage. Not in the folder, which may be moved to `replaced/`."""
        return self.folder.with_name(f".{self.name}.lock")

    @property
    def checkpoint(self) -> Path:
        """Weights file of the stage; it exists once the stage is done."""
        if self.spec.weights is not None:
            return _weights_file(self.spec.weights)
        return self.folder / "checkpoints" / "last.pt"


def repetition_name(seed: int | None, split: str | None) -> str:
    """Return the folder of a seed and split within the plan's: `split-2/seed-0`; empty if the plan has neither."""
    parts = ([] if split is None else [f"split-{split}"]) + ([] if seed is None else [f"seed-{seed}"])
    return "/".join(parts)


def build_graph(
    plan: PlanConfig, out: Path, *, plan_dir: Path, seed: int | None = None, split: str | None = None
) -> list[Stage]:
    """Return the stages in dependency order; `config` files are relative to `plan_dir`, the folder of the plan."""
    stages: dict[str, Stage] = {}
    for number, spec in enumerate(expand_stages(plan), start=1):
        if spec.name in stages:
            raise ValueError(f"two stages have the name {spec.name!r}")
        needs = tuple(dict.fromkeys(name for name in (spec.init, *spec.guides) if name is not None))
        for verb, names in {"needs": needs, "is compared with": spec.compared}.items():
            for name in names:
                if name not in stages:
                    raise ValueError(
                        f"stage {spec.name!r} {verb} {name!r}, which is not an earlier stage; choose from "
                        f"{', '.join(stages) or 'none'}"
                    )
        earlier = [stages[name] for name in needs]
        stages[spec.name] = _build_stage(
            plan, spec, number, out / spec.name, earlier, plan_dir=plan_dir, seed=seed, split=split
        )
    return list(stages.values())


def _build_stage(
    plan: PlanConfig,
    spec: StageConfig,
    number: int,
    folder: Path,
    earlier: Sequence[Stage],
    *,
    plan_dir: Path,
    seed: int | None,
    split: str | None,
) -> Stage:
    by_name = {stage.name: stage for stage in earlier}
    needs = tuple(by_name)
    base = {} if spec.config is None else read_yaml(find_config("runs", spec.config, relative_to=plan_dir))
    values = stage_values(plan, spec, base=base)
    if seed is not None:
        values["seed"] = seed
    if split is not None:
        if "split" in spec.overrides:
            raise ValueError(f"stage {spec.name} has a split of its own, and the plan has `splits`: leave out one")
        values["split"] = split
    config = None
    if spec.trains:
        init = by_name[spec.init] if spec.init else None
        guides = [by_name[name] for name in spec.guides]
        if init is not None:
            values |= {"init": str(init.checkpoint), "init_branch": init.spec.branch}
        if guides:
            template = {**(values.get("guides") or [{}])[0], **spec.guide_overrides}
            values["guides"] = [_guide_values(template, guide) for guide in guides]
        config = validate(TrainConfig, values, origin=f"stage {spec.name}")
    modality = config.modality if config is not None else str(spec.modality)
    key = _stage_key(spec, config, values, [stage.key for stage in earlier], logging=LoggingConfig().model_dump())
    logging = _recorded_logging(folder, key, config)
    old_key = _stage_key(spec, config, values, [stage.old_key for stage in earlier], logging=logging)
    return Stage(
        spec,
        number,
        folder,
        modality,
        config,
        needs,
        key,
        clips=str(values.get("clips", "")),
        split=str(values.get("split", "1")),
        views=validate(ViewConfig, values.get("views", {}), origin=f"stage {spec.name}, section views"),
        seed=int(values.get("seed", 0)),
        evaluation=_stage_evaluation(plan, spec, config),
        runtime=validate(RuntimeConfig, values.get("runtime", {}), origin=f"stage {spec.name}, section runtime"),
        repetition=repetition_name(seed, split),
        old_key=old_key,
    )


def _guide_values(template: Values, guide: Stage) -> Values:
    """Return the settings of a guide; those about layers are not for a network of another library."""
    values = {**template, "weights": str(guide.checkpoint), "modality": guide.modality, "branch": guide.spec.branch}
    if guide.spec.weights is not None and named_library(guide.spec.weights) is not None:
        values.pop("layer", None)
    return values


def _stage_evaluation(plan: PlanConfig, spec: StageConfig, config: TrainConfig | None) -> EvaluationConfig:
    """Return the plan's evaluation with the stage's own probe; ValueError if the stage cannot be probed that way."""
    if spec.probe is None and plan.evaluation.probe == "classifier":
        raise ValueError("evaluation.probe: classifier is no probe for all stages; set `probe: classifier` per stage")
    evaluation = plan.evaluation if spec.probe is None else plan.evaluation.model_copy(update={"probe": spec.probe})
    if evaluation.probe == "classifier" and config is not None and config.method.name not in CLASSIFIERS:
        raise ValueError(
            f"stage {spec.name}: probe: classifier needs a method that trains one ({', '.join(CLASSIFIERS)}), "
            f"not {config.method.name}"
        )
    untrained = spec.random is not None or spec.histogram is not None
    if evaluation.probe == "classifier" and untrained:
        raise ValueError(f"stage {spec.name}: probe: classifier needs a trained network")
    if evaluation.probe == "classifier" and evaluation.query == "val":
        raise ValueError(f"stage {spec.name}: the classifier of pre-training has seen the subset val; query another")
    expected = "fit" if evaluation.query == "val" else "train"
    if evaluation.probe == "compress_augmented" and evaluation.gallery != expected:
        raise ValueError(
            f"probe compress_augmented with query {evaluation.query!r} trains on the subset {expected}; "
            f"gallery is {evaluation.gallery!r}"
        )
    if evaluation.probe == "compress_augmented" and spec.histogram is not None:
        raise ValueError(f"stage {spec.name}: a histogram has no network to train a probe on; set its `probe`")
    return evaluation


def stage_values(plan: PlanConfig, spec: StageConfig, *, base: Values) -> Values:
    """Return the training configuration of a stage: `base` <- `defaults` <- the stage's keys, later ones win."""
    layers = [base, plan.defaults_of(spec.modality), spec.overrides]
    layers += [{"method": spec.method}] if spec.method else []
    layers += [{"modality": spec.modality}] if spec.modality is not None else []
    layers += [{"schedule": {"epochs": spec.epochs}}] if spec.epochs is not None else []
    return merge_layers(*layers)


def _stage_key(
    spec: StageConfig,
    config: TrainConfig | None,
    values: Values,
    needs: Sequence[str],
    *,
    logging: Values,
) -> str:
    """Hash the inputs of a stage: configuration without runtime and paths, keys of its dependencies, clips.

    `logging` stands for that of the configuration, which changes nothing that is computed.
    """
    contents: dict[str, Any] = {"content": CONTENT, "split": values.get("split"), "views": values.get("views")}
    contents["needs"] = list(needs)
    contents["clips"] = clips_fingerprint(str(values.get("clips", "")))
    if config is not None:
        run = config_to_dict(config)
        contents["config"] = {k: v for k, v in run.items() if k not in ("runtime", "init", "guides", "clips")}
        contents["config"]["logging"] = logging
        contents["config"]["precision"] = KEY_PRECISION.get(config.precision, config.precision)
        contents["guides"] = [{k: v for k, v in guide.items() if k not in GUIDE_CHECKS} for guide in run["guides"]]
        if spec.init is None and config.init is not None:
            contents["init"] = _file_hash(config.init)
        if not spec.guides:
            contents["files"] = [_file_hash(guide.weights) for guide in config.guides]
    elif spec.weights is not None:
        contents["weights"] = [_file_hash(spec.weights), spec.branch, spec.modality]
    else:
        contents["made"] = [spec.random, spec.histogram, spec.modality, values.get("seed", 0)]
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def _recorded_logging(folder: Path, key: str, config: TrainConfig | None) -> Values:
    """Return how the run in the folder logs, or would: read only where the folder has another key."""
    own = LoggingConfig().model_dump() if config is None else config.logging.model_dump(mode="json")
    recorded, written = folder / "stage.key", folder / CONFIG_FILE
    if not recorded.is_file() or not written.is_file() or read_text(recorded).strip() == key:
        return own
    try:
        run = read_yaml_file(written)
    except ValueError:  # damaged: the run itself will say so
        return own
    found = run.get("logging") if isinstance(run, dict) else None
    return found if isinstance(found, dict) else own


# A default that was fp32 and became auto redoes no stage, and a key does not depend on the machine that computes it.
KEY_PRECISION = {"auto": "fp32", "fp32": "fp32 on any device"}


def _file_hash(path: str) -> str:
    """Hash a weights file. One that is missing matters only if the stage will run: `check_plan` tells that.

    A network that is downloaded counts by its name.
    """
    checkpoint, inputs = _weights_file(path), ""
    if (library := named_library(path)) is not None:
        try:
            file = library.weights_file(path)
            inputs = library.inputs(path)
        except (ValueError, FileNotFoundError):  # of a package that is not installed
            return "missing"
        if file is None:
            return path
        checkpoint = file
    if not checkpoint.is_file():
        return "missing"
    stat = checkpoint.stat()
    return _hash_once(checkpoint, stat.st_mtime_ns, stat.st_size) + inputs


@cache
def _hash_once(path: Path, modified: int, size: int) -> str:
    return file_sha256(path)


def _weights_file(path: str) -> Path:
    try:
        return find_checkpoint(path)
    except FileNotFoundError:  # a folder without a checkpoint, so far
        return Path(path) / "checkpoints" / "last.pt"


def clips_fingerprint(path: str) -> list[str]:
    """Return the hashes of a clip store's tables, read once for all stages; for other formats, the path."""
    folder = Path(path)
    tables = [folder / "store.json", folder / "manifest.csv", *sorted((folder / "splits").glob("*.csv"))]
    stats = [(table, table.stat()) for table in tables if table.is_file()]
    return [_hash_once(table, stat.st_mtime_ns, stat.st_size) for table, stat in stats] or [path]
