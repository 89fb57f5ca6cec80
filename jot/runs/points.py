"""One run of a notebook as a grid asks for it: its parameters, the file that it makes, the line that runs it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jot import tasks
from jot.errors import UserError
from jot.records import plain
from jot.runs import settings
from jot.runs.notebooks import locate
from jot.runs.parameters import NotebookError, closest, coerce, home, spec_of
from jot.runs.parameters import parameters as declared_parameters


def file_key(words: Sequence[object], content: object) -> str:
    """A file name that reads well and is unique: a slug of the words and 10 hex digits of a hash of the content."""
    digest = hashlib.sha256(json.dumps(plain(content), sort_keys=True).encode()).hexdigest()[:10]
    slug = "_".join(re.sub(r"[^A-Za-z0-9._-]+", "-", str(word)).strip("-.") for word in words if word not in ("", None))
    return f"{slug[:60]}-{digest}"


@dataclass(frozen=True)
class NotebookPoint:
    """One run of a notebook that a grid asks for.

    Attributes:
        name: of the notebook, or its path.
        settings: the papermill parameters that differ from the notebook's own, as sorted (name, value) pairs.
        source: hash of the notebook's code and text; a changed notebook is another point.
    """

    name: str
    settings: tuple[tuple[str, object], ...] = ()
    source: str = ""

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, object]) -> NotebookPoint:
        """A point from papermill parameters, checked against the notebook's cell tagged `parameters`.

        Raises:
            UserError: an unknown notebook, parameter or value.
        """
        path = locate(name)
        declared, values = declared_parameters(path), {}
        for key, value in parameters.items():
            if key not in declared:
                raise UserError(f"{path.stem}: unknown parameter {key!r}{closest(str(key), declared)}")
            try:
                value = coerce(key, value, spec_of(key, declared[key]))
            except NotebookError as error:
                raise UserError(f"{path.stem}: {error}") from None
            values[key] = tuple(value) if isinstance(value, list) else value
        for task in {**declared, **values}.get("tasks") or ():
            tasks.get(task)
        for model in values.get("models") or () if values.get("source") == "live" else ():
            settings.model_class(model)
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        source = json.dumps(["".join(cell["source"]) for cell in cells])
        return cls(name, tuple(sorted(values.items())), hashlib.sha256(source.encode()).hexdigest()[:10])

    @cached_property
    def key(self) -> str:
        """Names the executed notebook."""
        words = [Path(self.name).stem, *(f"{k}-{v}" for k, v in self.settings if k not in ("store", "data", "out"))]
        return file_key(words, [self.name, self.settings, self.source])

    @property
    def shown(self) -> str:
        """The parameters in one line."""
        return " ".join(f"{k}={','.join(v) if isinstance(v, tuple) else v}" for k, v in self.settings)

    def reads(self, store: str | os.PathLike) -> list[Path]:
        """The manifest of the record set that the run shows, where there is one; a newer one asks for another run."""
        folder = Path(self.params(store).get("store") or home() / "data" / "records")
        return [path for path in (folder / "manifest.json",) if path.is_file()]

    def out(self, store: str | os.PathLike) -> Path:
        """Where the executed notebook of a run into ``store`` lies."""
        return Path(store) / "notebooks" / f"{self.key}.ipynb"

    def params(self, store: str | os.PathLike) -> dict[str, object]:
        """The papermill parameters of a run into ``store``: a live notebook decodes into it unless told otherwise."""
        values, declared = dict(self.settings), declared_parameters(locate(self.name))
        if {**declared, **values}.get("source") == "live" and "store" in declared:
            values.setdefault("store", os.fspath(store))
        if "out" in declared:
            values.setdefault("out", str(self.out(store).parent / "figures" / self.key))
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def command(self, store: str = "results/records") -> str:
        """The same as one plain papermill line, for the folder from which it is printed."""
        out = self.out(store)
        words = ["papermill", os.path.relpath(locate(self.name)), str(out)]
        for name, value in self.params(store).items():
            text = ",".join(value) if isinstance(value, list) else str(value)
            words += ["-r" if isinstance(value, (str, list)) else "-p", name, text]  # -r: text stays text
        return f"mkdir -p {shlex.quote(str(out.parent))} && {shlex.join(words)}"

    def strict(self, store: str = "results/records") -> str:
        """The same as one `jot notebook` line, whose output has its name only when every cell succeeded."""
        words = ["jot", "notebook", self.name]
        for name, value in self.params(store).items():
            words += ["-p", name, ",".join(value) if isinstance(value, list) else str(value)]
        return shlex.join([*words, "-o", str(self.out(store))])
