"""A pretended GPU: tensors that compute on the CPU, say `cuda:0`, and obey a GPU's rules.

    with pretended_gpu() as gpu:
        ...                                  # code that believes in CUDA
        gpu.launches, gpu.synchronizations   # what it would have cost

- Tensors of both devices in one operation raise `DeviceMismatch` as CUDA does; scalars and CPU indices are allowed.
- A CPU generator for a CUDA result raises, and so does `.numpy()` of a CUDA tensor.
- Whatever makes Python wait for the GPU is counted with the line of the project that asked for it.
- Every operation that would launch a kernel is counted; views of a tensor launch none.

It cannot see NCCL, DDP, SyncBatchNorm, memory, missing kernels, or how CUDA rounds.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from tests.pretended_copies import COPIES_TO_CPU, cost_to_gpu, is_asynchronous, is_pinned, pin_memory
from tests.pretended_operations import COPIES, INDEXING, WAITS, WITHOUT_KERNEL, without_onednn_bug, written_arguments
from tests.pretended_streams import stream_replacements

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(f"{ROOT / name}/" for name in ("covid_cmsf", "preprocess"))
CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
aten = torch.ops.aten


class DeviceMismatch(RuntimeError):
    """An operation that CUDA would refuse."""


@dataclass
class GpuLog:
    """What the code asked of the GPU; keys of the counters are (what, "covid_cmsf/file.py:line in function")."""

    synchronizations: Counter[tuple[str, str]] = field(default_factory=Counter)
    kernels: Counter[tuple[str, str]] = field(default_factory=Counter)
    copied_bytes: int = 0  # to the GPU

    @property
    def launches(self) -> int:
        """Kernels launched."""
        return self.kernels.total()

    @property
    def lines(self) -> list[str]:
        """The synchronizations, most frequent first: `3 x aten.item at covid_cmsf/file.py:70 in update`."""
        return [f"{count} x {what} at {line}" for (what, line), count in self.synchronizations.most_common()]

    def reset(self) -> None:
        """Forget everything."""
        self.synchronizations.clear()
        self.kernels.clear()
        self.copied_bytes = 0

    def count_wait(self, what: str) -> None:
        """Count a synchronization at the calling line of the project."""
        self.synchronizations[what, calling_line()] += 1

    def wait(self, what: str) -> None:
        """Count one that waits for all that was launched."""
        self.count_wait(what)
        COPIES_TO_CPU.finish()


LOG = GpuLog()


def calling_line() -> str:
    """Return the innermost line of the project on the stack, `covid_cmsf/training/step.py:70 in update`."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGES):
            path, function = Path(frame.f_code.co_filename).relative_to(ROOT), frame.f_code.co_qualname
            return f"{path}:{frame.f_lineno} in {function}"
        frame = frame.f_back  # type: ignore[assignment]
    return "outside of the project"


