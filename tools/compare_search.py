"""Compare what finds what: histograms, an image network, our encoders and their fusions, by `search`'s own scores.

    python tools/compare_search.py choose  --seeds 0,1,2 --entry NAME=FILE ... --out weights.json
    python tools/compare_search.py confirm --seeds 0,1,2 --entry NAME=FILE ... --weights weights.json --out FILE

An entry is a features file of UCF-101 clips; `{seed}` in its path is replaced by each seed. Every clip is a query among
all clips of other sources (class and group). The score of two videos is that of `covid-cmsf search`: the mean over the
query's windows of the best centered cosine similarity; fusions add scores. Labels and groups are read from the ids,
only for measuring. `choose` looks at queries of groups 8 to 14 and writes the weights of all fusions; `confirm` looks
at queries of groups 15 to 25 with these weights, and is meant to be run once, after they were committed.
"""

# N videos, W windows, S seeds, Q queries

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from covid_cmsf.evaluation.features.file import Features, load_features
from covid_cmsf.evaluation.paired import holm, paired_difference
from covid_cmsf.files import write_text_atomic
from covid_cmsf.search.index import WindowSet, build_index

CHOOSE_GROUPS, CONFIRM_GROUPS = range(8, 15), range(15, 26)
IMAGE = "image"  # the entry that others are fused with, weight 1
GRID = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)
# With equal weights: nothing to choose. Those with entries that were not given are left out.
OURS = ("rgb-cmsf", "flow-cmsf", "motion")
EQUAL = [("color", "motion"), ("rgb-cmsf", "flow-cmsf"), ("rgb-infonce", "flow-infonce"), ("rgb-cmsf", "motion"), OURS]
SEVERAL = [*EQUAL, ("flow-cmsf", "motion")]  # fused with the image network, beside each entry by itself
NOT_FUSED = ("image-center", "image")  # alone, never fused
# The questions, as (first, second): is the second better? Their p values are corrected together.
COMPARED = [
    *((IMAGE, f"{IMAGE} + {one}") for one in ("color", "motion", "rgb-cmsf", "flow-cmsf", "rgb-cmsf + flow-cmsf")),
    (IMAGE, "rgb-cmsf + flow-cmsf"),
    # Does learned flow beat the histogram beside an image network, or add to it?
    *((f"{IMAGE} + motion", f"{IMAGE} + {one}") for one in ("flow-random", "flow-infonce", "flow-cmsf")),
    *((f"{IMAGE} + motion", f"{IMAGE} + {one} + motion") for one in ("color", "rgb-cmsf", "flow-cmsf")),
    (f"{IMAGE} + motion", f"{IMAGE} + {' + '.join(OURS)}"),
    (f"{IMAGE} + rgb-cmsf + flow-cmsf", f"{IMAGE} + {' + '.join(OURS)}"),
    # Without an image network.
    ("color", "rgb-infonce"),
    ("color", "rgb-cmsf"),
    ("motion", "flow-infonce"),
    ("motion", "flow-cmsf"),
    ("rgb-infonce", "rgb-cmsf"),
    ("flow-infonce", "flow-cmsf"),
    ("rgb-msf", "rgb-cmsf"),
    ("flow-msf", "flow-cmsf"),
    ("rgb-cmsf", "rgb-cmsf + flow-cmsf"),
    ("rgb-cmsf + motion", "rgb-cmsf + flow-cmsf"),
    ("rgb-cmsf + flow-cmsf", " + ".join(OURS)),
]
Scores = NDArray[np.float64]
Hits = NDArray[np.bool_]


