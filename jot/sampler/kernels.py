"""Passes over the vocabulary, a few rows at a time, so that no second copy of the logits is ever made.

On CUDA with Triton one fused pass gives the top-2 statistics; elsewhere, and for other dtypes, its torch twin does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without it
    triton = None


PARTS = 8  # programs that share a row of ``fused_divergence``


class Top2(NamedTuple):
    """Per row: the largest logit, the runner-up, the lowest index of the largest, and the sum of ``exp(l - first)``."""

    first: Tensor
    second: Tensor
    index: Tensor
    total: Tensor

    @property
    def gap(self) -> Tensor:
        """Top-2 logit margin in nats, ``ln(p1 / p2)``; ``[rows]``."""
        return self.first - self.second

    @property
    def normalizer(self) -> Tensor:
        """log sum exp of the row; ``[rows]``."""
        return self.first + self.total.log()

    @property
    def peak(self) -> Tensor:
        """Probability of the leader; ``[rows]``."""
        return self.total.reciprocal()


def fusable(rows: Tensor) -> bool:
    """Whether the Triton kernels run on these rows: there are some, on CUDA."""
    return triton is not None and rows.is_cuda and len(rows) > 0


def slices(logits: Tensor) -> Iterator[slice]:
    """Consecutive row slices of ``[rows, vocabulary]`` logits with about 4 M elements each (16 M on CUDA)."""
    size = max(1, (1 << (24 if logits.is_cuda else 22)) // logits.shape[-1])
    for start in range(0, max(1, len(logits)), size):
        yield slice(start, min(start + size, len(logits)))


def top2(logits: Tensor) -> Top2:
    """Top-2 statistics of ``logits`` ``[rows, vocabulary]``, with ties resolved to the lowest index."""
    if fusable(logits) and logits.dtype == torch.float32:
        return fused_top2(logits)
    parts = [_top2(logits[rows]) for rows in slices(logits)]
    return Top2(*map(torch.cat, zip(*parts, strict=True)))


def _top2(logits: Tensor) -> Top2:
    first, index = logits.max(dim=-1)
    if logits.is_cuda:  # max documents no tie rule there
        columns = torch.arange(logits.shape[-1], device=logits.device)
        index = torch.where(logits == first[:, None], columns, logits.shape[-1] - 1).amin(dim=-1)
    second = logits.scatter(-1, index[:, None], -torch.inf).amax(dim=-1)
    return Top2(first, second, index, (logits - first[:, None]).exp_().sum(dim=-1))


def entropies(logits: Tensor) -> Tensor:
    """Entropy in nats of the softmax of each row of ``logits`` ``[rows, vocabulary]``, float64 ``[rows]``."""
    return torch.cat([torch.special.entr(logits[rows].double().softmax(-1)).sum(-1) for rows in slices(logits)])


def divergence(now: Tensor, before: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """KL(now || before) of the softmax of each row, 1e-12 added inside both logarithms, and the leader's probability.

    Args:
        now: float32 logits ``[rows, vocabulary]``.
        before: the logits compared with, of which ``at`` ``[rows]`` names one row each; -1 stands for all zeros.

    Returns:
        Two float64 tensors ``[rows]``.
    """
    if fusable(now) and now.dtype == before.dtype == torch.float32:
        return fused_divergence(now, before, at)
    parts = [now.new_zeros(0, dtype=torch.float64)], [now.new_zeros(0, dtype=torch.float64)]
    for rows in slices(now) if len(now) else ():
        p, known = now[rows].double().softmax(-1), at[rows] >= 0
        q = before[at[rows].clamp_min(0)].double().softmax(-1).masked_fill_(~known[:, None], 0.0)
        parts[1].append(p.amax(-1))
        parts[0].append((p * ((p + 1e-12).log() - q.add_(1e-12).log_())).sum(-1))
    return torch.cat(parts[0]), torch.cat(parts[1])


def fused_divergence(now: Tensor, before: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """``divergence`` in float64, several Triton programs a row: first the two normalizers, then the sum."""
    rows, entries = now.shape
    parts = min(PARTS, triton.cdiv(entries, 2048))
    block = min(2048, triton.next_power_of_2(entries))
    size = triton.cdiv(triton.cdiv(entries, parts), block) * block
    peaks = torch.empty(2, rows, parts, dtype=torch.float32, device=now.device)
    masses = torch.empty(2, rows, parts, dtype=torch.float64, device=now.device)
    kl, sure = torch.empty(rows, parts, dtype=torch.float64, device=now.device), masses.new_empty(rows)
    shape = entries, parts, size
    with torch.cuda.device_of(now):
        for logits, pick, peak, mass in zip(
            (now, before), (torch.arange(rows, device=now.device), at), peaks, masses, strict=True
        ):
            _mass_kernel[(rows, parts)](logits, pick, peak, mass, logits.stride(0), *shape, BLOCK=block, num_warps=8)
        _divergence_kernel[(rows, parts)](
            now, before, at, *peaks, *masses, kl, sure, now.stride(0), before.stride(0), *shape,
            PARTS=triton.next_power_of_2(parts), BLOCK=block, num_warps=8,
        )  # fmt: skip
    return kl.sum(1), sure


def fused_top2(logits: Tensor) -> Top2:
    """``top2`` as one Triton program a row: every logit is read twice, the second time from cache."""
    rows, entries = logits.shape
    first, second, total = (torch.empty(rows, device=logits.device) for _ in range(3))
    index = torch.empty(rows, dtype=torch.long, device=logits.device)
    block = min(8192, triton.next_power_of_2(entries))
    with torch.cuda.device_of(logits):
        _top2_kernel[(rows,)](
            logits, first, second, index, total, logits.stride(0), entries, BLOCK=block, num_warps=max(4, block // 1024)
        )
    return Top2(first, second, index, total)


def fused_cut(logits: Tensor, top_p: float) -> Tensor:
    """The least logit of each row above which at most ``top_p`` of the mass lies, ``[rows]``: the nucleus ends there.

    Found by bisection, without a sort.
    """
    rows, entries = logits.shape
    cut, block = torch.empty(rows, device=logits.device), min(8192, triton.next_power_of_2(entries))
    with torch.cuda.device_of(logits):
        _cut_kernel[(rows,)](
            logits, cut, logits.stride(0), entries, top_p, BLOCK=block, num_warps=max(4, block // 1024)
        )
    return cut


if triton is not None:

    @triton.jit
    def leaders(base, entries, BLOCK: tl.constexpr):
        """Largest and second largest logit of a row, lowest index of the largest, and the largest of every lane."""
        lane = tl.arange(0, BLOCK)
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        runner = tl.full([BLOCK], float("-inf"), tl.float32)
        at = tl.full([BLOCK], 0, tl.int32) + lane
        for start in range(0, entries, BLOCK):
            x = tl.load(base + start + lane, mask=start + lane < entries, other=float("-inf"))
            ahead = x > best
            runner = tl.where(ahead, best, tl.maximum(runner, x))
            at = tl.where(ahead, start + lane, at)
            best = tl.where(ahead, x, best)
        peak = tl.max(best, axis=0)
        winner = tl.min(tl.where(best == peak, at, 2147483647), axis=0)
        # The tail of the row has not passed through the lanes: a lane's runner-up is -inf there, never a false hit.
        others = tl.max(tl.where(at == winner, float("-inf"), best), axis=0)
        return peak, tl.maximum(others, tl.max(runner, axis=0)), winner.to(tl.int64), best

    @triton.jit
    def _top2_kernel(logits, first, second, index, total, stride, entries, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        base = logits + row.to(tl.int64) * stride
        lane = tl.arange(0, BLOCK)
        peak, next_best, winner, _ = leaders(base, entries, BLOCK)
        tl.store(first + row, peak)
        tl.store(second + row, next_best)
        tl.store(index + row, winner)
        mass = tl.zeros([BLOCK], tl.float32)
        for start in range(0, entries, BLOCK):
            x = tl.load(base + start + lane, mask=start + lane < entries, other=float("-inf"))
            mass += tl.exp(x - peak)
        tl.store(total + row, tl.sum(mass, axis=0))

    @triton.jit
    def _cut_kernel(logits, cut, stride, entries, top_p, BLOCK: tl.constexpr):
        row, lane = tl.program_id(0), tl.arange(0, BLOCK)
        base = logits + row.to(tl.int64) * stride
        peak, _, _, _ = leaders(base, entries, BLOCK)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, entries, BLOCK):
            x = tl.load(base + start + lane, mask=start + lane < entries, other=float("-inf"))
            total += tl.exp(x - peak)
        bar = tl.sum(total, axis=0) * top_p
        # Floats in their order are these whole numbers in theirs; above ``high`` lies little, above ``low`` too much.
        bits = (peak + 0.0).to(tl.int32, bitcast=True)
        high = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
        low = high * 0 - 0x7F800002  # below minus infinity
        for _ in range(32):
            middle = low + (high - low) // 2
            bits = middle.to(tl.int32)
            least = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
            above = tl.zeros([BLOCK], tl.float32)
            for start in range(0, entries, BLOCK):
                x = tl.load(base + start + lane, mask=start + lane < entries, other=float("-inf"))
                above += tl.where(x > least, tl.exp(x - peak), 0.0)
            much = tl.sum(above, axis=0) > bar
            low, high = tl.where(much, middle, low), tl.where(much, high, middle)
        bits = high.to(tl.int32)
        tl.store(cut + row, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True))

    @triton.jit
    def _mass_kernel(logits, pick, peaks, masses, stride, entries, parts, size, BLOCK: tl.constexpr):
        """Largest logit, and sum of exponentials below it, of one part of a picked row."""
        row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
        base = logits + tl.maximum(tl.load(pick + row), 0) * stride
        first, lane = part * size, tl.arange(0, BLOCK)
        top = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, size, BLOCK):
            inside = first + start + lane < entries
            top = tl.maximum(top, tl.load(base + first + start + lane, mask=inside, other=float("-inf")))
        peak = tl.max(top, axis=0)
        # A part of nothing but minus infinity weighs nothing; any finite peak says so.
        safe = tl.where(peak > float("-inf"), peak, 0.0).to(tl.float64)
        mass = tl.zeros([BLOCK], tl.float64)
        for start in range(0, size, BLOCK):
            inside = first + start + lane < entries
            mass += tl.exp(tl.load(base + first + start + lane, mask=inside, other=float("-inf")).to(tl.float64) - safe)
        tl.store(peaks + row * parts + part, peak)
        tl.store(masses + row * parts + part, tl.sum(mass, axis=0))

    @triton.jit
    def _whole(peaks, masses, parts, PARTS: tl.constexpr):
        """Peak and mass of a row from those of its parts."""
        part = tl.arange(0, PARTS)
        peak = tl.load(peaks + part, mask=part < parts, other=float("-inf"))
        top = tl.max(peak, axis=0)
        mass = tl.load(masses + part, mask=part < parts, other=0.0)
        return top.to(tl.float64), tl.sum(mass * tl.exp(peak.to(tl.float64) - top.to(tl.float64)), axis=0)

    @triton.jit
    def _divergence_kernel(
        now, before, at, x_peaks, y_peaks, x_masses, y_masses, kl, sure, stride, before_stride, entries, parts, size,
        PARTS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
        other = tl.load(at + row)
        known = other >= 0
        x_base = now + row * stride
        y_base = before + tl.maximum(other, 0) * before_stride
        x_peak, x_total = _whole(x_peaks + row * parts, x_masses + row * parts, parts, PARTS)
        y_peak, y_total = _whole(y_peaks + row * parts, y_masses + row * parts, parts, PARTS)
        x_share, y_share = 1.0 / x_total, 1.0 / y_total
        first, lane = part * size, tl.arange(0, BLOCK)
        gain = tl.zeros([BLOCK], tl.float64)
        for start in range(0, size, BLOCK):
            inside = first + start + lane < entries
            x = tl.load(x_base + first + start + lane, mask=inside, other=float("-inf")).to(tl.float64)
            y = tl.load(y_base + first + start + lane, mask=inside, other=float("-inf")).to(tl.float64)
            p, q = tl.exp(x - x_peak) * x_share, tl.where(known, tl.exp(y - y_peak) * y_share, 0.0)
            gain += p * tl.log((p + 1e-12) / (q + 1e-12))
        tl.store(kl + row * parts + part, tl.sum(gain, axis=0))
        if part == 0:
            tl.store(sure + row, x_share)
