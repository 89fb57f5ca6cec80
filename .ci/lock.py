"""Write environment.yml from requirements.lock; with --freeze, resolve the lock from pyproject.toml first.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
ENVIRONMENT = ROOT / "environment.yml"
HEADER = """\
# Every package of the project, pinned. All install paths read this file: the Makefile, environment.yml and
# plain pip (pip install -r requirements.lock, then pip install --no-deps -e .). `make lock` writes it anew.
"""


def pins(lock: str) -> list[str]:
    """The requirement lines of a lock, comments left out."""
    return [line for line in lock.splitlines() if line and not line.startswith("#")]


def environment(lock: str) -> str:
    """environment.yml: a thin conda part, and the lock as its pip block."""
    head = [
        "# Written by `make lock` from requirements.lock; edit that file instead. After `conda env create`:",
        "# conda activate jot && pip install --no-deps -e .",
        "name: jot",
        "channels:",
        "  - conda-forge",
        "dependencies:",
        "  - python=3.11",
        "  - pip",
        "  - pip:",
    ]
    return "\n".join([*head, *(f"      - {pin}" for pin in pins(lock))]) + "\n"


def freeze() -> str:
    """Resolve every extra of pyproject.toml but smol, which the lock leaves out, in a fresh environment, at its pins.

    To move a pin, delete its line first. Local version suffixes go, so that any platform and any build of
    torch resolves.
    """
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [group for name, group in extras["optional-dependencies"].items() if name != "smol"]
    wanted = [*extras["dependencies"], *(r for group in groups for r in group)]
    wanted = [r for r in wanted if not r.startswith("jot[")]
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        pip = [str(Path(folder) / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        constraints = ["-c", str(LOCK)] if LOCK.exists() else []
        subprocess.run([*pip, "install", "-q", *constraints, *wanted, "setuptools"], check=True)
        subprocess.run([*pip, "check"], check=True)
        frozen = subprocess.run([*pip, "freeze", "--all"], check=True, capture_output=True, text=True).stdout
    # Packages that only the CUDA build of torch brings are pinned by torch itself.
    platform = re.compile(r"(pip|nvidia-.*|cuda-.*|triton)==", re.IGNORECASE)
    lines = [re.sub(r"\+\w+$", "", line) for line in frozen.splitlines() if not platform.match(line)]
    return HEADER + "\n".join(sorted(lines, key=str.lower)) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--freeze", action="store_true", help="resolve requirements.lock anew (downloads everything)")
    parser.add_argument("--check", action="store_true", help="only say whether environment.yml is up to date")
    options = parser.parse_args()
    if options.freeze:
        LOCK.write_text(freeze())
    wanted = environment(LOCK.read_text())
    if options.check:
        if ENVIRONMENT.read_text() == wanted:
            return 0
        print("environment.yml is not what requirements.lock gives; run: make lock", file=sys.stderr)
        return 1
    ENVIRONMENT.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
