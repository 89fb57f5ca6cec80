"""Decoding: one prompt, a batch, or a stream of samples, in the loop that fits the machine."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers.utils import ModelOutput

from jot import fast
from jot.errors import COUNT, Kind, UserError, closest
from jot.models.base import DiffusionModel
from jot.sampler.config import DecodeConfig, check_rule, check_samples, check_tokens, rows_of
from jot.sampler.exits import METHODS, rule_of
from jot.sampler.loop import Loop
from jot.sampler.output import Output
from jot.sampler.proposals import KeyedDraws

LOG = logging.getLogger("jot")
RENAMED = {"length": "max_new_tokens", "max_length": "max_new_tokens", "inputs": "input_ids"}  # names that others use


def _checked(model: DiffusionModel, method, samples: Iterable, draws, parameters: dict):
    """Resolved decoding parameters, rule and prompts, or the refusal of one of them."""
    if draws is not None and (isinstance(draws, type) or not hasattr(draws, "gumbel")):
        raise UserError(f"draws={draws!r} must be a source of draws, as KeyedDraws() is; give a number as seed")
    config = DecodeConfig.of(parameters).resolve(model)
    method = rule_of(method)
    check_rule(config, method)
    check_tokens(model, config)
    return config, method, check_samples(model, config, samples)


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
    COUNT.check("slots", slots)
    config, method, prompts = _checked(model, method, samples, draws, parameters)
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
    yield from filter(None, Loop(model, config, method, slots, width, trace, draws or KeyedDraws()).run(iter(prompts)))


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


class Commits(NamedTuple):
    """What one step committed; arrays ``[k]`` in the order of the positions, k = 0 where it committed nothing.

    Attributes:
        step: the forward, from 0.
        position: offsets in the generated part.
        token: their ids.
        rule, margin, threshold: as in ``Trace``.
    """

    step: int
    position: np.ndarray
    token: np.ndarray
    rule: np.ndarray
    margin: np.ndarray
    threshold: np.ndarray


def decode_steps(
    model: DiffusionModel,
    prompt_ids: Sequence[int] | Tensor,
    method=None,
    *,
    sample_id: int | str = 0,
    draws=None,
    **parameters,
) -> Generator[Commits, None, Output]:
    """Decode one prompt in the plain loop and stop after each step; the tokens are those of ``decode`` there.

    Takes the arguments of ``decode`` but ``slots`` and ``trace``, since it is one sample and always traced. Yields
    ``Commits``; the generator's return value, as ``out = yield from decode_steps(...)`` takes it, is the ``Output``
    with its trace.

    Raises:
        UserError: an invalid parameter or prompt, before the first forward.
    """
    config, method, prompts = _checked(model, method, [(sample_id, rows_of(prompt_ids))], draws, parameters)
    loop = Loop(model, config, method, 1, len(prompts[0][1]) + config.length, True, draws or KeyedDraws())
    for done in loop.run(iter(prompts)):
        if done is not None:
            return done[1]
        slot = loop.slots[0]
        step, trace, tokens = slot.steps - 1, loop.trace(0), loop.canvas[0, slot.prompt :].cpu().numpy()
        at = np.flatnonzero(trace.step == step)
        yield Commits(step, at, tokens[at], trace.rule[at], trace.margin[at], trace.threshold[at])


@dataclass
class Generated(ModelOutput):
    """What ``model.generate`` returns with ``return_dict_in_generate=True``.

    Attributes:
        sequences: prompts and generated parts, long ``[batch, length + max_new_tokens]``.
        outputs: the ``Output`` of each row: its steps, forwards, seconds and, where asked for, trace.
    """

    sequences: Tensor | None = None
    outputs: list[Output] | None = None


def _unpadded(input_ids, attention_mask) -> tuple[Tensor, list[list[int]]]:
    """The ids ``[batch, length]``, and each row without the padding on its left."""
    rows = rows_of(input_ids)
    try:
        ids = torch.atleast_2d(torch.as_tensor(rows))
        mask = torch.ones_like(ids) if attention_mask is None else torch.atleast_2d(torch.as_tensor(attention_mask))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            "input_ids and attention_mask must be numbers in rows of one length; pad the rows on the left"
        ) from error
    odd = ((mask != 0) & (mask != 1)).any()
    mask = mask.to("cpu", torch.bool)
    if odd or ids.dim() != 2 or mask.shape != ids.shape or (mask[:, 1:] < mask[:, :-1]).any():
        raise UserError(
            "attention_mask must have the shape of input_ids, 0 at padding on the left and 1 elsewhere; "
            "encode with padding_side='left'"
        )
    return ids, [row[seen].tolist() for row, seen in zip(ids, mask, strict=True)]


def generate(
    self: DiffusionModel,
    input_ids: Sequence[int] | Sequence[Sequence[int]] | Tensor | None = None,
    attention_mask: Tensor | None = None,
    *more,
    method=None,
    max_new_tokens: int = DecodeConfig.length,
    do_sample: bool | None = None,
    num_return_sequences: int = 1,
    return_dict_in_generate: bool = False,
    **parameters,
) -> Tensor | Generated:
    """Decode with the names and shapes of transformers' ``generate``: ``jot.decode`` of the rows, as one batch.

    Args:
        input_ids: long ``[batch, length]``, or one prompt as a list of ids.
        attention_mask: ``[batch, length]``, 0 at padding, which must stand on the left.
        method: an exit rule, or the name of one at its own defaults: "jot" is ``jot.JoT()``. None is full decoding.
        max_new_tokens: generated tokens; all of them are decoded, those behind an end of text too.
        do_sample: False is temperature 0; True is a temperature above 0, by default the family's, else 1.
        num_return_sequences: samples of each prompt, in neighbouring rows; above 1 only at a temperature above 0.
        return_dict_in_generate: return a ``Generated``.
        **parameters: settings of a method given by its name, fields of ``DecodeConfig`` (``top_p`` and ``top_k`` only
            where the proposal reads them), and ``slots``, ``trace`` and ``draws`` of ``jot.decode``. Two of these are
            not what transformers has under the name: ``begin_suppress_tokens`` rank last at every step,
            ``constraints`` are tokens at their offsets.

    Returns:
        Long ``[batch * num_return_sequences, length + max_new_tokens]``, padding included, where ``input_ids`` lies.

    Raises:
        UserError: an unknown name (the closest is suggested), or what ``jot.decode`` refuses.
    """
    if more:
        raise UserError("generate() takes input_ids and attention_mask by position; give what follows by name")
    known, settings = DecodeConfig.__dataclass_fields__.keys() - {"length"}, set()
    if isinstance(method, str):
        if method not in METHODS:
            raise UserError(f"unknown method {method!r}{closest(method, METHODS)}")
        settings = {field.name for field in fields(METHODS[method])}
        method = METHODS[method](**{name: parameters.pop(name) for name in settings & parameters.keys()})
    known |= {"slots", "trace", "draws"}
    if unknown := sorted(parameters.keys() - known):
        from transformers import GenerationConfig, GenerationMixin  # they load what nothing else here needs

        names = sorted({*inspect.signature(generate).parameters, *known, *settings} - {"self", "more", "parameters"})
        foreign = {*GenerationConfig().to_dict(), *inspect.signature(GenerationMixin.generate).parameters}
        hint = closest(RENAMED.get(unknown[0], unknown[0]), names)
        hint = ", which has no counterpart here; leave it out" if unknown[0] in foreign - RENAMED.keys() else hint
        raise UserError(f"generate() takes no {unknown[0]!r}{hint}")
    COUNT.check("generate(): max_new_tokens", max_new_tokens)
    COUNT.check("generate(): num_return_sequences", num_return_sequences)
    Kind(bool).check("generate(): return_dict_in_generate", return_dict_in_generate)
    Kind(bool, optional=True).check("generate(): do_sample", do_sample)
    temperature = parameters.get("temperature")
    if do_sample is not None:
        if temperature is not None and do_sample != bool(temperature):
            raise UserError("do_sample=False is temperature 0 and do_sample=True is one above 0; leave do_sample out")
        if temperature is None and not (do_sample and self.decode_defaults["temperature"]):
            parameters["temperature"] = float(do_sample)
    parameters["length"] = max_new_tokens
    config = {name: value for name, value in parameters.items() if name in DecodeConfig.__dataclass_fields__}
    config = DecodeConfig.of(config).resolve(self)
    if config.proposal != "dream" and any(parameters.get(name) is not None for name in ("top_p", "top_k")):
        raise UserError("top_p and top_k truncate the proposal 'dream' alone; leave them out or pass proposal='dream'")
    if num_return_sequences > 1 and not config.temperature:
        raise UserError("num_return_sequences above 1 repeats one text at temperature 0; pass a temperature above 0")
    ids, rows = _unpadded(input_ids, attention_mask)
    outputs = decode(self, [row for row in rows for _ in range(num_return_sequences)], method, **parameters)
    made = torch.tensor([out.generated for out in outputs])
    sequences = torch.cat((ids.repeat_interleave(num_return_sequences, 0), made), dim=1)
    sequences = sequences.to(input_ids.device if isinstance(input_ids, Tensor) else self.device)
    return Generated(sequences, outputs) if return_dict_in_generate else sequences


DiffusionModel.generate = generate  # here, since models do not know how they are decoded
