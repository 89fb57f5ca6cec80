"""Packing again is all or nothing: whatever stops it, the folder reads as the old pack or as the new one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import children
import pyarrow.parquet as pq
import pytest

from jot.errors import UserError
from jot.records import Cell, load_store, metas
from jot.records.load import read_manifest
from jot.records.pack import pack
from jot.records.store import Writer

ENVIRONMENT = {"versions": {"python": "3"}, "hardware": {"kind": "cpu", "cores": 2}}
CHANGES = ("replace", "fsync", "unlink")  # of os: what changes the folder, or brings it to the disk
# Of a pack of two files over an older one of two: both written, the manifest with the names they have meanwhile; then
# their final names, the manifest again, and what is left removed.
STAGED = ["write_table", "fsync"] * 2 + ["fsync"] * 2  # after these the first manifest is put in place
STEPS = STAGED + ["replace", "fsync"] + ["fsync", "replace"] * 2 + ["fsync"] * 2 + ["replace", "fsync"] + (
    ["unlink"] * 3
)  # fmt: skip


def fill(
    folder: Path, task: str, count: int, seed: int = 0, token: int = 7, model: str = "pocket-llada"
) -> None:  # fmt: skip
    config = {"model": model, "fingerprint": "f" * 64, "task": task, "split": "dev", "dtype": "float32",
              "seed": seed, "method": {"name": "full"}, "decode": {"length": 2}}  # fmt: skip
    prompts = {f"{task}/dev/{i}": f"hash{i}" for i in range(9)}
    with Writer(folder, Cell(config), prompts, ENVIRONMENT) as writer:
        for doc_id in writer.claim(prompts, count):
            record = {
                "doc_id": doc_id, "prompt_hash": prompts[doc_id], "prompt_tokens": 3, "text": "x", "answer": "1",
                "score": 1.0, "configured_steps": 2, "steps": 2, "forwards_full": 2, "forwards_suffix": 0,
                "forwards_block": 0, "seconds": 0.5, "slots": 1, "tokens_non_eos": 2, "empty": False,
                "generated": [token, 2040],
            }  # fmt: skip
            writer.append(record)


def content(folder: Path) -> dict[str, list]:
    """Every record of a folder as it reads now, by cell."""
    return {
        name: [(row.doc_id, row.score, [int(i) for i in row.generated]) for row in cell.frame.itertuples()]
        for name, cell in load_store(folder).items()
    }


class Packs:
    """An old pack, and the live store whose pack is to replace it: one file changes, one goes, one comes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.live, self.old = folder, folder / "live", folder / "old"
        fill(folder / "before", "pocket_gsm8k", 4)
        fill(folder / "before", "pocket_mmlu", 3)
        fill(self.live, "pocket_gsm8k", 4, token=9)
        fill(self.live, "pocket_gsm8k", 2, seed=1)
        fill(self.live, "pocket_prose", 5)
        pack(folder / "before", self.old)
        pack(self.live, folder / "new")
        self.readable = {"old": content(self.old), "new": content(folder / "new")}
        self.files = {path.name: path.read_bytes() for path in (folder / "new").iterdir()}

    def reads_as(self, target: Path) -> str:
        found = content(target)
        return next(name for name, whole in self.readable.items() if found == whole)

    def again(self, number: int) -> Path:
        """A copy of the old pack."""
        return Path(shutil.copytree(self.old, self.folder / f"copy{number}"))

    def finish(self, target: Path) -> None:
        """The next pack ends in order and cleans up."""
        pack(self.live, target)
        assert {path.name: path.read_bytes() for path in target.iterdir()} == self.files


@pytest.fixture(scope="module")
def packs(tmp_path_factory) -> Packs:
    return Packs(tmp_path_factory.mktemp("packs"))


