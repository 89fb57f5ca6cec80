"""Dream's proposal from the top of each row, for steps that must not wait for the host or sort whole vocabularies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from jot.sampler.kernels import Top2, fusable, slices, triton
from jot.sampler.proposals import RANKINGS, TOKEN, confidence
from jot.sampler.step import Proposal, Step

if TYPE_CHECKING:
    from jot.sampler.config import DecodeConfig

if triton is not None:
    import triton.language as tl

    from jot.sampler.kernels import leaders

SMALL = 64  # tokens among which ``dream_small`` looks for the nucleus
ROOM = 128  # tokens that the fused pass keeps: the largest, and what its coarse cut leaves beside them


def dream_small(step: Step, config: DecodeConfig, draws) -> tuple[Proposal, Tensor]:
    """Dream's rule with a nucleus, from the ``SMALL`` largest logits of each row.

    Equal to ``dream`` up to rounding where these hold more than ``top_p`` of the mass; the second result, bool
    ``[rows]``, says where they do not.
    """
    if fusable(step.logits) and step.logits.dtype == torch.float32:
        return fused_small(step, config, draws)
    size = min(SMALL, step.logits.shape[-1])
    value, token = step.logits.topk(size, dim=-1)
    token, order = token.sort(dim=-1)  # equal logits: lowest token first, as a stable sort of the whole row has them
    value, order = value.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    token, value = token.gather(-1, order), value / config.temperature
    mass = torch.cat([(step.logits[rows] / config.temperature).logsumexp(-1) for rows in slices(step.logits)])
    before = (value - mass[:, None]).exp().cumsum(-1)  # up to and including each token
    kept = torch.ones_like(value, dtype=torch.bool)
    kept[:, 1:] = before[:, :-1] <= config.top_p
    short = before[:, -2] <= config.top_p
    probs = value.masked_fill(~kept, -torch.inf).softmax(-1)
    by_token, order = token.sort(dim=-1)
    drawn = by_token.gather(-1, draws.categorical(probs.gather(-1, order), step, slice(None))[:, None])[:, 0]
    place = (token == drawn[:, None]).long().argmax(-1)
    likely = confidence(probs, place)
    rule = RANKINGS[config.ranking]
    rank = draws.ranks(step) if rule is None else likely if rule is confidence else rule(probs, place)
    return Proposal(drawn, rank, likely), short


# ---- kernels -----------------------------------------------------------------------------------------------


def fused_small(step: Step, config: DecodeConfig, draws) -> tuple[Proposal, Tensor]:
    """``dream_small`` in two launches; the first gives the step its top-2 statistics too.

    One program a row reads every logit twice and keeps at least the ``SMALL`` largest finite ones with their tokens, in
    any order; ``found`` counts them, and above ``ROOM`` not all of them are there.
    """
    (rows, entries), device = step.logits.shape, step.logits.device
    first, second, total, mass, rank, likely = (torch.empty(rows, device=device) for _ in range(6))
    index, drawn = (torch.empty(rows, dtype=torch.long, device=device) for _ in range(2))
    found = torch.zeros(rows, dtype=torch.int32, device=device)
    value = torch.empty(rows, ROOM, device=device)
    token = torch.empty(rows, ROOM, dtype=torch.long, device=device)
    short = torch.empty(rows, dtype=torch.bool, device=device)
    inverse = float(np.float32(1) / np.float32(config.temperature))  # as torch divides a tensor by a number on CUDA
    block = min(8192, triton.next_power_of_2(entries))
    step.top = Top2(first, second, index, total)  # in place of what its cached property would compute
    with torch.cuda.device_of(step.logits):
        _shortlist_kernel[(rows,)](
            step.logits, *step.top, mass, value, token, found, step.logits.stride(0), entries, inverse,
            SIZE=min(SMALL, entries), ROOM=ROOM, LANES=min(1024, block), BLOCK=block, num_warps=max(4, block // 512),
        )  # fmt: skip
        _nucleus_kernel[(rows,)](
            value, token, found, mass, draws.uniform(step, TOKEN), drawn, rank, likely, short.view(torch.uint8),
            inverse, config.top_p, entries, RANKING=config.ranking, ROOM=ROOM, num_warps=4,
        )  # fmt: skip
    return Proposal(drawn, draws.ranks(step) if config.ranking == "random" else rank, likely), short


if triton is not None:

    @triton.jit
    def _shortlist_kernel(
        logits, first, second, index, total, mass, value, token, found, stride, entries, inverse,
        SIZE: tl.constexpr, ROOM: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        base = logits + row * stride
        lane = tl.arange(0, BLOCK)
        peak, next_best, winner, best = leaders(base, entries, BLOCK)
        tl.store(first + row, peak)
        tl.store(second + row, next_best)
        tl.store(index + row, winner)
        # As many maxima of parts of the row reach the cut, so at least as many logits do, and few more.
        parts = tl.sort(tl.max(tl.reshape(best, [LANES, BLOCK // LANES]), axis=1), descending=True)
        cut = tl.max(tl.where(tl.arange(0, LANES) == SIZE - 1, parts, float("-inf")), axis=0)
        plain, tempered = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        for start in range(0, entries, BLOCK):
            x = tl.load(base + start + lane, mask=start + lane < entries, other=float("-inf"))
            plain += tl.exp(x - peak)
            tempered += tl.exp(x * inverse - peak * inverse)
            hit = (x >= cut) & (x > float("-inf"))
            place = tl.atomic_add(found + row + lane * 0, 1, mask=hit, sem="relaxed")
            kept = hit & (place < ROOM)
            tl.store(value + row * ROOM + place, x, mask=kept)
            tl.store(token + row * ROOM + place, (start + lane).to(tl.int64), mask=kept)
        tl.store(total + row, tl.sum(plain, axis=0))
        tl.store(mass + row, peak * inverse + tl.log(tl.sum(tempered, axis=0)))

    @triton.jit
    def _nucleus_kernel(
        value, token, found, mass, uniform, drawn, rank, likely, short, inverse, top_p, entries,
        RANKING: tl.constexpr, ROOM: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0)
        lane = tl.arange(0, ROOM)
        count = tl.load(found + row)
        inside = lane < count
        token, value = token + row * ROOM, value + row * ROOM
        name = tl.load(token + lane, mask=inside, other=0)
        x = tl.load(value + lane, mask=inside, other=float("-inf"))
        # In order of the tokens from here on, so that chance decides nothing.
        sooner = inside[None, :] & (name[None, :] < name[:, None])
        place = tl.sum(sooner.to(tl.int32), axis=1)
        tl.debug_barrier()
        tl.store(token + place, name, mask=inside)
        tl.store(value + place, x, mask=inside)
        tl.debug_barrier()
        x = tl.load(value + lane, mask=inside, other=float("-inf")) * inverse
        share = tl.where(inside, tl.exp(x - tl.load(mass + row)), 0.0)
        ahead = (x[None, :] > x[:, None]) | ((x[None, :] == x[:, None]) & (lane[None, :] < lane[:, None]))
        before = tl.sum(tl.where(ahead, share[None, :], 0.0), axis=1)
        kept = inside & (before <= top_p)
        # Complete where something finite was left out of it; ``count`` may be all that there is.
        left_out = tl.sum((inside & (before > top_p)).to(tl.int32), axis=0)
        tl.store(short + row, ((count > ROOM) | ((left_out == 0) & (count < entries))).to(tl.uint8))
        weight = tl.where(kept, tl.exp(x - tl.max(x, axis=0)), 0.0)
        probs = weight / tl.sum(weight, axis=0)
        cdf = tl.cumsum(probs.to(tl.float64), axis=0)
        bar = tl.load(uniform + row) * tl.sum(tl.where(lane == ROOM - 1, cdf, 0.0), axis=0)
        at = tl.minimum(tl.sum((cdf <= bar).to(tl.int32), axis=0), tl.minimum(count, ROOM) - 1)
        sure = tl.sum(tl.where(lane == at, probs, 0.0), axis=0)
        tl.store(drawn + row, tl.load(token + at, mask=at >= 0, other=0))  # no finite logit, no token
        tl.store(likely + row, sure)
        if RANKING == "entropy":
            tl.store(rank + row, tl.sum(probs * tl.log(probs + 1e-10), axis=0))
        elif RANKING == "margin":
            peak = tl.max(probs, axis=0)
            leader = tl.min(tl.where(probs == peak, lane, ROOM), axis=0)
            tl.store(rank + row, peak - tl.max(tl.where(lane == leader, 0.0, probs), axis=0))
        else:
            tl.store(rank + row, sure)
