"""Several processes on one store, as `torchrun` starts them: who takes which samples, and on which GPU.

Sharding is a preference, not a contract. Each process decodes its own share of the ids first and then whatever
is left; the store's claims keep two of them from decoding the same sample. So any number of processes, killed and
started again in another number, ends with the same records.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else default


def world() -> int:
    """Number of processes, ``WORLD_SIZE`` of torchrun; 1 without it."""
    return max(1, _number("WORLD_SIZE", 1))


def rank() -> int:
    """Number of this process, from 0; only process 0 prints results."""
    return _number("RANK", 0) % world()


def first() -> bool:
    """Whether this is the process that prints."""
    return rank() == 0


def share(ids: Sequence[str]) -> list[str]:
    """This process's part of ``ids``: every ``world()``-th one, so that shares differ by one sample at most."""
    return list(ids[rank() :: world()])


def device(asked: str | None) -> str | None:
    """The device of this process: GPU number ``LOCAL_RANK`` where there is CUDA and no other device is asked for."""
    if world() == 1 or asked not in (None, "cuda"):
        return asked
    import torch

    if not torch.cuda.is_available():
        return asked
    index = _number("LOCAL_RANK", rank()) % torch.cuda.device_count()  # Slurm may show each process its own GPU alone
    torch.cuda.set_device(index)
    return f"cuda:{index}"
