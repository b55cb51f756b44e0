"""Results as tables on the screen."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from covid_cmsf.evaluation.baselines import BaselinesResult
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.finetune.run import FinetuneResult
from covid_cmsf.evaluation.fusion import FusionResult, ProbabilityFusionResult
from covid_cmsf.evaluation.knn import KnnResult
from covid_cmsf.evaluation.probes.linear import LinearResult
from covid_cmsf.evaluation.results import Interval, Scores
from covid_cmsf.evaluation.retrieval import RetrievalResult


def describe_features(features: Features) -> str:
    """One line about a features file."""
    provenance, eval_protocol = features.provenance, features.provenance.eval_protocol
    windows = (
        "center frame"
        if eval_protocol.length == 1 and eval_protocol.num_windows == 1
        else f"{len(features.windows)} windows"
    )
    digest = provenance.checkpoint_sha256[:12] or provenance.weights_sha256[:12]
    size = f"{eval_protocol.length}x{eval_protocol.size}x{eval_protocol.size}"
    return (
        f"{len(features.videos)} videos, {windows} of {size} {eval_protocol.modality}, "
        f"{features.features.shape[1]} values; {provenance.encoder} ({provenance.branch}) {digest}; "
        f"protocol {eval_protocol.name}"
    )


def retrieval_table(result: RetrievalResult) -> RenderableType:
    """R@k with their intervals, then R@1 by class."""
    title = f"Retrieval, protocol {result.protocol}: {result.num_query} {result.query} in {result.num_gallery} "
    table = Table(
        "", *(f"R@{k}" for k in result.recall), title=f"{title}{result.gallery}, centering {result.centering}"
    )
    table.add_row("percent", *(f"{value:.1f}" for value in result.recall.values()))
    table.add_row("95% interval", *(_format_interval(interval) for interval in result.interval.values()))
    rank = f"effective rank of the gallery {result.effective_rank:.1f}"
    return Group(
        table, _per_class_line(result.per_class, "R@1"), rank, *_shared_sources_warning(result.num_shared_sources)
    )


def knn_table(result: KnnResult) -> RenderableType:
    """Top-1 for each number of neighbors."""
    title = f"Nearest neighbors, protocol {result.protocol}: {result.num_query} {result.query} in "
    table = Table("k", "top-1", "95% interval", title=f"{title}{result.num_gallery} {result.gallery}")
    for k, value in result.top1.items():
        table.add_row(str(k), f"{value:.1f}", _format_interval(result.interval[k]))
    return Group(table, *_shared_sources_warning(result.num_shared_sources))


def linear_table(result: LinearResult) -> RenderableType:
    """The probe's scores, and how it was chosen."""
    lines = []
    if result.penalty is not None:
        best = max(result.val_accuracy.values())
        lines.append(f"penalty {result.penalty:.3g}, chosen at {best:.1f}% on a validation subset of {result.gallery}")
    if result.best_on_test is not None:
        lines.append(
            f"these are the last epoch's; the best epoch, chosen on {result.query} as Han et al. do, "
            f"has {result.best_on_test:.1f} (epoch {result.best_epoch})"
        )
    title = f"Linear probe, protocol {result.protocol}: {result.num_gallery} {result.gallery} to {result.query}"
    return Group(
        scores_table({"linear": result.scores}, title), *lines, *_shared_sources_warning(result.num_shared_sources)
    )


def clip_table(result: FinetuneResult) -> RenderableType:
    """The scores of a classifier that was trained on clips."""
    title = (
        f"{result.mode}, protocol {result.protocol}: {result.num_fit} videos to learn, {result.num_val} to choose by"
    )
    table = scores_table({result.mode: result.scores}, title)
    return Group(table, f"epoch {result.best_epoch} was chosen", *_shared_sources_warning(result.num_shared_sources))


def fusion_table(result: FusionResult | ProbabilityFusionResult) -> RenderableType:
    """Both streams, alone and together."""
    counts = f"{result.num_common} common videos, {result.num_only_first} and {result.num_only_second} in one file only"
    title = f"Two streams, protocol {result.protocol}: {counts}"
    if isinstance(result, ProbabilityFusionResult):
        return scores_table(
            dict(zip(("first", "second", "both"), (*result.streams, result.scores), strict=True)), title
        )
    streams = (*result.linear_streams, result.linear)
    table = scores_table(dict(zip(("first", "second", "both"), streams, strict=True)), title)
    return Group(retrieval_table(result.retrieval), table)


def baselines_table(result: BaselinesResult) -> RenderableType:
    """One row a baseline."""
    title = f"Baselines, protocol {result.protocol}: {result.query} in {result.gallery}"
    ranks = [k for k in (1, 5, 20) if k in result.baselines[0].recall]
    table = Table(title=title)
    table.add_column("baseline", no_wrap=True)
    for name in ("R@1", "95%", *(f"R@{k}" for k in ranks[1:]), "linear", "rank"):
        table.add_column(name, no_wrap=True)
    for row in result.baselines:
        rank = "" if row.effective_rank is None else f"{row.effective_rank:.1f}"
        interval = "" if row.interval is None else _format_interval(row.interval)
        first, *others = (f"{row.recall[k]:.1f}" for k in ranks)
        table.add_row(row.name, first, interval, *others, f"{row.linear:.1f}", rank)
    return table


def scores_table(rows: Mapping[str, Scores], title: str) -> Table:
    """Top-1, its interval, top-5 and the mean over classes, one row a classifier."""
    table = Table("", "top-1", "95% interval", "top-5", "mean of classes", "videos", title=title)
    for name, scores in rows.items():
        top5 = "" if scores.top5 is None else f"{scores.top5:.1f}"
        cells = f"{scores.top1:.1f}", _format_interval(scores.interval), top5, f"{scores.mean_per_class:.1f}"
        table.add_row(name, *cells, str(scores.num_videos))
    return table


def _per_class_line(values: Mapping[str, float], metric: str) -> RenderableType:
    text = ", ".join(f"{escape(name)} {value:.0f}" for name, value in values.items())
    return f"{metric} by class: {text}"


def _shared_sources_warning(count: int) -> Iterable[Any]:
    return [f"[yellow]{count} sources are in both subsets: sibling clips may have found each other[/]"] if count else []


def _format_interval(interval: Interval) -> str:
    return f"{interval[0]:.1f}-{interval[1]:.1f}"
