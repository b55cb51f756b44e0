"""The configuration of a training run: one YAML file."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from covid_cmsf.config import Config
from covid_cmsf.methods.base import TargetMethodConfig
from covid_cmsf.methods.registry import MethodConfig
from covid_cmsf.models.named_networks import named_library
from covid_cmsf.training.loggers import LoggerName, WandbMode
from covid_cmsf.views.config import ViewConfig
from covid_cmsf.views.modalities import MODALITIES

Seed = Annotated[int, Field(ge=0, lt=2**63)]


class GuideConfig(Config):
    """A frozen encoder of another modality, which proposes the candidates for neighbors."""

    weights: str = Field(
        description="a run folder, any file that `covid-cmsf weights show` can read, or a network of another library: "
        "timm:NAME, timm:NAME?weights=FILE, timm:NAME?weights=hub, torchvision:NAME?weights=FILE, "
        "transformers:FOLDER"
    )
    modality: str = Field(
        description="its input: rgb, flow, residual_flow, motion, residual_motion, rgbdiff, audio, or frame for a 2D "
        "network; "
        "default of timm:NAME: frame, of torchvision:NAME and transformers:FOLDER: rgb"
    )
    branch: str | None = Field(
        default=None, description="network to take from a file with several: online (default) or target"
    )
    layer: Literal["projector", "encoder"] = Field(
        default="projector",
        description="output whose similarities are used; networks of other libraries have only encoder",
    )
    cache: Literal["none", "views", "mean"] = Field(
        default="none",
        description="none: run the guide in every step; views: embed some views per video once, sample one per step; "
        "mean: use their mean (the default of networks of other libraries)",
    )
    cached_views: int = Field(
        default=4,
        ge=1,
        description="views per video in the cache; of networks of other libraries, windows that are evenly spread",
    )
    center: bool = Field(default=False, description="subtract the mean over all videos (with a cache)")
    allow_other_views: bool = Field(
        default=False, description="accept a guide that was trained on clips of another length, stride or size"
    )

    @model_validator(mode="before")
    @classmethod
    def _named_network(cls, values: object) -> object:
        """Fill in what a network of another library implies: it is frozen and its input does not change."""
        if not isinstance(values, dict) or (library := named_library(str(values.get("weights", "")))) is None:
            return values
        return {"modality": library.modality, "layer": "encoder", "cache": "mean", **values}

    @field_validator("modality")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_modality(name)

    @model_validator(mode="after")
    def _fits_the_library(self) -> "GuideConfig":
        library = named_library(self.weights)
        if library is None:
            return self
        if self.layer != "encoder" or self.branch is not None:
            raise ValueError(f"{self.weights} has neither a projector nor branches: leave out layer and branch")
        if self.modality != library.modality:
            raise ValueError(f"{self.weights} sees {library.modality}, not {self.modality}: leave out modality")
        return self

    @model_validator(mode="after")
    def _center_needs_cache(self) -> "GuideConfig":
        if self.center and self.cache == "none":
            raise ValueError("center needs cache: views or mean, because it subtracts the mean over all videos")
        return self


class OptimizerConfig(Config):
    """The optimizer."""

    name: Literal["adam", "sgd"] = Field(default="adam", description="optimizer of torch.optim")
    lr: float = Field(default=1e-3, gt=0, description="learning rate")
    weight_decay: float = Field(default=1e-5, ge=0, description="L2 penalty on all weights")
    sgd_momentum: float = Field(default=0.9, ge=0, lt=1, description="momentum of sgd")
    predictor_lr_factor: float = Field(
        default=1.0, gt=0, description="learning rate of the predictor, as a multiple of lr"
    )
    clip_norm: float | None = Field(default=None, gt=0, description="clip the gradient to this norm; null: no clipping")
    accumulate: int = Field(default=1, ge=1, description="batches per optimizer step (gradient accumulation)")


class ScheduleConfig(Config):
    """The length of training and the schedule of the learning rate."""

    epochs: int = Field(default=100, ge=1, description="passes over the training videos")
    name: Literal["step", "cosine", "constant"] = Field(
        default="step", description="step: drops at milestones; cosine: falls to 0; constant: stays"
    )
    milestones: tuple[int, ...] = Field(default=(80,), description="epochs at which the learning rate drops (step)")
    gamma: float = Field(default=0.1, gt=0, description="factor by which it drops (step)")
    interval: Literal["epoch", "step"] = Field(
        default="epoch", description="how often a cosine schedule is updated; the official code: epoch"
    )
    warmup_epochs: float = Field(default=0.0, ge=0, description="epochs of linear warmup from 0")


class BatchNormConfig(Config):
    """The samples over which batch norm computes its statistics."""

    mode: Literal["auto", "sync", "local", "frozen"] = Field(
        default="auto",
        description="local: each process; auto: local; sync: all processes, on several GPUs; frozen: the encoder's "
        "running statistics (new heads use those of the batch)",
    )
    groups: int = Field(
        default=1, ge=1, description="split the batch into groups with statistics of their own, as on several GPUs"
    )
    shuffle: bool = Field(
        default=False,
        description="shuffle the targets over processes (MoCo's shuffled batch norm); in one process: over groups, two "
        "unless groups says otherwise",
    )


class LabelConfig(Config):
    """The labels that a method may use."""

    fraction: float = Field(
        default=1.0, gt=0, le=1, description="fraction of each class whose labels are used; the others are hidden"
    )
    known: str | None = Field(
        default=None,
        description="file with the names of labeled samples, instead of fraction (`covid-cmsf labels fraction`)",
    )
    noise: float = Field(default=0.0, ge=0, lt=1, description="fraction of wrong labels")
    stratified: bool = Field(default=True, description="apply the noise to each class separately")
    file: str | None = Field(
        default=None, description="file with names and labels, instead of noise (`covid-cmsf labels noise`)"
    )
    seed: Seed = Field(default=0, description="seed of fraction and noise")

    @model_validator(mode="after")
    def _one_origin(self) -> "LabelConfig":
        if self.file is not None and self.noise:
            raise ValueError("labels.file has its wrong labels already; leave labels.noise out")
        if self.known is not None and self.fraction < 1:
            raise ValueError("labels.known lists what is labeled; leave labels.fraction out")
        return self


class LoggingConfig(Config):
    """Metrics, and the detection of collapse."""

    interval: int = Field(default=10, ge=1, description="steps between lines of metrics.jsonl")
    on_collapse: Literal["stop", "warn"] = Field(
        default="warn", description="stop the run when the embeddings collapse, or only warn"
    )
    collapse_rank: float = Field(
        default=0.5, ge=0, lt=1, description="collapse: an effective rank below this fraction of the run's best"
    )
    collapse_std: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="collapse: a standard deviation of the embeddings below this (1: spread evenly)",
    )


class RuntimeConfig(Config):
    """What may change when a run is resumed. Of a result only the last bits can, by `threads`, `device` and `decoder`.

    A resumed run keeps its number of threads unless `threads` says otherwise, also on another machine.
    """

    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] | None = Field(
        default=None,
        description="processes that decode and augment, per training process; 0: none; auto: its share of the cores, "
        "less one; null: auto on a GPU, 2 on a CPU",
    )
    threads: int = Field(
        default=0, ge=0, description="threads of the training process; 0: half of its cores, and as before on resuming"
    )
    decoder: str = Field(
        default="auto",
        description="decodes the videos of a clip store: auto (av), av, decord, torchcodec, or torchcodec:cuda, which "
        "was never run; all give the same frames",
    )
    cache_gb: float = Field(default=0.0, ge=0, description="gigabytes of decoded clips to keep in memory, per machine")
    cache_dir: str = Field(
        default="",
        description="instead: a folder on a fast disk of this machine, where decoded clips are kept for all processes "
        "and later runs",
    )
    gradient_checkpointing: bool = Field(
        default=False,
        description="keep only the inputs of the encoder's blocks and compute the rest again in the backward pass: "
        "less memory, a second forward pass, the same result",
    )
    knn_every_epochs: int = Field(
        default=0, ge=0, description="search nearest neighbors every so many epochs, and after the last; 0: never"
    )
    knn_subset: str = Field(
        default="",
        description="subset of the split whose videos are searched; default: val where there is one, else test",
    )
    knn_videos: int = Field(default=256, ge=2, description="at most so many of them; two windows of each are read")
    timeout_minutes: float = Field(
        default=60.0, gt=0, description="minutes after which a process stops waiting for the others"
    )
    save_minutes: float = Field(default=15.0, gt=0, description="minutes between checkpoints within an epoch")
    background_checkpoints: bool = Field(
        default=True,
        description="write checkpoints in a thread while training goes on; takes memory for a copy of their tensors",
    )
    keep_every_epochs: int = Field(
        default=0, ge=0, description="keep a checkpoint every so many epochs; 0: only the last"
    )
    keep: int = Field(default=3, ge=1, description="number of these to keep, the newest")
    loggers: tuple[LoggerName, ...] = Field(
        default=(), description="where the metrics go besides metrics.jsonl: tensorboard, wandb"
    )
    wandb_mode: WandbMode = Field(
        default="offline",
        description="offline: written to the run's folder only; online: sent to the account that wandb is logged in to",
    )

    @model_validator(mode="after")
    def _clips_are_cached_in_one_place(self) -> "RuntimeConfig":
        if self.cache_gb and self.cache_dir:
            raise ValueError("cache_gb keeps decoded clips in memory and cache_dir on a disk: set one of them")
        return self

    @model_validator(mode="before")
    @classmethod
    def _tensorboard_is_a_logger(cls, values: object) -> object:
        """Accept `tensorboard: true` of version 0.2 and earlier."""
        if not isinstance(values, dict) or "tensorboard" not in values:
            return values
        values = dict(values)
        if not isinstance(wanted := values.pop("tensorboard"), bool):
            raise ValueError(f"tensorboard is {wanted!r}; the setting is now loggers: [tensorboard]")
        loggers = values.get("loggers", ())
        if wanted and isinstance(loggers, list | tuple) and "tensorboard" not in loggers:
            values["loggers"] = [*loggers, "tensorboard"]
        return values


class TrainConfig(Config):
    """Everything about a run. `covid-cmsf config schema` prints the settings with descriptions and defaults.

    Example:
        >>> config = cc.TrainConfig(clips="clips/ucf101", modality="flow", method={"name": "infonce"})
        >>> run = cc.train(config, out="runs/flow")  # doctest: +SKIP
    """

    clips: str = Field(description="a clip store, a CoCLR LMDB, or a folder of JPEG frames")
    split: str = Field(default="1", description="name of a split of the clips")
    subset: str = Field(default="train", description="subset of the split to train on")
    modality: str = Field(
        default="rgb",
        description="input of the network that is trained: rgb, flow, residual_flow, motion, residual_motion, rgbdiff, "
        "frame or audio",
    )
    encoder: str = Field(default="s3d", description="a name from `covid-cmsf models list`")
    init: str | None = Field(default=None, description="run folder or weights file to start from; null: random weights")
    init_branch: str | None = Field(
        default=None, description="network to take from a file with several: online (default) or target"
    )
    method: MethodConfig
    guides: tuple[GuideConfig, ...] = ()
    views: ViewConfig = ViewConfig()
    labels: LabelConfig = LabelConfig()
    batch_size: int = Field(default=128, ge=1, description="videos per step, over all processes")
    repeat: int = Field(default=1, ge=1, description="how often each video occurs per epoch")
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    batch_norm: BatchNormConfig = BatchNormConfig()
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto",
        description="of the forward and backward pass; auto: bf16 on GPUs that have it, else fp32, and as before on "
        "resuming",
    )
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
        if self.batch_norm.shuffle and self.batch_size % 2:
            raise ValueError(f"batch_size {self.batch_size} is odd: batch_norm.shuffle needs two equal groups at least")
        if self.batch_size % self.batch_norm.groups:
            raise ValueError(f"batch_size {self.batch_size} cannot be cut into {self.batch_norm.groups} equal groups")
        if isinstance(self.method, TargetMethodConfig) and self.method.bank_size < self.batch_size:
            raise ValueError(f"method.bank_size {self.method.bank_size} cannot hold a batch of {self.batch_size}")
        head = self.method.head
        if head is not None and head.reuse and self.init is None:
            raise ValueError(
                "method.head.reuse takes the projector of `init`, which is not set: give --init RUN, or "
                "method.head.reuse=false"
            )
        return self


def known_modality(name: str) -> str:
    """Return the name of a modality, or raise ValueError with the choices."""
    if name not in MODALITIES:
        raise ValueError(f"unknown modality {name!r}; choose from {', '.join(MODALITIES)}")
    return name
