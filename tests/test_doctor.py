"""`jot check`: what it finds, what it advises, and its exit code; each thing that can be wrong is made wrong here."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import urllib.error
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch

import jot.records
from jot import cli
from jot.errors import UserError, unpacked
from jot.reproduce import doctor
from jot.reproduce.doctor import Result

ROOT = Path(__file__).resolve().parents[1]
RECORDED = (ROOT / "data" / "records" / "manifest.json").is_file()
needs_records = pytest.mark.skipif(not RECORDED, reason="no recorded runs")


def only(results) -> Result:
    (result,) = results
    return result


def test_all_is_well_or_not(monkeypatch, capsys) -> None:
    good = [("Python", lambda: iter([Result("Python", True, "3.11")]))]
    note = [("hub", lambda: iter([Result("hub", None, "offline", "fine")]))]
    bad = [("disk", lambda: iter([Result("disk", False, "0.1 GiB free", "make room")]))]
    monkeypatch.setattr(doctor, "CHECKS", tuple(good + note))
    assert cli.main(["check"]) == 0
    told = capsys.readouterr().out
    assert "ok     Python" in told and "note   hub" in told and "-> fine" in told and "All is well" in told
    monkeypatch.setattr(doctor, "CHECKS", tuple(good + bad))
    assert cli.main(["check"]) == 1
    told = capsys.readouterr().out
    assert "WRONG  disk" in told and "-> make room" in told and "1 of these must be put right" in told


def test_one_check_that_breaks_does_not_end_the_others(monkeypatch) -> None:
    def missing():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    def broken():
        raise RuntimeError("something\nodd")

    monkeypatch.setattr(doctor, "CHECKS", (("a", missing), ("b", broken), ("c", lambda: [Result("c", True, "")])))
    found = [result for _, result in doctor.run()]
    assert [result.ok for result in found] == [False, False, True]
    assert "torch is not installed" in found[0].found and "make setup" in found[0].advice
    assert found[1].found == "something odd"


def test_python_and_packages(monkeypatch) -> None:
    assert only(doctor.python()).ok is (sys.version_info[:2] in ((3, 11), (3, 12)))
    monkeypatch.setattr(doctor.sys, "version_info", (3, 9, 1))
    assert not only(doctor.python()).ok
    monkeypatch.undo()
    torch_, rest = doctor.packages()
    assert torch_.found == importlib.metadata.version("torch") and rest.ok is not False
    real = importlib.metadata.version

    def without(name: str) -> str:
        if name in ("pandas", "safetensors"):
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.1" if name == "scipy" else real(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", without)
    found = list(doctor.packages())[-1]
    assert not found.ok and "missing: safetensors, pandas" in found.found and "works without" not in found.found
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "0.1" if name == "scipy" else real(name))
    found = list(doctor.packages())[-1]
    assert found.ok is None and "scipy 0.1 (locked: " in found.found


def test_devices(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = only(doctor.device())
    assert found.ok is None and found.found.startswith("CPU, ")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "Card")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "ones", lambda *_, **__: torch.full((8,), 1.0))

    def memory(i: int) -> tuple[int, int]:
        if i:
            raise RuntimeError("CUDA error: out of memory\nmore")
        return 10 << 30, 80 << 30

    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    good, bad = doctor.device()
    assert good.ok and good.found == "Card, 10 of 80 GiB free, CUDA 13.0"
    assert not bad.ok and bad.found == "CUDA error: out of memory" and "--device cpu" in bad.advice


def test_memory_and_disk(monkeypatch, tmp_path: Path) -> None:
    assert only(doctor.memory()).found.endswith("GiB free")
    monkeypatch.setattr(doctor, "MEMORY", 1e9)
    assert not only(doctor.memory()).ok
    monkeypatch.setenv("JOT_HOME", str(tmp_path))
    assert only(doctor.disk()).found.endswith("GiB free for results/")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    found = only(doctor.disk())
    assert not found.ok and "--store" in found.advice
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert "not writable" in only(doctor.disk()).found


@needs_records
def test_weights(monkeypatch, tmp_path: Path) -> None:
    assert [result.ok for result in doctor.weights()] == [True, True]
    monkeypatch.setenv("JOT_HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    shutil.copytree(ROOT / "data" / "models", tmp_path / "data" / "models")
    assert [(r.ok, "no recorded run" in r.found) for r in doctor.weights()] == [(None, True)] * 2
    (tmp_path / "data" / "records").symlink_to(ROOT / "data" / "records")
    weights = tmp_path / "data" / "models" / "pocket-llada" / "model.safetensors"
    content = bytearray(unpacked(weights).read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    llada, dream = doctor.weights()
    assert llada.ok is False and "not the weights" in llada.found and "data/models/pocket-llada" in llada.advice
    assert dream.ok
    weights.unlink()
    assert next(doctor.weights()).ok  # of the packed file
    packed = weights.with_name("model.safetensors.xz")
    packed.write_bytes(packed.read_bytes()[:-9])
    llada = next(doctor.weights())
    assert llada.ok is False and "cut short or damaged" in llada.found
    packed.unlink()
    assert "missing" in next(doctor.weights()).found


def test_the_hub(monkeypatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)

    def answer(outcome):
        def urlopen(request, timeout):
            assert timeout <= 3 and request.get_method() == "HEAD"
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(doctor.urllib.request, "urlopen", urlopen)
        return only(doctor.hub())

    assert answer(SimpleNamespace(close=lambda: None)).ok is True
    assert answer(urllib.error.HTTPError("u", 403, "no", {}, None)).found.endswith("answers (403)")
    for error in (urllib.error.URLError("no route"), TimeoutError("timed out"), ValueError("unknown url type")):
        found = answer(error)
        assert found.ok is None and found.found.startswith("offline: ") and "fine for the pocket models" in found.advice
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "switched off by HF_HUB_OFFLINE" in only(doctor.hub()).found


@needs_records
def test_a_few_recorded_samples_are_decoded_again(monkeypatch, tmp_path: Path) -> None:
    """At least one sample a model, however little time there is; another token is told, other weights are refused."""
    found = list(doctor.decoding(0.0, "cpu"))
    assert [result.ok for result in found] == [True, True]
    assert all("1 of 1 samples with the recorded tokens" in result.found for result in found)

    real = jot.records.load_store
    monkeypatch.setattr(doctor, "MODELS", ("pocket-llada",))

    def other(*where):
        known = real(*where)
        for recorded in known.values():
            recorded.frame = recorded.frame.assign(generated=[x + 1 for x in recorded.frame["generated"]])
        return known

    monkeypatch.setattr(jot.records, "load_store", other)
    found = only(doctor.decoding(0.0, "cpu"))
    assert found.ok is False and "0 of 1 samples" in found.found and "make test" in found.advice
    (tmp_path / "data" / "models").mkdir(parents=True)
    tiny.build(tmp_path / "data" / "models" / "pocket-llada", "llada")
    for name in ("records", "tasks"):
        (tmp_path / "data" / name).symlink_to(ROOT / "data" / name)
    monkeypatch.setenv("JOT_HOME", str(tmp_path))
    with pytest.raises(UserError, match="are not those of the records"):
        list(doctor.decoding(0.0, "cpu"))


def test_it_runs_where_nothing_is_installed(tmp_path: Path) -> None:
    """Without torch, and without the package on the path: it says what is missing."""
    hide = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
    path = str(ROOT / "jot" / "reproduce" / "doctor.py")
    script = f"{hide}import runpy; sys.argv = ['doctor.py']; runpy.run_path({path!r}, "
    environment = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "JOT_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-S", "-c", f"{script}run_name='__main__')"], capture_output=True, text=True,
                          env=environment, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 1 and done.stderr == ""
    assert "missing: torch" in done.stdout and "torch is not installed" in done.stdout and "make setup" in done.stdout
