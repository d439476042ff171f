"""One training run in several processes: who is who, and what only the first one does.

Started by ``torchrun``, the processes find each other by gloo on CPUs and by NCCL on GPUs; on
several machines they need a file system in common. Started as an ordinary program there is one
process, and nothing here does anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

__all__ = ["count", "on_first", "rank", "together"]

T = TypeVar("T")

#: How long the others wait while the first process measures or writes. Texts that take longer to
#: become token ids are made into these beforehand, by one process.
PATIENCE = timedelta(hours=2)


def count() -> int:
    """Number of processes of this run."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return distributed.get_rank() if distributed.is_initialized() else 0


@contextmanager
def together() -> Iterator[torch.device]:
    """Join the other processes that ``torchrun`` has started, and part from them at the end.

    Yields
    ------
    torch.device
        Where this process computes: its own GPU if there is one, else the CPU.
    """
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else None
    if device is not None:
        torch.cuda.set_device(device)
    device = device or torch.device("cpu")
    if not distributed.is_torchelastic_launched() or distributed.is_initialized():
        yield device
        return
    store, rank, count = next(rendezvous("env://", timeout=PATIENCE))
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        # Where torchrun starts processes anew, the store still has the addresses of the dead ones,
        # and gloo waits for these (as NCCL does: pytorch/pytorch#167288).
        store = PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",  # Python objects travel by gloo
        timeout=PATIENCE,
        store=store,
        rank=rank,
        world_size=count,
        device_id=device if cuda else None,
    )
    try:
        yield device
    finally:
        distributed.destroy_process_group()


def on_first(work: Callable[[], T]) -> T:
    """Let the first process do something while the others wait; all get its result.

    An exception there is raised in every process, so that none waits for ever.
    """
    if count() == 1:
        return work()
    outcome: list[Any] = [None, None]
    if rank() == 0:
        try:
            outcome[0] = work()
        except Exception as error:
            outcome[1] = error
    distributed.broadcast_object_list(outcome, src=0, device=torch.device("cpu"))
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
