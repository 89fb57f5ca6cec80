"""What breaks under a run: disk, store, weights, logits, memory. Each is named in one sentence, exit code 2, and what
was finished stays."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import json
import mmap
import os
import random
import resource
import shutil
import signal
import tempfile
from pathlib import Path

import children
import pytest
import tiny
import torch

from jot.cli import main
from jot.errors import UserError
from jot.models import load
from jot.records import load_store
from jot.records.pack import pack
from jot.runs import run as run_module
from jot.runs.harness import evaluate

LIMIT = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("tiny") / "tiny-llada")


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory) -> Path:
    """A store that nothing disturbed."""
    store = tmp_path_factory.mktemp("whole")
    evaluate(str(model), "pocket_gsm8k", **settings(store))
    return store


def settings(store: Path, slots: int = 2) -> dict:
    return dict(split="dev", limit=LIMIT, slots=slots, length=32, store=store, device="cpu", progress=False)


def arguments(model: Path, store: Path) -> list[str]:
    return ["evaluate", "--model", str(model), "--task", "pocket_gsm8k", "--split", "dev", "--limit", str(LIMIT),
            "--slots", "2", "--set", "length=32", "--device", "cpu", "--store", str(store)]  # fmt: skip


def refused(capsys, words: list[str]) -> str:
    """Runs a command that must end with one sentence and exit code 2."""
    capsys.readouterr()
    assert main(words) == 2
    error = [line for line in capsys.readouterr().err.replace("\r", "\n").split("\n") if line.startswith("jot: ")]
    assert len(error) == 1 and error[0].startswith("jot: error: "), error
    return error[0]


def equal(store: Path, whole: Path) -> None:
    """The store holds what an undisturbed run holds, each sample once."""
    left, right = load_store(store), load_store(whole)
    assert left.keys() == right.keys()
    for name, cell in left.items():
        keep = [column for column in cell.frame if column != "seconds"]
        assert cell.frame[keep].equals(right[name].frame[keep])
    written = [json.loads(line)["doc_id"] for line in children.lines(store)]
    assert len(written) == len(set(written)) == LIMIT


# ---------------------------------------------------------------- disk


def test_no_file_may_grow(model: Path, whole: Path, tmp_path: Path, capsys) -> None:
    """The limit of a quota or a disk, set by the kernel: hit in the middle of the run."""
    size = max(len(path.read_bytes()) for path in whole.glob("*.jsonl"))

    def starve() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        return quietly(arguments(model, tmp_path / "store"), tmp_path / "err")

    assert children.join(children.fork(starve)) == 2
    kept = children.lines(tmp_path / "store")
    sentence = (tmp_path / "err").read_text()
    assert 0 < len(kept) < LIMIT and f"the {len(kept)} finished samples are kept" in sentence
    assert all(path.read_bytes().endswith(b"\n") for path in (tmp_path / "store").glob("*.jsonl"))
    assert main(arguments(model, tmp_path / "store")) == 0
    equal(tmp_path / "store", whole)


def quietly(words: list[str], told: Path) -> int:
    """In a child: the command's exit code, what it says on stderr into a file."""
    with open(told, "a") as file, contextlib.redirect_stderr(file), contextlib.redirect_stdout(file):
        return main(words)


def mount(folder: Path, options: str, again: bool = False, read_only: bool = False) -> None:
    flags = (0x20 if again else 0) | (0x1 if read_only else 0)  # MS_REMOUNT, MS_RDONLY
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", flags, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")


def test_a_full_and_a_read_only_disk(model: Path, whole: Path, tmp_path: Path) -> None:
    """A tiny file system of its own: full, then read-only, then with room again."""
    if mmap.PAGESIZE != 4096:
        pytest.skip("a tiny file system of other pages has another size")
    store, told = tmp_path / "store", tmp_path / "told"
    store.mkdir()

    def body() -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            if libc.unshare(0x20000) or libc.mount(None, b"/", None, 0x44000, None):  # CLONE_NEWNS; private
                return 77
            mount(store, "size=8k")
        except OSError:
            return 77
        if quietly(arguments(model, store), told) != 2 or not 0 < len(children.lines(store)) < LIMIT:
            return 1
        mount(store, "size=8k", again=True, read_only=True)
        before = children.lines(store)
        if quietly(arguments(model, store), told) != 2 or children.lines(store) != before:
            return 2
        mount(store, "size=4m", again=True)
        if quietly(arguments(model, store), told) != 0:
            return 3
        equal(store, whole)
        return 0

    code = children.join(children.fork(body))
    if code == 77:
        pytest.skip("mounting needs more rights than this user has")
    assert code == 0, told.read_text()
    assert "the disk is full" in told.read_text() and "is not writable" in told.read_text()


