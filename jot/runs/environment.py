"""What a run ran on: versions and hardware, as kept beside its records."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata

import torch

import jot


def versions() -> dict[str, str | None]:
    """Versions of the packages that can change a record."""
    found: dict[str, str | None] = {"python": platform.python_version(), "jot": jot.__version__}
    for name in ("torch", "transformers", "tokenizers", "lm-eval", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _smi(index: int) -> dict[str, str]:
    """Clocks and driver as nvidia-smi tells them; empty where it does not."""
    fields = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")
    try:
        text = subprocess.run(
            ["nvidia-smi", f"--id={index}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields, (word.strip() for word in text.strip().split("\n")[0].split(",")), strict=False))


def hardware(device: torch.device) -> dict[str, object]:
    """The machine; `kind` is what two cells must share for their timings to be compared: "cpu" or the GPU's
    name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: dict[str, object] = {
        "kind": "cpu", "cpu": _cpu(), "cores": cores, "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }  # fmt: skip
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        found |= {
            "kind": torch.cuda.get_device_name(index), "cuda": torch.version.cuda,
            "tf32": torch.backends.cuda.matmul.allow_tf32, **_smi(index),
        }  # fmt: skip
    elif device.type != "cpu":
        found["kind"] = device.type
    return found


def describe(device: torch.device) -> dict[str, dict]:
    """`versions` and `hardware` of this process on `device`."""
    return {"versions": versions(), "hardware": hardware(device)}
