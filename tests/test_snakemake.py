"""The Snakefile on this machine: a dry run, a failing job, what was left incomplete, a second run with nothing to do.

Snakemake has an environment of its own: it is looked for in PATH, or named by JOT_SNAKEMAKE. Where a Slurm answers, the
jobs go to it too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import children
import nbformat
import pytest
import tiny
import yaml
from nbformat import v4

SNAKEMAKE = os.environ.get("JOT_SNAKEMAKE") or shutil.which("snakemake")
SLURM = (
    SNAKEMAKE and shutil.which("sinfo") and not subprocess.run(["sinfo"], capture_output=True, timeout=60).returncode
)
GRIDS = Path(__file__).resolve().parents[1] / "notebooks" / "grids"


@pytest.mark.parametrize("name", ["local", "slurm"])
def test_profiles_go_on_and_resume(name: str) -> None:
    profile = yaml.safe_load((GRIDS / "profiles" / name / "config.yaml").read_text())
    assert profile["keep-going"] and profile["rerun-incomplete"]
    assert (profile.get("executor") == "slurm") == (name == "slurm")


@pytest.fixture
def checkout(root: Path, tmp_path: Path, monkeypatch) -> Path:
    """A folder to run in: a grid of three cells, one of which fails, and a notebook."""
    home = tmp_path / "checkout"
    (home / "data" / "models").mkdir(parents=True)
    (home / "data" / "tasks").symlink_to(root / "data" / "tasks")
    model = tiny.build(home / "data" / "models" / "pocket-llada")
    (home / "notebooks").mkdir()
    made = [v4.new_code_cell('source = "recorded"\nlimit = 1\n', metadata={"tags": ["parameters"]}),
            v4.new_code_cell("print(limit)")]  # fmt: skip
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    path = home / "notebooks" / "10_small.ipynb"
    nbformat.write(v4.new_notebook(cells=made, metadata={"kernelspec": kernel}), path)
    (home / "grid.yaml").write_text(
        "cells:\n  - {models: pocket-llada, tasks: pocket_mmlu, split: dev, method: [full, jot], limit: 2}\n"
        f"  - {{models: {model}, tasks: pocket_gsm8k, split: dev, method: full, limit: 2, set: {{length: 32}}}}\n"
        "notebooks: [{name: 10_small, parameters: {limit: 2}}]\n"
    )
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, module in (("jot", "jot"), ("torchrun", "torch.distributed.run")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (bin_ / name).chmod(0o755)
    for name, value in {"JOT_HOME": str(home), "PYTHONPATH": str(root), "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home)
    return home


def snakemake(checkout: Path, *more: str, background: bool = False, profile: str = "local"):
    where = {"local": ["--cores", "2"], "slurm": ["--slurm-init-seconds-before-status-checks", "4"]}[profile]
    words = [SNAKEMAKE, "-s", str(GRIDS / "Snakefile"), "--profile", str(GRIDS / "profiles" / profile), *where,
             "--config", "grid=grid.yaml", "store=out", f"jot={checkout.parent / 'bin' / 'jot'}", "device=cpu",
             *more]  # fmt: skip
    if background:
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    return subprocess.run(words, capture_output=True, text=True, timeout=600)


@pytest.mark.snakemake
@pytest.mark.skipif(SNAKEMAKE is None, reason="no snakemake in PATH, and JOT_SNAKEMAKE does not name one")
def test_a_grid_as_jobs(checkout: Path) -> None:
    planned = snakemake(checkout, "--dry-run")
    assert planned.returncode == 0 and not (checkout / "out").exists(), planned.stderr
    for rule, count in (("cell", 3), ("notebook", 1), ("report", 1), ("all", 1)):
        assert any(line.split() == [rule, str(count)] for line in planned.stdout.splitlines()), planned.stdout
    assert "jot evaluate --model pocket-llada" in planned.stdout + planned.stderr

    # A partial failure: the third cell's model reaches no further than its weights; the others go on.
    third = (checkout / "grid.yaml").read_text()
    (checkout / "grid.yaml").write_text(third.replace("length: 32", "length: 512, steps: 512"))
    failed = snakemake(checkout)
    assert failed.returncode != 0 and "positions" in failed.stderr + failed.stdout
    done = sorted((checkout / "out" / "jobs").glob("*.done"))
    assert len(done) == 2 and not (checkout / "out" / "report" / "index.html").exists()
    before = {path: path.stat().st_mtime_ns for path in (checkout / "out").glob("*.jsonl")}
    (checkout / "grid.yaml").write_text(
        third.replace("length: 32", "length: 128").replace("limit: 2, set", "limit: 40, set")
    )

    # Killed in the middle of the third cell: it is incomplete, and goes on where it was.
    run = snakemake(checkout, background=True)
    until = time.monotonic() + 120
    while not (parts := list((checkout / "out").glob("*gsm8k*.jsonl"))) or not parts[0].stat().st_size:
        assert run.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    for pid in [run.pid, *children.descendants(run.pid)]:
        os.kill(pid, signal.SIGKILL)
    run.wait()
    kept = children.lines(checkout / "out")
    assert snakemake(checkout, "--unlock").returncode == 0
    ended = snakemake(checkout, "--rerun-incomplete")
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert set(kept) <= set(children.lines(checkout / "out")) and len(children.lines(checkout / "out")) == 44
    assert {path: path.stat().st_mtime_ns for path in before} == before, "finished cells were left alone"
    assert (checkout / "out" / "report" / "index.html").is_file()
    assert "10_small" in (checkout / "out" / "report" / "index.html").read_text()

    again = snakemake(checkout)
    assert again.returncode == 0 and "Nothing to be done" in again.stdout + again.stderr


@pytest.mark.snakemake
@pytest.mark.skipif(SNAKEMAKE is None, reason="no snakemake in PATH, and JOT_SNAKEMAKE does not name one")
def test_a_bad_grid_starts_nothing(checkout: Path) -> None:
    (checkout / "grid.yaml").write_text("cells: [{models: pocket-lada, tasks: pocket_mmlu, method: full}]")
    done = snakemake(checkout)
    assert done.returncode != 0 and "did you mean 'pocket-llada'?" in done.stderr and not (checkout / "out").exists()
    done = snakemake(checkout, "grid=")
    assert done.returncode != 0 and "name a grid" in done.stderr


def jobs() -> dict[str, str]:
    """State of every job of this user's that Slurm still lists, by number."""
    listed = subprocess.run(
        ["squeue", "--me", "--noheader", "--format=%A %T"], capture_output=True, text=True, check=True
    )
    return dict(line.split() for line in listed.stdout.splitlines())


