"""Settings of a preprocessing run, validated from command-line values."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from covid_cmsf.clips.decoders import choose_decoder
from covid_cmsf.clips.flow_codec import size_bound
from covid_cmsf.clips.records import FlowBound, StoreInfo, read_store_info
from covid_cmsf.config import Config, load_config, validate
from preprocess.flow import (
    ALGORITHMS,
    FlowBackend,
    algorithm_name,
    backend_version,
    choose_backend,
    make_flow,
    parameters_class,
    runs_on_device,
)


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
    quality: int,
    flow_backend: str,
    flow_bound: str,
    flow_size: str,
    flow_parameters: str,
    software: str,
) -> StoreInfo:
    """Return the store's settings. With `flow_backend` "auto", an existing store keeps its backend."""
    modality_names = tuple(name.strip() for name in modalities.split(","))
    values = {
        "modalities": modality_names,
        "short_edge": short_edge,
        "max_frames": max_frames,
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
        backend = choose_backend(flow_backend)
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
    """Return one configuration per worker; with a backend that runs on GPUs, workers are assigned to them in turn."""
    devices: list[str | None] = [None]
    if info.flow is not None and runs_on_device(info.flow.backend):
        import torch

        devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]
    name = choose_decoder(decoder)
    return [WorkerConfig(info, name, devices[index % len(devices)]) for index in range(num_workers)]