@dataclass(frozen=True)
class Videos:
    """What the ids say: class, group and source (class and group) of every video."""

    ids: tuple[str, ...]
    classes: tuple[str, ...]
    groups: tuple[int, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the footage that sibling clips share."""
        return tuple(f"{name}-{group}" for name, group in zip(self.classes, self.groups, strict=True))


def parse_ids(ids: Sequence[str]) -> Videos:
    """Read class and group from ids such as Archery/v_Archery_g08_c01; ValueError for others."""
    found = [re.search(r"v_(\w+)_g(\d+)_c\d+$", one) for one in ids]
    if missing := [one for one, match in zip(ids, found, strict=True) if match is None]:
        raise ValueError(f"{missing[0]!r} is no id of a UCF-101 clip")
    matches = [match for match in found if match is not None]
    return Videos(tuple(ids), tuple(one[1] for one in matches), tuple(int(one[2]) for one in matches))


def search_scores(windows: WindowSet, num_videos: int) -> Scores:
    """Return the scores (N, N) of all videos for all queries, as `search` computes them."""
    videos = windows.videos.numpy()
    firsts = np.searchsorted(videos, np.arange(num_videos))
    counts = np.bincount(videos, minlength=num_videos)
    if (counts == 0).any():
        raise ValueError("a video has no windows")
    vectors = windows.vectors.numpy()
    best = np.maximum.reduceat(vectors @ vectors.T, firsts, axis=1)  # (W, N)
    scores: Scores = np.add.reduceat(best.astype(np.float64), firsts, axis=0) / counts[:, None]
    return scores


def first_hits(scores: Scores, videos: Videos, groups: Sequence[int]) -> Hits:
    """Return (Q,) whether the best video of another source has the query's class, for queries of these groups."""
    sources, classes = (np.unique(names, return_inverse=True)[1] for names in (videos.sources, videos.classes))
    chosen = query_rows(videos, groups)
    allowed = np.where(sources[chosen, None] == sources[None, :], -np.inf, scores[chosen])
    hits: Hits = classes[allowed.argmax(1)] == classes[chosen]
    return hits


def query_rows(videos: Videos, groups: Sequence[int]) -> NDArray[np.int64]:
    """Return the indices of the queries: all videos of these groups."""
    return np.flatnonzero(np.isin(videos.groups, list(groups)))


class Entries:
    """The scores (S, N, N) of every entry, read when first used; (1, N, N) of entries without seeds."""

    def __init__(self, given: Mapping[str, str], seeds: Sequence[int]) -> None:
        self.names = list(given)
        self.fingerprints: dict[str, list[str]] = {}
        self._scores: dict[str, NDArray[np.float64]] = {}
        ids: tuple[str, ...] = ()
        for name, path in given.items():
            paths = [path.replace("{seed}", str(seed)) for seed in seeds] if "{seed}" in path else [path]
            features = [load_features(one) for one in paths]
            self.fingerprints[name] = [one.provenance.fingerprint for one in features]
            found = {tuple(sorted(one.videos.ids)) for one in features}
            if len(found) > 1 or (ids and found != {ids}):
                raise ValueError(f"{path} has other videos than the files before it")
            (ids,) = found
            self._scores[name] = np.stack([_scores_of(one) for one in features])
        self.videos = parse_ids(ids)

    def hits(self, weights: Mapping[str, float], groups: Sequence[int]) -> Hits:
        """Return (S, Q) the hits of a weighted sum of scores."""
        total = np.asarray(sum(weight * self._scores[name] for name, weight in weights.items()))  # (S, N, N)
        return np.stack([first_hits(one, self.videos, groups) for one in total])


def _scores_of(features: Features) -> Scores:
    index = build_index({"entry": features})
    return search_scores(index.windows["entry"], len(index.videos))


def fusions(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the entries that are fused with the image network: each alone, and several."""
    single = [(name,) for name in names if name not in NOT_FUSED]
    return single + [several for several in SEVERAL if set(several) <= set(names)]


def label(entries: Sequence[str]) -> str:
    """Return the name of a sum."""
    return " + ".join(entries)


def choose_weights(entries: Entries) -> dict[str, dict[str, Any]]:
    """Return for every fusion the weights with the best mean R@1 over seeds, of equals the smallest, and the grid."""
    chosen = {}
    for others in fusions(entries.names):
        table = {}
        for values in product(GRID, repeat=len(others)):
            weights = {IMAGE: 1.0, **dict(zip(others, values, strict=True))}
            table[values] = 100 * float(entries.hits(weights, CHOOSE_GROUPS).mean())
        best = min(table, key=lambda values: (-round(table[values], 6), sum(values), values))
        chosen[label((IMAGE, *others))] = {
            "weights": {IMAGE: 1.0, **dict(zip(others, best, strict=True))},
            "r1": round(table[best], 2),
            "grid": {" ".join(map(str, values)): round(value, 2) for values, value in table.items()},
        }
    return chosen


def methods(entries: Entries, chosen: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return {name: weights} of all that is compared: entries alone, equal sums, fusions with chosen weights."""
    alone = {name: {name: 1.0} for name in entries.names}
    equal = {label(pair): dict.fromkeys(pair, 1.0) for pair in EQUAL if set(pair) <= set(entries.names)}
    return alone | equal | {name: dict(one["weights"]) for name, one in chosen.items()}


def compare(hits: Mapping[str, Hits], pairs: Sequence[tuple[str, str]], sources: Sequence[str]) -> list[dict[str, Any]]:
    """Return the paired difference of every pair (first, second), with p values corrected for their number."""
    found = {f"{first}|{second}": paired_difference(hits[first], hits[second], sources) for first, second in pairs}
    corrected = holm({name: one.p_value for name, one in found.items()})
    return [
        {"methods": [first, second], "name": f"{second} minus {first}", **_rounded(asdict(found[key])),
         "p_holm": round(corrected[key], 4)}
        for first, second in pairs
        for key in [f"{first}|{second}"]
    ]  # fmt: skip


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: [round(one, 2) for one in value]
        if isinstance(value, tuple)
        else round(value, 4 if key == "p_value" else 2)
        for key, value in values.items()
    }


def measure(entries: Entries, chosen: Mapping[str, Mapping[str, Any]], groups: Sequence[int]) -> dict[str, Any]:
    """Return R@1 of all methods, by seed and class, and the comparisons that decide."""
    rows = query_rows(entries.videos, groups)
    sources = [entries.videos.sources[row] for row in rows]
    classes = np.array([entries.videos.classes[row] for row in rows])
    hits = {name: entries.hits(weights, groups) for name, weights in methods(entries, chosen).items()}
    pairs = [pair for pair in COMPARED if set(pair) <= set(hits)]
    return {
        "num_queries": len(rows),
        "num_sources": len(set(sources)),
        "r1": {
            name: {
                "mean": round(100 * float(one.mean()), 2),
                "seeds": [round(100 * float(row.mean()), 2) for row in one],
                "by_class": {c: round(100 * float(one[:, classes == c].mean()), 1) for c in sorted(set(classes))},
            }
            for name, one in hits.items()
        },
        "comparisons": compare(hits, pairs, sources),
    }


app = typer.Typer(no_args_is_help=True, add_completion=False)
EntryOption = Annotated[list[str], typer.Option("--entry", help="NAME=FEATURES; the file may have {seed} in it.")]
SeedsOption = Annotated[str, typer.Option("--seeds", help="Numbers, such as 0,1,2.")]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="JSON file to write.")]


