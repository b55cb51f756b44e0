"""All that the page needs of a stage's features: neighbors, ranks, a map. The features themselves are let go."""

# Q queries, K neighbors

from dataclasses import dataclass

from torch import Tensor

from covid_cmsf.evaluation.features import load_features
from covid_cmsf.evaluation.videos import Videos
from covid_cmsf.report.projection import principal_components, umap_places
from covid_cmsf.report.ranking import rank_queries
from covid_cmsf.report.stage_folder import StageFolder


@dataclass(frozen=True)
class RankedStage:
    """`queries` and `found` are rows of `videos`."""

    videos: Videos
    queries: Tensor  # (Q,)
    found: Tensor  # (Q, K)
    similarity: Tensor  # (Q, K)
    first_right: Tensor  # (Q,) 0 where none of the K is right
    r1: float
    pca: Tensor  # (Q, 2)
    pca_shares: tuple[float, float]
    umap: Tensor | None
    how: dict[str, str]  # gallery, query, protocol
    note: str | None


def rank_stage(stage: StageFolder, *, umap: bool) -> RankedStage:
    """Measured as the stage's own retrieval.json says, else train against test; a different R@1 is noted."""
    assert stage.features is not None
    features = load_features(stage.features)
    said = {**stage.result.get("evaluation", {}), **stage.retrieval}
    how = {name: str(said.get(name, usual)) for name, usual in (("gallery", "train"), ("query", "test"))}
    ranking = rank_queries(
        features,
        gallery=how["gallery"],
        query=how["query"],
        centering=stage.retrieval.get("centering"),
        allow_shared_sources=bool(stage.retrieval.get("num_shared_sources")),
    )
    stated = stage.retrieval.get("recall", {}).get("1", stage.result.get("r1"))
    note = None
    if stated is not None and abs(stated - ranking.r1) > 1e-6:
        note = f"{stage.name}: its features give R@1 {ranking.r1:.2f}, its result says {stated:.2f}; measure it again"
    places, shares = principal_components(ranking.vectors)
    return RankedStage(
        videos=features.videos,
        queries=ranking.queries,
        found=ranking.found,
        similarity=ranking.similarity,
        first_right=ranking.first_right,
        r1=ranking.r1,
        pca=places,
        pca_shares=shares,
        umap=umap_places(ranking.vectors) if umap and len(ranking.vectors) > 3 else None,
        how={**how, "protocol": features.protocol},
        note=note,
    )
