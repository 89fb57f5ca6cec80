"""Parameter grids: YAML files whose entries multiply out into cells and notebook runs, checked before anything runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import reprlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import yaml

from jot import tasks
from jot.errors import ADDRESS, Kind, UserError
from jot.records import plain, take
from jot.runs import settings
from jot.runs.notebooks import locate
from jot.runs.parameters import PATHS, given, home, unformatted
from jot.runs.parameters import parameters as declared

ENTRY = ("name", "models", "tasks", "split", "method", "set", "seeds", "limit", "trace")
NOTEBOOK = ("name", "parameters")
TOP = ("about", "store", "cells", "notebooks")
MOST = 100_000  # points of a file; more is a slip, such as a list of lists


def file_key(words: Sequence[object], content: object) -> str:
    """A file name that reads well and is unique: a slug of the words and 10 hex digits of a hash of the content."""
    digest = hashlib.sha256(json.dumps(plain(content), sort_keys=True).encode()).hexdigest()[:10]
    slug = "_".join(re.sub(r"[^A-Za-z0-9._-]+", "-", str(word)).strip("-.") for word in words if word not in ("", None))
    return f"{slug[:60]}-{digest}"


@dataclass(frozen=True)
class Point:
    """One cell that a grid asks for, as ``jot.runs.harness.evaluate`` takes it."""

    model: str
    task: str
    method: str
    split: str = "test"  # or "dev", or the task's own name for a split
    settings: tuple[tuple[str, object], ...] = ()  # of the method and of the decoding loop, sorted
    seed: int = 0
    limit: int | None = None
    trace: bool = False
    store: str = ""  # subfolder of the store, "" for the store itself
    dtype: str | None = None
    allow_code_execution: bool = False
    name: str = field(default="", compare=False)  # for a notebook's `methods`; the method's own if the grid gives none

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

    @cached_property
    def key(self) -> str:
        """Names this point in file names; the record's own cell id also knows the weights and the prompts."""
        words = [Path(self.model).name, self.task, self.split, self.method, *(f"{k}-{v}" for k, v in self.settings)]
        later = ("dtype", "allow_code_execution", "name")  # of no effect on older keys; consent changes no sample
        content = [vars(self)[name] for name in self.__dataclass_fields__ if name not in later]
        return file_key([*words, self.dtype], content + [self.dtype] * bool(self.dtype))

    def command(self, store: str = "results/records") -> str:
        """The same as one `jot evaluate` line."""
        options = [("model", self.model), ("task", self.task), ("split", self.own_split), ("method", self.method)]
        options += [("store", Path(store) / self.store)]
        options += [("set", f"{name}={'none' if value is None else value}") for name, value in self.settings]
        options += [(name, value) for name in ("seed", "limit", "dtype") if (value := getattr(self, name))]
        words = [word for name, value in options for word in (f"--{name}", str(value))]
        flags = [f"--{name.replace('_', '-')}" for name in ("trace", "allow_code_execution") if getattr(self, name)]
        return shlex.join(["jot", "evaluate", *words, *flags])

    def resolved(self) -> dict[str, object] | None:
        """Method and settings that ``evaluate`` would record, those that are off left out; None for a model whose
        family is not known before it is fetched. Refuses unknown names and values out of range."""
        chosen = settings.parse(self.method, self.params)
        if (known := settings.model_class(self.model)) is None:
            return None
        return settings.in_force(*settings.resolve(known, self.method, chosen, tasks.get(self.task), self.seed))

    def check(self) -> None:
        """Refuse what `evaluate` would refuse before it loads the weights."""
        names = tasks.get(self.task).splits
        if self.split not in (*names, "test", "dev") or (self.split == "dev" and len(names) < 2):
            raise UserError(f"{self.task} has no split {self.split!r}; use {' or '.join(names)}")
        take([], self.limit)
        self.resolved()


@dataclass(frozen=True)
class NotebookPoint:
    """One run of a notebook that a grid asks for."""

    name: str  # of the notebook, or its path
    settings: tuple[tuple[str, object], ...] = ()  # the papermill parameters that differ from its own, sorted
    source: str = ""  # hash of its code and text; a changed notebook is another point

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, object]) -> NotebookPoint:
        """A point from papermill parameters, checked against the notebook's cell tagged `parameters`."""
        path = locate(name)
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in given(path, parameters).items()}
        for task in {**declared(path), **values}.get("tasks") or ():
            tasks.get(task)
        for model in values.get("models") or () if values.get("source") == "live" else ():
            settings.model_class(model)
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        source = json.dumps(["".join(cell["source"]) for cell in cells])
        return cls(name, tuple(sorted(values.items())), hashlib.sha256(source.encode()).hexdigest()[:10])

    @cached_property
    def key(self) -> str:
        """Names the executed notebook."""
        words = [Path(self.name).stem, *(f"{k}-{v}" for k, v in self.settings if k not in PATHS)]
        return file_key(words, [self.name, self.settings, self.source])

    @property
    def shown(self) -> str:
        """The parameters in one line."""
        return " ".join(f"{name}={_text(value)}" for name, value in self.settings)

    def reads(self, store: str | os.PathLike) -> list[Path]:
        """The manifest of the record set that the run shows, where there is one; a newer one asks for another run."""
        folder = Path(self.params(store).get("store") or home() / "data" / "records")
        return [path for path in (folder / "manifest.json",) if path.is_file()]

    def out(self, store: str | os.PathLike) -> Path:
        """Where the executed notebook of a run into ``store`` lies."""
        return Path(store) / "notebooks" / f"{self.key}.ipynb"

    def params(self, store: str | os.PathLike) -> dict[str, object]:
        """The papermill parameters of a run into ``store``: a live notebook decodes into it unless told otherwise."""
        values, known = dict(self.settings), declared(locate(self.name))
        if {**known, **values}.get("source") == "live" and "store" in known:
            values.setdefault("store", os.fspath(store))
        if "out" in known:
            values.setdefault("out", str(self.out(store).parent / "figures" / self.key))
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def command(self, store: str = "results/records") -> str:
        """The same as one plain papermill line, for the folder from which it is printed."""
        out = self.out(store)
        words = ["papermill", *map(unformatted, (os.path.relpath(locate(self.name)), out))]
        for name, value in self.params(store).items():
            words += ["-r" if isinstance(value, (str, list)) else "-p", name, _text(value)]  # -r: text stays text
        return f"mkdir -p {shlex.quote(str(out.parent))} && {shlex.join(words)}"

    def strict(self, store: str = "results/records") -> str:
        """The same as one `jot notebook` line, whose output has its name only when every cell succeeded."""
        given = [word for name, value in self.params(store).items() for word in ("-p", name, _text(value))]
        return shlex.join(["jot", "notebook", self.name, *given, "-o", str(self.out(store))])


