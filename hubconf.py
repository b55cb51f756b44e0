"""Entry point of torch.hub, for a clone of this repository.

torch.hub.load("CLONE", "from_pretrained", source="local", folder="shared-rgb")
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from covid_cmsf import Encoder

# torch.hub says which of them are missing.
dependencies = ["torch", "torchvision", "numpy", "pydantic", "safetensors", "yaml", "cv2", "av"]


def from_pretrained(folder: str, revision: str | None = None, download: bool = False) -> "Encoder":
    """Load a shared encoder: a folder of `covid-cmsf weights pack`, or OWNER/NAME of the Hugging Face Hub.

    A repository is downloaded only with `download=True`; otherwise it has to be in the hub's cache.
    """
    import covid_cmsf

    return covid_cmsf.from_pretrained(folder, revision=revision, download=download)
