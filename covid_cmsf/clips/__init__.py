"""The clip store. `ClipStore.open(path)`, or `open_clips(path)` for other people's formats too."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covid_cmsf.clips.base import Clips
    from covid_cmsf.clips.factory import open_clips
    from covid_cmsf.clips.store import ClipStore

__all__ = ["ClipStore", "Clips", "open_clips"]


def __getattr__(name: str) -> Any:
    """Reading needs torch, whose import takes seconds; preprocessing workers use only the contract and skip it."""
    if name in __all__:
        from covid_cmsf.clips import factory

        return getattr(factory, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