class PretendedTensor(torch.Tensor):
    """A CPU tensor, `content`, that says it is on cuda:0."""

    content: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @staticmethod
    def __new__(cls, inner: Tensor) -> "PretendedTensor":
        made: PretendedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=inner.device,
            requires_grad=False,
        )
        made.content = inner.detach()
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return f"PretendedTensor({self.content!r})"

    def __deepcopy__(self, memo: Any) -> Any:
        copied = PretendedTensor(self.content.clone())
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(copied, self.requires_grad)
        return copied.requires_grad_(self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a pretended CUDA tensor is pickled: move it to the CPU before")

    def numpy(self, *args: Any, **options: Any) -> Any:
        raise TypeError(f"can't convert cuda:0 device type tensor to numpy; use Tensor.cpu(), at {calling_line()}")

    __array__ = numpy

    def pin_memory(self, *args: Any) -> Tensor:
        raise RuntimeError(f"cannot pin a CUDA tensor, at {calling_line()}")

    def tolist(self) -> Any:
        LOG.wait("tolist")
        return self.content.tolist()

    def cpu(self, *args: Any, **options: Any) -> Tensor:
        return self.to(CPU)

    def to(self, *args: Any, **options: Any) -> Tensor:
        options.pop("copy", None)
        if args and isinstance(args[0], Tensor):
            device, dtype, waits, layout = args[0].device, args[0].dtype, False, None
        else:
            device, dtype, waits, layout = torch._C._nn._parse_to(*args, **options)
        wanted: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
        if device is not None and device.type == "cpu":
            copied: Tensor = aten._to_copy.default(self, **wanted, device=CPU, non_blocking=waits)
            return copied
        if layout is not None:
            wanted["memory_format"] = layout
        if dtype in (None, self.dtype) and (layout is None or self.is_contiguous(memory_format=layout)):
            return self
        converted: Tensor = aten._to_copy.default(self, **wanted)
        return converted


def on_gpu(value: Any) -> bool:
    """Whether a value is a tensor of the pretended GPU."""
    return isinstance(value, PretendedTensor)


def names_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Check an operation by CUDA's rules, count it, and compute it on the CPU."""
    tensors = [value for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)]
    gpu_tensors = [tensor for tensor in tensors if on_gpu(tensor)]
    in_backward = torch._C._current_graph_task_id() != -1  # autograd sees the tensors' own device, which is the CPU
    name = func._schema.name.removeprefix("aten::")
    inherits = name.startswith("new_") or name.endswith("_like") or (in_backward and gpu_tensors)
    device = None if inherits else kwargs.get("device")
    to_gpu = bool(gpu_tensors) if device is None else names_gpu(device)
    if not in_backward:
        _check_devices(func, args, tensors)
        generator = kwargs.get("generator")
        if to_gpu and generator is not None and generator.device.type == "cpu":
            raise DeviceMismatch(f"{name} on cuda:0 with a CPU generator at {calling_line()}")
    if gpu_tensors or to_gpu:
        _count(func, name, args, kwargs, to_gpu=to_gpu, in_backward=in_backward)
    plain_args, plain_kwargs = tree_map(lambda value: value.content if on_gpu(value) else value, (args, kwargs))
    if plain_kwargs.get("device") is not None:
        plain_kwargs = {**plain_kwargs, "device": CPU}
    if to_gpu:
        plain_kwargs = {key: value for key, value in plain_kwargs.items() if key != "pin_memory"}
    with without_onednn_bug(func, plain_args):
        result = func(*plain_args, **plain_kwargs)
    into_cpu = not on_gpu(args[0]) if func is aten.copy_.default else not to_gpu
    if func in COPIES and gpu_tensors and not in_backward and into_cpu and is_asynchronous(func, args, kwargs):
        COPIES_TO_CPU.launch(result, new=func is not aten.copy_.default)
    written = written_arguments(func, args, kwargs)
    if written is not None:
        return written
    if name == "_local_scalar_dense" or not to_gpu:
        return result
    return tree_map(lambda value: PretendedTensor(value) if type(value) is Tensor else value, result)


def _check_devices(func: Any, args: Any, tensors: list[Tensor]) -> None:
    """Raise DeviceMismatch for tensors of both devices, but for scalars, copies and CPU indices of a CUDA tensor."""
    cpu_tensors = [tensor for tensor in tensors if not on_gpu(tensor)]
    if func in COPIES or not cpu_tensors or len(cpu_tensors) == len(tensors):
        return
    wrong = [tensor for tensor in cpu_tensors if tensor.dim() > 0]
    if func in INDEXING and on_gpu(args[0]):
        values = args[2] if len(args) > 2 else None
        if any(tensor is not values for tensor in wrong):
            LOG.wait("index on the CPU")
        wrong = [tensor for tensor in wrong if tensor is values]
    if wrong or (func in INDEXING and not on_gpu(args[0])):
        shapes = [(tuple(tensor.shape), str(tensor.device)) for tensor in tensors]
        raise DeviceMismatch(f"{func} with tensors on cuda:0 and cpu, {shapes}, at {calling_line()}")


def _count(func: Any, name: str, args: Any, kwargs: Any, *, to_gpu: bool, in_backward: bool) -> None:
    if func in WAITS:
        LOG.wait(str(func))
    if func in INDEXING and any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
        LOG.wait("index by a mask")
    launches = name not in WITHOUT_KERNEL
    if func in COPIES and not in_backward:
        source, destination = (args[1], args[0]) if func is aten.copy_.default else (args[0], None)
        asynchronous = is_asynchronous(func, args, kwargs)
        to_gpu = to_gpu if destination is None else on_gpu(destination)
        if on_gpu(source) and not to_gpu:
            launches = False  # the copy engine's work
            if not asynchronous or not (destination is None or is_pinned(destination)):
                LOG.wait("copy to the CPU")
        elif to_gpu and not on_gpu(source):
            LOG.copied_bytes += source.numel() * source.element_size()
            cost = cost_to_gpu(source, destination, kwargs, asynchronous=asynchronous)
            launches = cost.launches
            if cost.blocks:
                LOG.wait("blocking copy to the GPU")
    if launches:
        LOG.kernels[name, calling_line()] += 1


