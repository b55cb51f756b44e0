"""The methods as settings: `method: {name: cmsf, constraint: guide, k: 5, ...}`. Defaults are the papers' for video."""

from typing import Annotated, Literal

from pydantic import Field

from covid_cmsf.config import Config
from covid_cmsf.methods.contrastive import ExcludeNegatives
from covid_cmsf.methods.mean_shift import CombineCandidates

ProjectorName = Literal["cmsf", "coclr", "supcon", "mlp", "linear"]
K = Annotated[int, Field(ge=1)] | Literal["all"]
BankWarmup = Annotated[int, Field(ge=0)] | Literal["full"]
Temperature = Annotated[float, Field(gt=0)]


class HeadConfig(Config):
    """What stands on the encoder of d features."""

    projector: ProjectorName = Field(
        default="cmsf",
        description="cmsf: d-2d-d/4 with batch norm; coclr: d-d-128; supcon: d-d-128 with batch norm; "
        "mlp: d-d-d with batch norm; linear: d-d",
    )
    embedding_size: int | None = Field(default=None, ge=1, description="another width of the output")
    output_batch_norm: bool = Field(default=False, description="batch norm after the projector: keeps rank up")
    reuse: bool = Field(default=False, description="take the projector of `init` instead of a new one")


class TargetMethodConfig(Config):
    """Methods with a target network and a bank."""

    head: HeadConfig = HeadConfig()
    bank_size: int = Field(default=8192, ge=1)
    bank_warmup: BankWarmup = Field(default=0, description="no step before the bank holds so many rows, or is full")
    ema_momentum: float = Field(default=0.99, ge=0, lt=1, description="of the target network")
    ema_schedule: Literal["constant", "cosine"] = Field(default="constant", description="cosine: rises to 1, as BYOL's")


class MeanShiftConfig(TargetMethodConfig):
    """What all mean-shift methods share."""

    k: K = Field(default=5, description="neighbors that are averaged, or `all` that are allowed")
    include_target: bool = Field(default=True, description="the target itself may be a neighbor")
    include_siblings: bool = Field(default=True, description="other clips of the same source may be neighbors")


class CmsfConfig(MeanShiftConfig):
    """Constrained mean shift."""

    name: Literal["cmsf"]
    constraint: Literal["guide", "label", "two_bank"] = "guide"
    num_candidates: int = Field(default=10, ge=1, description="n: rows that each guide vouches for")
    combine: CombineCandidates = Field(default="union", description="candidates of several guides: either's or both's")
    labeled_bank_size: int = Field(default=8192, ge=1, description="rows of the second bank of `two_bank`")


class Cmsf2qConfig(MeanShiftConfig):
    """CMSF-2Q: a second queue holds the same images as they were embedded an epoch before; it is the guide."""

    name: Literal["cmsf_2q"]
    num_candidates: int = Field(default=5, ge=1, description="rows that the second queue vouches for")


class CmsfKmConfig(MeanShiftConfig):
    """CMSF-KM: neighbors are of the same cluster, by k-means after every epoch."""

    name: Literal["cmsf_km"]
    num_clusters: int = Field(default=50_000, ge=1)
    iterations: int = Field(default=20, ge=1, description="of k-means")


class MsfConfig(MeanShiftConfig):
    """Mean shift without a constraint."""

    name: Literal["msf"]


class ByolConfig(TargetMethodConfig):
    """Toward the own target alone: BYOL in one direction."""

    name: Literal["byol_asym"]
    bank_size: int = Field(default=8192, ge=1, description="only for diagnostics")


class ContrastiveConfig(TargetMethodConfig):
    """What all contrastive methods share: MoCo's and CoCLR's values."""

    head: HeadConfig = HeadConfig(projector="coclr")
    bank_size: int = Field(default=2048, ge=1)
    ema_momentum: float = Field(default=0.999, ge=0, lt=1)
    temperature: Temperature = 0.07


class InfoNceConfig(ContrastiveConfig):
    """MoCo."""

    name: Literal["infonce"]
    exclude_negatives: ExcludeNegatives = Field(
        default="none", description="rows of the same video or source are no negatives"
    )
    batch_negatives: bool = Field(default=False, description="the batch's other targets are negatives too")


class UberNceConfig(ContrastiveConfig):
    """Same label: positive. Han et al.'s supervised bound."""

    name: Literal["ubernce"]


class SupConConfig(ContrastiveConfig):
    """SupCon with a bank, as in the paper's tables."""

    name: Literal["supcon"]
    head: HeadConfig = HeadConfig(projector="supcon")
    temperature: Temperature = 0.1
    include_target: bool = Field(default=True, description="the own key is a positive too")


class CoClrConfig(ContrastiveConfig):
    """Han et al.'s co-training."""

    name: Literal["coclr"]
    bank_warmup: BankWarmup = "full"
    top_k: int = Field(default=5, ge=0, description="rows that the guide adds to the positives, once the bank is full")
    drop_self: float = Field(default=0.0, ge=0, le=1, description="probability of CoCLR's later self-mask: 0.9 there")


class ProtoNwConfig(TargetMethodConfig):
    """Cross entropy over class means in the bank."""

    name: Literal["protonw"]
    temperature: Temperature = 0.1


class FrzProtoConfig(Config):
    """Regression to frozen random prototypes."""

    name: Literal["frzproto"]
    head: HeadConfig = HeadConfig(projector="mlp")
    prototype_seed: int = Field(default=0, ge=0)


class XentConfig(Config):
    """Cross entropy over the scores of a linear layer."""

    name: Literal["xent"]


MethodConfig = Annotated[
    CmsfConfig
    | Cmsf2qConfig
    | CmsfKmConfig
    | MsfConfig
    | ByolConfig
    | InfoNceConfig
    | UberNceConfig
    | SupConConfig
    | CoClrConfig
    | ProtoNwConfig
    | FrzProtoConfig
    | XentConfig,
    Field(discriminator="name"),
]
