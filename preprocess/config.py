"""Settings of a preprocessing run, validated from command-line values."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import av

from covid_cmsf.clips.audio_info import AudioInfo
from covid_cmsf.clips.decoders import choose_decoder
from covid_cmsf.clips.flow_codec import size_bound
from covid_cmsf.clips.records import MOTION_VECTORS, FlowBound, StoreInfo, read_store_info
from covid_cmsf.config import Config, load_config, validate
from preprocess.flow import (
    ALGORITHMS,
    FlowBackend,
    algorithm_name,
    backend_version,
    choose_backend,
    count_gpus,
    make_flow,
    parameters_class,
    runs_on_device,
)

WORKERS_PER_GPU = 2


@dataclass(frozen=True)
class WorkerConfig:
    """Settings of one worker process; `device` is for flow backends that run on a GPU."""

    info: StoreInfo
    decoder: str
    device: str | None = None


def make_store_info(
    out: Path,
    *,
    modalities: str,
    short_edge: int,
    max_frames: int,
    fps: float = 0.0,
    quality: int,
    flow_backend: str,
    flow_bound: str,
    flow_size: str,
    flow_parameters: str,
    software: str,
    workers: int | None = None,
) -> StoreInfo:
    """Return the store's settings. With `flow_backend` "auto", an existing store keeps its backend.

    `workers` is how many cores `auto` compares with the GPUs, see `choose_backend`.
    """
    modality_names = tuple(name.strip() for name in modalities.split(","))
    values = {
        "modalities": modality_names,
        "short_edge": short_edge,
        "max_frames": max_frames,
        "fps": fps,
        "quality": quality,
        "software": software,
    }
    if "flow" in modality_names:
        if (
            flow_backend == "auto"
            and (out / "store.json").is_file()
            and (store_flow := read_store_info(out).flow) is not None
        ):
            flow_backend = store_flow.backend
        backend = choose_backend(flow_backend, workers=workers)
        parameters = parse_flow_parameters(flow_parameters, backend)
        if backend in ALGORITHMS:
            make_flow(backend, parameters)  # missing weights are an error now
        values["flow"] = {
            "algorithm": algorithm_name(backend),
            "backend": backend,
            "version": backend_version(backend),
            "parameters": parameters.model_dump(by_alias=True),
            "bound": parse_flow_bound(flow_bound, short_edge),
            "levels": 255,
            "size": flow_size,
        }
    if "motion" in modality_names:
        if flow_bound == "auto" and "flow" not in modality_names:
            raise ValueError(
                "--flow-bound auto measures optical flow, and these clips have motion vectors only; use size"
            )
        values["motion"] = {
            "algorithm": MOTION_VECTORS,
            "backend": "pyav",
            "version": f"pyav {av.__version__}",
            "parameters": {},
            "bound": parse_flow_bound(flow_bound, short_edge),
            "levels": 255,
            "size": "native",
        }
    if "audio" in modality_names:
        values["audio"] = AudioInfo(version=f"pyav {av.__version__}").model_dump()
    info = validate(StoreInfo, values, origin="preprocess")
    if len(set(info.modalities)) != len(info.modalities):
        raise ValueError(f"--modalities {modalities!r} lists a modality twice")
    return info


def parse_flow_bound(text: str, short_edge: int) -> FlowBound:
    """Parse `size`, `auto` or a number of pixels; `size` is one number if all videos have the same short edge."""
    if text == "size" and short_edge:
        return size_bound(short_edge, short_edge)
    if text in ("size", "auto"):
        return cast(FlowBound, text)
    try:
        bound = float(text)
    except ValueError:
        bound = float("nan")
    if not 0 < bound < float("inf"):
        raise ValueError(f"--flow-bound {text!r}: it must be size, auto or a number of pixels above 0")
    return bound


def parse_flow_parameters(text: str, backend: str = "numba") -> Config:
    """Parse "warps=3,epsilon=0.02"; other parameters have the backend's defaults."""
    return load_config(parameters_class(backend), None, [item.strip() for item in text.split(",") if item.strip()])


def make_store_flow(info: StoreInfo, device: str | None) -> FlowBackend | None:
    """Return the flow backend of a store with its parameters; None for a store without flow."""
    if info.flow is None:
        return None
    parameters = parameters_class(info.flow.backend).model_validate(info.flow.parameters)
    return make_flow(info.flow.backend, parameters, device=device)


def make_worker_configs(info: StoreInfo, *, decoder: str, num_workers: int) -> list[WorkerConfig]:
    """Return one configuration per worker; with a backend that runs on GPUs, workers are assigned to them in turn.

    A GPU gets two workers at most, one of which decodes while the other's flow is computed: each has a CUDA context of
    its own, which takes about half a gigabyte of the GPU's memory.
    """
    devices: list[str | None] = [None]
    if info.flow is not None and runs_on_device(info.flow.backend):
        num_gpus = count_gpus()
        devices = [f"cuda:{index}" for index in range(num_gpus)] or ["cpu"]
        if num_gpus:
            num_workers = min(num_workers, WORKERS_PER_GPU * num_gpus)
    name = choose_decoder(decoder)
    return [WorkerConfig(info, name, devices[index % len(devices)]) for index in range(num_workers)]
