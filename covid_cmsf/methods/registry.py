"""All methods, by the name in their configuration: `method: {name: cmsf, k: 5}`. A new method is one line here."""

from typing import Annotated

from pydantic import Field

from covid_cmsf.methods.contrastive import CoClrConfig, InfoNceConfig, SupConConfig, UberNceConfig
from covid_cmsf.methods.mean_shift import ByolConfig, Cmsf2qConfig, CmsfConfig, CmsfKmConfig, MsfConfig
from covid_cmsf.methods.supervised import FrzProtoConfig, ProtoNwConfig, XentConfig

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
