"""A plan as settings: a list of stages, or rounds in short."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from covid_cmsf.config import Config
from covid_cmsf.training.config import known_modality

Values = dict[str, Any]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Control = Literal["continued", "msf", "oracle"]
Histogram = Literal["color", "flow"]
Baseline = Literal["chance", "color", "flow", "random"]


class Published(Config):
    """What the paper has for this row, in percent."""

    r1: float | None = None
    linear: float | None = None
    transfer: float | None = Field(default=None, description="mean over ten data sets (images)")


class StageConfig(Config):
    """One training run, or weights from elsewhere. `init` and `guide` are names of earlier stages."""

    name: str
    modality: str | None = None
    config: str | None = Field(default=None, description="a training file, relative to the plan")
    method: Values = Field(default={}, description="laid over the method of `defaults`")
    init: str | None = None
    guide: str | tuple[str, ...] | None = None
    guide_overrides: Values = Field(default={}, description="layer, cache, ... of the guides")
    epochs: int | None = Field(default=None, ge=1)
    overrides: Values = Field(default={}, description="anything else of a training run")
    weights: str | None = Field(default=None, description="a weights file instead of training")
    branch: str | None = Field(default=None, description="of the weights file: online, target, guide")
    random: str | None = Field(default=None, description="an encoder of the zoo with random weights, as a control")
    histogram: Histogram | None = Field(default=None, description="no network: a histogram, as a control")
    index: str | None = Field(default=None, description="the row's number in the paper")
    model: str | None = Field(default=None, description="what the table calls it")
    published: Published = Published()

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError("a stage's name is a folder's: letters, digits, dots, dashes, underscores")
        return name

    @property
    def guides(self) -> tuple[str, ...]:
        """Names of the stages that guide this one."""
        if self.guide is None:
            return ()
        return (self.guide,) if isinstance(self.guide, str) else self.guide

    @property
    def trains(self) -> bool:
        """Whether there is something to train."""
        return self.weights is None and self.random is None and self.histogram is None

    @model_validator(mode="after")
    def _one_kind(self) -> "StageConfig":
        if sum(one is not None for one in (self.weights, self.random, self.histogram)) > 1:
            raise ValueError(f"stage {self.name}: weights, random or histogram, only one of them")
        if not self.trains and (self.init or self.guides or self.epochs or self.method or self.config):
            raise ValueError(f"stage {self.name} is not trained, so it has no init, guide, epochs, method or config")
        if not self.trains and self.modality is None:
            raise ValueError(f"stage {self.name}: say which modality the network sees")
        return self


class EvaluationConfig(Config):
    """How every stage is measured."""

    protocol: Literal["clean", "coclr"] = "clean"
    clips: str | None = Field(default=None, description="to measure on, where they are not those of training")
    split: str | None = Field(default=None, description="of the clips to measure on; None: that of training")
    gallery: str = "train"
    query: str = "test"
    windows: int | None = Field(default=None, ge=1, description="clips of a video; None: the protocol's choice")
    probe: Literal["protocol", "compress"] = Field(default="protocol", description="linear: compress is for images")


class PlanConfig(Config):
    """What to train, in which order, from which start, under which guide."""

    defaults: Values = Field(default={}, description="of a training run; what all stages share")
    stages: tuple[StageConfig, ...] = ()
    rounds: int = Field(default=0, ge=0, description="alternations; each trains both modalities")
    modalities: tuple[str, str] = ("rgb", "flow")
    first: str = Field(default="flow", description="which modality is trained first in a round")
    init: Literal["base", "latest"] = Field(
        default="base", description="base: every round starts from `pretrain` (the paper); latest: goes on (CoCLR)"
    )
    pretrain: Values = Field(default={}, description="settings of the first stage of each modality, InfoNCE")
    pretrain_overrides: dict[str, Values] = Field(
        default={}, description="laid over `pretrain` for one modality: {rgb: {schedule: {epochs: 600}}}"
    )
    cmsf: Values = Field(default={}, description="settings of the rounds, CMSF")
    controls: tuple[Control, ...] = ()
    baselines: tuple[Baseline, ...] = Field(default=(), description="what needs no training, in the table for scale")
    evaluation: EvaluationConfig = EvaluationConfig()
    seeds: tuple[int, ...] = Field(default=(), description="run everything for each, and give mean and spread")

    @model_validator(mode="after")
    def _something_to_do(self) -> "PlanConfig":
        if not self.stages and not self.rounds:
            raise ValueError("a plan needs stages, or a number of rounds")
        if self.rounds and not (self.pretrain and self.cmsf):
            raise ValueError("rounds need `pretrain` (InfoNCE's configuration) and `cmsf` (CMSF's)")
        for name in self.modalities:
            known_modality(name)
        for name in self.pretrain_overrides:
            if name not in self.modalities:
                raise ValueError(
                    f"pretrain_overrides has {name!r}, none of the modalities {', '.join(self.modalities)}"
                )
        if self.first not in self.modalities:
            raise ValueError(f"first = {self.first!r} is none of the modalities {', '.join(self.modalities)}")
        if len(set(self.modalities)) < 2:
            raise ValueError("co-training needs two different modalities")
        return self
