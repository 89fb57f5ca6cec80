"""Candidate token and ranking confidence of every masked row, and the random draws behind them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jot.sampler.kernels import fusable, fused_cut, slices
from jot.sampler.schedules import count, highest
from jot.sampler.step import Proposal, Step

if TYPE_CHECKING:
    from jot.sampler.config import DecodeConfig

# ---- draws -------------------------------------------------------------------------------------------------

TOKEN, RANK = 0, 1  # streams of one (sample, step, position)


def sample_key(seed: int, sample: int | str) -> int:
    """A signed 64-bit key from the run's seed and the sample's id."""
    digest = hashlib.blake2b(f"{seed}/{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _scramble(x: Tensor) -> Tensor:
    """The splitmix64 finalizer on wrapping int64."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return x ^ ((x >> 31) & ((1 << 33) - 1))


class KeyedDraws:
    """One uniform number per (seed, sample, step, position) from a counter hash.

    Nothing else enters, so the device, the batch, the order of samples and earlier exits elsewhere
    on the canvas change no draw.
    """

    def uniform(self, step: Step, stream: int) -> Tensor:
        """Uniform numbers in (0, 1), float64 ``[rows]``."""
        if stream not in step.kept:
            x = step.keys[step.slot]
            for counter in (step.index[step.slot], step.position, torch.full_like(step.position, stream)):
                x = _scramble(x + (counter + 1) * -0x61C8864680B583EB)
            step.kept[stream] = (((x >> 11) & ((1 << 53) - 1)).double() + 0.5) * 2.0**-53
        return step.kept[stream]

    def categorical(self, probs: Tensor, step: Step, rows: Tensor | slice) -> Tensor:
        """Draw from each row of ``probs`` by inverting its CDF; ``rows`` says which of the step's rows these are."""
        cdf = probs.double().cumsum(-1)
        return (cdf <= (self.uniform(step, TOKEN)[rows] * cdf[:, -1])[:, None]).sum(-1)

    def gumbel(self, logits: Tensor, temperature: float, step: Step) -> Tensor:
        """argmax of logits + temperature * Gumbel noise, that is a draw from softmax(logits / temperature)."""
        parts = []
        for rows in slices(logits):
            parts.append(self.categorical((logits[rows].double() / temperature).softmax(-1), step, rows))
        return torch.cat(parts)

    def ranks(self, step: Step) -> Tensor:
        """The random confidence of LLaDA's ``remasking="random"``, in (0, 1); ``[rows]``."""
        return self.uniform(step, RANK).float().clamp(max=1 - 2.0**-24)

    joins = ranks

    def without_replacement(self, weights: Tensor, step: Step, quota: Tensor, candidate: Tensor) -> Tensor:
        """``quota`` rows of each slot, drawn in proportion to softmax(weights): the Gumbel top-k."""
        gumbel = -(-self.uniform(step, RANK).log()).log()
        return highest(weights.double() + gumbel, step.slot, quota, candidate)


# ---- rankings ----------------------------------------------------------------------------------------------


def confidence(probs: Tensor, token: Tensor) -> Tensor:
    """Probability of the proposed token (LLaDA "low_confidence", Dream "maskgit_plus")."""
    return probs.gather(-1, token[:, None])[:, 0]


def margin(probs: Tensor, token: Tensor) -> Tensor:
    """p1 - p2 (Dream "topk_margin")."""
    two = probs.topk(2, dim=-1).values
    return two[:, 0] - two[:, 1]


def entropy(probs: Tensor, token: Tensor) -> Tensor:
    """Negative entropy, sum of p log(p + 1e-10) (Dream "entropy")."""
    return (probs * (probs + 1e-10).log()).sum(-1)


RANKINGS: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {
    "confidence": confidence, "margin": margin, "entropy": entropy, "random": None, "origin": None,
}  # fmt: skip


# ---- proposals ---------------------------------------------------------------------------------------------


MANY, LEADERS = 8192, 1024  # a vocabulary that is slow to sort, and the tokens of it that are tried first


def _among_leaders(logits: Tensor, probs: Tensor, top_p: float, kept: Tensor, wide: Tensor) -> Tensor:
    """Fill in those of the ``wide`` rows of ``kept`` whose nucleus ends among the ``LEADERS``; returns the others."""
    value, token = logits[wide].topk(LEADERS, dim=-1)
    out = probs[wide].gather(-1, token).cumsum(-1)[:, :-1] > top_p  # from the second on
    last = (~out).sum(-1, keepdim=True).clamp(max=LEADERS - 2)
    equal = value.gather(-1, last) == value.gather(-1, last + 1)
    done = out[:, -1] & ~equal[:, 0]  # of equal logits at the end the first counts, and topk does not say which
    value[:, 1:][out] = -torch.inf
    kept[wide[done]] = kept[wide[done]].scatter(-1, token[done], value[done])
    return wide[~done]


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """``logits`` with every token behind the one that makes the cumulative probability cross ``top_p`` removed."""
    if fusable(logits) and logits.dtype == torch.float32 and top_p < 1:
        cut = fused_cut(logits, top_p)[:, None]
        kept = logits.masked_fill(logits < cut, -torch.inf)
        wide = ((logits == cut).sum(-1) > 1).nonzero()[:, 0]  # of equal logits perhaps not all are in it
    else:
        probs = logits.softmax(-1)
        peak, at = probs.max(-1)
        kept = torch.full_like(logits, -torch.inf).scatter(-1, at[:, None], logits.gather(-1, at[:, None]))
        wide = (peak <= top_p).nonzero()[:, 0]  # the top token alone does not cross: sort these rows only
        if len(wide) and logits.shape[-1] > MANY:
            wide = _among_leaders(logits, probs, top_p, kept, wide)
    if len(wide):
        value, order = logits[wide].sort(stable=True, dim=-1, descending=True)
        cumulative = value.softmax(-1).cumsum(-1)
        value[:, 1:][cumulative[:, :-1] > top_p] = -torch.inf
        kept[wide] = torch.empty_like(value).scatter(-1, order, value)
    return kept


