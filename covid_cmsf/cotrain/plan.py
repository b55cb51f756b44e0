"""Configuration of a plan: a list of stages, or a number of co-training rounds."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from covid_cmsf.config import Config, check_partial, deep_update
from covid_cmsf.config_schema import KeysOf
from covid_cmsf.models.named_networks import named_library
from covid_cmsf.training.config import GuideConfig, TrainConfig, known_modality

Values = dict[str, Any]
TrainValues = Annotated[Values, KeysOf(TrainConfig)]  # some keys of a training configuration
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Control = Literal["continued", "msf", "oracle", "coclr"]
Histogram = Literal["color", "flow"]
Baseline = Literal["chance", "color", "flow", "random"]
Probe = Literal["protocol", "compress", "compress_augmented", "classifier"]


class Published(Config):
    """Published figures of the same stage, in percent."""

    r1: float | None = Field(default=None, description="retrieval, R@1")
    linear: float | None = Field(default=None, description="linear probe, top-1 accuracy")
    transfer: float | None = Field(default=None, description="mean over ten data sets (images)")
    datasets: dict[str, float] = Field(default={}, description="transfer, per data set")


class StageConfig(Config):
    """One training run, or an encoder that is only evaluated. `init` and `guide` name earlier stages."""

    name: str = Field(description="also the name of its folder")
    modality: str | None = Field(
        default=None, description="rgb, flow, residual_flow, motion, residual_motion, rgbdiff, frame or audio"
    )
    config: str | None = Field(default=None, description="a training run: a name, or a file relative to the plan")
    section: Literal["pretrain", "cmsf"] | None = Field(
        default=None, description="train as this section of the plan says, with the stage's own keys over it"
    )
    method: Values = Field(default={}, description="merged over the method of `defaults`")
    init: str | None = Field(default=None, description="earlier stage to start from")
    guide: str | tuple[str, ...] | None = Field(default=None, description="earlier stage (or several) as guide")
    guide_overrides: Values = Field(default={}, description="keys of a guide: layer, cache, ...")
    epochs: int | None = Field(default=None, ge=1, description="short for overrides.schedule.epochs")
    overrides: TrainValues = Field(default={}, description="any keys of a training configuration")
    weights: str | None = Field(default=None, description="evaluate this weights file instead of training")
    branch: str | None = Field(default=None, description="branch of the weights file: online, target, guide")
    random: str | None = Field(default=None, description="evaluate this encoder with random weights")
    histogram: Histogram | None = Field(default=None, description="evaluate a histogram instead of a network")
    probe: Probe | None = Field(default=None, description="instead of `evaluation.probe`, for this stage")
    compare: str | tuple[str, ...] = Field(
        default=(), description="earlier stages that it is compared with, besides its start and its controls"
    )
    index: str | None = Field(default=None, description="the row's number in the paper")
    model: str | None = Field(default=None, description="the model's name in the table")
    published: Published = Published()

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError("a stage's name is also its folder: letters, digits, dots, dashes, underscores")
        return name

    @property
    def guides(self) -> tuple[str, ...]:
        """Names of the stages whose encoders guide this one."""
        if self.guide is None:
            return ()
        return (self.guide,) if isinstance(self.guide, str) else self.guide

    @property
    def compared(self) -> tuple[str, ...]:
        """Names of the stages of `compare`."""
        return (self.compare,) if isinstance(self.compare, str) else self.compare

    @property
    def trains(self) -> bool:
        """Whether the stage trains an encoder."""
        return self.weights is None and self.random is None and self.histogram is None

    @model_validator(mode="after")
    def _one_kind(self) -> "StageConfig":
        if sum(one is not None for one in (self.weights, self.random, self.histogram)) > 1:
            raise ValueError(f"stage {self.name}: give only one of weights, random and histogram")
        if not self.trains and (self.init or self.guides or self.epochs or self.method or self.config or self.section):
            raise ValueError(
                f"stage {self.name} is not trained, so it has no init, guide, epochs, method, config or section"
            )
        if not self.trains and self.modality is None:
            raise ValueError(f"stage {self.name}: modality is missing: the input of the network")
        return self


class EvaluationConfig(Config):
    """How every stage is evaluated."""

    protocol: Literal["clean", "coclr"] = Field(default="clean", description="coclr: as Han et al. measured")
    clips: str | None = Field(default=None, description="evaluate on these clips; None: those of training")
    split: str | None = Field(default=None, description="split to evaluate on; None: that of training")
    gallery: str = Field(default="train", description="subset to search in")
    query: str = Field(default="test", description="subset to evaluate")
    windows: int | None = Field(default=None, ge=1, description="windows per video; None: the protocol's")
    probe: Probe = Field(
        default="protocol",
        description="linear probe. compress: that of MSF (images) on stored features; compress_augmented: the same on "
        "augmented images, as published; classifier: none, but the classifier of pre-training (xent, frzproto)",
    )
    allow_shared_sources: bool = Field(
        default=False, description="accept clips of one source and class, or one file, in gallery and query"
    )

    @field_validator("split", mode="before")
    @classmethod
    def _number_or_name(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value  # evaluation.split=2 is a number


class PlanConfig(Config):
    """What to train, in which order, from which init, with which guide."""

    defaults: TrainValues = Field(default={}, description="training configuration that all stages share")
    modality_defaults: dict[str, TrainValues] = Field(
        default={}, description="merged over `defaults` for one modality: {audio: {encoder: r10_small}}"
    )
    stages: tuple[StageConfig, ...] = ()
    rounds: int = Field(default=0, ge=0, description="alternations; each trains every modality once")
    guides: tuple[str, ...] = Field(
        default=(),
        description="networks of other libraries, by name (timm:NAME): each is measured, and guides a stage `cmsf` per "
        "modality that starts from `pretrain`, beside the rounds",
    )
    modalities: tuple[str, ...] = Field(
        default=("rgb", "flow"),
        description="the networks of the rounds, two or more: each is guided by the newest networks of all others",
    )
    first: str = Field(default="flow", description="which modality is trained first in a round")
    init: Literal["base", "latest"] = Field(
        default="base", description="init of a round. base: `pretrain` (the paper); latest: the last round (CoCLR)"
    )
    pretrain: TrainValues = Field(
        default={}, description="training configuration of the first stage per modality (InfoNCE)"
    )
    pretrain_overrides: dict[str, TrainValues] = Field(
        default={}, description="merged over `pretrain` for one modality: {rgb: {schedule: {epochs: 600}}}"
    )
    cmsf: TrainValues = Field(
        default={},
        description="training configuration of the rounds (CMSF); `guides` has one element without weights",
    )
    controls: tuple[Control, ...] = Field(
        default=(),
        description="continued: more InfoNCE; msf: no constraint; oracle: labels as constraint; coclr: its loss, with "
        "the other pretrained network as guide; as long as a round",
    )
    control_overrides: dict[Control, TrainValues] = Field(
        default={}, description="merged over what a control takes from `cmsf`: {coclr: {optimizer: {lr: 1e-3}}}"
    )
    baselines: tuple[Baseline, ...] = Field(default=(), description="rows of the table that need no training")
    evaluation: EvaluationConfig = EvaluationConfig()
    seeds: tuple[int, ...] = Field(
        default=(), description="run all stages per seed; tables give mean and standard deviation"
    )
    splits: tuple[str, ...] = Field(
        default=(),
        description="run all stages per split of the clips (cross-validation); tables give means over splits",
    )

    @field_validator("splits", mode="before")
    @classmethod
    def _numbers_or_names(cls, values: object) -> object:
        return [str(one) for one in values] if isinstance(values, list | tuple) else values  # splits: [2, 3]

    @model_validator(mode="after")
    def _something_to_do(self) -> "PlanConfig":
        if not self.stages and not self.rounds and not self.guides:
            raise ValueError("a plan needs stages, a number of rounds, or guides")
        if (self.rounds or self.guides) and not (self.pretrain and self.cmsf):
            raise ValueError("rounds and guides need `pretrain` (configuration of InfoNCE) and `cmsf` (of CMSF)")
        for stage in self.stages:
            if stage.section is not None and not getattr(self, stage.section):
                raise ValueError(f"stage {stage.name} has section: {stage.section}, which the plan leaves empty")
        for address in self.guides:
            if named_library(address) is None:
                raise ValueError(
                    f"guides has {address!r}, which is no network of another library, such as timm:NAME; runs and "
                    "files guide a stage of `stages`"
                )
        for name in (*self.modalities, *self.modality_defaults):
            known_modality(name)
        for name in self.pretrain_overrides:
            if name not in self.modalities:
                raise ValueError(
                    f"pretrain_overrides has {name!r}, none of the modalities {', '.join(self.modalities)}"
                )
        for control in self.control_overrides:
            if control not in self.controls:
                raise ValueError(f"control_overrides has {control!r}, none of the controls {', '.join(self.controls)}")
        if self.first not in self.modalities:
            raise ValueError(f"first = {self.first!r} is none of the modalities {', '.join(self.modalities)}")
        if len(set(self.modalities)) < max(2, len(self.modalities)):
            raise ValueError("co-training needs two or more different modalities")
        if len(self.modalities) > 2 and "coclr" in self.controls:
            raise ValueError("the control coclr has one guide: it needs a plan of two modalities")
        if len(set(self.splits)) < len(self.splits):
            raise ValueError(f"splits has one twice: {', '.join(self.splits)}")
        if self.splits and self.evaluation.split is not None:
            raise ValueError("with `splits` every stage is measured on its own split: leave out evaluation.split")
        return self

    @property
    def repetitions(self) -> list[tuple[str | None, int | None]]:
        """Split and seed of each time that all stages are run; None: those of the stages' own configuration."""
        splits: tuple[str | None, ...] = self.splits or (None,)
        seeds: tuple[int | None, ...] = self.seeds or (None,)
        return [(split, seed) for split in splits for seed in seeds]

    def defaults_of(self, modality: str | None) -> Values:
        """Return `defaults` with what differs for one modality."""
        return merge_layers(self.defaults, self.modality_defaults.get(modality or "", {}))

    def pretrain_values(self, modality: str) -> Values:
        """Return `pretrain` with the overrides of one modality."""
        return merge_layers(self.pretrain, self.pretrain_overrides.get(modality, {}))

    def with_section(self, stage: StageConfig) -> StageConfig:
        """Return a listed stage with the settings of its `section` beneath its own."""
        if stage.section is None:
            return stage
        if stage.section == "pretrain":
            values, guide_values = self.pretrain_values(stage.modality or ""), {}
        else:
            values, guide_values = self.cmsf_train_values, self.cmsf_guide_values
        overrides = merge_layers(values, stage.overrides)
        return stage.model_copy(
            update={"overrides": overrides, "guide_overrides": {**guide_values, **stage.guide_overrides}}
        )

    @property
    def cmsf_train_values(self) -> Values:
        """`cmsf` without `guides`, whose weights follow from the round."""
        return {key: value for key, value in self.cmsf.items() if key != "guides"}

    @property
    def cmsf_guide_values(self) -> Values:
        """How the rounds use their guides: `guides: [{cache: mean}]`."""
        guides: list[Values] = self.cmsf.get("guides") or [{}]
        return guides[0]


