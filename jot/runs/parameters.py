"""The one parameter vocabulary of the notebooks, and the checks that make papermill strict about it."""

from __future__ import annotations

import ast
import contextlib
import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from jot.errors import ADDRESS, UserError, closest, destination, is_text
from jot.models import home
from jot.runs.frames import family

Kind = Callable[[Any], Any]


class NotebookError(UserError):
    """A user's mistake inside a notebook: shown as its one sentence, without a traceback."""


def sound(text: str) -> bool:
    """Whether text can name a file: no NUL, and nothing that UTF-8 cannot hold."""
    return "\0" not in text and is_text(text)


# --- kinds of values: each takes a value, also as text, and says in a ValueError what it is not ----------------


def _text(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("must be text")
    if not sound(os.fspath(value)):
        raise ValueError("holds a character that no text may")
    return os.fspath(value)


def _path(value: Any) -> str:
    if ADDRESS.match(text := _text(value)):
        raise ValueError("is an address; name a local folder")
    return text


def _names(value: Any) -> list[str]:
    """A list of names from a list, or from text with commas, as papermill's ``-p`` hands it over."""
    items = value.strip("[]() ").split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise ValueError("must be a list or comma-separated names")
    items = [_text(str(item).strip(" '\"")) for item in items]
    if not items or not all(items):
        raise ValueError("holds an empty name")
    return items


def _one_of(*known: str) -> Kind:
    def kind(value: Any) -> str:
        if value not in known:
            raise ValueError(f"holds the unknown value {value!r}{closest(str(value), known)}")
        return value

    return kind


def _number(value: Any, words: str = "is not a number") -> float:
    """YAML 1.1 reads ``1e-3`` as text; True is no number."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and (number := float(value)) == number:
            return number
    raise ValueError(words)


def _whole(value: Any, least: float = -math.inf) -> int:
    if not (number := _number(value, words := "is not a whole number")).is_integer():
        raise ValueError(words)
    if number < least:
        raise ValueError(f"must be at least {least}")
    return int(number)


def _flag(value: Any) -> bool:
    found = str(value).lower() if isinstance(value, (bool, str)) else ""
    if found not in ("true", "false"):
        raise ValueError("must be True or False")
    return found == "true"


class Parameter(NamedTuple):
    """Kind of its values, meaning, and whether None will do."""

    kind: Kind
    meaning: str
    optional: bool = False


KINDS = {bool: _flag, int: _whole, float: _number, str: _text, list: _names, tuple: _names}
PATHS = ("store", "data", "out")
VOCABULARY = {
    "source": Parameter(_one_of("recorded", "live"), "recorded rows, or decode live on this machine"),
    "store": Parameter(_path, "record folder; default data/records, or results/store when live", True),
    "models": Parameter(_names, "models to show: packaged names, local folders or hub ids"),
    "families": Parameter(lambda value: list(map(_one_of("dream", "llada"), _names(value))), "model families to keep"),
    "tasks": Parameter(_names, "tasks to show"),
    "methods": Parameter(_names, "decoding methods to show"),
    "limit": Parameter(partial(_whole, least=1), "first n documents of each task's fixed order; None for all", True),
    "seed": Parameter(partial(_whole, least=0), "seed of the decoding draws"),
    "device": Parameter(_text, "torch device of live runs; None picks one", True),
    "dtype": Parameter(_one_of("float32", "bfloat16", "float16"), "weights' dtype of live runs"),
    "data": Parameter(_path, "folder with the benchmarks' data; None reads the packaged tasks or the hub", True),
    "out": Parameter(_path, "folder for the figures; default results/figures", True),
    "model": Parameter(_text, "the model to show: a packaged name, a local folder or a hub id"),
}


def coerce(name: str, value: Any, spec: Parameter) -> Any:
    """``value`` as ``spec`` asks for it, or NotebookError in one sentence."""
    if value is None or (spec.optional and isinstance(value, str) and value.lower() in ("none", "null", "")):
        if spec.optional:
            return None
        raise NotebookError(f"parameter {name} cannot be empty: give {spec.meaning}")
    try:
        return spec.kind(value)
    except ValueError as error:
        raise NotebookError(f"parameter {name}={value!r} {error} ({spec.meaning})") from None


def spec_of(name: str, default: Any) -> Parameter:
    """The vocabulary's entry, or one for a notebook's own parameter: from its default, or from a type in its place."""
    if name in VOCABULARY:
        return VOCABULARY[name]
    if isinstance(default, type):
        return Parameter(KINDS[default], f"of type {default.__name__}")
    return Parameter(KINDS.get(type(default), _text), f"like {default!r}", default is None)


def unformatted(path: str | os.PathLike) -> str:
    """A path for papermill, which would fill what stands in braces."""
    return os.fspath(path).replace("{", "{{").replace("}", "}}")


# --- notebooks ----------------------------------------------------------------------------------------------


def parameters(path: str | Path) -> dict[str, Any]:
    """Names and default values of the cell tagged ``parameters``, as papermill reads them."""
    import nbformat
    import papermill

    tagged = [c for c in nbformat.read(path, 4).cells if "parameters" in c.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise UserError(f"{Path(path).name} has {len(tagged)} cells tagged 'parameters'; it needs exactly one")
    logging.getLogger("papermill.translators").setLevel(logging.ERROR)
    return {name: _literal(found["default"]) for name, found in papermill.inspect_notebook(unformatted(path)).items()}


def _literal(text: str) -> Any:
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return None


def given(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values for a notebook's parameters, each as its default or the vocabulary asks for it.

    Raises:
        UserError: an unknown parameter, or a value that does not fit.
    """
    declared = parameters(path)
    if unknown := [name for name in values if name not in declared]:
        raise UserError(f"{path.stem}: unknown parameter {unknown[0]!r}{closest(str(unknown[0]), declared)}")
    try:
        return {name: coerce(name, value, spec_of(name, declared[name])) for name, value in values.items()}
    except NotebookError as error:
        raise UserError(f"{path.stem}: {error}") from None


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """With whole paths in place of those relative to the current folder.

    Raises:
        UserError: a folder that the notebook will write to is a file or read-only.
    """
    paths = {name: Path(os.path.expanduser(values[name])).resolve() for name in PATHS if values.get(name) is not None}
    for name in paths.keys() & ({"out", "store"} if values.get("source") == "live" else {"out"}):
        destination(f"parameter {name}:", paths[name])
    return {**values, **paths}


def check(scope: Mapping[str, Any], names: str, **own: Any) -> SimpleNamespace:
    """Validate the parameters of the running notebook and return them, typed, with paths resolved.

    Args:
        scope: the notebook's ``globals()``.
        names: the vocabulary names it uses, separated by spaces.
        **own: its own parameters with their type or a value of it, such as ``tau_max=float``.

    Raises:
        NotebookError: an unknown parameter was injected, or a value does not fit, or no model is of the families.
    """
    declared = [*names.split(), *own]
    for cell in scope.get("In", ()):
        if cell.lstrip().startswith("# Parameters\n"):  # papermill's mark on the cell that it injects
            for name in re.findall(r"(?m)^(\w+) = ", cell):
                if name not in declared:
                    raise NotebookError(f"unknown parameter {name!r}{closest(name, declared)}")
    values = resolved({name: coerce(name, scope[name], spec_of(name, own.get(name))) for name in declared})
    if "out" in values and values["out"] is None:
        values["out"] = home() / "results" / "figures"
    if {"models", "families"} <= set(values):
        kept = [model for model in values["models"] if family(model) in (None, *values["families"])]
        if not kept:
            of, kinds = ", ".join(values["models"]), ", ".join(values["families"])
            raise NotebookError(f"no model of {of} is of the families {kinds}")
        values["models"] = kept
    return SimpleNamespace(**values)
