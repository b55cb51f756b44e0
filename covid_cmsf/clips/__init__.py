"""Clips on disk: `ClipStore.open(path)` for a clip store, `open_clips(path)` for any supported format."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covid_cmsf.clips.base import Clips
    from covid_cmsf.clips.factory import open_clips
    from covid_cmsf.clips.store import ClipStore

__all__ = ["ClipStore", "Clips", "open_clips"]


def __getattr__(name: str) -> Any:
    """Import lazily: reading needs torch (seconds to import), preprocessing workers need only the file format."""
    if name in __all__:
        from covid_cmsf.clips import factory

        return getattr(factory, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
