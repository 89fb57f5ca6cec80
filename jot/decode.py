"""Decoding: one prompt, a batch, or a stream of samples, in the loop that fits the machine."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from jot import fast
from jot.errors import whole
from jot.models.base import DiffusionModel
from jot.sampler.config import DecodeConfig, check_rule, check_samples, check_tokens, rows_of
from jot.sampler.exits import rule_of
from jot.sampler.loop import Loop
from jot.sampler.output import Output
from jot.sampler.proposals import KeyedDraws

LOG = logging.getLogger("jot")


def decode_stream(
    model: DiffusionModel,
    samples: Iterable[tuple[int | str, Sequence[int]]],
    method=None,
    *,
    slots: int = 1,
    trace: bool = False,
    draws=None,
    **parameters,
) -> Iterator[tuple[int | str, Output]]:
    """Decode many samples through ``slots`` rows; a row that finishes takes the next prompt.

    Args:
        model: from ``jot.load``.
        samples: pairs of a sample key (int or str; it keys the random draws) and prompt token ids.
        method: exit rule, from ``jot.sampler.exits``; None is full decoding.
        slots: rows of the batch. Each sample equals its solo run up to rounding of the forward.
        trace: record how each canvas was filled.
        draws: source of random numbers, keyed by default.
        **parameters: fields of ``DecodeConfig``.

    Yields:
        (sample key, ``Output``) as samples finish.

    Raises:
        UserError: an invalid parameter or prompt, before the first forward.
    """
    whole("", "slots", slots, low=1)
    config = DecodeConfig.of(parameters).resolve(model)
    method = rule_of(method)
    check_rule(config, method)
    check_tokens(model, config)
    prompts = check_samples(model, config, samples)
    if not prompts:
        return
    # Longest first: the batch is only as wide as its longest live row, so it narrows as it goes.
    prompts.sort(key=lambda sample: -len(sample[1]))
    slots = min(slots, len(prompts))
    width = len(prompts[0][1]) + config.length
    reason = fast.refusal(model, config, method, slots, draws)
    if reason is None:
        yield from fast.stream(model, config, method, slots, width, trace, prompts)
        return
    if reason != fast.UNASKED:
        LOG.info("%s runs in the plain loop: %s", method.name, reason)
    yield from Loop(model, config, method, slots, width, trace, draws or KeyedDraws()).run(iter(prompts))


def decode(
    model: DiffusionModel,
    prompt_ids: Sequence[int] | Sequence[Sequence[int]] | Tensor,
    method=None,
    *,
    sample_id: int | str = 0,
    **kwargs,
) -> Output | list[Output]:
    """Decode one prompt (token ids) or a batch of prompts, which need not be of one length.

    Takes the arguments of ``decode_stream``, and refuses what it does. Samples of a batch have the keys 0, 1, ...; a
    single prompt has ``sample_id``. Returns an ``Output``, or a list of them for a batch.
    """
    rows = rows_of(prompt_ids)
    if rows and hasattr(rows[0], "__len__"):
        done = dict(decode_stream(model, list(enumerate(rows)), method, **{"slots": len(rows), **kwargs}))
        return [done[i] for i in range(len(rows))]
    return dict(decode_stream(model, [(sample_id, rows)], method, **kwargs))[sample_id]
