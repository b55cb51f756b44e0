"""Read what the processor of a network of transformers does with frames, from its file beside the weights."""

import math
from pathlib import Path
from typing import Any

from covid_cmsf.files import read_json
from covid_cmsf.views.resize import Interpolation

PROCESSORS = ("video_preprocessor_config.json", "preprocessor_config.json")  # one of them
RESAMPLE: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # codes of Pillow


def read_processor(folder: Path) -> dict[str, Any]:
    """Return size, center square, mean and deviation; ValueError for preprocessing that is of another kind."""
    path = next((folder / name for name in PROCESSORS if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has no {' or '.join(PROCESSORS)}, which say what the network takes")
    values = read_mapping(path)
    short_edge: Any = values.get("size")
    crop: Any = values.get("crop_size")
    short_edge = short_edge.get("shortest_edge") if isinstance(short_edge, dict) else short_edge
    if crop is None:
        crop = short_edge
    elif isinstance(crop, dict):
        crop = crop.get("height") if crop.get("height") == crop.get("width") else None
    mean: Any = values.get("image_mean")
    std: Any = values.get("image_std")
    rescale = values.get("rescale_factor", 1 / 255)
    steps = all(values.get(f"do_{name}", True) for name in ("resize", "center_crop", "rescale", "normalize"))
    numbers = all(type(one) is int and one > 0 for one in (short_edge, crop))
    colors = all(_is_color(one) for one in (mean, std)) and isinstance(rescale, float)
    resample = values.get("resample", 2)
    steps = steps and type(resample) is int and resample in RESAMPLE
    if not (steps and numbers and colors and abs(rescale * 255 - 1) < 1e-6) or crop > short_edge:
        raise ValueError(
            f"{path}: only a short edge (bilinear or bicubic), a center square of it, mean and deviation of pixels "
            "from 0 to 1 are understood"
        )
    return {
        "interpolation": RESAMPLE[resample],
        "size": crop,
        "crop": crop / short_edge,
        "mean": list(mean),
        "std": list(std),
    }


def _is_color(values: Any) -> bool:
    """Return whether these are three finite numbers."""
    return (
        isinstance(values, list)
        and len(values) == 3
        and all(type(one) in (int, float) and math.isfinite(one) for one in values)
    )


def read_mapping(path: Path) -> dict[str, Any]:
    """Return a JSON file's mapping."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} has no mapping")
    return values
