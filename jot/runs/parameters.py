"""The one parameter vocabulary of the notebooks, and the checks that make papermill strict about it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from jot.errors import UserError, is_text
from jot.models import home
from jot.runs.frames import family


class NotebookError(UserError):
    """A user's mistake inside a notebook: shown as its one sentence, without a traceback."""


def sound(text: str) -> bool:
    """Whether text can name a file: no NUL, and nothing that UTF-8 cannot hold."""
    return "\0" not in text and is_text(text)


# --- kinds of values ----------------------------------------------------------------------------------------


def _names(value: Any) -> Any:
    """A list of names from a list, or from text with commas, as papermill's ``-p`` hands it over."""
    items = value.strip("[]() ").split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise ValueError("must be a list or comma-separated names")
    items = [str(item).strip(" '\"") for item in items]
    if not items or not all(items):
        raise ValueError("holds an empty name")
    return items


def _number(value: Any, words: str = "is not a number") -> Any:
    """YAML 1.1 reads ``1e-3`` as text; True is no number."""
    try:
        if isinstance(value, bool) or (number := float(value)) != number:
            raise ValueError(words)
        return number
    except (TypeError, ValueError, OverflowError):
        raise ValueError(words) from None


def _whole(value: Any) -> Any:
    number = _number(value, "is not a whole number")
    if number in (float("inf"), -float("inf")) or number != int(number):
        raise ValueError("is not a whole number")
    return int(number)


def _flag(value: Any) -> Any:
    words = {"true": True, "false": False}
    value = words.get(value.lower(), value) if isinstance(value, str) else value
    if not isinstance(value, bool):
        raise ValueError("must be True or False")
    return value


def _text(value: Any) -> Any:
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("must be text")
    if not sound(os.fspath(value)):
        raise ValueError("holds a character that no text may")
    return os.fspath(value)


Text = Annotated[str, BeforeValidator(_text)]
Number = Annotated[float, BeforeValidator(_number)]
Whole = Annotated[int, BeforeValidator(_whole)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Names = Annotated[list[Text], BeforeValidator(_names)]
KINDS = {bool: Flag, int: Whole, float: Number, str: Text, list: Names, tuple: Names}


class Parameter(NamedTuple):
    """Type, meaning, whether None will do, and whether it is a path."""

    kind: Any
    meaning: str
    optional: bool = False
    path: bool = False


Family = Literal["dream", "llada"]
VOCABULARY = {
    "source": Parameter(Literal["recorded", "live"], "recorded rows, or decode live on this machine"),
    "store": Parameter(Text, "record folder; default data/records, or results/store when live", True, True),
    "models": Parameter(Names, "models to show: packaged names, local folders or hub ids"),
    "families": Parameter(Annotated[list[Family], BeforeValidator(_names)], "model families to keep"),
    "tasks": Parameter(Names, "tasks to show"),
    "methods": Parameter(Names, "decoding methods to show"),
    "limit": Parameter(
        Annotated[Whole, Field(ge=1)], "first n documents of each task's fixed order; None for all", True
    ),
    "seed": Parameter(Annotated[Whole, Field(ge=0)], "seed of the decoding draws"),
    "device": Parameter(Text, "torch device of live runs; None picks one", True),
    "dtype": Parameter(Literal["float32", "bfloat16", "float16"], "weights' dtype of live runs"),
    "data": Parameter(Text, "folder with the benchmarks' data; None reads the packaged tasks or the hub", True, True),
    "out": Parameter(Text, "folder for the figures; default results/figures", True, True),
    "model": Parameter(Text, "the model to show: a packaged name, a local folder or a hub id"),
}


def coerce(name: str, value: Any, spec: Parameter) -> Any:
    """``value`` as ``spec`` asks for it, or NotebookError in one sentence."""
    if value is None or (spec.optional and isinstance(value, str) and value.lower() in ("none", "null", "")):
        if spec.optional:
            return None
        raise NotebookError(f"parameter {name} cannot be empty: give {spec.meaning}")
    try:
        return TypeAdapter(spec.kind).validate_python(value)
    except ValidationError as caught:
        error = caught.errors()[0]
    if error["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        raise NotebookError(f"parameter {name}: unknown value {error['input']!r}{closest(str(error['input']), known)}")
    if error["type"] == "greater_than_equal":
        raise NotebookError(f"parameter {name}={error['input']} must be at least {error['ctx']['ge']}")
    said = error["msg"].removeprefix("Value error, ")
    after = {"must be text": f": {spec.meaning}", "holds an empty name": f": give {spec.meaning}"}.get(said, "")
    raise NotebookError(f"parameter {name}={value!r} {said}{after}")


def closest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def spec_of(name: str, default: Any) -> Parameter:
    """The vocabulary's entry, or one for a notebook's own parameter: from its default, or from a type in its place."""
    if name in VOCABULARY:
        return VOCABULARY[name]
    if isinstance(default, type):
        return Parameter(KINDS[default], f"of type {default.__name__}")
    return Parameter(KINDS.get(type(default), Text), f"like {default!r}", optional=default is None)


# --- notebooks ----------------------------------------------------------------------------------------------


def parameters(path: str | Path) -> dict[str, Any]:
    """Names and default values of the cell tagged ``parameters``, as papermill reads them."""
    import nbformat
    import papermill

    tagged = [c for c in nbformat.read(path, 4).cells if "parameters" in c.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise UserError(f"{Path(path).name} has {len(tagged)} cells tagged 'parameters'; it needs exactly one")
    logging.getLogger("papermill.translators").setLevel(logging.ERROR)
    return {name: _literal(found["default"]) for name, found in papermill.inspect_notebook(str(path)).items()}


def _literal(text: str) -> Any:
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return None


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
    values = {name: coerce(name, scope[name], spec_of(name, own.get(name))) for name in declared}
    for name in ("store", "data", "out"):
        if values.get(name) is not None:
            values[name] = Path(os.path.expanduser(values[name])).resolve()
    if "out" in values and values["out"] is None:
        values["out"] = home() / "results" / "figures"
    if {"models", "families"} <= set(values):
        kept = [model for model in values["models"] if family(model) in (None, *values["families"])]
        if not kept:
            of, kinds = ", ".join(values["models"]), ", ".join(values["families"])
            raise NotebookError(f"no model of {of} is of the families {kinds}")
        values["models"] = kept
    return SimpleNamespace(**values)
