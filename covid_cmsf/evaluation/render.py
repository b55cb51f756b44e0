"""Tables of results for the terminal."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from covid_cmsf.evaluation.baselines import BaselinesResult
from covid_cmsf.evaluation.compare import CompareResult
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.finetune.run import FinetuneResult
from covid_cmsf.evaluation.fusion import FusionResult, ProbabilityFusionResult
from covid_cmsf.evaluation.knn import KnnResult
from covid_cmsf.evaluation.label_free import LabelFreeMeasures
from covid_cmsf.evaluation.low_shot import LowShotResult
from covid_cmsf.evaluation.neighbors import NeighborsResult
from covid_cmsf.evaluation.overlap import Overlap
from covid_cmsf.evaluation.probes.linear import LinearResult
from covid_cmsf.evaluation.results import Interval, Scores
from covid_cmsf.evaluation.retrieval import RetrievalResult

MAX_ROWS = 20  # of a table of neighbors
MAX_CONFUSIONS = 5  # printed; the result file has all


def describe_features(features: Features) -> str:
    """Describe a features file in one line."""
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
    """Return a table of R@k with intervals, and R@1 per class."""
    title = f"Retrieval, protocol {result.protocol}: {result.num_query} {result.query} in {result.num_gallery} "
    table = Table(
        "", *(f"R@{k}" for k in result.recall), title=f"{title}{result.gallery}, centering {result.centering}"
    )
    table.add_row("percent", *(f"{value:.1f}" for value in result.recall.values()))
    table.add_row("95% interval", *(_format_interval(interval) for interval in result.interval.values()))
    table.add_row("chance", *(f"{value:.1f}" for value in result.chance_recall.values()))
    rank = f"effective rank of the gallery {result.effective_rank:.1f}"
    classes = _class_lines(result.per_class, result.confusion, "R@1")
    return Group(table, *classes, rank, *_overlap_warnings(result.overlap))


def neighbors_table(result: NeighborsResult) -> RenderableType:
    """Return a table of the nearest videos of the first 20 videos."""
    table = Table(
        "video", "most similar videos, cosine similarity", title=f"Neighbors among {result.num_videos} videos"
    )
    for one in result.videos[:MAX_ROWS]:
        pairs = zip(one.neighbors, one.similarities, strict=True)
        table.add_row(escape(one.video), ", ".join(f"{escape(name)} {value:.2f}" for name, value in pairs))
    more = len(result.videos) - MAX_ROWS
    return (
        Group(table, f"and {more} videos more: --out FILE writes all, --video ID selects some") if more > 0 else table
    )


def label_free_table(result: LabelFreeMeasures) -> RenderableType:
    """Return a table of what was measured without labels."""
    table = Table("", "value", "chance", title=f"Without labels: {result.num_videos} videos")
    table.add_row("effective rank", f"{result.effective_rank:.1f}", "")
    if result.window_r1 is not None:
        name = f"first window finds the video's last, percent of {result.num_window_videos}"
        table.add_row(name, f"{result.window_r1:.1f}", f"{result.window_chance:.1f}")
    if result.source_r1 is not None:
        name = f"nearest video is of the same source, percent of {result.num_source_videos}"
        table.add_row(name, f"{result.source_r1:.1f}", f"{result.source_chance:.1f}")
    for one in result.agreement:
        name = f"{one.k} nearest that {one.modality} has too, percent, {one.num_videos} videos"
        table.add_row(name, f"{one.percent:.1f}", f"{one.chance:.1f}")
    return table


def knn_table(result: KnnResult) -> RenderableType:
    """Return a table of top-1 accuracy, one row per number of neighbors."""
    title = f"Nearest neighbors, protocol {result.protocol}: {result.num_query} {result.query} in "
    table = Table("k", "top-1", "95% interval", title=f"{title}{result.num_gallery} {result.gallery}")
    for k, value in result.top1.items():
        table.add_row(str(k), f"{value:.1f}", _format_interval(result.interval[k]))
    most = max(result.top1)
    classes = _class_lines(result.per_class[most], result.confusion[most], f"top-1 with k = {most}")
    return Group(table, *classes, f"chance {result.chance:.1f}", *_overlap_warnings(result.overlap))


def low_shot_table(result: LowShotResult) -> RenderableType:
    """Return a table of top-1 accuracy, one row per number of labeled videos per class."""
    title = f"Low-shot, protocol {result.protocol}: {result.num_query} {result.query}, labels from {result.gallery}"
    table = Table("labeled per class", "top-1", "95% interval", "deviation between draws", title=title)
    for count, value in result.top1.items():
        table.add_row(
            str(count), f"{value:.1f}", _format_interval(result.interval[count]), f"{result.deviation[count]:.1f}"
        )
    note = f"mean over {result.num_draws} draws; chance {100 / result.num_classes:.1f}"
    most = max(result.top1)
    classes = _class_lines(result.per_class[most], result.confusion[most], f"top-1 with {most} labeled")
    return Group(table, *classes, note, *_overlap_warnings(result.overlap))


def linear_table(result: LinearResult) -> RenderableType:
    """Return a table of the probe's scores, and how its penalty or epoch was chosen."""
    lines = []
    if result.penalty is not None:
        best = max(result.val_accuracy.values())
        lines.append(
            f"penalty {result.penalty:.3g}, selected by {best:.1f}% on a validation subset of {result.gallery}"
        )
    if result.best_on_test is not None:
        lines.append(
            f"scores of the last epoch; the best epoch, selected on {result.query} as Han et al. do, "
            f"has {result.best_on_test:.1f} (epoch {result.best_epoch})"
        )
    title = f"Linear probe, protocol {result.protocol}: {result.num_gallery} {result.gallery} to {result.query}"
    lines += _class_lines(result.scores.per_class, result.scores.confusion, "top-1")
    return Group(scores_table({"linear": result.scores}, title), *lines, *_overlap_warnings(result.overlap))