@pytest.mark.snakemake
@pytest.mark.skipif(not SLURM, reason="no Snakemake (JOT_SNAKEMAKE), or no Slurm answers to sinfo")
def test_a_grid_on_slurm(checkout: Path) -> None:
    """Jobs of two processes each; one is cancelled in the middle, the others go on, and a second run ends it."""
    grid = (checkout / "grid.yaml").read_text().replace("length: 32", "length: 128")
    (checkout / "grid.yaml").write_text(grid.replace("limit: 2, set", "limit: 60, set"))
    own = set(jobs())
    settings = ("mem_mb=1500", "runtime=10", "processes=2", "slots=2")
    run = snakemake(checkout, *settings, background=True, profile="slurm")
    until = time.monotonic() + 240
    while not (parts := list((checkout / "out").glob("*gsm8k*.jsonl"))) or not parts[0].stat().st_size:
        assert run.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    (running,) = (job for job, state in jobs().items() if state == "RUNNING" and job not in own)
    subprocess.run(["scancel", running], check=True)
    assert run.wait(300) != 0, "a cancelled job is a failed one"
    kept = children.lines(checkout / "out")
    assert 4 < len(kept) < 64 and not (checkout / "out" / "report" / "index.html").exists()
    assert len(list((checkout / "out" / "jobs").glob("*.done"))) == 2, "the others went on"

    ended = snakemake(checkout, *settings, profile="slurm")
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert set(kept) <= set(children.lines(checkout / "out")) and len(children.lines(checkout / "out")) == 64
    assert "10_small" in (checkout / "out" / "report" / "index.html").read_text()
    again = snakemake(checkout, *settings, profile="slurm")
    assert again.returncode == 0 and "Nothing to be done" in again.stdout + again.stderr
    assert set(jobs()) <= own
