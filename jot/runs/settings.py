"""From what a user asks for to a resolved configuration, before a model's weights are read."""

from __future__ import annotations

import dataclasses
import os
import reprlib
from collections.abc import Mapping
from pathlib import Path

from jot.errors import UserError, closest, kinds
from jot.models import FAMILIES, locate, read_config, smol
from jot.models.base import DiffusionModel
from jot.records import on, plain
from jot.sampler.config import DecodeConfig, check_rule
from jot.sampler.exits import METHODS, ExitRule
from jot.tasks import Task

# Names that stand for a method with settings of its own: (method, label). A cell carries the method's name.
# "jot-public" decodes as the public code titled Just on Time does, which its title, rule and settings tie to the paper.
PRESETS = {"jot-public": ("jot", "JoT (public code)")}
# What the paper says it used (section 4.1), by family; the rest are the rules' own defaults. The public code gives no
# threshold for LLaDA: the paper's stands in.
METHOD_DEFAULTS: dict[str, dict[str, dict[str, object]]] = {
    "jot": {"dream": {"tau_max": 90}, "llada": {"tau_max": 30}},
    "jot-public": {
        "dream": {"tau_max": 90.1},
        "llada": {"tau_max": 30, "canvas": True, "sample": True, "skip_demoted": True},
    },
    "klass": {
        "dream": {"conf_threshold": 0.9, "kl_threshold": 0.001, "inclusive": True},
        "llada": {"conf_threshold": 0.7, "kl_threshold": 0.01, "inclusive": False},
    },
}
# How a method's publication decodes where that is not the family's way: Fast-dLLM, LocalLeap and CreditDecoding
# greedily in blocks, Fast-dLLM under DualCache. CreditDecoding's block length could not be looked up, nor LocalLeap's
# for Dream: they have Fast-dLLM's.
GREEDY = {"temperature": 0.0, "ranking": "confidence", "block_length": 32}
DECODE_DEFAULTS: dict[str, dict[str, dict[str, object]]] = {
    "fastdllm": dict.fromkeys(("dream", "llada"), GREEDY | {"cache": "dual"}),
    **dict.fromkeys(("localleap", "credit"), dict.fromkeys(("dream", "llada"), GREEDY)),
    "klass": {"dream": {"schedule": "single", "ranking": "confidence"}},
    "jot-public": {"llada": {"schedule": "precomputed", "keep_steps": True}},
}
# Tasks on which a method bans the end of text, by family.
ENDLESS = {"jot-public": {"llada": ("humaneval", "pocket_humaneval")}}
# The paper's Table tab:config: blocks of up to 32 tokens, or none.
BLOCK_LENGTH = {"dream": None, "llada": 32}
REFUSED = {
    "fastdllm_canvas_budget": "Fast-dLLM's rule for Dream without a cache spends a budget over the whole canvas and is "
    "another algorithm; use fastdllm with cache=none and a block_length for the block-wise threshold",
}


def model_class(name: str | os.PathLike) -> type[DiffusionModel] | None:
    """The class of a checkpoint, read from its configuration alone; None for one that is still on the hub."""
    name = os.fspath(name)
    if name == smol.NAME:  # so that a grid is read, and a plan checked, without its weights
        return FAMILIES["Dream"][1]
    if "/" in name and not Path(os.path.expanduser(name)).is_dir() and name.count("/") == 1 and name[0] not in "./~":
        return next((model for _, model, _ in FAMILIES.values() if model.family in name.lower()), None)
    return FAMILIES[read_config(locate(name)[0]).model_type][1]


def method_class(name: str | ExitRule) -> type:
    """The exit rule of that name, or of a preset's; of a rule, also one of a user's own, its class, unless its settings
    could not be recorded."""
    if isinstance(name, ExitRule):
        kind = type(name).__name__
        if not dataclasses.is_dataclass(name):
            raise UserError(f"{kind} must be a dataclass, so that its settings are recorded")
        if METHODS.get(name.name, name.__class__) is not name.__class__:
            raise UserError(f"{kind} needs a name of its own: {name.name!r} names the runs of another rule")
        return type(name)
    if name in REFUSED:
        raise UserError(f"{name} is not implemented: {REFUSED[name]}")
    if name not in METHODS and name not in PRESETS:
        raise UserError(f"unknown method {name!r}{closest(str(name).lower(), [*METHODS, *PRESETS])}")
    return METHODS[PRESETS[name][0] if name in PRESETS else name]