def clip_table(result: FinetuneResult) -> RenderableType:
    """Return a table of the scores of a classifier that was trained on clips."""
    title = f"{result.mode}, protocol {result.protocol}: {result.num_fit} training, {result.num_val} validation videos"
    table = scores_table({result.mode: result.scores}, title)
    classes = _class_lines(result.scores.per_class, result.scores.confusion, "top-1")
    chosen = f"scores of epoch {result.best_epoch}"
    if result.lrs:
        tried = ", ".join(f"{lr}: {accuracy:.1f}%" for lr, accuracy in result.lrs.items())
        chosen += f", learning rate {result.provenance['config']['lr']:g} (on validation {tried})"
    return Group(table, *classes, chosen, *_overlap_warnings(result.overlap))


def fusion_table(result: FusionResult | ProbabilityFusionResult) -> RenderableType:
    """Return a table of both streams, alone and fused."""
    counts = f"{result.num_common} common videos, {result.num_only_first} and {result.num_only_second} in one file only"
    title = f"Two-stream fusion, protocol {result.protocol}: {counts}"
    if isinstance(result, ProbabilityFusionResult):
        table = scores_table(_by_stream(*result.streams, result.scores), title)
        return Group(table, *_class_lines(result.scores.per_class, result.scores.confusion, "fused top-1"))
    table = scores_table(_by_stream(*result.linear_streams, result.linear), title)
    classes = _class_lines(result.linear.per_class, result.linear.confusion, "fused top-1")
    return Group(retrieval_table(result.retrieval), table, *classes)


def compare_table(result: CompareResult) -> RenderableType:
    """Return a table of every method against the first, by metric, with a verdict in words."""
    title = f"Paired comparison, protocol {result.protocol}: {result.num_query} {result.query} of {result.num_sources} "
    table = Table("", "", "", "difference", "95%", "repaired", "broken", "", title=f"{title}sources")
    for one in result.comparisons:
        found = one.difference
        low, high = found.interval
        table.add_row(
            escape(one.second),
            one.metric,
            f"{found.first:.1f} to {found.second:.1f}",
            f"{found.difference:+.1f}",
            f"{low:+.1f} to {high:+.1f}",
            f"{found.repaired:.0f}",
            f"{found.broken:.0f}",
            one.verdict,
        )
    most = max(one.difference.num_seeds for one in result.comparisons)
    resampled = "the queries' sources" + (f" and {most} seeds" if most > 1 else "")
    lines = [f"against {escape(result.comparisons[0].first)}; intervals resample {resampled}"]
    if len(result.splits) > 1:
        lines.append(f"means over the splits {', '.join(result.splits)}; sources are resampled within each")
    if len(result.scores) > 2:
        lines.append(f"verdicts are corrected for {len(result.scores) - 1} comparisons (Holm); intervals are not")
    return Group(table, *lines)