def disturb(patch: pytest.MonkeyPatch, at: int | None, stop: Callable[[], None]) -> list[str]:
    """Stop in place of step number ``at``; a Parquet file is left torn. Returns the list of steps, which grows."""
    begun: list[str] = []

    def before(name: str, real: Callable) -> Callable:
        def call(*args, **kwargs):
            begun.append(name)
            if len(begun) - 1 == at:
                if name == "write_table":
                    Path(args[1]).write_bytes(b"PAR1 torn")
                stop()
            return real(*args, **kwargs)

        return call

    for name in CHANGES:
        patch.setattr(os, name, before(name, getattr(os, name)))
    patch.setattr(pq, "write_table", before("write_table", pq.write_table))
    return begun


def fail() -> None:
    raise OSError(5, "Input/output error", "disk")


def test_an_undisturbed_pack_takes_the_steps_that_are_disturbed(packs: Packs, monkeypatch) -> None:
    target = packs.again(0)
    begun = disturb(monkeypatch, None, fail)
    pack(packs.live, target)
    monkeypatch.undo()
    assert begun == STEPS
    assert {path.name: path.read_bytes() for path in target.iterdir()} == packs.files


@pytest.mark.parametrize("at", range(len(STEPS)))
def test_killed_at_any_step(packs: Packs, at: int) -> None:
    target = packs.again(100 + at)

    def body() -> None:
        disturb(pytest.MonkeyPatch(), at, lambda: os.kill(os.getpid(), signal.SIGKILL))
        pack(packs.live, target)

    assert children.join(children.fork(body)) == -signal.SIGKILL
    assert packs.reads_as(target) == ("old" if at <= len(STAGED) else "new")
    packs.finish(target)


@pytest.mark.parametrize("at", range(len(STEPS)))
def test_an_error_at_any_step(packs: Packs, at: int) -> None:
    target = packs.again(200 + at)
    with pytest.MonkeyPatch.context() as patch:
        disturb(patch, at, fail)
        with pytest.raises(OSError, match="Input/output"):
            pack(packs.live, target)
    assert packs.reads_as(target) == ("old" if at <= len(STAGED) else "new")
    if at < 4:  # what it had written is gone at once
        assert {path.name for path in target.iterdir()} == {path.name for path in packs.old.iterdir()}
    packs.finish(target)


