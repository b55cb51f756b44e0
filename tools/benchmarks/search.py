"""A million windows of 128 values: exact search against faiss, and the recall that faiss loses.

    python tools/benchmark.py search

Both sides answer the same queries in turn, in one run and with one thread: the windows of a video of the index, as
`covid-cmsf search query` asks them. Vectors lie around random centers, as embeddings do.
"""

import statistics
import time

import torch
import torch.nn.functional as F
import typer

from covid_cmsf.search.approximate import ApproximateSearch, measure_recall
from covid_cmsf.search.index import IndexedVideo, SearchIndex, WindowSet
from covid_cmsf.search.query import search, video_vectors
from tools.benchmarks.measure import JsonFile, print_results, summarize_times


def command(
    windows: int = typer.Option(1_000_000, min=1000, help="Windows of the index."),
    values: int = typer.Option(128, min=1, help="Size of a vector."),
    per_video: int = typer.Option(4, min=1, help="Windows per video."),
    spread: float = typer.Option(1.0, help="Standard deviation around a center, relative to that of the centers."),
    queries: int = typer.Option(20, min=1, help="Videos that are searched for; the recall is of as many."),
    top: int = typer.Option(20, min=1),
    threads: int = typer.Option(1, min=1),
    json_file: JsonFile = None,
) -> None:
    """Exact search against faiss at a million windows."""
    import faiss

    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    index = _make_index(windows // per_video, per_video, values, spread)
    begin = time.perf_counter()
    approximate = ApproximateSearch.build(index)
    build_seconds = time.perf_counter() - begin
    exact, fast = [], []
    for video in range(0, len(index.videos), max(1, len(index.videos) // queries)):
        vectors = video_vectors(index, video)
        begin = time.perf_counter()
        search(index, vectors, top=top)
        middle = time.perf_counter()
        search(index, vectors, top=top, candidates=approximate.propose(vectors, top=top))
        exact.append(middle - begin)
        fast.append(time.perf_counter() - middle)
    results = {"windows": windows, "values": values, "query_windows": per_video, "threads": threads, "spread": spread}
    results |= {f"exact_{key}": value for key, value in summarize_times(exact).items()}
    results |= {f"faiss_{key}": value for key, value in summarize_times(fast).items()}
    ratio = statistics.median(slow / quick for slow, quick in zip(exact, fast, strict=True))
    recall = measure_recall(approximate, top=top, sample=queries)
    print_results(
        {**results, "ratio": ratio, "faiss_build_s": build_seconds, f"recall_at_{top}": recall}, json_file=json_file
    )


def _make_index(num_videos: int, per_video: int, values: int, spread: float) -> SearchIndex:
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(max(1, num_videos // 100), values, generator=generator)
    chosen = torch.randint(len(centers), (num_videos,), generator=generator).repeat_interleave(per_video)
    noise = torch.randn(num_videos * per_video, values, generator=generator).mul_(spread)
    vectors = F.normalize(noise.add_(centers[chosen]), dim=1)
    starts = torch.arange(per_video).mul(16).repeat(num_videos)
    videos = torch.arange(num_videos).repeat_interleave(per_video)
    rows = tuple(IndexedVideo(str(number), "", "", 100, 25.0) for number in range(num_videos))
    return SearchIndex(rows, {"rgb": WindowSet(vectors, torch.zeros(values), videos, starts, 16, {})})
