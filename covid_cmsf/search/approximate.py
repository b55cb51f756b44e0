"""Approximate search with faiss, for indexes of a million windows and more.

faiss proposes videos: those of the windows nearest to each query window, among the nearest of its cells (an inverted
file, Jegou et al. 2011). They are then compared exactly, so scores are right and only a video that was not proposed can
be missing. How many are missing is measured against exact search on a sample of the index's own videos.

    rgb.faiss, ...   one inverted file per modality
    faiss.json       their hashes, those of the vectors that they belong to, and the measured recall
"""

# W windows, Q query windows, K proposals per query window

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covid_cmsf.files import atomic_path, file_sha256, read_json, write_text_atomic
from covid_cmsf.search.index import SearchIndex, WindowSet, modality_weights
from covid_cmsf.search.project import index_folder
from covid_cmsf.search.query import search, video_vectors

DESCRIPTION = "faiss.json"
WORTHWHILE = 1_000_000  # windows; below, exact search is fast enough
PROBES = 16  # cells that are searched per query window
PROPOSALS = 200  # windows per query window, at least
PER_RESULT = 10  # and per video that is asked for
TRAINING = 64  # windows per cell that choose the cells
SAMPLE = 100  # videos whose neighbors measure the recall
TOP = 20
HINT = "`covid-cmsf search index ... --faiss` writes it again"


class ApproximateSearch:
    """The inverted files of an index."""

    def __init__(self, index: SearchIndex, cells: Mapping[str, Any]) -> None:
        self.index, self._cells = index, dict(cells)

    @classmethod
    def build(cls, index: SearchIndex) -> "ApproximateSearch":
        """Build one inverted file per modality."""
        return cls(index, {name: _build(windows) for name, windows in index.windows.items()})

    @classmethod
    def load(cls, folder: Path | str, index: SearchIndex) -> "ApproximateSearch":
        """Read the inverted files of an index; ValueError if they are missing, damaged, or of other vectors."""
        folder, faiss = index_folder(folder), _import_faiss()
        if not (folder / DESCRIPTION).is_file():
            raise FileNotFoundError(f"{folder} has no {DESCRIPTION}: it was built without --faiss; {HINT}")
        described = read_json(folder / DESCRIPTION, hint=HINT)
        cells = {}
        for name in index.windows:
            values, path = described.get(name) if isinstance(described, dict) else None, folder / f"{name}.faiss"
            if not isinstance(values, dict) or values.get("vectors_sha256") != file_sha256(
                folder / f"{name}.safetensors"
            ):
                raise ValueError(f"{path} belongs to another index; {HINT}")
            if not path.is_file() or file_sha256(path) != values.get("sha256"):
                raise ValueError(f"{path} is missing or was changed; {HINT}")
            cells[name] = faiss.read_index(str(path))
            cells[name].nprobe = min(PROBES, cells[name].nlist)
        return cls(index, cells)

    def save(self, folder: Path | str, *, recall: float) -> None:
        """Write the inverted files beside the index that they belong to."""
        folder, faiss = index_folder(folder), _import_faiss()
        described = {}
        for name, cells in self._cells.items():
            path = folder / f"{name}.faiss"
            with atomic_path(path) as temporary:
                faiss.write_index(cells, str(temporary))
            described[name] = {
                "sha256": file_sha256(path),
                "vectors_sha256": file_sha256(folder / f"{name}.safetensors"),
                "recall": recall,
            }
        write_text_atomic(folder / DESCRIPTION, json.dumps(described, indent=1))

    def propose(self, queries: Mapping[str, Tensor], *, modality: str = "fused", top: int = TOP) -> Tensor:
        """Return the videos, ascending, that have a window near a query window in one of the modalities asked for."""
        count = max(PROPOSALS, PER_RESULT * top)
        found = []
        for name in modality_weights(self.index, modality):
            windows = self.index.windows[name]
            _, rows = self._cells[name].search(queries[name].float().numpy(), min(count, len(windows.videos)))
            found.append(windows.videos[torch.from_numpy(np.unique(rows[rows >= 0]))])
        videos: Tensor = torch.cat(found).unique()
        return videos


def measure_recall(
    approximate: ApproximateSearch, *, modality: str = "fused", top: int = TOP, sample: int = SAMPLE
) -> float:
    """Return the share of the exact `top` videos that approximate search finds, over a sample of the index's videos."""
    index = approximate.index
    chosen = np.linspace(0, len(index.videos) - 1, min(sample, len(index.videos))).round().astype(int).tolist()
    found = total = 0
    for video in sorted(set(chosen)):
        queries = video_vectors(index, video)
        if any(len(queries[name]) == 0 for name in modality_weights(index, modality)):
            continue
        exact = _videos(search(index, queries, top=top, modality=modality))
        proposed = approximate.propose(queries, modality=modality, top=top)
        fast = _videos(search(index, queries, top=top, modality=modality, candidates=proposed))
        found, total = found + len(exact & fast), total + len(exact)
    return found / max(1, total)


def _videos(matches: Sequence[Any]) -> set[int]:
    return {match.video for match in matches}


def _build(windows: WindowSet) -> Any:
    faiss = _import_faiss()
    vectors = np.ascontiguousarray(windows.vectors.numpy())
    num_cells = max(1, min(round(len(vectors) ** 0.5), len(vectors) // 39))  # faiss wants 39 windows per cell
    quantizer = faiss.IndexFlatIP(vectors.shape[1])
    cells = faiss.IndexIVFFlat(quantizer, vectors.shape[1], num_cells, faiss.METRIC_INNER_PRODUCT)
    step = max(1, len(vectors) // (TRAINING * num_cells))
    cells.train(vectors[::step])
    cells.add(vectors)
    cells.nprobe = min(PROBES, num_cells)
    return cells


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise ValueError("approximate search needs faiss: pip install 'covid-cmsf[faiss]'") from None
    return faiss