def test_a_read_only_folder(whole: Path) -> None:
    """As a user who may not write there, also where the tests run as root."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        shutil.copytree(whole, store)
        before = children.lines(store)
        for path in (Path(folder), store):
            path.chmod(0o555)

        def body() -> int:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            with contextlib.redirect_stderr(io.StringIO()) as said:
                code = main(arguments(Path("pocket-llada"), store))
            return code if f"the store {store} is not writable" in said.getvalue() else 1

        assert children.join(children.fork(body)) == 2 and children.lines(store) == before
        for path in (Path(folder), store):
            path.chmod(0o755)


def test_a_summary_that_cannot_be_written(model: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    (tmp_path / "grid.yaml").write_text(
        f"cells: [{{models: {model}, tasks: pocket_mmlu, split: dev, method: full, limit: 2}}]"
    )

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "summary.csv"))

    monkeypatch.setattr(run_module.os, "replace", full)
    sentence = refused(capsys, ["run", str(tmp_path / "grid.yaml"), "--store", str(tmp_path / "s"), "--device", "cpu"])
    assert "cannot read or write" in sentence or "the disk is full" in sentence


# ---------------------------------------------------------------- damaged records


def test_every_flipped_bit_of_a_line_is_seen(whole: Path, tmp_path: Path) -> None:
    """A flip is named, or the line counts as torn; it never changes a result."""
    store = tmp_path / "store"
    shutil.copytree(whole, store)
    (name, good), draw = *load_store(whole).items(), random.Random(0)
    part = max(store.glob("*.jsonl"), key=lambda path: path.stat().st_size)
    content, named = part.read_bytes(), 0
    for _ in range(150):
        at = draw.randrange(len(content))
        part.write_bytes(content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :])
        try:
            frame = load_store(store)[name].frame
        except UserError as error:
            named += 1
            assert str(part) in str(error) and "\n" not in str(error)
            continue
        whole_lines = good.frame[good.frame["doc_id"].isin(frame["doc_id"])].reset_index(drop=True)
        assert len(frame) >= LIMIT - 1 and frame.equals(whole_lines)
    assert named > 140


def test_a_file_cut_anywhere_keeps_its_whole_lines(model: Path, whole: Path, tmp_path: Path) -> None:
    (good,), draw = load_store(whole).values(), random.Random(1)
    (source,) = whole.glob("*.jsonl")
    content = source.read_bytes()
    for cut in (0, 1, len(content) - 1, *(draw.randrange(len(content)) for _ in range(20))):
        store = tmp_path / str(cut)
        shutil.copytree(whole, store)
        (store / source.name).write_bytes(content[:cut])
        (recorded,) = load_store(store).values()
        assert len(recorded.frame) == content[:cut].count(b"\n")
        kept = good.frame[good.frame["doc_id"].isin(recorded.frame["doc_id"])].reset_index(drop=True)
        assert len(kept) == 0 or recorded.frame.equals(kept)
    assert evaluate(str(model), "pocket_gsm8k", **settings(store)).decoded == LIMIT - content[:cut].count(b"\n")
    equal(store, whole)


def test_nothing_is_written_beside_a_manifest(model: Path, whole: Path, tmp_path: Path, capsys) -> None:
    """It would be hidden there for ever: neither a run into a pack nor a pack into a live store begins."""
    store, folder = str(shutil.copytree(whole, tmp_path / "live")), tmp_path / "packed"
    before = sorted(os.listdir(store))
    assert "is the store itself; name another folder for the pack" in refused(capsys, ["pack", store, store])
    assert sorted(os.listdir(store)) == before
    assert main(["pack", store, str(folder)]) == 0
    before = sorted(os.listdir(folder))
    assert "holds packed records, which are not added to" in refused(capsys, arguments(model, folder))
    assert sorted(os.listdir(folder)) == before
    assert main(["pack", str(folder), str(folder)]) == 0 and sorted(os.listdir(folder)) == before


def test_a_damaged_parquet_file_is_named(whole: Path, tmp_path: Path) -> None:
    pack(whole, tmp_path)
    (path,), draw = tmp_path.glob("*.parquet"), random.Random(0)
    content = path.read_bytes()
    damaged = [content[: draw.randrange(len(content))] for _ in range(10)]
    for _ in range(40):
        at = draw.randrange(len(content))
        damaged.append(content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :])
    for i, bad in enumerate(damaged):
        path.write_bytes(bad)
        os.utime(path, ns=(i, i))
        with pytest.raises(UserError) as caught:
            for recorded in load_store(tmp_path).values():
                assert recorded.frame is not None
        assert str(path) in str(caught.value) and "restore it" in str(caught.value)


# ---------------------------------------------------------------- weights, logits, memory


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
def test_weights_cut_short(model: Path, whole: Path, tmp_path: Path, capsys, keep: float) -> None:
    broken, store = tmp_path / "tiny-llada", tmp_path / "store"
    shutil.copytree(model, broken)
    shutil.copytree(whole, store)
    weights = broken / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: int(len(content) * keep)])
    sentence = refused(capsys, arguments(broken, store))
    assert f"{weights} is cut short or damaged" in sentence
    equal(store, whole)


class Failing:
    """A model whose forward fails after so many calls."""

    def __init__(self, path: Path, calls: int, failure) -> None:
        self.model, self.left, self.failure = load(str(path), device="cpu"), calls, failure
        self.predict = self.model.predict
        self.model.predict = self

    def __call__(self, *args, **kwargs):
        self.left -= 1
        if self.left < 0:
            if isinstance(self.failure, Exception):
                raise self.failure
            return self.predict(*args, **kwargs) * self.failure
        return self.predict(*args, **kwargs)


OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (float("nan"), "logits are not numbers"),
        (OUT_OF_MEMORY, "out of memory on cpu with 2 samples at a time"),
    ],
    ids=["nan", "cuda"],
)
def test_a_forward_that_fails(
    model: Path, whole: Path, tmp_path: Path, capsys, monkeypatch, failure, words: str
) -> None:
    monkeypatch.setattr("jot.runs.harness.load", lambda *_, **__: Failing(model, 60, failure).model)
    sentence = refused(capsys, arguments(model, tmp_path / "store"))
    kept = children.lines(tmp_path / "store")
    assert words in sentence and 0 < len(kept) < LIMIT
    monkeypatch.undo()
    assert main(arguments(model, tmp_path / "store")) == 0
    assert set(kept) <= set(children.lines(tmp_path / "store"))
    equal(tmp_path / "store", whole)


def test_memory_that_runs_out_while_loading(model: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    def full(*_, **__):
        raise OUT_OF_MEMORY

    monkeypatch.setattr("jot.runs.harness.load", full)
    assert "out of memory: use a smaller model" in refused(capsys, arguments(model, tmp_path / "store"))


def test_a_grid_goes_on_after_a_cell_that_fails(model: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """The cell is named in the summary and the exit code is 1; another run takes up where it broke."""
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        f"cells: [{{models: {model}, tasks: pocket_gsm8k, split: dev, method: [full, jot], limit: 4, "
        "set: {length: 32}}]"
    )
    words = ["run", str(grid), "--store", str(tmp_path / "store"), "--slots", "2", "--device", "cpu"]
    run_module._model.cache_clear()
    monkeypatch.setattr("jot.models.load", lambda *_, **__: Failing(model, 40, OUT_OF_MEMORY).model)
    assert main(words) == 1
    told = capsys.readouterr().out
    assert "failed: out of memory" in told and "2 of 2 cells run, 2 failed" in told
    kept = children.lines(tmp_path / "store")
    assert kept and "out of memory" in (tmp_path / "store" / "summary.csv").read_text()
    monkeypatch.undo()
    run_module._model.cache_clear()
    assert main(words) == 0
    assert set(kept) <= set(children.lines(tmp_path / "store")) and "0 failed" in capsys.readouterr().out
    run_module._model.cache_clear()