def _by_stream(first: Scores, second: Scores, fused: Scores) -> dict[str, Scores]:
    return {"first": first, "second": second, "fused": fused}


def baselines_table(result: BaselinesResult) -> RenderableType:
    """Return a table with one row per baseline."""
    title = f"Baselines, protocol {result.protocol}: {result.query} in {result.gallery}"
    ranks = [k for k in (1, 5, 20) if k in result.baselines[0].recall]
    table = Table(title=title)
    table.add_column("baseline", no_wrap=True)
    for name in ("R@1", "95%", *(f"R@{k}" for k in ranks[1:]), "linear", "rank"):
        table.add_column(name, no_wrap=True)
    for one in result.baselines:
        rank = "" if one.effective_rank is None else f"{one.effective_rank:.1f}"
        interval = "" if one.interval is None else _format_interval(one.interval)
        first, *others = (f"{one.recall[k]:.1f}" for k in ranks)
        table.add_row(one.name, first, interval, *others, f"{one.linear:.1f}", rank)
    return table


def scores_table(scores_by_name: Mapping[str, Scores], title: str) -> Table:
    """Return a table of top-1, its interval, top-5 and the mean over classes, one row per classifier, chance last."""
    table = Table("", "top-1", "95% interval", "top-5", "mean per class", "videos", title=title)
    for name, scores in scores_by_name.items():
        top5 = "" if scores.top5 is None else f"{scores.top5:.1f}"
        cells = f"{scores.top1:.1f}", _format_interval(scores.interval), top5, f"{scores.mean_per_class:.1f}"
        table.add_row(name, *cells, str(scores.num_videos))
    num_classes = len(next(iter(scores_by_name.values())).confusion)
    one, five = f"{100 / num_classes:.1f}", f"{500 / num_classes:.1f}" if num_classes > 5 else ""
    table.add_row("chance", one, "", five, one, "")
    return table


def _class_lines(values: Mapping[str, float], confusion: Sequence[Sequence[int]], metric: str) -> list[str]:
    """Return a line with the value of every class, and one with the classes that are confused most often."""
    text = ", ".join(f"{escape(name)} {value:.0f}" for name, value in values.items())
    present = [index for index, row in enumerate(confusion) if sum(row)]  # as in `per_class`, in the same order
    names = dict(zip(present, map(escape, values), strict=True)) if len(present) == len(values) else {}
    wrong = [(row[j], i, j) for i, row in enumerate(confusion) for j in range(len(row)) if i != j and row[j]]
    most = sorted(wrong, key=lambda one: (-one[0], one[1:]))[:MAX_CONFUSIONS]
    pairs = ", ".join(f"{names.get(i, f'class {i}')} as {names.get(j, f'class {j}')} ({count})" for count, i, j in most)
    return [f"{metric} per class: {text}", *([f"most often confused: {pairs}"] if pairs else [])]


def _overlap_warnings(overlap: Overlap) -> Iterable[str]:
    other_class = overlap.num_shared_sources - overlap.num_sibling_sources
    lines = [
        (overlap.num_identical_files, "files are in both subsets: a video may find itself"),
        (overlap.num_sibling_sources, "sources are in both subsets: sibling clips may be each other's neighbors"),
        (other_class, "sources are in both subsets, in different classes"),
    ]
    return [f"[yellow]{count} {text}[/]" for count, text in lines if count]


def _format_interval(interval: Interval) -> str:
    return f"{interval[0]:.1f}-{interval[1]:.1f}"
