"""Entry `video`: a video network of torchvision, which others have trained. It finds actions of its data set."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from covid_cmsf.models.library_weights import LibraryNetwork
from covid_cmsf.models.video_networks import PREFIX, build_video_network
from covid_cmsf.search.encoders.image import LibraryEncoder


@dataclass(frozen=True)
class VideoEncoder(LibraryEncoder):
    """A video network `torchvision:NAME`."""

    kind: ClassVar[str] = "video"
    prefix: ClassVar[str] = PREFIX
    build: ClassVar[Callable[..., LibraryNetwork]] = staticmethod(build_video_network)
