"""The one exception that means "the user can fix this", the command lines that end in it, and the refusals that
several places share: one sentence each, which names what was given."""

from __future__ import annotations

import argparse
import difflib
import math
import numbers
import operator
import os
import re
import reprlib
from collections.abc import Iterable
from pathlib import Path

MOST = 1 << 20  # steps, positions: far beyond any use, and nothing is yet out of memory
ADDRESS = re.compile(r"[A-Za-z][\w+.-]+:/")  # `s3://bucket`, also as a Path spells it


class UserError(ValueError):
    """A mistake in the input: one sentence that says what is wrong and what to do about it."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of a traceback."""
        return [f"jot: error: {self}"]


class Parser(argparse.ArgumentParser):
    """A command line whose complaints are one sentence, a ``UserError``."""

    def error(self, message: str):
        raise UserError(f"{message}; see `{self.prog} --help`")


def number(where: str, name: str, value, low: float = -math.inf, high: float = math.inf) -> None:
    """Refuse anything that is no finite number (or +inf where ``high`` is) in [low, high]."""
    try:
        real = not isinstance(value, bool) and isinstance(value, numbers.Real) and not math.isnan(value)
    except OverflowError as error:
        raise UserError(f"{where}: {name} is too large for a number") from error
    if not real:
        raise UserError(f"{where}: {name}={value!r} is not a number")
    if not low <= value <= high:
        bounds = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise UserError(f"{where}: {name}={value:g} must be {bounds}")


def _prefix(where: str) -> str:
    return f"{where}: " if where else ""


def whole(where: str, name: str, value, low: int = 0, high: int = MOST) -> None:
    """Refuse anything that is no whole number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise UserError(f"{_prefix(where)}{name}={reprlib.repr(value)} must be a whole number, at least {low}")
    if value > high:
        raise UserError(f"{_prefix(where)}{name} must be at most {high}")


def flag(where: str, name: str, value) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise UserError(f"{_prefix(where)}{name}={reprlib.repr(value)} must be true or false")


def one_of(name: str, value, known) -> None:
    """Refuse a value that is no name in ``known``."""
    if not isinstance(value, str) or value not in known:
        raise UserError(f"unknown {name} {value!r}: use {', '.join(known)}")


def closest(name: str, known: Iterable[str], words: str = "known") -> str:
    """The end of a sentence about an unknown name: the one that was meant, or all that there are."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; {words} are {', '.join(known)}"


def local(name: str, path: str | os.PathLike, kind: str = "folder") -> Path:
    """The path, unless it is empty or an address such as ``s3://bucket``, of which a folder would be made here."""
    if not (text := os.fspath(path)):
        raise UserError(f"{name} is empty; name a {kind}")
    if ADDRESS.match(text):
        raise UserError(f"{name} {text} is an address, and only local files are read and written; name a local {kind}")
    return Path(path)


def destination(name: str, path: str | os.PathLike, kind: str = "folder", example: str = "") -> Path:
    """A path to which a run may write its "file" or "folder"; asked before anything runs, and nothing is made.

    Raises:
        UserError: it is empty, an address or of the other kind, or the folder that would hold it is none or read-only.
    """
    found = local(name, path, kind)
    if kind == "file" and (found.is_dir() or os.fspath(path).endswith("/")):
        raise UserError(f"{name} {found} is a folder; name a file{f', as in {found / example}' if example else ''}")
    whole = found.absolute()
    at = next(p for p in (whole, *whole.parents)[kind == "file" :] if os.path.lexists(p))
    if not at.is_dir():
        raise UserError(f"{name} {found if at == whole else at} is a file; name a folder")
    if not os.access(at, os.W_OK | os.X_OK):
        raise UserError(
            f"{name} {found}{'' if at == whole else f': {at}'} is not writable; name a {kind} where you may write"
        )
    return found


def is_text(value: object) -> bool:
    """Whether it is a string that UTF-8 can hold: half of a surrogate pair it cannot."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def index(value) -> int | None:
    """``value`` as an int where it is a whole number of any kind but bool, else None."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
