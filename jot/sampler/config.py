"""Decoding parameters: one frozen record, its family defaults and its checks."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jot.errors import MOST, UserError, check_settings, index, setting
from jot.sampler.cache import MODES
from jot.sampler.proposals import PROPOSALS, RANKINGS
from jot.sampler.schedules import SCHEDULES

if TYPE_CHECKING:
    from jot.models.base import DiffusionModel

TOKEN_LISTS = ("suppress_tokens", "begin_suppress_tokens")


@dataclass(frozen=True)
class DecodeConfig:
    """Decoding parameters. None takes the model family's default (``model.decode_defaults``).

    Attributes:
        length: generated tokens.
        steps: configured denoising steps over the whole canvas; defaults to ``length``.
        block_length: tokens per semi-autoregressive block; None decodes the whole canvas at once.
        temperature, top_p, top_k: sampling of the scheduled tokens. A temperature that is given, also the family's own,
            comes without the family's top_p: give both. Only the proposal "dream" truncates.
        ranking: what the schedule ranks by: confidence, margin, entropy, random or origin.
        alg_temp: temperature of a weighted draw in place of the highest ranks (Dream).
        schedule: llada, precomputed, dream or single (see ``jot.sampler.schedules``).
        proposal: llada or dream (see ``jot.sampler.proposals``).
        eps: last noise level of Dream's own schedule.
        guidance: classifier-free guidance scale; above 0 each step also runs the prompt-masked canvas.
        suppress_tokens: ids banned before softmax, top-2 and draw. The mask id always is.
        begin_suppress_tokens: ids that may be proposed but rank last.
        stop_early: end when no mask is left; False runs every step of the schedule, as the public loops do.
        keep_steps: a block takes all the steps that were planned from its masks when it began, also once it is full,
            as long as the canvas has masks; exits elsewhere go on in them (``JoT.canvas``).
        stop_at_eos: end a sample once the first end-of-text token of its generated part has no mask before it; the
            masks behind it then count as end of text, and no step has committed them (see ``jot.sampler.output``).
        ragged: allow a shorter last block and round the steps of a block up (dllm).
        cache: None, "prefix" or "dual" (see ``jot.sampler.cache``).
        extra_in_block: under a cache, run one forward within a block even where its full forward completed it, as
            Fast-dLLM of June 2025 counts.
        constraints: (offset in the generated part, token id) pairs written before the first step.
        head_dtype: dtype in which logits leave the head.
        seed: seed of the keyed draws.
    """

    length: int = setting(128, 1, MOST)
    steps: int | None = setting(None, 1, MOST)
    block_length: int | None = setting(None, 1, MOST)
    temperature: float | None = setting(None, 0, 1e6)
    top_p: float | None = setting(None, 1e-9, 1)
    top_k: int | None = setting(None, 0, MOST)
    ranking: str | None = setting(None, names=RANKINGS)
    alg_temp: float | None = setting(None, 0, 1e6)
    schedule: str | None = setting(None, names=SCHEDULES)
    proposal: str | None = setting(None, names=PROPOSALS)
    eps: float = setting(1e-3, 1e-9, 1 - 1e-9)
    guidance: float = setting(0.0, 0, 1e6)
    suppress_tokens: tuple[int, ...] = setting((), 0)
    begin_suppress_tokens: tuple[int, ...] = setting((), 0)
    stop_early: bool = True
    keep_steps: bool = False
    stop_at_eos: bool = False
    ragged: bool = False
    head_dtype: str = setting("float32", names=("float32", "bfloat16", "float64"))
    seed: int = setting(0, 0, 1 << 63)
    cache: str | None = setting(None, names=MODES)
    extra_in_block: bool = False
    constraints: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, parameters: dict) -> DecodeConfig:
        """A configuration from keyword arguments."""
        if unknown := sorted(parameters.keys() - cls.__dataclass_fields__.keys()):
            known = ", ".join(cls.__dataclass_fields__)
            raise UserError(f"unknown decoding parameter {unknown[0]!r}; known are {known}")
        lists = {name: _ids(name, parameters[name] or ()) for name in TOKEN_LISTS if name in parameters}
        if pairs := parameters.get("constraints"):
            pairs = pairs.items() if isinstance(pairs, dict) else pairs
            try:  # a dict from JSON has offsets as text
                pairs = [(int(at) if isinstance(at, str) else at, token) for at, token in pairs]
            except (TypeError, ValueError) as error:
                raise UserError(f"constraints={pairs!r} must be (offset, token id) pairs, or a dict of them") from error
            lists["constraints"] = tuple(_ids("constraints", pair) for pair in pairs)
        return cls(**{**parameters, **lists})

    def resolve(self, model: DiffusionModel | type[DiffusionModel]) -> DecodeConfig:
        """This configuration with every default filled in, checked against the model."""
        if not hasattr(model, "decode_defaults"):
            raise UserError(f"model={model!r} must be a model; load it with jot.load")
        filled = {k: v for k, v in model.decode_defaults.items() if getattr(self, k) is None}
        if self.temperature is not None:  # top-p belongs to the temperature it was published with
            filled.pop("top_p", None)
        config = replace(self, **filled, steps=self.length if self.steps is None else self.steps)
        config._check()
        if config.cache and model.shift and config.schedule == "dream" and config.block_steps < 2:
            raise UserError(
                "schedule='dream' under a cache needs two steps a block or more: the first one commits one token"
            )
        return config

    def _check(self) -> None:
        check_settings(self)
        if self.ranking == "origin" and (self.schedule, self.proposal) != ("dream", "dream"):
            raise UserError(
                "ranking='origin' reveals by Dream's own shares: it needs schedule='dream' and proposal='dream'"
            )
        if self.keep_steps and not self.stop_early:
            raise UserError("keep_steps ends once the canvas is full and stop_early=False never does; give one of them")
        if self.stop_at_eos and not self.stop_early:
            raise UserError("stop_at_eos ends before the canvas is full and stop_early=False never does; give one")
        if self.keep_steps and self.cache:
            raise UserError("keep_steps is for exits outside the block, which no cached block sees; use cache=None")
        if self.cache and self.guidance > 0:
            raise UserError("guidance runs a second canvas that no cache holds; use cache=None or guidance=0")
        if wrong := [offset for offset, _ in self.constraints if not 0 <= offset < self.length]:
            raise UserError(f"constraints: offset {wrong[0]} lies outside the {self.length} generated tokens")
        offsets = [offset for offset, _ in self.constraints]
        if twice := [offset for offset in offsets if offsets.count(offset) > 1]:
            raise UserError(f"constraints name offset {twice[0]} more than once; give each offset one token")
        if len(offsets) == self.length:
            raise UserError("constraints fill the whole canvas; leave at least one position to decode")
        block, blocks = self.block_length or self.length, len(self.blocks)
        if self.schedule == "single" and self.block_steps < min(block, self.length):
            least = (min(block, self.length) - 1) * blocks + 1 if self.ragged else self.length
            raise UserError(f"schedule='single' reveals one token a step: it needs steps of at least {least}")
        if self.length % block and not self.ragged:
            raise UserError(
                f"length={self.length} does not divide into blocks of block_length={block}; change one of them"
            )
        if self.steps % blocks and not self.ragged:
            raise UserError(f"steps={self.steps} does not divide over {blocks} blocks; use a multiple of {blocks}")

    @property
    def nucleus(self) -> bool:
        """Whether the proposal cuts each row's distribution off at ``top_p``."""
        return self.proposal == "dream" and self.top_p is not None and self.top_p < 1

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """Start and end of each block, in generated tokens."""
        size = self.block_length or self.length
        return [(start, min(start + size, self.length)) for start in range(0, self.length, size)]

    @property
    def block_steps(self) -> int:
        return -(-self.steps // len(self.blocks))

    @property
    def existing_steps(self) -> int:
        """Those of ``steps`` that full decoding can take: where they outnumber the tokens, counts run out of masks."""
        steps = 0
        for start, end in self.blocks:
            plan = SCHEDULES[self.schedule](end - start, self.block_steps, self.eps)
            spent = plan.dtype.kind != "f" and self.stop_early and (end == self.length or not self.keep_steps)
            steps += int((plan.cumsum() < end - start).sum()) + 1 if spent else len(plan)
        return min(self.steps, steps)


def _ids(name: str, given) -> tuple[int, ...]:
    ids = [] if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__") else [index(i) for i in given]
    if None in ids or (given and not ids):
        raise UserError(f"{name}={given!r} must be a list of whole numbers")
    return tuple(ids)


def check_tokens(model: DiffusionModel, config: DecodeConfig) -> None:
    """Refuse banned or prescribed token ids that the model does not have."""
    entries, fixed = model.head.shape[0], dict(config.constraints)
    if len({model.mask_id, *config.suppress_tokens}) >= entries:
        raise UserError("suppress_tokens bans every token; leave at least one")
    first = next(offset for offset in itertools.count() if fixed.get(offset) in (None, model.eos_id))
    if config.stop_at_eos and first in fixed:
        raise UserError(f"constraints end the text at offset {first}, where stop_at_eos leaves nothing to decode")
    named = {"suppress_tokens": config.suppress_tokens, "begin_suppress_tokens": config.begin_suppress_tokens}
    for name, ids in {**named, "constraints": [token for _, token in config.constraints]}.items():
        if wrong := [i for i in ids if not 0 <= i < entries or (name == "constraints" and i == model.mask_id)]:
            raise UserError(f"{name} holds {wrong[0]}, which is not one of the {entries} tokens that may stand there")


def check_rule(config: DecodeConfig, method) -> None:
    """Refuse an exit rule that these decoding parameters cannot serve."""
    if method.canvas and config.cache:
        raise UserError("canvas=True exits anywhere on the canvas, which no cached block sees; use cache=None")


def rows_of(prompt_ids) -> list:
    """What ``decode`` is given, as a list of ids or of prompts."""
    given = prompt_ids.tolist() if hasattr(prompt_ids, "tolist") else prompt_ids
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        kind = type(prompt_ids).__name__
        raise UserError(f"the prompt must be token ids, not {kind}; encode it with model.tokenizer, pass its input_ids")
    return list(given)


def check_samples(model: DiffusionModel, config: DecodeConfig, samples: Iterable) -> list[tuple[int | str, list[int]]]:
    """Pairs of a sample's key and its prompt, checked."""
    try:
        pairs = [(key, ids) for key, ids in samples]
    except (TypeError, ValueError) as error:
        raise UserError("samples must be pairs of a key (a number or text) and token ids") from error
    for key, _ in pairs:
        if not isinstance(key, str) and index(key) is None:
            raise UserError(f"the sample key {key!r} must be a whole number or text")
    return [(key, check_prompt(model, config, ids)) for key, ids in pairs]


def check_prompt(model: DiffusionModel, config: DecodeConfig, ids: Iterable) -> list[int]:
    """The prompt as a list of ids; refuses one that is empty, too long or holds ids that may not stand there."""
    given = rows_of(ids)
    ids = [index(i) for i in given]
    if None in ids:
        wrong = reprlib.repr(given[ids.index(None)])
        raise UserError(f"the prompt holds {wrong}, which is not a token id (a whole number)")
    if not ids:
        raise UserError("the prompt is empty; give at least one token")
    if model.mask_id in ids:
        raise UserError(f"the prompt holds the mask id {model.mask_id}, which only the canvas may hold; remove it")
    entries = model.head.shape[0]
    if wrong := [i for i in ids if not 0 <= i < entries]:
        raise UserError(f"the prompt holds token {wrong[0]}, outside the model's {entries} entries")
    if len(ids) + config.length > model.max_positions:
        raise UserError(
            f"the prompt has {len(ids)} tokens and {config.length} are to follow, but the model has "
            f"{model.max_positions} positions; shorten one of them"
        )
    return ids