class _Mode(TorchDispatchMode):
    """Catches operations without a CUDA tensor that ask for one, `torch.zeros(3, device="cuda")`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if names_gpu(kwargs.get("device")) or any(on_gpu(value) for value in tree_iter((args, kwargs))):
            return run(func, args, kwargs)
        return func(*args, **kwargs)


class _Autocast(torch.autocast):
    def __init__(self, device_type: str, *args: Any, **options: Any) -> None:
        super().__init__("cpu" if device_type == "cuda" else device_type, *args, **options)


def _replacements() -> dict[str, Any]:
    """Functions of torch that know of no pretended GPU, by name."""
    real_tensor, real_as_tensor, real_save, real_load = torch.tensor, torch.as_tensor, torch.save, torch.load
    real_to: Callable[..., Tensor] = torch.Tensor.to
    real_grouped: Callable[..., dict[Any, Any]] = torch._C._group_tensors_by_device_and_dtype

    def moved(made: Tensor, device: Any) -> Tensor:
        return made.to(GPU) if names_gpu(device) else made

    def tensor(data: Any, *, device: Any = None, pin_memory: bool = False, **options: Any) -> Tensor:
        return moved(real_tensor(data, **options), device)

    def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
        if on_gpu(data):
            return data.to(dtype=dtype, device=device)  # type: ignore[no-any-return]
        return moved(real_as_tensor(data, dtype=dtype), device)

    def to(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        if args and on_gpu(args[0]):
            args = (GPU, args[0].dtype, *args[1:])
        elif args and isinstance(args[0], str | torch.device) and names_gpu(args[0]):
            args = (GPU, *args[1:])  # without an index torch would ask the driver for the current device
        if names_gpu(options.get("device")):
            options = {**options, "device": GPU}
        return real_to(tensor, *args, **options)

    def grouped(lists: list[list[Tensor]], with_indices: bool = False) -> dict[Any, Any]:
        """Group by the pretended device: optimizers copy what they compute to that of a group."""
        groups = real_grouped(lists, with_indices)
        return {(GPU if on_gpu(group[0][0][0]) else at, dtype): group for (at, dtype), group in groups.items()}

    def save(values: Any, *args: Any, **options: Any) -> None:
        real_save(tree_map(lambda value: value.content.clone() if on_gpu(value) else value, values), *args, **options)

    def load(file: Any, map_location: Any = None, **options: Any) -> Any:
        values = real_load(file, map_location="cpu", **options)
        return tree_map(lambda value: moved(value, map_location) if isinstance(value, Tensor) else value, values)

    properties = mock.Mock(total_memory=80 * 2**30, major=8, minor=0)
    properties.name = "pretended"
    return {
        "torch.tensor": tensor, "torch.as_tensor": as_tensor, "torch.save": save, "torch.load": load,
        "torch.Tensor.to": to, "torch.Tensor.pin_memory": pin_memory, "torch.autocast": _Autocast,
        "torch._C._group_tensors_by_device_and_dtype": grouped,
        "torch.inference_mode": torch.no_grad,  # wrapper tensors cannot be inference tensors
        "torch.cuda.is_available": lambda: True, "torch.cuda._lazy_init": lambda: None,
        "torch.cuda.is_bf16_supported": lambda *args: True,
        "torch.cuda.device_count": lambda: 1, "torch.cuda.current_device": lambda: 0,
        "torch.cuda.set_device": lambda device: None, "torch.cuda.get_device_name": lambda device=None: "pretended",
        "torch.cuda.get_device_properties": lambda device=None: properties,
        "torch.cuda.synchronize": lambda device=None: LOG.wait("torch.cuda.synchronize"),
        "torch.cuda.get_rng_state": lambda device=None: torch.get_rng_state(),
        "torch.cuda.set_rng_state": lambda state, device=None: None,
        "torch.cuda.max_memory_allocated": lambda device=None: 0,
        "torch.accelerator.is_available": lambda: True, "torch.accelerator.current_device_index": lambda: 0,
        "torch.accelerator.set_device_index": lambda device: None,
        "torch.accelerator.current_accelerator": lambda *args, **options: torch.device("cuda"),
        "torch.optim.Optimizer._accelerator_graph_capture_health_check": lambda optimizer: None,
        "torch.optim.Optimizer._cuda_graph_capture_health_check": lambda optimizer: None,
    }  # fmt: skip


@contextmanager
def pretended_gpu() -> Iterator[GpuLog]:
    """Let this process believe in one GPU; yield the counts, which start at 0."""
    LOG.reset()
    with ExitStack() as stack:
        stack.callback(COPIES_TO_CPU.forget)
        for name, replacement in (_replacements() | stream_replacements(LOG.count_wait)).items():
            stack.enter_context(mock.patch(name, replacement, create="health_check" in name))
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
        stack.enter_context(_Mode())  # type: ignore[no-untyped-call]
        yield LOG
