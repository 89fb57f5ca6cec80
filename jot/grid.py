"""Parameter grids: YAML files whose entries multiply out into cells, checked before anything is decoded."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from jot import settings, tasks
from jot.errors import UserError
from jot.records import take

ENTRY = ("models", "tasks", "split", "method", "set", "seeds", "limit", "trace")
TOP = ("about", "store", "cells")


@dataclass(frozen=True)
class Point:
    """One cell that a grid asks for, as ``jot.harness.evaluate`` takes it.

    Attributes:
        split: "test" or "dev", or the task's own name for a split.
        settings: of the method and of the decoding loop, as sorted (name, value) pairs.
        store: subfolder of the store, "" for the store itself.
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

    @classmethod
    def of(cls, model: str, task: str, method: str, split: str = "test", seed: int = 0, **settings: object) -> Point:
        """A point from keyword settings."""
        return cls(model, task, method, split, tuple(sorted(settings.items())), seed)

    @property
    def params(self) -> dict[str, object]:
        """The settings, as ``evaluate`` takes them."""
        return dict(self.settings)

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

    def command(self, store: str = "results/records") -> str:
        """The same as one `jot evaluate` line."""
        words = ["jot", "evaluate", "--model", self.model, "--task", self.task, "--split", self.own_split]
        words += ["--method", self.method, "--store", str(Path(store) / self.store)]
        for name, value in self.settings:
            words += ["--set", f"{name}={'none' if value is None else value}"]
        words += ["--seed", str(self.seed)] if self.seed else []
        words += ["--limit", str(self.limit)] if self.limit else []
        words += ["--trace"] if self.trace else []
        return shlex.join(words)

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


def _listed(value: object) -> list:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _expand(entry: Mapping, where: str, store: str) -> Iterator[Point]:
    if not isinstance(entry, Mapping):
        raise UserError(f"{where} must be a mapping of {', '.join(ENTRY)}, not {entry!r}")
    if unknown := [key for key in entry if key not in ENTRY]:
        raise UserError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(ENTRY)}")
    if missing := [key for key in ("models", "tasks", "method") if not entry.get(key)]:
        raise UserError(f"{where} lacks {missing[0]!r}")
    options = entry.get("set") or {}
    if not isinstance(options, Mapping):
        raise UserError(f"{where}: set must be a mapping of settings to values, not {options!r}")
    for key, kind, words in (("limit", int, "a whole number"), ("trace", bool, "true or false")):
        value = entry.get(key)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise UserError(f"{where}: {key}={value!r} must be {words}")
    seeds = _listed(entry.get("seeds", 0))
    if wrong := [seed for seed in seeds if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0]:
        raise UserError(f"{where}: seeds: {wrong[0]!r} must be a whole number, at least 0")
    names = sorted(options)
    choices = [_listed(options[name]) for name in names]
    axes = [_listed(entry[key]) for key in ("models", "tasks", "method")]
    for model, task, method, split, seed, *values in itertools.product(
        *axes, _listed(entry.get("split", "test")), seeds, *choices
    ):
        yield Point(
            str(model), str(task), str(method), str(split), tuple(zip(names, values, strict=True)), seed,
            entry.get("limit"), bool(entry.get("trace")), store,
        )  # fmt: skip


def read(path: str | os.PathLike) -> list[Point]:
    """Every cell of a grid file in its order, each once.

    Raises:
        UserError: no such file, no YAML, an unknown key or an impossible value; nothing has been decoded then.
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the grid {path} ({error.strerror}); check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, Mapping) or not isinstance(content.get("cells"), list):
        raise UserError(f"{path} must be a mapping with a list `cells`")
    if unknown := [key for key in content if key not in TOP]:
        raise UserError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(TOP)}")
    store = str(content.get("store") or "")
    if Path(store).is_absolute() or ".." in Path(store).parts:
        raise UserError(f"{path}: store={store!r} must be a subfolder of the store")
    points = []
    for number, entry in enumerate(content["cells"], 1):
        for point in _expand(entry, f"{path}, entry {number}", store):
            try:
                point.check()
            except UserError as error:
                raise UserError(f"{path}, entry {number}: {error}") from None
            points.append(point)
    return list(dict.fromkeys(points))


def read_all(paths: Sequence[str | os.PathLike]) -> list[Point]:
    """The cells of several grids, each once, in the order of the files."""
    return list(dict.fromkeys(point for path in paths for point in read(path)))
