"""The adapter of ``smol-dream``: the change of each matrix as a product of two thin ones, in 8 or 4 bits.

A file (safetensors, metadata ``format``, ``rank``, ``bits``) holds for a matrix ``name`` of shape ``[out, in]`` the
tensors ``name::a`` ``[out, rank]``, ``name::b`` ``[rank, in]`` and ``name::s`` ``[rank]``, the product of the scales of
column and row, so that its change is ``(a * s) @ b``; for a norm ``name::change`` in float16; and ``mask::row``, the
embedding of the mask token. In 4 bits a byte holds two neighbors along the rank, 8 added. ``smol.convert.apply``
reads it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from smol.convert import FORMAT

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
MOST = 10_000_000  # bytes
Factors = dict[str, tuple[Tensor, Tensor]]


def matrices(state: dict[str, Tensor]) -> list[str]:
    """Names of the matrices within the blocks, which have factors."""
    return [name for name, value in state.items() if value.ndim == 2 and name not in (EMBEDDING, HEAD)]


def cut(before: dict[str, Tensor], after: dict[str, Tensor], rank: int) -> Factors:
    """The best factors ``[out, rank]`` and ``[rank, in]`` of each matrix's change, largest part first."""
    torch.manual_seed(0)  # the decomposition starts from random directions
    found = {}
    for name in matrices(before):
        change = (after[name] - before[name]).float()
        left, sizes, right = torch.svd_lowrank(change, min(2 * rank, *change.shape), niter=6)
        root = sizes[:rank].sqrt()
        found[name] = left[:, :rank] * root, (right[:, :rank] * root).T
    return found


def quantize(part: Tensor, along: int, bits: int) -> tuple[Tensor, Tensor]:
    """Whole numbers of ``bits`` bits as floats, and their scale for each index of dimension ``along``."""
    top = 2 ** (bits - 1) - 1
    scale = part.abs().amax(1 - along, keepdim=True).clamp_min(1e-30) / top
    return (part / scale).round().clamp(-top, top), scale


def rounded(part: Tensor, along: int, bits: int) -> Tensor:
    """The factor as a file gives it back."""
    whole, scale = quantize(part, along, bits)
    return whole * scale


def write(file: Path, factors: Factors, before: dict[str, Tensor], after: dict[str, Tensor], bits: int = 8) -> int:
    """Write an adapter; returns its size in bytes. ``after`` gives the norms and the mask token's row.

    Raises:
        ValueError: an odd rank in 4 bits, or other than 4 or 8 bits.
    """
    rank = next(iter(factors.values()))[0].shape[1]
    if bits not in (4, 8) or bits == 4 and rank % 2:
        raise ValueError(f"rank {rank} in {bits} bits: 8 bits, or 4 at an even rank")
    parts = {"mask::row": after[EMBEDDING][-1].float()}
    for name, (a, b) in factors.items():
        (a, left), (b, right) = quantize(a, 1, bits), quantize(b, 0, bits)
        parts[f"{name}::s"] = left.flatten() * right.flatten()
        for key, part, along in (("a", a, 1), ("b", b, 0)):
            if bits == 4:
                low, high = (part + 8).to(torch.uint8).unflatten(along, (-1, 2)).unbind(along + 1)
                part = low | high << 4
            parts[f"{name}::{key}"] = part.to(torch.int8) if bits == 8 else part
    for name, value in before.items():
        if value.ndim == 1 and not name.endswith(".bias"):
            parts[f"{name}::change"] = (after[name] - value).half()
    meta = {"format": FORMAT, "rank": str(rank), "bits": str(bits)}
    save_file({name: part.detach().cpu().contiguous() for name, part in parts.items()}, file, meta)
    file.chmod(0o644)
    return file.stat().st_size
