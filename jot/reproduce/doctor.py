"""``jot check``: is this machine ready, and what to do about each thing that is not right.

Runs as `python jot/reproduce/doctor.py` too, where nothing is installed yet.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SECONDS = 10.0  # of decoding
CORE = ("torch", "transformers", "safetensors", "tokenizers", "numpy", "huggingface_hub")
EVALUATION = (
    "lm-eval", "datasets", "pandas", "pyarrow", "papermill", "nbconvert", "matplotlib", "scipy", "statsmodels",
)  # fmt: skip
SETUP = "run `make setup` in the checkout, then use .venv/bin/jot"
MEMORY, DISK = 2.0, 1.0  # GiB
MODELS = ("pocket-llada", "pocket-dream")


class Result(NamedTuple):
    """One thing that was looked at.

    Attributes:
        ok: True, False, or None for what is only worth knowing.
        advice: what to do where it is not right.
    """

    name: str
    ok: bool | None
    found: str
    advice: str = ""


def root() -> Path:
    """The checkout, as ``jot.models.home`` finds it, without importing torch."""
    return Path(os.environ.get("JOT_HOME") or Path(__file__).resolve().parents[2])


def pins() -> dict[str, str]:
    """Versions in requirements.lock, by name; empty without the file."""
    try:
        lines = (root() / "requirements.lock").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return dict(line.split("==", 1) for line in lines if "==" in line and not line.startswith("#"))


def python() -> Iterator[Result]:
    found = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    fits = (3, 11) <= sys.version_info[:2] <= (3, 12)
    yield Result("Python", fits, found, "install Python 3.11 or 3.12 and run make setup PYTHON=/path/to/python")


def packages() -> Iterator[Result]:
    locked, missing, other = pins(), [], []
    for name in (*CORE, *EVALUATION):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if name == "torch":
            yield Result("torch", True, version)
        if locked.get(name) not in (None, version.partition("+")[0]):
            other.append(f"{name} {version} (locked: {locked[name]})")
    if missing:
        note = "; decoding works without" if set(CORE).isdisjoint(missing) else ""
        yield Result("packages", False, f"missing: {', '.join(missing)}{note}", SETUP)
    elif other:
        yield Result("packages", None, f"other versions than requirements.lock: {', '.join(other)}", SETUP)
    else:
        yield Result("packages", True, "all there" + (", as in requirements.lock" if locked else ""))


def device() -> Iterator[Result]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not torch.cuda.is_available():
        built = "this build of torch has no CUDA" if torch.version.cuda is None else "torch sees no CUDA device"
        advice = "fine for the pocket models; a GPU needs its driver (nvidia-smi) and a CUDA build of torch"
        yield Result("device", None, f"CPU, {cores} cores ({built})", advice)
        return
    for i in range(torch.cuda.device_count()):
        try:
            free, total = (n / 2**30 for n in torch.cuda.mem_get_info(i))
            works = float(torch.ones(8, device=f"cuda:{i}").sum()) == 8.0
        except RuntimeError as error:
            yield Result(f"GPU {i}", False, str(error).split("\n")[0][:120], "free the card, or use --device cpu")
            continue
        found = f"{torch.cuda.get_device_name(i)}, {free:.0f} of {total:.0f} GiB free, CUDA {torch.version.cuda}"
        enough = "" if total > 30 else "; the 7B and 8B models need about 18 GiB in bfloat16"
        yield Result(f"GPU {i}", works, found + enough, "the card computes wrong sums: use --device cpu")


def memory() -> Iterator[Result]:
    import psutil

    free = psutil.virtual_memory().available / 2**30
    advice = f"close other programs: the notebooks and an evaluation need about {MEMORY:g} GiB"
    yield Result("memory", free >= MEMORY, f"{free:.1f} GiB free", advice)


def disk() -> Iterator[Result]:
    place = root() / "results"
    place = place if place.is_dir() else root()
    if not os.access(place, os.W_OK):
        yield Result("disk", False, f"{place} is not writable", "take ownership of the checkout, or clone it elsewhere")
        return
    free = shutil.disk_usage(place).free / 2**30
    advice = f"make room, or give another disk with --store: runs need about {DISK:g} GiB"
    yield Result("disk", free >= DISK, f"{free:.1f} GiB free for results/", advice)


def weights() -> Iterator[Result]:
    from jot.errors import UserError
    from jot.models import fingerprint
    from jot.records import metas

    recorded = []
    with contextlib.suppress(UserError):
        recorded = [meta["config"] for meta in metas(root() / "data" / "records").values()]
    for name in MODELS:
        folder = root() / "data" / "models" / name
        advice = f"delete a model.safetensors in {folder.relative_to(root())}, and git checkout -- data/models"
        if not any(folder.glob("model.safetensors*")):
            yield Result(name, False, "its weights are missing", f"{advice}, or set JOT_HOME to the checkout")
            continue
        try:
            found = fingerprint(folder)
        except UserError as error:
            yield Result(name, False, str(error), advice)
            continue
        known = {c["fingerprint"] for c in recorded if c["model"] == name}
        if known:
            what = "as recorded" if found in known else "not the weights that the records were made with"
            yield Result(name, found in known, f"{found[:12]}, {what}", advice)
        else:
            yield Result(name, None, f"{found[:12]}, no recorded run to compare with", "check out data/records")


def hub(timeout: float = 3.0) -> Iterator[Result]:
    """Whether the model hub answers; without it everything packaged works, so nothing here is a failure."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(name, "0") not in ("", "0"):
            advice = f"the pocket models need no hub; unset {name} to fetch full-size ones"
            yield Result("hub", None, f"switched off by {name}", advice)
            return
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=timeout).close()
        yield Result("hub", True, f"{address} answers")
    except urllib.error.HTTPError as error:
        yield Result("hub", True, f"{address} answers ({error.code})")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        advice = "fine for the pocket models; full-size ones need the network, a mirror (HF_ENDPOINT) or a local folder"
        yield Result("hub", None, f"offline: {address} does not answer ({reason})", advice)