OLD_KEYS = ("settings", "start", "shift")  # of plans of version 0.1.0: now defaults, pretrain, cmsf


def refuse_old_plan(values: Values, path: Path) -> None:
    """Raise ValueError if a plan.json was written by version 0.1.0, whose stages this version would train again."""
    if any(key in values for key in OLD_KEYS):
        raise ValueError(
            f"{path} was written by version 0.1.0 (it has {', '.join(key for key in OLD_KEYS if key in values)}), and "
            "this version neither continues nor shows it: use another folder for the plan"
        )


def check_sections(plan: PlanConfig, *, origin: str) -> None:
    """Raise ValueError for unknown keys and wrong values in the sections that become training configurations.

    Sections are merged over `defaults` first, as in a stage: a section may change the method without repeating its
    name. What only a whole training configuration can tell is checked when the stages are built.
    """
    check_partial(TrainConfig, plan.defaults, origin=f"{origin}, section defaults")
    sections: dict[str, Values] = {"pretrain": plan.pretrain, "cmsf": plan.cmsf_train_values}
    sections |= {f"modality_defaults.{modality}": values for modality, values in plan.modality_defaults.items()}
    for modality, values in plan.pretrain_overrides.items():
        sections[f"pretrain_overrides.{modality}"] = merge_layers(plan.pretrain, values)
    for control, values in plan.control_overrides.items():
        sections[f"control_overrides.{control}"] = values
    guides: dict[str, Values] = {"cmsf.guides": plan.cmsf_guide_values}
    for stage in map(plan.with_section, plan.stages):
        sections[f"stage {stage.name}"] = merge_layers(
            stage.overrides, {"method": stage.method} if stage.method else {}
        )
        guides[f"stage {stage.name}, guide_overrides"] = stage.guide_overrides
    for name, values in sections.items():
        check_partial(TrainConfig, merge_layers(plan.defaults, values), origin=f"{origin}, section {name}")
    for name, values in guides.items():
        check_partial(GuideConfig, values, origin=f"{origin}, section {name}")


def merge_layers(*layers: Values) -> Values:
    """Return a deep copy of the mappings merged key by key; later ones win."""
    merged: Values = {}
    for layer in layers:
        deep_update(merged, deepcopy(layer))
    return merged