def test_killed_twice(packs: Packs) -> None:
    """The files of a pack that was killed between its two manifests are read, and packed, like any others."""
    target = packs.again(300)
    pack(packs.live, target)
    for at in (9, 3, 11, 10, 18):

        def body(at: int = at) -> None:
            disturb(pytest.MonkeyPatch(), at, lambda: os.kill(os.getpid(), signal.SIGKILL))
            pack(target, target)

        assert children.join(children.fork(body)) == -signal.SIGKILL
        assert packs.reads_as(target) == "new"
    pack(target, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == packs.files


def test_the_first_pack_of_a_folder(packs: Packs, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        disturb(patch, len(STAGED), fail)
        with pytest.raises(OSError):
            pack(packs.live, tmp_path / "first")
    with pytest.raises(UserError, match="there are no records"):
        load_store(tmp_path / "first")
    packs.finish(tmp_path / "first")


def test_stores_that_contradict_each_other_leave_the_old_pack(packs: Packs) -> None:
    """What the user can put right is found before anything is replaced; files of others stay."""
    target = packs.again(400)
    (target / "notes.tmp").write_text("mine")
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    with pytest.raises(UserError, match="with different samples"):
        pack([packs.folder / "before", packs.live], target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    pack(packs.live, target)
    assert {path.name for path in target.iterdir()} == {*packs.files, "notes.tmp"}


def test_a_store_without_a_finished_sample_leaves_the_old_pack(packs: Packs, tmp_path: Path) -> None:
    target = packs.again(401)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    fill(tmp_path / "begun", "pocket_gsm8k", 0)
    with pytest.raises(UserError, match="decode something"):
        pack(tmp_path / "begun", target)
    after = {path.name: path.read_bytes() for path in target.iterdir()}
    assert after == before


def test_packs_into_one_folder_take_turns(packs: Packs, tmp_path: Path) -> None:
    """Each removes what it does not name, so two at once would remove each other's files."""
    target = tmp_path / "shared"
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(pack, packs.live, target) for _ in range(8)]:
            done.result()
        assert content(target) == content(packs.live)


# ---------------------------------------------------------------- what a pack would hide, and damaged manifests


@pytest.mark.parametrize("way", ["itself", "link", "relative", "among others", "begun"])
def test_a_store_is_not_packed_into_itself(packs: Packs, tmp_path: Path, monkeypatch, way: str) -> None:
    """Records written there later would stand beside a manifest that hides them."""
    store = Path(shutil.copytree(packs.live, tmp_path / "store"))
    stores, target = [store], store
    if way == "link":
        target = tmp_path / "link"
        target.symlink_to(store)
    elif way == "relative":
        monkeypatch.chdir(tmp_path)
        target = Path("store/../store")
    elif way == "among others":
        stores = [packs.old, store]
    elif way == "begun":
        shutil.rmtree(store)
        fill(store, "pocket_gsm8k", 0)
        stores = [packs.old, store]
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    sentence = re.escape(f"{target} is the store itself; name another folder for the pack")
    with pytest.raises(UserError, match=f"^{sentence}$"):
        pack(stores, target)
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before


def test_seeds_and_sizes_of_a_model_share_a_file(tmp_path: Path) -> None:
    models = ("pocket-llada", "pocket-llada-seed1", "pocket-llada-20m", "pocket-llada-2mm", "m-20m-chat")
    for i, model in enumerate(models):
        fill(tmp_path / "live", "pocket_gsm8k", 1 + i, model=model)
    pack(tmp_path / "live", tmp_path / "packed")
    named = {meta["config"]["model"]: meta["file"] for meta in read_manifest(tmp_path / "packed").values()}
    ours = "pocket-llada.pocket_gsm8k.dev.parquet"
    own = [f"{model}.pocket_gsm8k.dev.parquet" for model in models[3:]]
    assert [named[model] for model in models] == [ours] * 3 + own
    assert content(tmp_path / "packed") == content(tmp_path / "live")
    (tmp_path / "packed" / "true_text.parquet").write_bytes(b"another's")
    (tmp_path / "packed" / "gone.pocket_mmlu.test.parquet").write_bytes(b"of an older pack")
    pack(tmp_path / "packed", tmp_path / "packed")
    left = {path.name for path in (tmp_path / "packed").glob("*.parquet")}
    assert left == {*named.values(), "true_text.parquet"}  # a file that is no pack's stays


def test_no_pack_hides_live_records(packs: Packs, tmp_path: Path) -> None:
    store = Path(shutil.copytree(packs.folder / "before", tmp_path / "store"))
    before = content(store)
    with pytest.raises(UserError, match="store holds records that are not packed; name another folder for the pack"):
        pack(packs.live, store)
    assert content(store) == before


def test_a_packed_folder_is_packed_into_itself_with_more(packs: Packs, tmp_path: Path) -> None:
    target = packs.again(500)
    fill(tmp_path / "more", "pocket_prose", 3)
    pack([target, tmp_path / "more"], target)
    assert content(target) == packs.readable["old"] | content(tmp_path / "more")


DEEP = json.loads("[" * 60 + "]" * 60)
TOTALS = ("samples", "configured_steps", "steps", "forwards_full", "forwards_suffix", "forwards_block",
          "tokens_non_eos", "seconds")  # fmt: skip
DAMAGES = [
    *(({name: ...}, f"no {name}") for name in ("cell", "config", "place", "totals", "file", "sha256")),
    *(({name: value}, f"no {name}") for name in ("cell", "config", "place", "totals", "file", "sha256")
      for value in (None, [], 2.5, "?")),
    ({"place": -1}, "no place"), ({"place": True}, "no place"), ({"place": 9}, "no place"),
    ({"config": {"method": 3}}, "no config.method"), ({"config": {"seed": 9}}, "an edited configuration"),
    ({"file": "../old/a.parquet"}, "no file"), ({"file": "x" * 300 + ".parquet"}, "no file"),
    *(({"totals": {name: value}}, "no totals") for name in TOTALS for value in (..., None, "1", -1, [], True)),
    ({"totals": {"score": "1"}}, "no totals"), ({"totals": {"steps": 0}}, "no totals"),
]  # fmt: skip


def changed(entry: dict, changes: dict) -> dict:
    """With ``changes``, some of them inside; ``...`` stands for what is taken away."""
    entry = dict(entry)
    for name, value in changes.items():
        if value is ...:
            del entry[name]
        else:
            entry[name] = changed(entry[name], value) if isinstance(value, dict) else value
    return entry


@pytest.mark.parametrize(("changes", "said"), DAMAGES, ids=lambda value: str(value)[:60])
def test_a_damaged_manifest_is_one_sentence(packs: Packs, tmp_path: Path, changes: dict, said: str) -> None:
    target = Path(shutil.copytree(packs.old, tmp_path / "pack"))
    path = target / "manifest.json"
    manifest = json.loads(path.read_text())
    name = sorted(manifest["cells"])[1]
    manifest["cells"][name] = changed(manifest["cells"][name], changes)
    path.write_text(json.dumps(manifest))
    sentence = re.escape(f"{path} cannot be read (cell {name} has {said}); restore it")
    for use in (metas, load_store, lambda folder: pack(folder, tmp_path / "again")):
        with pytest.raises(UserError, match=f"^{sentence}$"):
            use(target)


def test_a_manifest_with_decode_in_every_cell_reads_alike(packs: Packs, tmp_path: Path) -> None:
    """As packs were written before a way of decoding stood once."""
    target = Path(shutil.copytree(packs.old, tmp_path / "pack"))
    path, known = target / "manifest.json", metas(target)
    manifest = json.loads(path.read_text())
    for cell in manifest["cells"].values():
        cell["config"]["decode"] = manifest["places"][cell["place"]]["decode"]
    for place in manifest["places"]:
        del place["decode"]
    path.write_text(json.dumps(manifest))
    assert metas(target) == known and content(target) == packs.readable["old"]
    pack(target, tmp_path / "again")
    assert (tmp_path / "again" / "manifest.json").read_bytes() == (packs.old / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"places": ...}, "no places"),
        ({"places": {}}, "no places"),
        ({"cells": ...}, "no cells"),
        ({"cells": [1]}, "no cells"),
        ({"places": [None]}, "no place"),
        ({"places": [{"versions": {}, "hardware": {"kind": "cpu"}}]}, "no config.decode"),
        ({"places": [{"versions": {}, "hardware": {"kind": "cpu"}, "decode": 3}]}, "no config.decode"),
        ({"places": [{"versions": {}, "decode": {}}]}, "no hardware"),
        ({"places": [{"versions": None, "hardware": {"kind": "cpu"}, "decode": {}}]}, "no versions"),
        ({"places": [{"versions": {}, "hardware": {"cores": 2}, "decode": {}}]}, "no hardware.kind"),
        ({"more": DEEP}, "nested too deep"),
        ({"places": [{"versions": {}, "hardware": {"kind": "cpu", "x": DEEP}}]}, "nested too deep"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_manifest_of_another_shape_is_one_sentence(packs: Packs, tmp_path: Path, changes: dict, said: str) -> None:
    target = Path(shutil.copytree(packs.old, tmp_path / "pack"))
    path = target / "manifest.json"
    manifest = {k: v for k, v in (json.loads(path.read_text()) | changes).items() if v is not ...}
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError) as caught:
        load_store(target)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path} cannot be read (") and said in sentence and sentence.endswith("; restore it")