def decoding(seconds: float = SECONDS, where: str | None = None) -> Iterator[Result]:
    """Decodes recorded samples again, for about ``seconds``, and compares the tokens with the records."""
    from jot.records import load_store
    from jot.reproduce.again import agreement, chosen, redecode

    found = chosen().query("task == 'pocket_gsm8k' and method == 'jot'")
    for name in MODELS:
        known = load_store(root() / "data" / "records", found.index[found["model"] == name])
        if not known:
            yield Result(name, None, "no recorded run to compare with", "check out data/records")
            continue
        begun, n, spent = time.perf_counter(), 1, 0.0
        with tempfile.TemporaryDirectory() as store:
            while n == 1 or spent < seconds / len(MODELS):
                [(cell, frame)] = redecode(known, dict.fromkeys(known, n), Path(store), float("inf"), where)
                n, spent = 2 * n, time.perf_counter() - begun
        seen = agreement(known[cell].frame, frame)
        # A decision at a near tie may fall the other way on another machine; more than a few is a fault.
        fine = True if seen.tokens == seen.n else None if seen.tokens >= 0.75 * seen.n else False
        told = f"{seen.tokens} of {seen.n} samples with the recorded tokens, in {spent:.0f} s"
        yield Result(name, fine, told, f"run make test for the cause; {SETUP}")


CHECKS: tuple[tuple[str, Callable[..., Iterator[Result]]], ...] = (
    ("Python", python), ("packages", packages), ("device", device), ("memory", memory), ("disk", disk),
    ("weights", weights), ("hub", hub), ("decoding", decoding),
)  # fmt: skip


def run(seconds: float = SECONDS, where: str | None = None) -> Iterator[tuple[str, Result]]:
    """Every check in turn; one that cannot run is a failure of its own, not of the others."""
    for section, check in CHECKS:
        try:
            for result in check(seconds, where) if section == "decoding" else check():
                yield section, result
        except ImportError as error:
            yield section, Result(section, False, f"cannot look: {error.name or error} is not installed", SETUP)
        except Exception as error:  # whatever is broken here is what this command is for
            yield section, Result(section, False, " ".join(str(error).split())[:300], f"put that right; {SETUP}")


class _Parser(argparse.ArgumentParser):
    """As ``jot.errors.Parser``, which cannot be imported where nothing is installed."""

    def error(self, message: str):
        self.exit(2, f"jot: error: {message}; see `{self.prog} --help`\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """``jot check``. Returns 0 if all is well, 1 if something is not right."""
    parser = _Parser(prog="jot check", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of decoding (default %(default)g)")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: CUDA where there is one)")
    options = parser.parse_args(arguments)
    wrong = 0
    for section, result in run(options.seconds, options.device):
        mark = {True: "ok", None: "note", False: "WRONG"}[result.ok]
        name = result.name if result.name in (section, "torch") or section == "device" else f"{section}, {result.name}"
        print(f"{mark:<6} {name:<24} {result.found}", flush=True)
        if result.ok is not True and result.advice:
            print(f"{'':<6} {'':<24} -> {result.advice}", flush=True)
        wrong += result.ok is False
    print(f"\n{wrong} of these must be put right." if wrong else "\nAll is well. Next: make paper")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.exit(main())