def _text(value: object) -> str:
    """A parameter's value as a command line takes it."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


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


def _entry(entry: object, known: Sequence[str], needed: Sequence[str], inner: str) -> Mapping:
    """An entry with known keys only; returns its mapping ``inner``."""
    if not isinstance(entry, Mapping):
        raise UserError(f"it must be a mapping of {', '.join(known)}, not {reprlib.repr(entry)}")
    if unknown := [key for key in entry if key not in known]:
        raise UserError(f"unknown key {unknown[0]!r}; known are {', '.join(known)}")
    if missing := [key for key in needed if not entry.get(key)]:
        raise UserError(f"it lacks {missing[0]!r}")
    options = entry.get(inner) or {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise UserError(f"{inner} must be a mapping of names to values, not {reprlib.repr(options)}")
    return options


def _product(named: list[list], *axes: list) -> Iterator[tuple]:
    """Every combination of names and of other values."""
    if wrong := [value for axis in named for value in axis if not isinstance(value, str)]:
        raise UserError(f"{reprlib.repr(wrong[0])} must be a name")
    if (count := math.prod(map(len, (*named, *axes)))) > MOST:
        raise UserError(f"it multiplies out to {count} points; {MOST} are the most")
    return itertools.product(*named, *axes)


def _cells(entry: object, store: str) -> Iterator[Point]:
    options = _entry(entry, ENTRY, ("models", "tasks", "method"), "set")
    limit, trace, seeds = entry.get("limit"), entry.get("trace"), _listed(entry.get("seeds", 0))
    Kind(int, 1, optional=True).check("limit", limit)
    Kind(bool, optional=True).check("trace", trace)
    for seed in seeds:
        Kind(int, 0).check("seeds", seed)
    choices = {name: _listed(values) for name, values in sorted(options.items())}
    for name, values in choices.items():
        if wrong := [v for v in values if v is not None and not isinstance(v, (str, bool, int, float))]:
            raise UserError(f"{name}: {reprlib.repr(wrong[0])} must be a number or text; lists as text, 'a,b'")
    named = [_listed(entry.get(key) or "test") for key in ("models", "tasks", "method", "split")]
    named.append([entry.get("name", "")])
    for model, task, method, split, name, seed, *values in _product(named, seeds, *choices.values()):
        chosen = tuple(zip(choices, values, strict=True))
        point = Point(model, task, method, split, chosen, seed, limit, bool(trace), store, name=name or method)
        point.check()
        yield point


def _notebooks(entry: object, store: str) -> Iterator[NotebookPoint]:
    """A list of values multiplies out; a list of names is one value as text, `a,b`, or as a list in a list."""
    options = _entry(entry, NOTEBOOK, ("name",), "parameters")
    for name, *values in _product([_listed(entry["name"])], *map(_listed, options.values())):
        yield NotebookPoint.of(name, dict(zip(options, values, strict=True)))


def parse(*paths: str | os.PathLike) -> Grid:
    """Every point of grid files in their order, each once."""
    points: dict[str, dict] = {"cells": {}, "notebooks": {}}
    for path in map(Path, paths):
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506  a safe loader
        except OSError as error:
            raise UserError(f"cannot read the grid {path} ({error.strerror}); check the path") from error
        except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{path} is no YAML ({' '.join(str(error).split())[:200]})") from error
        lists = {key: content.get(key) for key in points} if isinstance(content, Mapping) else {}
        if not any(isinstance(value, list) for value in lists.values()):
            raise UserError(f"{path} must be a mapping with a list `cells` or `notebooks`")
        if wrong := [key for key, value in lists.items() if not isinstance(value, (list, type(None)))]:
            raise UserError(f"{path}: `{wrong[0]}` must be a list")
        if unknown := [key for key in content if key not in TOP]:
            raise UserError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(TOP)}")
        store = content.get("store") or ""
        fits = store == "" or (Kind(str).fits(store) and not ADDRESS.match(store))
        if not fits or Path(store).is_absolute() or ".." in Path(store).parts:
            raise UserError(f"{path}: store={reprlib.repr(store)} must be a subfolder of the store")
        for key, word, expand in (("cells", "entry", _cells), ("notebooks", "notebook", _notebooks)):
            for number, entry in enumerate(lists[key] or (), 1):
                try:
                    points[key] |= dict.fromkeys(expand(entry, store))
                except UserError as error:
                    raise UserError(f"{path}, {word} {number}: {error}") from None
    return Grid(*map(list, points.values()))


def read(path: str | os.PathLike) -> list[Point]:
    """The cells of a grid file in its order, each once; raises as `parse` does."""
    return parse(path).cells
