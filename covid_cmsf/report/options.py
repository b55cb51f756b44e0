"""What can be chosen about a report."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """As the command line has them."""

    num_queries: int = 60
    num_neighbors: int = 8
    always: tuple[str, ...] = ()  # ids of videos that the gallery shows, whatever is drawn
    clips: str | None = None  # where the clips are now, if not where they were
    megabytes: float = 25.0  # of the whole folder
    workers: int = 2
    umap: bool = True  # where it is installed
    pictures: bool = True
    seed: int = 0