def parse(method: str | ExitRule, settings: Mapping[str, object]) -> dict[str, object]:
    """`--set` values, text or already typed, as the types of their parameters."""
    known = {**kinds(DecodeConfig), **kinds(method_class(method))}
    parsed: dict[str, object] = {}
    for name, value in settings.items():
        if name == "seed":
            raise UserError("the seed is no setting of a method; give it with --seed")
        if name not in known:
            raise UserError(f"unknown setting {name!r} for method {method!r}{closest(name, sorted(known))}")
        if name == "constraints":
            parsed[name] = _pairs(value) if isinstance(value, str) else value or ()
        else:
            read = known[name].read(name, value)
            parsed[name] = tuple(read or ()) if known[name].many else read
    return parsed


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Offsets and token ids, such as ``"18:7,19:11"``."""
    if text.strip().lower() in ("", "none", "null"):
        return ()
    try:
        return tuple((int(offset), int(token)) for offset, token in (word.split(":") for word in text.split(",")))
    except ValueError:
        raise UserError(f"constraints={reprlib.repr(text)} must be offset:token pairs, as in 18:7,19:11") from None


def build_method(method: str | ExitRule, family: str, settings: Mapping[str, object]) -> ExitRule:
    """The exit rule of that name with the family's defaults, from parsed settings (those of the decoding loop are left
    aside); a rule as it is."""
    if isinstance(method, ExitRule):
        return method
    rule = method_class(method)
    chosen = {key: value for key, value in settings.items() if key in kinds(rule)}
    return rule(**{**METHOD_DEFAULTS.get(method, {}).get(family, {}), **chosen})


def build_decode(
    model: DiffusionModel | type[DiffusionModel],
    settings: Mapping[str, object],
    task: Task | None = None,
    seed: int = 0,
    method: str | ExitRule = "full",
) -> DecodeConfig:
    """Resolved decoding parameters: the settings, else the method's own way, else the task's length and blocks,
    else the family's defaults. A ban of the end of text takes a model, not its class alone, which has no ids."""
    chosen = {key: value for key, value in settings.items() if key in kinds(DecodeConfig)}
    rule = build_method(method, model.family, settings)
    method = getattr(method, "name", method)
    own = dict(DECODE_DEFAULTS.get(method, {}).get(model.family, {}))
    chosen.setdefault("length", task.length if task else DecodeConfig.length)
    largest = own.pop("block_length", BLOCK_LENGTH[model.family])
    if largest and isinstance(chosen["length"], int):
        chosen.setdefault("block_length", min(largest, max(chosen["length"], 1)))
    chosen = {**own, **chosen}
    if isinstance(model, DiffusionModel) and task and task.name in ENDLESS.get(method, {}).get(model.family, ()):
        chosen.setdefault("suppress_tokens", (model.eos_id,))
    config = DecodeConfig.of({**chosen, "seed": seed}).resolve(model)
    check_rule(config, rule)
    return config


def resolve(
    model: DiffusionModel | type[DiffusionModel], method: str | ExitRule, settings: Mapping[str, object],
    task: Task | None = None, seed: int = 0,
) -> tuple[ExitRule, DecodeConfig]:  # fmt: skip
    """Rule and decoding parameters of a run; a model's class will do, to refuse them before its weights are read."""
    return build_method(method, model.family, settings), build_decode(model, settings, task, seed, method)


def in_force(rule: ExitRule, config: DecodeConfig) -> dict[str, object]:
    """Every setting but the seed, as recorded; those that are off are left out."""
    return on(plain({**dataclasses.asdict(config), **describe(rule), "seed": None}))


def describe(method) -> dict[str, object]:
    """A method as it stands in a cell's configuration."""
    return {"name": method.name, **dataclasses.asdict(method)}


def cell_config(
    model: DiffusionModel, task: Task, version: object, split: str, prompt_hash: str, method, config: DecodeConfig
) -> dict[str, object]:
    """The resolved configuration that names a cell (the device is not part of it)."""
    decode = dataclasses.asdict(config)
    return {
        "model": Path(os.fspath(model.name)).name, "family": model.family, "fingerprint": model.fingerprint,
        "task": task.name, "task_version": version, "split": split, "prompt_hash": prompt_hash,
        "method": describe(method), "seed": decode.pop("seed"), "decode": decode,
        "dtype": str(model.dtype).removeprefix("torch."),
    }  # fmt: skip