def open_entries(entry: Sequence[str], seeds: str) -> Entries:
    """Read the features of NAME=FILE options."""
    given = dict(one.split("=", 1) for one in entry)
    if IMAGE not in given:
        raise typer.BadParameter(f"one entry must be {IMAGE}=FEATURES")
    return Entries(given, [int(seed) for seed in seeds.split(",")])


@app.command()
def choose(entry: EntryOption, out: OutOption, seeds: SeedsOption = "0") -> None:
    """Choose the weights of all fusions on queries of groups 8 to 14."""
    entries = open_entries(entry, seeds)
    chosen = choose_weights(entries)
    result = {"seeds": seeds, "fingerprints": entries.fingerprints, "chosen": chosen}
    result["measured"] = measure(entries, chosen, CHOOSE_GROUPS)
    _finish(result, out)


@app.command()
def confirm(
    entry: EntryOption, out: OutOption, weights: Annotated[Path, typer.Option("--weights")], seeds: SeedsOption = "0"
) -> None:
    """Measure all methods on queries of groups 15 to 25, with the weights that were chosen before."""
    chosen = json.loads(weights.read_text(encoding="utf-8"))["chosen"]
    entries = open_entries(entry, seeds)
    result = {
        "seeds": seeds,
        "fingerprints": entries.fingerprints,
        "chosen": {k: v["weights"] for k, v in chosen.items()},
    }
    result["measured"] = measure(entries, chosen, CONFIRM_GROUPS)
    _finish(result, out)


def _finish(result: Mapping[str, Any], out: Path) -> None:
    write_text_atomic(out, json.dumps(result, indent=1) + "\n")
    measured = result["measured"]
    typer.echo(f"{measured['num_queries']} queries of {measured['num_sources']} sources, seeds {result['seeds']}")
    for name, one in measured["r1"].items():
        typer.echo(f"{one['mean']:6.2f}  {name}  {one['seeds']}")
    for one in measured["comparisons"]:
        low, high = one["interval"]
        typer.echo(
            f"{one['difference']:+6.2f} [{low:+.1f}, {high:+.1f}] p {one['p_holm']:.3f}  +{one['repaired']:.1f} "
            f"-{one['broken']:.1f}  {one['name']}"
        )


if __name__ == "__main__":
    app()
