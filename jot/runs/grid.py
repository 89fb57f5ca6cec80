"""Parameter grids: YAML files whose entries multiply out into cells and notebook runs, checked before anything runs."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import reprlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import yaml

from jot import tasks
from jot.errors import UserError
from jot.records import on, plain, take
from jot.runs import settings
from jot.runs.parameters import sound
from jot.runs.points import NotebookPoint, file_key

ENTRY = ("name", "models", "tasks", "split", "method", "set", "seeds", "limit", "trace")
NOTEBOOK = ("name", "parameters")
TOP = ("about", "store", "cells", "notebooks")
MOST = 100_000  # points of a file; more is a slip, such as a list of lists


@dataclass(frozen=True)
class Point:
    """One cell that a grid asks for, as ``jot.runs.harness.evaluate`` takes it.

    Attributes:
        split: "test" or "dev", or the task's own name for a split.
        settings: of the method and of the decoding loop, as sorted (name, value) pairs.
        store: subfolder of the store, "" for the store itself.
        dtype: of the weights; None is the model's default, as of ``jot.load``.
        allow_code_execution: consent to run code that a full-size model writes.
        name: under which a notebook's ``methods`` asks for it; the method's own where the grid gives none.
    """

    model: str
    task: str
    method: str
    split: str = "test"
    settings: tuple[tuple[str, object], ...] = ()
    seed: int = 0
    limit: int | None = None
    trace: bool = False
    store: str = ""
    dtype: str | None = None
    allow_code_execution: bool = False
    name: str = field(default="", compare=False)

    @classmethod
    def of(cls, model: str, task: str, method: str, split: str = "test", seed: int = 0, **settings: object) -> Point:
        """A point from keyword settings."""
        return cls(model, task, method, split, tuple(sorted(settings.items())), seed)

    @property
    def params(self) -> dict[str, object]:
        """The settings, as ``evaluate`` takes them."""
        return dict(self.settings)

    @property
    def shown(self) -> str:
        """The settings in one line."""
        dtype = [("dtype", self.dtype)] if self.dtype else []
        return " ".join(f"{key}={value}" for key, value in (*self.settings, *dtype))

    @property
    def own_split(self) -> str:
        """The task's name for the split: "test" stands for its first, "dev" for its second."""
        names = tasks.get(self.task).splits
        return self.split if self.split in names else names[("test", "dev").index(self.split)]

    @property
    def cost(self) -> float:
        """Forwards times documents, roughly: for the order of work alone."""
        task = tasks.get(self.task)
        documents = self.limit or 1000
        return documents * task.length * (1.0 if self.method == "full" else 0.4)

    @cached_property
    def key(self) -> str:
        """Names this point in file names; the record's own cell id also knows the weights and the prompts."""
        words = [Path(self.model).name, self.task, self.split, self.method, *(f"{k}-{v}" for k, v in self.settings)]
        later = ("dtype", "allow_code_execution", "name")  # of no effect on older keys; consent changes no sample
        content = [vars(self)[name] for name in self.__dataclass_fields__ if name not in later]
        return file_key([*words, self.dtype], content + [self.dtype] * bool(self.dtype))

    def command(self, store: str = "results/records") -> str:
        """The same as one `jot evaluate` line."""
        words = ["jot", "evaluate", "--model", self.model, "--task", self.task, "--split", self.own_split]
        words += ["--method", self.method, "--store", str(Path(store) / self.store)]
        for name, value in self.settings:
            words += ["--set", f"{name}={'none' if value is None else value}"]
        words += ["--seed", str(self.seed)] if self.seed else []
        words += ["--limit", str(self.limit)] if self.limit else []
        words += ["--dtype", self.dtype] if self.dtype else []
        words += ["--trace"] if self.trace else []
        words += ["--allow-code-execution"] if self.allow_code_execution else []
        return shlex.join(words)

    def resolved(self) -> tuple[dict, dict]:
        """Method and decoding parameters that ``evaluate`` would record, those that are off left out.

        Raises:
            UserError: an unknown method or setting, or a model whose family cannot be told yet.
        """
        chosen = settings.parse(self.method, self.params)
        known = settings.model_class(self.model)
        if known is None:
            raise UserError(f"the family of {self.model} is not known before it is fetched")
        rule = settings.build_method(self.method, known.family, chosen)
        decode = dataclasses.asdict(
            settings.build_decode(known, chosen, tasks.TASKS.get(self.task), method=self.method)
        )
        decode.pop("seed")
        return on(plain(settings.describe(rule))), on(plain(decode))

    def check(self) -> None:
        """Refuse what `evaluate` would refuse before it loads the weights.

        Raises:
            UserError: an unknown model, task, split, method or setting, or a value out of range.
        """
        task = tasks.get(self.task)
        if self.split not in (*task.splits, "test", "dev") or (self.split == "dev" and len(task.splits) < 2):
            raise UserError(f"{self.task} has no split {self.split!r}; use {' or '.join(task.splits)}")
        chosen = settings.parse(self.method, dict(self.settings))
        take([], self.limit)
        known = settings.model_class(self.model)
        if known is not None:
            settings.build_method(self.method, known.family, chosen)
            settings.build_decode(known, chosen, task, self.seed, self.method)


@dataclass(frozen=True)
class Grid:
    """What grid files ask for: cells first, then runs of notebooks."""

    cells: list[Point]
    notebooks: list[NotebookPoint]


# ---------------------------------------------------------------- reading


