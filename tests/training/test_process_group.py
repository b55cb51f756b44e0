"""How a process joins the others: its device, and how long it waits."""

import atexit
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from covid_cmsf.training.distributed import distributed_context


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is asked of CUDA and of the process group; there is no GPU."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: found.update(device=device))
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    monkeypatch.setattr(atexit, "register", lambda function: None)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: found.update(backend=backend, **options))
    return found


def test_one_process_on_the_second_gpu_makes_it_the_current_one(calls: dict[str, Any]) -> None:
    with distributed_context("cuda:1") as alone:
        assert alone.device == torch.device("cuda:1")
    assert calls == {"device": torch.device("cuda:1")}


def test_processes_join_with_their_device_and_a_time_limit(
    calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    own = torch.device("cuda:1")
    with distributed_context("cuda", timeout_minutes=7) as one:
        assert (one.rank, one.world_size, one.device) == (5, 8, own)
    assert calls == {"device": own, "backend": "nccl", "timeout": timedelta(minutes=7), "device_id": own}
    calls.clear()
    with distributed_context("cpu"):
        pass
    assert calls == {"backend": "gloo", "timeout": timedelta(minutes=60), "device_id": None}


@pytest.mark.parametrize(
    ("error", "explained"),
    [
        (dist.DistBackendError("NCCL: remote process exited"), True),
        (RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.2]:51412"), True),
        (RuntimeError("the data set is empty"), False),
    ],
)
def test_a_lost_process_is_explained_and_other_errors_stay(
    error: RuntimeError, explained: bool, calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(RuntimeError) as raised, distributed_context("cpu"):
        raise error
    assert ("process 1 lost another one" in str(raised.value)) == explained
    assert str(error) in str(raised.value)