def _rank(logits: Tensor, probs: Tensor, token: Tensor, config: DecodeConfig) -> tuple[Tensor, Tensor]:
    """Ranking and probability of the proposed tokens under ``probs``, the softmax of ``logits``."""
    if config.begin_suppress_tokens:  # may be proposed but rank last; nan where nothing else survived the truncation
        late = torch.tensor(config.begin_suppress_tokens, device=token.device)
        probs = logits.index_fill(-1, late, -torch.inf).softmax(-1).nan_to_num(0.0)
    likely = confidence(probs, token)
    rule = RANKINGS[config.ranking]
    rank = likely if rule in (None, confidence) else rule(probs, token)
    if config.begin_suppress_tokens:
        rank = rank.masked_fill(torch.isin(token, late), torch.finfo(rank.dtype).min)
    return rank, likely


def llada(step: Step, config: DecodeConfig, draws) -> Proposal:
    """LLaDA's rule: Gumbel-perturbed argmax, ranked by the noise-free, un-tempered softmax."""
    token = draws.gumbel(step.logits, config.temperature, step) if config.temperature > 0 else step.top.index
    parts = []
    for rows in slices(step.logits):
        logits = step.logits[rows]
        parts.append(_rank(logits, logits.softmax(-1), token[rows], config))
    rank, likely = map(torch.cat, zip(*parts, strict=True))
    return Proposal(token, draws.ranks(step) if config.ranking == "random" else rank, likely)


def dream(step: Step, config: DecodeConfig, draws) -> Proposal:
    """Dream's rule: temperature, nucleus, top-k, then a draw; ranked on that same distribution."""
    rank, drawn = None, None
    if config.ranking == "origin":  # a position joins with the step's share, whatever its confidence
        rank = -draws.joins(step)
        drawn = -rank < step.share[step.slot]
    elif config.ranking == "random":
        rank = draws.ranks(step)
    parts = []
    for rows in slices(step.logits):
        logits, token = step.logits[rows], step.top.index[rows]
        if config.temperature > 0:
            logits = logits / config.temperature
        if config.nucleus:
            logits = nucleus(logits, config.top_p)
        if config.top_k:
            floor = logits.topk(min(config.top_k, logits.shape[-1]), dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < floor, -torch.inf)
        probs = logits.softmax(-1)
        if config.temperature > 0 and drawn is None:
            token = draws.categorical(probs, step, rows)
        elif config.temperature > 0:
            here = step.none()
            here[rows] = drawn[rows]
            token = token.masked_scatter(drawn[rows], draws.categorical(probs[drawn[rows]], step, here))
        parts.append((token, *_rank(logits, probs, token, config)))
    token, own, likely = map(torch.cat, zip(*parts, strict=True))
    return Proposal(token, own if rank is None else rank, likely)


PROPOSALS = {"llada": llada, "dream": dream}


def scheduled(step: Step, method, config: DecodeConfig, draws, exits: Tensor, fraction: bool) -> Tensor:
    """The rows that the transfer schedule reveals, given what exits; ``fraction``: its entries are shares."""
    candidate, rank, slots = step.in_block, step.proposal.rank, len(step.masks)
    if method.combine == "after_exit":
        candidate = candidate & ~exits
    elif method.combine == "instead":
        resting = count(step.slot, exits, slots) > 0
        candidate = candidate & ~resting[step.slot]
    if config.ranking == "origin":  # all that join
        return (-rank < step.share[step.slot]) & candidate
    left = count(step.slot, step.in_block, slots)
    quota = (left * step.share).long() if fraction else torch.minimum(step.share.long(), left)
    if config.alg_temp:
        return draws.without_replacement(rank / config.alg_temp, step, quota, candidate)
    return highest(rank, step.slot, quota, candidate)


def decide(
    step: Step, method, config: DecodeConfig, draws, fraction: bool, opening: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The rows that exit, those that the schedule reveals, and the margins that the rule asked for.

    ``opening``: where the block of each slot starts, ``[slots]``, in the forward that opens a cached block of a shifted
    model. Within the block, what predicts its first position lies outside: that one is committed now, alone.
    """
    exits, threshold = method(step)
    first = None if opening is None else step.in_block & (step.position == opening[step.slot])
    if first is None:
        chosen = scheduled(step, method, config, draws, exits, fraction)
    else:
        exits, chosen = exits if method.block_start else step.none(), first
    if method.max_commits is not None:
        margin = step.margin if first is None else step.margin.masked_fill(first, torch.inf)
        limit = torch.full_like(step.index, method.max_commits)
        kept = highest(margin, step.slot, limit, exits | chosen)
        exits, chosen = exits & kept, chosen & kept
    return exits, chosen, threshold


def committed(step: Step, method, exits: Tensor) -> Tensor:
    """The token that each row would commit, ``[rows]``: an exit's own where it takes the argmax, else the proposal."""
    drawn = method.takes == "proposal"
    return torch.where(exits & (not drawn) | method.greedy, step.top.index, step.proposal.token)