class _Loader(yaml.SafeLoader):
    """YAML without repeated keys, the second of which would silently win."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:str" and (key.value in seen or seen.add(key.value)):
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} twice", key.start_mark)
        return super().construct_mapping(node, deep)


def _listed(value: object) -> list:
    return list(value) if isinstance(value, list) else [value]


def _entry(entry: object, where: str, known: Sequence[str], needed: Sequence[str], inner: str) -> Mapping:
    """An entry with known keys only; returns its mapping ``inner``."""
    if not isinstance(entry, Mapping):
        raise UserError(f"{where} must be a mapping of {', '.join(known)}, not {reprlib.repr(entry)}")
    if unknown := [key for key in entry if key not in known]:
        raise UserError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(known)}")
    if missing := [key for key in needed if not entry.get(key)]:
        raise UserError(f"{where} lacks {missing[0]!r}")
    options = entry.get(inner) or {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise UserError(f"{where}: {inner} must be a mapping of names to values, not {reprlib.repr(options)}")
    return options


def _product(where: str, *axes: list) -> Iterator[tuple]:
    if (count := math.prod(map(len, axes))) > MOST:
        raise UserError(f"{where} multiplies out to {count} points; {MOST} are the most")
    return itertools.product(*axes)


def _cells(entry: object, where: str, store: str) -> Iterator[Point]:
    options = _entry(entry, where, ENTRY, ("models", "tasks", "method"), "set")
    for key, kind, words in (("limit", int, "a whole number"), ("trace", bool, "true or false")):
        value = entry.get(key)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise UserError(f"{where}: {key}={reprlib.repr(value)} must be {words}")
    if not isinstance(entry.get("name", ""), str):
        raise UserError(f"{where}: name={reprlib.repr(entry['name'])} must be a name")
    seeds = _listed(entry.get("seeds", 0))
    if wrong := [seed for seed in seeds if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0]:
        raise UserError(f"{where}: seeds: {reprlib.repr(wrong[0])} must be a whole number, at least 0")
    names = sorted(options)
    choices = [_listed(options[name]) for name in names]
    for name, values in zip(names, choices, strict=True):
        if wrong := [v for v in values if v is not None and not isinstance(v, (str, bool, int, float))]:
            raise UserError(f"{where}: {name}: {reprlib.repr(wrong[0])} must be a number or text; lists as text, 'a,b'")
    axes = [_listed(entry.get(key) or "test") for key in ("models", "tasks", "method", "split")]
    if wrong := [value for axis in axes for value in axis if not isinstance(value, str)]:
        raise UserError(f"{where}: {reprlib.repr(wrong[0])} must be a name")
    for model, task, method, split, seed, *values in _product(where, *axes, seeds, *choices):
        chosen = tuple(zip(names, values, strict=True))
        yield Point(
            model, task, method, split, chosen, seed, entry.get("limit"), bool(entry.get("trace")), store,
            name=entry.get("name") or method,
        )  # fmt: skip


def _notebooks(entry: object, where: str) -> Iterator[NotebookPoint]:
    """A list of values multiplies out; a list of names is one value as text, `a,b`, or as a list in a list."""
    options = _entry(entry, where, NOTEBOOK, ("name",), "parameters")
    names = _listed(entry["name"])
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise UserError(f"{where}: name={reprlib.repr(wrong[0])} must be a notebook's name")
    for name, *values in _product(where, names, *map(_listed, options.values())):
        yield NotebookPoint.of(name, dict(zip(options, values, strict=True)))


def parse(path: str | os.PathLike) -> Grid:
    """Every point of a grid file in its order, each once.

    Raises:
        UserError: no such file, no YAML, an unknown key or an impossible value; nothing has run then.
    """
    path = Path(path)
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506  a safe loader
    except OSError as error:
        raise UserError(f"cannot read the grid {path} ({error.strerror}); check the path") from error
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is no YAML ({' '.join(str(error).split())[:200]})") from error
    lists = {key: content.get(key) for key in ("cells", "notebooks")} if isinstance(content, Mapping) else {}
    if not any(isinstance(value, list) for value in lists.values()):
        raise UserError(f"{path} must be a mapping with a list `cells` or `notebooks`")
    if wrong := [key for key, value in lists.items() if not isinstance(value, (list, type(None)))]:
        raise UserError(f"{path}: `{wrong[0]}` must be a list")
    if unknown := [key for key in content if key not in TOP]:
        raise UserError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(TOP)}")
    store = content.get("store") or ""
    if not isinstance(store, str) or not sound(store) or Path(store).is_absolute() or ".." in Path(store).parts:
        raise UserError(f"{path}: store={reprlib.repr(store)} must be a subfolder of the store")
    cells: dict[Point, None] = {}
    runs: dict[NotebookPoint, None] = {}
    for number, entry in enumerate(lists["cells"] or (), 1):
        where = f"{path}, entry {number}"
        for point in _cells(entry, where, store):
            try:
                point.check()
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
            cells[point] = None
    for number, entry in enumerate(lists["notebooks"] or (), 1):
        where = f"{path}, notebook {number}"
        try:
            runs.update(dict.fromkeys(_notebooks(entry, where)))
        except UserError as error:
            raise UserError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
    return Grid(list(cells), list(runs))


def parse_all(paths: Sequence[str | os.PathLike]) -> Grid:
    """The points of several grids, each once, in the order of the files."""
    grids = [parse(path) for path in paths]
    return Grid(
        list(dict.fromkeys(point for grid in grids for point in grid.cells)),
        list(dict.fromkeys(point for grid in grids for point in grid.notebooks)),
    )


def read(path: str | os.PathLike) -> list[Point]:
    """The cells of a grid file in its order, each once; raises as `parse` does."""
    return parse(path).cells
