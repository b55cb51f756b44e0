"""A training run as settings: one YAML file."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from covid_cmsf.config import Config
from covid_cmsf.methods.base import TargetMethodConfig
from covid_cmsf.methods.registry import MethodConfig
from covid_cmsf.models.precision import Precision
from covid_cmsf.views.config import ViewConfig
from covid_cmsf.views.modalities import MODALITIES

Seed = Annotated[int, Field(ge=0, lt=2**63)]


class GuideConfig(Config):
    """A frozen encoder of another modality that says which rows may be neighbors."""

    weights: str = Field(description="a run folder, or any file that `covid-cmsf weights show` can read")
    modality: str = Field(description="what it sees: rgb, flow, rgbdiff, or frame for a 2D network")
    branch: str | None = Field(default=None, description="online (default) or target, where the file has several")
    layer: Literal["projector", "encoder"] = Field(default="projector", description="which output is compared")
    cache: Literal["none", "views", "mean"] = Field(
        default="none",
        description="views: embed some views of every video once and draw one of them each time; mean: their mean",
    )
    cached_views: int = Field(default=4, ge=1, description="views per video (with a cache)")
    center: bool = Field(default=False, description="subtract the mean over all videos (with a cache)")

    @field_validator("modality")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_modality(name)

    @model_validator(mode="after")
    def _center_needs_cache(self) -> "GuideConfig":
        if self.center and self.cache == "none":
            raise ValueError("center needs cache: views or mean, for the mean over all videos must be known")
        return self


class OptimizerConfig(Config):
    """How weights move."""

    name: Literal["adam", "sgd"] = Field(default="adam", description="optimizer of torch.optim")
    lr: float = Field(default=1e-3, gt=0, description="learning rate")
    weight_decay: float = Field(default=1e-5, ge=0, description="L2, on all weights")
    sgd_momentum: float = Field(default=0.9, ge=0, lt=1, description="momentum of sgd")
    predictor_lr_factor: float = Field(default=1.0, gt=0, description="the predictor learns so many times as fast")
    clip_norm: float | None = Field(default=None, gt=0, description="largest norm of the gradient")
    accumulate: int = Field(default=1, ge=1, description="batches whose gradients make one step")


class ScheduleConfig(Config):
    """How long, and how the learning rate changes."""

    epochs: int = Field(default=100, ge=1, description="passes over the training videos")
    name: Literal["step", "cosine", "constant"] = Field(
        default="step", description="step: drops at milestones; cosine: falls to 0; constant: stays"
    )
    milestones: tuple[int, ...] = Field(default=(80,), description="epochs at which the rate drops (step)")
    gamma: float = Field(default=0.1, gt=0, description="by which it drops (step)")
    interval: Literal["epoch", "step"] = Field(
        default="epoch", description="when a cosine changes; official code: epoch"
    )
    warmup_epochs: float = Field(default=0.0, ge=0, description="the rate rises linearly from 0")


class BatchNormConfig(Config):
    """Whose statistics batch norm uses."""

    mode: Literal["auto", "sync", "local", "frozen"] = Field(
        default="auto", description="auto: sync with several GPUs, else local; frozen: the running statistics"
    )
    groups: int = Field(default=1, ge=1, description="statistics over parts of the batch, as if on so many GPUs")
    shuffle: bool = Field(default=False, description="targets change places between groups or processes (MoCo)")


class LabelConfig(Config):
    """Which labels a method may see."""

    fraction: float = Field(
        default=1.0, gt=0, le=1, description="of each class that has a label; the others' are hidden"
    )
    known: str | None = Field(default=None, description="a list of names instead: `covid-cmsf labels fraction`")
    noise: float = Field(default=0.0, ge=0, lt=1, description="share of wrong labels")
    stratified: bool = Field(default=True, description="noise: that share of each class, not only of all")
    file: str | None = Field(default=None, description="names and labels instead: `covid-cmsf labels noise`")
    seed: Seed = Field(default=0, description="of fraction and noise")

    @model_validator(mode="after")
    def _one_origin(self) -> "LabelConfig":
        if self.file is not None and self.noise:
            raise ValueError("labels.file has its wrong labels already; leave labels.noise out")
        if self.known is not None and self.fraction < 1:
            raise ValueError("labels.known lists what is labeled; leave labels.fraction out")
        return self


class LoggingConfig(Config):
    """What is logged, and when to worry."""

    interval: int = Field(default=10, ge=1, description="steps between lines of metrics.jsonl")
    on_collapse: Literal["stop", "warn"] = Field(
        default="warn", description="stop the run when features collapse, or only warn"
    )
    collapse_rank: float = Field(
        default=0.5, ge=0, lt=1, description="effective rank below this share of the run's best is a collapse"
    )
    collapse_std: float = Field(default=0.1, ge=0, lt=1, description="and so is a spread below this (1 is even)")


class RuntimeConfig(Config):
    """What may change when a run is continued: it alters speed, not the result."""

    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
    workers: int = Field(default=2, ge=0, description="processes that decode and augment")
    threads: int = Field(default=0, ge=0, description="of the process that trains; 0: the cores that workers leave")
    cache_gb: float = Field(default=0.0, ge=0, description="decoded clips kept in memory")
    save_minutes: float = Field(default=15.0, gt=0, description="a checkpoint also within an epoch, so often")
    keep_every_epochs: int = Field(default=0, ge=0, description="keep a checkpoint so often; 0: only the last")
    keep: int = Field(default=3, ge=1, description="how many of these stay, the newest")
    tensorboard: bool = Field(default=True, description="write the metrics for TensorBoard too")


class TrainConfig(Config):
    """Everything about a run. `covid-cmsf config schema` prints the settings with descriptions and defaults.

    Example:
        >>> config = cc.TrainConfig(clips="clips/ucf101", modality="flow", method={"name": "infonce"})
        >>> run = cc.train(config, out="runs/flow")  # doctest: +SKIP
    """

    clips: str = Field(description="a clip store, a CoCLR LMDB, or a folder of JPEG frames")
    split: str = Field(default="1", description="name of a split of the clips")
    subset: str = Field(default="train", description="subset of the split to train on")
    modality: str = Field(default="rgb", description="what is trained: rgb, flow, rgbdiff or frame")
    encoder: str = Field(default="s3d", description="a name from `covid-cmsf models list`")
    init: str | None = Field(default=None, description="weights to start from; any file that we read")
    init_branch: str | None = Field(default=None, description="online (default) or target, where the file has several")
    method: MethodConfig
    guides: tuple[GuideConfig, ...] = ()
    views: ViewConfig = ViewConfig()
    labels: LabelConfig = LabelConfig()
    batch_size: int = Field(default=128, ge=1, description="of all processes together")
    repeat: int = Field(default=1, ge=1, description="times that every video comes in an epoch")
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    batch_norm: BatchNormConfig = BatchNormConfig()
    precision: Precision = Field(default="fp32", description="of the forward and backward pass")
    compile: bool = Field(default=False, description="compile the encoders with torch.compile")
    seed: Seed = Field(default=0, description="of weights, order, clips and views")
    logging: LoggingConfig = LoggingConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @field_validator("split", mode="before")
    @classmethod
    def _number_or_name(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value  # split=2 on the command line is a number

    @field_validator("modality")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_modality(name)

    @model_validator(mode="after")
    def _guides_fit_the_method(self) -> "TrainConfig":
        method = self.method
        if method.uses_guides and not self.guides:
            raise ValueError(f"{method.name} needs a guide: guides=[{{weights: FILE, modality: flow}}]")
        if self.guides and not method.uses_guides:
            raise ValueError(f"guides are given, but {method.name} (as configured) uses none")
        if method.max_guides is not None and len(self.guides) > method.max_guides:
            raise ValueError(f"{len(self.guides)} guides are given; {method.name} takes {method.max_guides}")
        return self

    @model_validator(mode="after")
    def _values_fit_together(self) -> "TrainConfig":
        if self.batch_size % self.batch_norm.groups:
            raise ValueError(f"batch_size {self.batch_size} cannot be cut into {self.batch_norm.groups} equal groups")
        if isinstance(self.method, TargetMethodConfig) and self.method.bank_size < self.batch_size:
            raise ValueError(f"method.bank_size {self.method.bank_size} cannot hold a batch of {self.batch_size}")
        head = self.method.head
        if head is not None and head.reuse and self.init is None:
            raise ValueError("method.head.reuse takes the projector of `init`, which is not set")
        return self


def known_modality(name: str) -> str:
    """The name, or ValueError with the choices."""
    if name not in MODALITIES:
        raise ValueError(f"unknown modality {name!r}; choose from {', '.join(MODALITIES)}")
    return name
