"""Dream's proposal from the top of each row, for steps that must not wait for the host or sort whole vocabularies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jot.kernels import slices
from jot.proposals import RANKINGS, confidence
from jot.step import Proposal, Step

if TYPE_CHECKING:
    from jot.config import DecodeConfig

SMALL = 64  # tokens among which ``dream_small`` looks for the nucleus


def dream_small(step: Step, config: DecodeConfig, draws) -> tuple[Proposal, Tensor]:
    """Dream's rule with a nucleus, from the ``SMALL`` largest logits of each row.

    Equal to ``dream`` up to rounding where these hold more than ``top_p`` of the mass; the second result, bool
    ``[rows]``, says where they do not.
    """
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
