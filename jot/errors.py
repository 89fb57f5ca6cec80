"""The one exception that means "the user can fix this", the command lines that end in it, and what they and the fields
of settings may be given: one sentence for each refusal, which names what was given."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import hashlib
import math
import numbers
import operator
import os
import re
import reprlib
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
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


TYPES = {"bool": bool, "int": int, "float": float, "str": str}
FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text (not empty, in UTF-8, without NUL)",
}


@dataclass(frozen=True)
class Kind:
    """What a value may be."""

    of: type = object  # bool, int, float or str; object is anything
    low: float = -math.inf
    high: float = math.inf
    open: bool = False  # the bounds themselves are excluded
    names: Iterable[str] = ()  # the texts that there are, if not any
    optional: bool = False  # None will do
    many: bool = False  # it is a list of such values

    def fits(self, value: object) -> bool:
        if value is None or self.of is object:
            return self.optional or self.of is object
        if self.of in (int, float):
            if isinstance(value, bool) or not isinstance(value, int if self.of is int else numbers.Real):
                return False
            try:
                value = self.of(value)
            except OverflowError:  # a whole number of hundreds of digits is no float
                return False
            return self.low < value < self.high if self.open else self.low <= value <= self.high
        if self.of is str:
            return is_text(value) and (value in self.names if self.names else value != "" and "\0" not in value)
        return isinstance(value, self.of)

    def wanted(self, value: object) -> str:
        """What ``value`` must be, by the bound that it breaks."""
        if self.names:
            return f"one of {', '.join(map(repr, self.names))}{', or none' if self.optional else ''}"
        words, high = WORDS[self.of], min(self.high, sys.float_info.max)
        if isinstance(value, (int, float)) and (value >= high if self.open else value > high):
            return f"{words}, {'below' if self.open else 'at most'} {high:{'.0f' if self.of is int else 'g'}}"
        if self.low != -math.inf:
            words += f", {'above' if self.open else 'at least'} {self.low:g}"
        return words + (", or none" if self.optional else "")

    def check(self, name: str, value: object) -> None:
        """Refuse what does not fit."""
        if not self.fits(value):
            raise UserError(f"{name}={reprlib.repr(value)} must be {self.wanted(value)}")

    def read(self, name: str, value: object) -> object:
        """``value``, which may be text, as this kind has it: ``"1e2"`` as 100, ``"a, b"`` as a list."""
        text = value.strip().lower() if isinstance(value, str) else None
        if self.optional and text in ("", "none", "null"):
            return None
        if self.many and value is not None:
            items = value.strip("[]() ").replace(";", ",").split(",") if isinstance(value, str) else value
            one = replace(self, many=False, optional=False)
            items = items if isinstance(items, Iterable) else [items]
            return [one.read(name, item.strip(" '\"") if isinstance(item, str) else item) for item in items]
        if self.of is bool:
            value = FLAGS.get(text, value)
        elif self.of in (int, float):
            value = _number(value, self.of)
        elif isinstance(value, os.PathLike):
            value = os.fspath(value)
        self.check(name, value)
        return value


COUNT = Kind(int, 1, MOST)


def _number(value: object, of: type) -> object:
    """As a number of that type, where it is one: whole ones also as 64.0 and 1e2 (YAML 1.1 leaves 1e-3 text)."""
    if isinstance(value, (bool, of)):
        return value
    for read in (int, float) if isinstance(value, str) else (float,):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            found = read(value)
            return of(found) if found == of(found) else value
    return value


def setting(default: object, low: float = -math.inf, high: float = math.inf, **more: object):
    """A field of a dataclass with this default, and with bounds or names as ``Kind`` has them."""
    return field(default=default, metadata={"low": low, "high": high, **more})


@functools.cache
def kinds(settings: type) -> dict[str, Kind]:
    """The kind of each field of a dataclass, by its annotation and by ``setting``."""
    found = {}
    for each in fields(settings):
        words = {*re.findall(r"\w+", str(each.type))} - {"class"}  # `float` or "float | None" or "tuple[int, ...]"
        many, optional, of = "tuple" in words, not words.isdisjoint(("None", "tuple")), words - {"None", "tuple"}
        kind = TYPES.get(of.pop(), object) if len(of) == 1 else object  # a rule of a user's own may have others
        found[each.name] = Kind(kind, many=many, optional=optional, **each.metadata)
    return found


def check_settings(settings: object, where: str = "") -> None:
    """Refuse a dataclass that holds a value which its field does not take; lists are not looked into."""
    for name, kind in kinds(type(settings)).items():
        if not kind.many:
            kind.check(f"{where}{name}", getattr(settings, name))


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


def home() -> Path:
    """The checkout that holds ``data/``: the package's parent folder, or ``$JOT_HOME``."""
    return Path(os.environ.get("JOT_HOME") or Path(__file__).resolve().parents[1])


def cache() -> Path:
    """Where this user's machine keeps what was made once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jot"


def unxz(content: bytes) -> bytes:
    """What was compressed by xz; a ValueError says that it was not, or was cut short."""
    try:
        import lzma
    except ModuleNotFoundError as error:  # some builds of Python lack it
        raise UserError("this Python was built without lzma; build it with liblzma, or use another Python") from error
    try:
        return lzma.decompress(content)
    except lzma.LZMAError as error:
        raise ValueError(error) from error


def unpacked(file: Path) -> Path:
    """``file``, or where it is not there what the ``.xz`` beside it holds, kept in `cache` by that file's hash."""
    packed = file.with_name(f"{file.name}.xz")
    if file.exists() or not packed.exists():
        return file
    try:
        content = packed.read_bytes()
        found = cache() / f"{file.parent.name}-{hashlib.sha256(content).hexdigest()[:12]}" / file.name
        if found.is_file():
            return found
        content = unxz(content)
        found.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=found.parent) as made:  # what breaks off leaves nothing
            part = Path(made) / file.name
            part.write_bytes(content)
            os.replace(part, found)  # another process may have been first
    except OSError as error:
        what = f"cannot unpack {packed} to {cache()} ({error.strerror})"
        raise UserError(f"{what}; make room or permit it, or name another place with XDG_CACHE_HOME") from error
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{packed} is cut short or damaged ({error}); check it out again") from error
    return found


def remade(file: Path) -> str:
    """What to do about a damaged file: those that are made here are made again where they are gone."""
    made = file.is_relative_to(cache()) or file.with_name(f"{file.name}.xz").exists()
    return "delete it, and it is made again" if made else "fetch it again"


def destination(name: str, path: str | os.PathLike, kind: str = "folder", example: str = "") -> Path:
    """A path to which a run may write its "file" or "folder"; asked before anything runs, and nothing is made."""
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
