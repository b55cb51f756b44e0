"""Small training runs of every method, constraint, modality and precision, for the pretended GPU."""

from pathlib import Path
from typing import Any

from tests.training.factories import make_config

LABELS: dict[str, Any] = {"name": "cmsf", "constraint": "label", "bank_size": 16}
GUIDED: dict[str, Any] = {"name": "cmsf", "bank_size": 16, "k": 2, "num_candidates": 4}
CACHED: dict[str, Any] = {"cache": "views", "cached_views": 2}
WORKERS: dict[str, Any] = {"runtime": {"workers": 2}}  # who share each batch, as `auto` does on a machine with a GPU
# name: (method, guides, other settings)
RUNS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]] = {
    "infonce": ({"name": "infonce", "bank_size": 16, "exclude_negatives": "source"}, [], {}),
    "infonce, shuffled": (
        {"name": "infonce", "bank_size": 16, "batch_negatives": True}, [], {"batch_norm": {"shuffle": True}}
    ),
    "ubernce": ({"name": "ubernce", "bank_size": 16}, [], {}),
    "supcon": ({"name": "supcon", "bank_size": 16}, [], {}),
    "coclr": ({"name": "coclr", "bank_size": 16, "bank_warmup": 8}, [{}], {}),
    "msf": ({"name": "msf", "bank_size": 16, "include_siblings": False}, [], {}),
    "msf, clipped, accumulated": (
        {"name": "msf", "bank_size": 16}, [], {"optimizer": {"clip_norm": 1.0, "accumulate": 2, "name": "sgd"}}
    ),
    "byol_asym": ({"name": "byol_asym", "bank_size": 16}, [], {}),
    "cmsf, labels": (LABELS, [], {}),
    "cmsf, all of a label": ({**LABELS, "k": "all"}, [], {}),
    "cmsf, two banks": (
        {**LABELS, "constraint": "two_bank", "labeled_bank_size": 8}, [], {"labels": {"fraction": 0.5}}
    ),
    "cmsf, live guide": (GUIDED, [{}], {}),
    "cmsf, cached guide": (GUIDED, [CACHED], {}),
    "cmsf, mean of a guide": (GUIDED, [{**CACHED, "cache": "mean", "center": True}], {}),
    "cmsf, two guides": ({**GUIDED, "combine": "intersection"}, [{}, {"branch": "target"}], {}),
    "cmsf_2q": ({"name": "cmsf_2q", "bank_size": 16}, [], {}),
    "cmsf_km": ({"name": "cmsf_km", "bank_size": 16, "num_clusters": 4}, [], {"schedule": {"epochs": 2}}),
    "protonw": ({"name": "protonw", "bank_size": 16}, [], {}),
    "frzproto": ({"name": "frzproto"}, [], {}),
    "xent": ({"name": "xent"}, [], {}),
    "msf, checkpointed": ({"name": "msf", "bank_size": 16}, [], {}),
    "flow": ({"name": "msf", "bank_size": 16}, [], {"modality": "flow"}),
    "residual flow": ({"name": "msf", "bank_size": 16}, [], {"modality": "residual_flow"}),
    "flow as an image": (
        {"name": "msf", "bank_size": 16}, [], {"modality": "flow", "views": {"flow_style": "coclr", "pairing": "coclr"}}
    ),
    "motion": ({"name": "msf", "bank_size": 16}, [], {"modality": "motion"}),
    "residual motion": ({"name": "msf", "bank_size": 16}, [], {"modality": "residual_motion"}),
    "frame": ({"name": "msf", "bank_size": 16}, [], {"modality": "frame", "encoder": "r10_small"}),
    "audio": (
        {"name": "msf", "bank_size": 16},
        [],
        {"modality": "audio", "encoder": "r10_small", "views": {"length": 8, "stride": 1}},
    ),
    "msf, clipped": ({"name": "msf", "bank_size": 16}, [], {"optimizer": {"clip_norm": 1.0}}),
    "msf, clipped, fp16": (
        {"name": "msf", "bank_size": 16}, [], {"optimizer": {"clip_norm": 1.0}, "precision": "fp16"}
    ),
    "msf, with kNN": ({"name": "msf", "bank_size": 16}, [], {}),
    "cmsf, live guide, fed by workers": (GUIDED, [{}], WORKERS),
    "rgbdiff, fed by workers": ({"name": "msf", "bank_size": 16}, [], {"modality": "rgbdiff", **WORKERS}),
}  # fmt: skip


def settings(name: str, clips: Path, guide: Path, **runtime: Any) -> Any:
    method, guides, changes = RUNS[name]
    chosen = [{"weights": str(guide), "modality": "flow", **one} for one in guides]
    options = {"workers": 0, "threads": 1, "tensorboard": False, **changes.get("runtime", {}), **runtime}
    options["gradient_checkpointing"] = name.endswith("checkpointed")
    options["knn_every_epochs"] = int(name.endswith("kNN"))
    return make_config(
        clips,
        **{
            "method": method,
            "guides": chosen,
            "schedule": {"epochs": 1},
            "precision": "fp32",
            **changes,
            "runtime": options,
        },
    )
