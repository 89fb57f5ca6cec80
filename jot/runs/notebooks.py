"""Notebook tooling: one parameter vocabulary, a strict papermill run, and stripping for commits.

Papermill alone accepts a misspelt parameter with a log line and leaves a half-written file that looks done.
``run`` refuses the first before a kernel starts and names the output only when the run succeeded; under plain
papermill the first code cell after Parameters calls ``check``, which refuses the same in one sentence.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from unittest.mock import patch

from jot.errors import Parser, UserError, closest, destination
from jot.records.store import replace
from jot.runs.parameters import NotebookError, check, given, home, parameters, resolved, unformatted

__all__ = ["NotebookError", "check", "closest"]  # for the notebooks


# --- running ------------------------------------------------------------------------------------------------


def names() -> list[str]:
    """The notebooks there are, in order."""
    folder = home() / "notebooks"
    found = sorted(p.stem for p in folder.glob("*.ipynb") if not p.stem.startswith("."))
    if not found:
        raise UserError(f"there are no notebooks in {folder}; set JOT_HOME to the checkout")
    return found


def locate(name: str) -> Path:
    """The file of a notebook by its name, with or without the extension, or by its path."""
    path = home() / "notebooks" / f"{Path(name).stem}.ipynb"
    if Path(name).suffix == ".ipynb" and Path(name).is_file():
        return Path(name).resolve()
    if not path.is_file():
        raise UserError(f"unknown notebook {name!r}{closest(name, names())}")
    return path


@contextlib.contextmanager
def _kernel_environment() -> Iterator[None]:
    """Kernels of this interpreter that can import this package, quiet, without a user's startup files."""
    with tempfile.TemporaryDirectory() as profile:
        config = Path(profile) / "profile_default" / "ipython_kernel_config.py"
        config.parent.mkdir()
        # A kernel logs as an error the interrupt with which it is shut down; what fails in a cell comes as a message.
        config.write_text("c.IPKernelApp.log_level = 50\nc.HistoryManager.enabled = False\n")
        package = str(Path(__file__).resolve().parents[2])
        new = {
            "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
            "IPYTHONDIR": profile,
            "JUPYTER_PREFER_ENV_PATH": "1",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm falls back to text without ipywidgets
        }
        with patch.dict(os.environ, new):
            yield


def run(
    name: str, params: Mapping[str, Any] | None = None, out: str | Path | None = None, progress: bool = False
) -> Path:
    """Execute a notebook with parameters, strictly.

    Args:
        params: parameter values; lists may be comma-separated text, paths are relative to the current folder.
        out: file to write, ``results/notebooks/<name>.ipynb`` by default. It appears only when every cell succeeded; a
            failed run is kept beside it as ``<name>.failed.ipynb``.
        progress: show a bar over the cells and what they print.
    """
    path = locate(name)
    values = resolved(given(path, params or {}))
    out = home() / "results" / "notebooks" / path.name if out is None else out
    out = destination("--out", out, "file", path.name).resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.stem}.{os.getpid()}.ipynb")
    failed = out.with_name(f"{out.stem}.failed.ipynb")

    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    how = {"stdout_file": sys.stdout, "stderr_file": sys.stderr} if progress else {}
    how["parameters"] = {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}
    how |= {"kernel_name": "python3", "progress_bar": progress}
    try:
        with _kernel_environment():
            papermill.execute_notebook(unformatted(path), unformatted(partial), **how)
        os.replace(partial, out)
        failed.unlink(missing_ok=True)
    except (PapermillExecutionError, DeadKernelError) as error:
        os.replace(partial, failed)
        if getattr(error, "ename", "") in ("UserError", "NotebookError"):
            raise UserError(f"{path.stem}: {error.evalue}") from None
        told = (
            f"{path.stem}: its kernel was killed, most often because memory ran out; free some, or show fewer models, "
            "tasks or documents (limit)"
            if isinstance(error, DeadKernelError)
            else f"{path.stem} failed in cell {error.exec_count} ({error.ename}: {error.evalue})"
        )
        raise UserError(f"{told}; the run up to there is in {failed}") from None
    finally:
        partial.unlink(missing_ok=True)
    return out


def execute_all(source: str, out_dir: Path) -> Iterator[tuple[str, Path, float]]:
    """Run all notebooks, two at a time; yields name, written file and seconds as each ends."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_execute, name, source, out_dir) for name in names()]):
            yield done.result()


def _execute(name: str, source: str, folder: Path, figures: Path | None = None) -> tuple[str, Path, float]:
    begun = time.perf_counter()
    declared = parameters(locate(name))
    wanted = {"source": source, "out": figures or folder / "figures"}
    path = run(name, {k: v for k, v in wanted.items() if k in declared}, folder / f"{Path(name).stem}.ipynb")
    return Path(name).stem, path, time.perf_counter() - begun


# --- committing ---------------------------------------------------------------------------------------------


def stripped(notebook: dict) -> dict:
    """A notebook without execution times, papermill's and widgets' marks and injected cells; outputs stay."""
    import nbformat

    cells = nbformat.from_dict(notebook).cells
    cells = [cell for cell in cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    for count, cell in enumerate((cell for cell in cells if cell.cell_type == "code"), 1):
        cell.execution_count = count if cell.outputs or cell.execution_count else None
        for output in cell.outputs:
            output.pop("transient", None)
            if "execution_count" in output:
                output.execution_count = cell.execution_count
            if "data" in output:
                output.data = {kind: data for kind, data in output.data.items() if "widget" not in kind}
                output.metadata = {kind: v for kind, v in output.metadata.items() if kind in output.data}
    for cell in cells:
        tags = [tag for tag in cell.metadata.get("tags", []) if not tag.startswith("papermill")]
        cell.metadata = {"tags": tags} if tags else {}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.loads(nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=metadata)))


def _write(path: Path, notebook: dict) -> None:
    replace(path, json.dumps(stripped(notebook), indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def refresh(name: str, figures: str | Path) -> Path:
    """Re-execute a committed notebook from the records and rewrite its outputs; its source stays as it is."""
    path = locate(name)
    folder = Path(tempfile.mkdtemp())  # stays where the run fails, whose sentence names it
    _, done, _ = _execute(str(path), "recorded", folder, Path(figures))
    _write(path, json.loads(done.read_text(encoding="utf-8")))
    shutil.rmtree(folder)
    return path


def command(arguments: Sequence[str] | None = None) -> int:
    """``jot notebook NAME -p key value ...``. Returns the exit code."""
    parser = Parser(prog="jot notebook", description="Execute a notebook with parameters.")
    parser.add_argument("name", help="one of notebooks/, or a path")
    parser.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("KEY", "VALUE"))
    parser.add_argument("-o", "--out", help="file to write (default results/notebooks/NAME.ipynb)")
    options = parser.parse_args(arguments)
    print(run(options.name, dict(options.parameter), options.out, progress=True))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """``strip FILE ...``, the commit hook. Returns 1 where a file changed."""
    parser = Parser(prog="jot.runs.notebooks", description="Strip notebooks in place for a commit.")
    parser.add_argument("command", choices=["strip"])
    parser.add_argument("files", nargs="*")
    changed = False
    for path in map(Path, parser.parse_args(arguments).files):
        before = path.read_text(encoding="utf-8")
        _write(path, json.loads(before))
        if path.read_text(encoding="utf-8") != before:
            changed = True
            print(f"stripped {path}")
    return int(changed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as mistake:
        sys.exit(f"jot: error: {mistake}")
