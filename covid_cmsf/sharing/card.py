"""Model cards: what the files of a run say about an encoder, as Markdown with YAML front matter for the hub.

Nothing is typed in besides name and license. What a file does not say, the card calls unknown.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from covid_cmsf import __version__
from covid_cmsf.cotrain.answers import METRICS
from covid_cmsf.models import EncoderMetadata
from covid_cmsf.sharing.run_files import RunFiles, without_folders

USE = """\
```python
import covid_cmsf as cc

encoder = cc.from_pretrained("FOLDER")  # or "OWNER/NAME" of the hub, with download=True
cc.embed("my.mp4", encoder)  # ({num_features},)
```"""
NO_RUN = "Unknown: these weights came as a file, without the folder of the run that trained them."
NO_MEASURES = "None: the run's folder has no measures of these weights."


@dataclass(frozen=True)
class SharedEncoder:
    """What a card is written of; `run` is None for weights without the folder of their run."""

    name: str
    license: str | None
    metadata: EncoderMetadata
    num_features: int
    num_parameters: int
    weights_sha256: str
    checkpoint: str  # name of the file that the weights are from
    branch: str
    run: RunFiles | None


def model_card(shared: SharedEncoder) -> str:
    """Return the text of README.md."""
    sections = {
        "Use": [USE.replace("{num_features}", str(shared.num_features)), *_encoder_section(shared)],
        "Data": _data_section(shared),
        "Training": _training_section(shared),
        "Measures": _measures_section(shared.run),
        "Limits": [f"- {line}" for line in _limits(shared)],
        "License": [shared.license or "None was given. Ask the owner before you use these weights."],
    }
    origin = "the files of the run" if shared.run else "a weights file"
    lines = [f"# {shared.name}", "", f"Written by covid-cmsf {__version__} from {origin}.", ""]
    for title, section in sections.items():
        lines += [f"## {title}", "", *section, ""]
    return _front_matter(shared) + "\n".join(lines)


def _front_matter(shared: SharedEncoder) -> str:
    method = (shared.run.config if shared.run else {}).get("method", {}).get("name")
    tags = ["covid-cmsf", "video", shared.metadata.encoder, shared.metadata.modality, method]
    values = {
        "library_name": "covid-cmsf",
        **({"license": shared.license} if shared.license else {}),
        "pipeline_tag": "feature-extraction",
        "tags": [tag for tag in tags if tag and tag != "unknown"],
    }
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True)}---\n\n"


def _encoder_section(shared: SharedEncoder) -> list[str]:
    metadata = shared.metadata
    frames, height, width = metadata.input_size
    rows = {
        "encoder": f"`{metadata.encoder}`, {shared.num_parameters:,} parameters",
        "modality": metadata.modality,
        "input": f"{metadata.in_channels} channels, {frames} frames at {height}x{width}, stride {metadata.stride}",
        "frame rate": None if metadata.fps is None else f"{metadata.fps:g} frames per second",
        "pixels from 0 to 1": f"mean {_numbers(metadata.mean)}, standard deviation {_numbers(metadata.std)}",
        "feature": f"{shared.num_features} values, not normalized",
        "projection head": "none" if metadata.projector is None else _sizes(metadata.projector.sizes),
        "weights": f"`{shared.checkpoint}`, branch {shared.branch}; SHA-256 of the tensors `{shared.weights_sha256}`",
    }
    return ["", *_table(("", ""), rows.items())]


def _data_section(shared: SharedEncoder) -> list[str]:
    metadata, run = shared.metadata, shared.run
    if run is None:
        return [NO_RUN]
    flow = metadata.flow
    rows = {
        "clips": run.config.get("clips"),
        "split, subset": f"{run.config.get('split')}, {run.config.get('subset')}",
        "short edge": {None: "unknown", 0: "native"}.get(metadata.short_edge, f"{metadata.short_edge} pixels"),
        "optical flow": None if flow is None else f"{flow.algorithm} ({flow.backend}), bound {flow.bound}",
        "videos measured": run.provenance.get("num_videos"),
        "SHA-256 of the clips' tables": run.provenance.get("store_sha256"),
    }
    return _table(("", ""), rows.items())


def _training_section(shared: SharedEncoder) -> list[str]:
    run = shared.run
    if run is None:
        return [f"{NO_RUN} Its metadata says: {without_folders(shared.metadata.trained)}."]
    config, progress = run.config, run.summary.get("progress", {})
    versions = run.start.get("versions", {})
    git = run.start.get("git") or {}
    guides = [f"{guide.get('weights')} ({guide.get('modality')})" for guide in config.get("guides") or []]
    rows = {
        "trained": shared.metadata.trained,
        "start": config.get("init") or "random weights",
        "guides": ", ".join(guides) or "none",
        "run finished": f"after {progress['epoch']} epochs, {progress['step']} steps" if progress else "no",
        "seconds": f"{progress['seconds']:.0f}" if progress else None,
        "device": run.start.get("device"),
        "software": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "commit": git.get("commit") and f"{git['commit']}{', with changes' if git.get('changed') else ''}",
    }
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True).rstrip()
    return [*_table(("", ""), rows.items()), "", "The configuration, paths as names:", "", "```yaml", text, "```"]


def _measures_section(run: RunFiles | None) -> list[str]:
    left_out = [
        f"`{name}` has measures of other weights, or does not say of which; it is left out."
        for name in (run.left_out if run else ())
    ]
    if run is None or not run.is_measured:
        return [NO_MEASURES if run else NO_RUN, *(f"\n{line}" for line in left_out)]
    rows = [*_retrieval_rows(run.retrieval), *_linear_rows(run.linear), *_unlabeled_rows(run.unlabeled)]
    lines = _table(("measure", "value", "95% interval", "chance", "videos"), rows)
    lines += ["", "Percent, besides the effective rank. Intervals resample the sources of the query videos.", ""]
    lines += [*_protocol_lines(run), *(f"\n{line}" for line in left_out)]
    return [*lines, *_gain_lines(run.gains)]


def _retrieval_rows(result: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    for k, value in result.get("recall", {}).items():
        chance = result.get("chance_recall", {}).get(k)
        yield f"R@{k}", _percent(value), _interval(result["interval"].get(k)), _percent(chance), result["num_query"]


def _linear_rows(result: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    if result:
        scores = result["scores"]
        yield "linear, top-1", _percent(scores["top1"]), _interval(scores["interval"]), "", scores["num_videos"]


def _unlabeled_rows(result: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    if not result:
        return
    yield "effective rank of the features", f"{result['effective_rank']:.1f}", "", "", result["num_videos"]
    named = {"window": "a video's first window finds its last", "source": "the nearest video is of the same source"}
    for key, name in named.items():
        if result.get(f"{key}_r1") is not None:
            numbers = _percent(result[f"{key}_r1"]), "", _percent(result[f"{key}_chance"])
            yield name, *numbers, result[f"num_{key}_videos"]


def _protocol_lines(run: RunFiles) -> list[str]:
    result, protocol = run.retrieval or run.linear, run.provenance.get("eval_protocol")
    if not result or not protocol:
        return ["Measured without labels."]
    windows = f"{protocol['num_windows']} windows of {protocol['length']} frames, stride {protocol['stride']}"
    return [
        f"Protocol `{protocol['name']}`: {windows}, {protocol['size']}x{protocol['size']} pixels; split "
        f"{run.provenance['split']}, gallery `{result['gallery']}` ({result['num_gallery']} videos), "
        f"query `{result['query']}`; {run.provenance['precision']} on {run.provenance['device']}."
    ]


def _gain_lines(gains: Sequence[Mapping[str, Any]]) -> list[str]:
    if not gains:
        return []
    rows = [
        (row["over"], *(_gain(row.get(name)) for name in METRICS), row["num_seeds"], row["num_splits"]) for row in gains
    ]
    header = ("gain over", *METRICS.values(), "seeds", "splits")
    note = "Gains of the plan's stage in points, with paired 95% intervals, not corrected for their number."
    return ["", *_table(header, rows), "", note]


def _gain(values: Mapping[str, float] | None) -> str:
    return "" if values is None else f"{values['difference']:+.1f} [{values['low']:+.1f}, {values['high']:+.1f}]"


def _limits(shared: SharedEncoder) -> Iterable[str]:
    """Yield what the numbers do not show, as far as the files tell."""
    metadata, run = shared.metadata, shared.run
    yield f"It takes {metadata.modality} clips as described above; other sizes and frame rates were not measured here."
    if run is None or not run.is_measured:
        yield "How good its features are is not known from this folder."
    elif not run.retrieval and not run.linear:
        yield "No measure with labels: whether neighbors are of the same class is not known."
    else:
        clips = run.stage.get("evaluation", {}).get("clips")
        where = f"on the clips {without_folders(clips)}" if clips else "on one set of clips only"
        yield f"Measured {where}; nothing in the run tells how it does on other videos."
    overlap = run.retrieval.get("overlap", {}) if run else {}
    if overlap.get("num_shared_sources"):
        yield f"Gallery and query share {overlap['num_shared_sources']} sources, so the numbers are too high."
    skipped = run.provenance.get("num_skipped") if run else 0
    if skipped:
        yield f"{skipped} videos could not be read; the numbers are of the others."
    if run is not None and not run.summary:
        yield "The run was not finished when this card was written."
    yield "The rights to the videos it was trained on are not recorded in the run."


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return a Markdown table; rows whose last cell is None are left out."""
    lines = [" | ".join(str(cell).replace("|", "\\|") for cell in row) for row in rows if row[-1] is not None]
    return [f"| {' | '.join(header)} |", "|" + "---|" * len(header), *(f"| {line} |" for line in lines)]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _interval(values: Sequence[float] | None) -> str:
    return "" if values is None else f"{values[0]:.1f} to {values[1]:.1f}"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _sizes(values: Sequence[int]) -> str:
    return " -> ".join(map(str, values))
