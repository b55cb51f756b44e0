"""Search by name or by file: what `covid-cmsf search query` prints, with ids and seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from covid_cmsf.search.approximate import ApproximateSearch
from covid_cmsf.search.files import FileEmbedder
from covid_cmsf.search.index import SearchIndex, load_index, modality_weights
from covid_cmsf.search.query import search, video_rows


@dataclass(frozen=True)
class FoundVideo:
    """A video like the query, and where: times in seconds, or frames where the frame rate is unknown.

    Example:
        >>> best = cc.search_videos("index", "my.mp4", top=1)[0]
        >>> best.start < best.end, best.found_by
        (True, 'rgb')
    """

    video_id: str
    score: float  # -1 to 1
    start: float  # of the window that is most like one of the query's
    end: float
    query_start: float  # of that window of the query
    query_end: float
    by_modality: dict[str, float]  # the score of every modality, also of those that were not asked for
    found_by: str  # the modality that alone would list it first of all


@dataclass(frozen=True)
class Query:
    """The windows of a query per modality. `video` is its number in the index, None for a file outside of it."""

    name: str
    vectors: Mapping[str, Tensor]  # (Q, D)
    starts: Mapping[str, Tensor]  # (Q,) first frames
    fps: float  # 0: unknown
    video: int | None
    file: Path | None


def search_videos(
    index: SearchIndex | FileEmbedder | Path | str,
    query: Path | str,
    *,
    start: float | None = None,
    end: float | None = None,
    top: int = 20,
    modality: str = "fused",
    weights: Mapping[str, float] | None = None,
) -> list[FoundVideo]:
    """Return the videos of an index that are most like a video or a part of it, best first.

    A query that is in the index is not among the results; a file is compared with all.

    Args:
        index: the folder of an index or project, or what `load_index` returned; for many files a `FileEmbedder`.
        query: a video file, or the id of a video of the index.
        start: seconds where the part of the query begins.
        end: seconds where it ends.
        top: number of videos.
        modality: rgb, flow, ..., or fused.
        weights: of the modalities in `fused`, such as {"image": 1, "motion": 0.3}; default: those of the index.

    Example:
        >>> index = cc.load_index("index")
        >>> cc.search_videos(index, "my.mp4", top=3)[0].video_id
        'Archery/v_Archery_g01_c01'
    """
    embedder = index if isinstance(index, FileEmbedder) else None
    opened = index.index if isinstance(index, FileEmbedder) else index
    opened = opened if isinstance(opened, SearchIndex) else load_index(opened)
    if weights is not None:
        opened = replace(opened, weights=dict(weights))
    asked = open_query(opened, query, start=start, end=end, modality=modality, embedder=embedder)
    return find_videos(opened, asked, top=top, modality=modality)


def open_query(
    index: SearchIndex,
    query: Path | str,
    *,
    start: float | None = None,
    end: float | None = None,
    modality: str = "fused",
    embedder: FileEmbedder | None = None,
) -> Query:
    """Return the windows of a video file, or of the indexed video with this id, or with this part of an id."""
    modality_weights(index, modality)
    if Path(query).is_file():
        if embedder is None:
            if index.folder is None:
                raise ValueError("this index is in no folder, so it has no encoders for video files; save it first")
            embedder = FileEmbedder(index.folder, index)
        embedder.check(modality)
        embedded = embedder.embed(query, start=start, end=end)
        return Query(Path(query).name, embedded.vectors, embedded.starts, embedded.fps, None, Path(query))
    try:
        number = index.find(str(query))
    except ValueError as error:
        hint = "; there is no such file either" if "no video" in str(error) else ""
        raise ValueError(f"{error}{hint}") from None
    row = index.videos[number]
    rate = row.fps if row.fps > 0 else 1.0
    low, high = (None if seconds is None else round(seconds * rate) for seconds in (start, end))
    if (low or 0) < 0 or (high is not None and high <= (low or 0)) or (row.num_frames and (low or 0) >= row.num_frames):
        length = f" has {row.seconds(row.num_frames):.2f} seconds;" if row.num_frames else ":"
        raise ValueError(
            f"{row.video_id}{length} no windows from {start or 0:g} to {'its end' if end is None else end}"
        )
    rows = {name: video_rows(windows, number, start=low, end=high) for name, windows in index.windows.items()}
    return Query(
        name=row.video_id,
        vectors={name: index.windows[name].vectors[chosen] for name, chosen in rows.items()},
        starts={name: index.windows[name].starts[chosen] for name, chosen in rows.items()},
        fps=row.fps,
        video=number,
        file=None,
    )


def find_videos(
    index: SearchIndex,
    query: Query,
    *,
    top: int = 20,
    modality: str = "fused",
    approximate: ApproximateSearch | None = None,
) -> list[FoundVideo]:
    """Return the `top` videos most like a query, without the query itself; `approximate` proposes them if given."""
    candidates = None if approximate is None else approximate.propose(query.vectors, modality=modality, top=top + 1)
    exclude = frozenset() if query.video is None else frozenset({query.video})
    weights = modality_weights(index, modality)
    leading = max(weights, key=lambda name: weights[name])
    span, rate = index.windows[leading].span, query.fps if query.fps > 0 else 1.0
    found = []
    for match in search(index, query.vectors, top=top, modality=modality, exclude=exclude, candidates=candidates):
        video = index.videos[match.video]
        first = int(query.starts[leading][match.query_window])
        found.append(
            FoundVideo(
                video_id=video.video_id,
                score=match.score,
                start=video.seconds(match.start),
                end=video.seconds(match.end),
                query_start=first / rate,
                query_end=(first + span) / rate,
                by_modality=match.by_modality,
                found_by=match.found_by(),
            )
        )
    return found
