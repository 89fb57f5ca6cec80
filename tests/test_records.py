"""The record store: nothing lost, nothing twice, nothing mixed."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import random
import re
import signal
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path

import children
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jot.errors import UserError
from jot.models import DiffusionModel, home, load
from jot.records import FIELDS, Cell, load_store, metas, natural, take, to_frame
from jot.records import load as packed_module
from jot.records import store as store_module
from jot.records.lines import from_line, to_line
from jot.records.load import read_columns
from jot.records.pack import pack
from jot.records.store import Writer, writable
from jot.runs.frames import runs, samples
from jot.tasks.text import answer_ids, to_text

ENVIRONMENT = {"versions": {"python": "3"}, "hardware": {"kind": "cpu", "cores": 2}}
CONFIG = {"model": "pocket-llada", "fingerprint": "f" * 64, "task": "pocket_gsm8k", "split": "dev",
          "dtype": "float32",
          "seed": 0, "method": {"name": "jot", "tau_max": 90.0}, "decode": {"length": 4}}  # fmt: skip
PROMPTS = {f"pocket_gsm8k/dev/{i}": f"hash{i}" for i in range(40)}


def record(doc_id: str, **changes) -> dict:
    number = int(doc_id.rsplit("/", 1)[-1])
    return {
        "doc_id": doc_id, "prompt_hash": PROMPTS.get(doc_id, "?"), "prompt_tokens": 9,
        "text": f"é {number}\n\"", "answer": "1",
        "score": float(number % 2), "configured_steps": 4, "steps": 1 + number % 4,
        "forwards_full": 1 + number % 4,
        "forwards_suffix": 0, "forwards_block": 0, "seconds": 0.5, "slots": 1, "tokens_non_eos": 2,
        "empty": False,
        "generated": [number, 2047, 2040, 2040], **changes,
    }  # fmt: skip


def fill(folder: Path, count: int = 6, config: dict = CONFIG, **changes) -> Cell:
    cell = Cell(config)
    with Writer(folder, cell, PROMPTS, ENVIRONMENT) as writer:
        for doc_id in writer.claim(PROMPTS, count):
            writer.append(record(doc_id, **changes))
    return cell


@cache
def llada() -> DiffusionModel:
    return load("pocket-llada")


def part(folder: Path, cell: Cell) -> Path:
    return next(folder.glob(f"{cell.id}.*.jsonl"))


# ---------------------------------------------------------------- cells


def test_a_cell_is_its_configuration() -> None:
    cell = Cell(CONFIG)
    assert cell.id.startswith("pocket-llada_pocket-gsm8k_jot_tau90_dev-") and len(cell.key) == 10
    assert Cell(dict(reversed(CONFIG.items()))).id == cell.id
    assert Cell({**CONFIG, "method": {"name": "jot", "tau_max": 90}}).id == cell.id
    for change in ({"fingerprint": "g" * 64}, {"seed": 1}, {"dtype": "bfloat16"},
                   {"method": {"name": "jot", "tau_max": 30}},
                   {"decode": {"length": 8}}, {"prompt_hash": "x"}):  # fmt: skip
        assert Cell({**CONFIG, **change}).id != cell.id
    assert "tau" + "inf" in Cell({**CONFIG, "method": {"name": "jot", "tau_max": math.inf}}).id
    odd = Cell({**CONFIG, "model": "../../x y*?[", "method": {"name": "jot", "tau_max": 2.5}}).id
    assert not set("/*?[]. ") & set(odd)


@given(st.sets(st.text(min_size=1, max_size=6), min_size=1, max_size=40), st.data())
def test_limits_nest(ids: set[str], data) -> None:
    ids = sorted(ids)
    order = take(ids)
    assert sorted(order) == ids
    shuffled = data.draw(st.permutations(ids))
    small, large = sorted(data.draw(st.tuples(*[st.integers(1, len(ids))] * 2)))
    assert take(shuffled, small) == take(ids, large)[:small] == order[:small]


def test_limits_are_stratified() -> None:
    ids = [f"d{i}" for i in range(1000)]
    subjects = ["rare" if i % 10 == 0 else "common" if i % 2 else "other" for i in range(1000)]
    whole = Counter(subjects)
    of = dict(zip(ids, subjects, strict=True))
    for limit in (10, 57, 200, 999):
        chosen = take(ids, limit, subjects)
        assert chosen == take(ids, 1000, subjects)[:limit]
        for subject, count in Counter(of[doc_id] for doc_id in chosen).items():
            assert abs(count - limit * whole[subject] / 1000) <= 1.01
    with pytest.raises(ValueError):
        take(ids, 5, subjects[:-1])


def test_the_permutation_is_fixed() -> None:
    assert take([f"a/{i}" for i in range(9)], 4) == ["a/8", "a/6", "a/3", "a/4"]


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "3"])
def test_limit_is_a_positive_whole_number(limit) -> None:
    with pytest.raises(UserError, match="at least 1"):
        take(["a"], limit)


def test_natural_order() -> None:
    assert sorted(["a/10", "a/9", "a/x", "b", "a/9b"], key=natural) == ["a/9", "a/9b", "a/10", "a/x", "b"]
    for odd in ("a/²", "9" * 5000, "٣"):  # digits of any kind and number have a place
        assert sorted([odd, "a/1"], key=natural) == sorted(["a/1", odd], key=natural)


# ---------------------------------------------------------------- writing and reading


def test_round_trip(tmp_path: Path) -> None:
    fill(tmp_path)
    (loaded,) = load_store(tmp_path).values()
    frame = loaded.frame
    assert list(frame.columns) == list(FIELDS) and len(frame) == 6
    assert list(frame["doc_id"]) == sorted(frame["doc_id"], key=natural)
    assert frame["text"][0] == 'é 0\n"' and frame["score"].dtype == "float64"
    assert loaded.meta["config"]["method"] == {"name": "jot", "tau_max": 90}
    assert loaded.meta["totals"]["samples"] == 6 and loaded.meta["hardware"] == ENVIRONMENT["hardware"]


def test_a_finished_sample_is_never_claimed_again(tmp_path: Path) -> None:
    cell = fill(tmp_path, 6)
    before = sorted(os.listdir(tmp_path))
    with Writer(tmp_path, cell, PROMPTS, ENVIRONMENT) as writer:
        assert len(writer.done) == 6
        assert writer.claim(list(PROMPTS)[:6], 99) == []
    assert sorted(os.listdir(tmp_path)) == before
    with Writer(tmp_path, Cell({**CONFIG, "seed": 1}), PROMPTS, ENVIRONMENT) as writer:
        assert not writer.done and len(writer.claim(PROMPTS, 99)) == 40


def test_totals_lost_to_a_kill_are_made_up_for(tmp_path: Path) -> None:
    """Whoever wrote the last sample was killed before it wrote the totals; the next run finds nothing to decode."""
    cell, path = Cell(CONFIG), tmp_path / f"{Cell(CONFIG).id}.json"

    def killed() -> None:
        writer = Writer(tmp_path, cell, PROMPTS, ENVIRONMENT)
        for doc_id in writer.claim(PROMPTS, 6):
            writer.append(record(doc_id))
        os._exit(0)

    assert children.join(children.fork(killed)) == 0
    assert json.loads(path.read_text())["totals"]["samples"] == 0
    gpu = {**ENVIRONMENT, "hardware": {"kind": "NVIDIA H100"}}
    with Writer(tmp_path, cell, PROMPTS, gpu) as writer:  # reading is fine elsewhere too, and changes no hardware
        assert len(writer.done) == 6
    meta = json.loads(path.read_text())
    assert (meta["totals"]["samples"], meta["totals"]["score"]) == (6, 3) and meta["hardware"]["kind"] == "cpu"


def test_no_score_is_nan(tmp_path: Path) -> None:
    cell = fill(tmp_path, 3, score=None, answer=None)
    assert '"score":null' in part(tmp_path, cell).read_text()
    assert load_store(tmp_path)[cell.id].frame["score"].isna().all()
    assert load_store(tmp_path)[cell.id].meta["totals"]["score"] is None


@pytest.mark.parametrize("keep", [1, 10, -1])
def test_a_torn_tail_is_cut_off_and_redone(tmp_path: Path, keep: int) -> None:
    cell = fill(tmp_path, 6)
    path = part(tmp_path, cell)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:keep])
    lost = json.loads(lines[-1])["doc_id"]
    assert len(load_store(tmp_path)[cell.id].frame) == 5
    with Writer(tmp_path, cell, PROMPTS, ENVIRONMENT) as writer:
        assert writer.claim(list(PROMPTS)[:6], 99) == [lost]
        writer.append(record(lost))
    assert path.read_bytes() == b"".join(lines[:-1])
    assert len(load_store(tmp_path)[cell.id].frame) == 6


@pytest.mark.parametrize("bad", [b"{", b"", b"[]", b"7", b'{"doc_id": "a"}', b"\xff\xfe", b"\0" * 20, b"[" * 5000])
def test_a_corrupt_line_is_named(tmp_path: Path, bad: bytes) -> None:
    cell = fill(tmp_path, 4)
    path = part(tmp_path, cell)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + bad + b"\n" + b"".join(lines[2:]))
    for use in (lambda: load_store(tmp_path), lambda: Writer(tmp_path, cell, PROMPTS, ENVIRONMENT)):
        with pytest.raises(UserError, match=r"line 2 of .*\.jsonl"):
            use()


@pytest.mark.parametrize("change", [{"steps": 3}, {}])
def test_a_line_without_its_checksum_is_named(tmp_path: Path, change: dict) -> None:
    """Edited or not: nobody knows."""
    cell = fill(tmp_path, 2)
    path = part(tmp_path, cell)
    first, second = path.read_bytes().splitlines(keepends=True)
    line = json.loads(first) | change
    del line["crc32"]
    path.write_bytes(json.dumps(line).encode() + b"\n" + second)
    said = "its checksum does not fit); delete that line to decode its sample again"
    sentence = re.escape(f"line 1 of {path} is no record ({said}")
    for use in (lambda: load_store(tmp_path), lambda: Writer(tmp_path, cell, PROMPTS, ENVIRONMENT)):
        with pytest.raises(UserError, match=f"^{sentence}$"):
            use()


def test_what_a_record_may_hold_comes_back() -> None:
    """The ends of every range."""
    trace = {"step": [-1, 0, 2**15 - 1], "rule": [0, 255], "margin": [0.5, None, 3], "threshold": [None],
             "mean_margin": [], "masked": [0], "more": "x"}  # fmt: skip
    for changes in (
        {"score": None, "answer": None, "text": "", "empty": True, "tokens_non_eos": 0, "prompt_tokens": 0},
        {"score": 0, "seconds": 0, "generated": []},
        {"score": 1, "steps": 2**31 - 1, "generated": [0, 2**32 - 1], "loop": "fixed", "text": "é\U0001f600\0"},
        {"score": 0.25, "trace": trace},
        {"trace": None},
    ):
        one = {"cell": "0123456789", **record("t/1"), **changes}
        assert from_line(to_line(one)[:-1]) == one


@pytest.mark.parametrize("new", ["0123456g", "0123456", "012345678", "01234ABC", ""])
def test_a_damaged_checksum_is_named(tmp_path: Path, new: str) -> None:
    cell = fill(tmp_path, 2)
    path = part(tmp_path, cell)
    lines = path.read_bytes().splitlines(keepends=True)
    changed = lines[0].replace(b'"steps":1', b'"steps":3')  # the field that the checksum would give away
    assert changed != lines[0]
    path.write_bytes(re.sub(b'"crc32":"[0-9a-f]+"', b'"crc32":"%s"' % new.encode(), changed) + lines[1])
    with pytest.raises(UserError, match=r"line 1 of .*its checksum does not fit"):
        load_store(tmp_path)
    for odd in (None, 7, ["0123abcd"]):
        with pytest.raises(ValueError, match="checksum"):
            from_line(json.dumps({**record("t/1"), "cell": "0123456789", "crc32": odd}).encode())


DEEP = json.loads("[" * 60 + "]" * 60)
DAMAGES = [
    ({"hardware": None}, "no hardware"), ({"hardware": ...}, "no hardware"), ({"hardware": "cpu"}, "no hardware"),
    ({"hardware": {"cores": 2}}, "no hardware.kind"), ({"hardware": {"kind": ["cpu"]}}, "no hardware.kind"),
    ({"versions": None}, "no versions"), ({"versions": ...}, "no versions"), ({"versions": [1]}, "no versions"),
    ({"config": None}, "no config"), ({"config": ...}, "no config"), ({"config": "x"}, "no config"),
    ({"config": [["method", 1]]}, "no config"),
    ({"config": {**CONFIG, "method": "jot"}}, "no config.method"),
    ({"config": {**CONFIG, "method": None}}, "no config.method"),
    ({"config": {**CONFIG, "decode": 4}}, "no config.decode"),
    ({"config": {**CONFIG, "model": "\ud800"}}, "surrogates not allowed"),
    ({"config": {**CONFIG, "seed": DEEP}}, "nested too deep"),
    ({"hardware": {"kind": "cpu", "x": DEEP}}, "nested too deep"), ({"more": DEEP}, "nested too deep"),
    ({"more": json.loads("[" * 900 + "]" * 900)}, "nested too deep"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), DAMAGES)
def test_damaged_metadata_are_one_sentence(tmp_path: Path, changes: dict, said: str) -> None:
    cell = fill(tmp_path / "live", 2)
    path = tmp_path / "live" / f"{cell.id}.json"
    meta = {k: v for k, v in (json.loads(path.read_text()) | changes).items() if v is not ...}
    path.write_text(json.dumps(meta))
    for use in (
        lambda: load_store(tmp_path / "live"),
        lambda: metas(tmp_path / "live"),
        lambda: Writer(tmp_path / "live", cell, PROMPTS, ENVIRONMENT),
        lambda: pack(tmp_path / "live", tmp_path / "packed"),
    ):
        with pytest.raises(UserError) as caught:
            use()
        sentence = str(caught.value)
        assert sentence.startswith(f"{path} is not a cell's configuration (") and said in sentence
        assert sentence.endswith("); restore it or use another store")


@pytest.mark.parametrize(
    "wrong",
    [..., None, 7, "x", [], {}, {"samples": 6}, {"samples": "6"}, {"samples": 6, "steps": None}],
    ids=lambda wrong: repr(wrong)[:20],
)
def test_totals_of_a_live_cell_are_made_up_for(tmp_path: Path, wrong: object) -> None:
    cell = fill(tmp_path, 6)
    path = tmp_path / f"{cell.id}.json"
    good = json.loads(path.read_text())
    damaged = {k: v for k, v in (good | {"totals": wrong}).items() if v is not ...}
    path.write_text(json.dumps(damaged))
    assert load_store(tmp_path)[cell.id].meta == metas(tmp_path)[cell.id] == good
    assert json.loads(path.read_text()) == damaged  # reading writes nothing
    with Writer(tmp_path, cell, PROMPTS, ENVIRONMENT) as writer:
        assert len(writer.done) == 6
    assert json.loads(path.read_text()) == good


def test_packed_records_are_not_added_to(tmp_path: Path) -> None:
    """The manifest would hide what is written beside it."""
    cell = fill(tmp_path / "live", 2)
    pack(tmp_path / "live", tmp_path / "packed")
    before = sorted(os.listdir(tmp_path / "packed"))
    sentence = re.escape(
        f"{tmp_path / 'packed'} holds packed records, which are not added to; name another folder with --store"
    )
    for use in (
        lambda: writable(tmp_path / "packed"),
        lambda: Writer(tmp_path / "packed", cell, PROMPTS, ENVIRONMENT),
    ):
        with pytest.raises(UserError, match=f"^{sentence}$"):
            use()
    assert sorted(os.listdir(tmp_path / "packed")) == before


def test_an_edited_configuration_is_refused(tmp_path: Path) -> None:
    cell = fill(tmp_path, 2)
    path = tmp_path / f"{cell.id}.json"
    good = path.read_text()
    for text in (
        good.replace('"tau_max": 90', '"tau_max": 3'),
        good.replace(cell.id, "x" + cell.id),
        "{",
        "[]",
        "{}",
        "",
    ):
        path.write_text(text)
        for use in (lambda: load_store(tmp_path), lambda: Writer(tmp_path, cell, PROMPTS, ENVIRONMENT)):
            with pytest.raises(UserError, match="another store"):
                use()
    path.unlink()
    with pytest.raises(UserError, match="restore that file"):
        load_store(tmp_path)
    with Writer(tmp_path, cell, PROMPTS, ENVIRONMENT):
        pass
    assert json.loads(path.read_text())["totals"]["samples"] == 2


def test_records_of_another_configuration_are_refused(tmp_path: Path) -> None:
    cell, other = fill(tmp_path, 2), fill(tmp_path, 2, {**CONFIG, "fingerprint": "0" * 64})
    os.rename(part(tmp_path, other), tmp_path / f"{cell.id}.moved.jsonl")
    with pytest.raises(UserError, match="another configuration"):
        Writer(tmp_path, cell, PROMPTS, ENVIRONMENT)


def test_records_of_another_prompt_are_refused(tmp_path: Path) -> None:
    cell = fill(tmp_path, 2)
    with pytest.raises(UserError, match="another prompt"):
        Writer(tmp_path, cell, {**PROMPTS, "pocket_gsm8k/dev/0": "other"}, ENVIRONMENT)


def test_repeated_records(tmp_path: Path) -> None:
    cell = fill(tmp_path, 3)
    copy = tmp_path / f"{cell.id}.copy.jsonl"
    copy.write_bytes(part(tmp_path, cell).read_bytes())
    assert len(load_store(tmp_path)[cell.id].frame) == 3
    changed = [record(f"pocket_gsm8k/dev/{i}", cell=cell.key, generated=[i, 7, 2040, 2040]) for i in range(3)]
    copy.write_bytes(b"".join(map(to_line, changed)))
    with pytest.raises(UserError, match="repeats"):
        load_store(tmp_path)


def test_other_hardware_is_refused(tmp_path: Path) -> None:
    cell = fill(tmp_path, 2)
    gpu = {**ENVIRONMENT, "hardware": {"kind": "NVIDIA H100"}}
    with Writer(tmp_path, cell, PROMPTS, gpu) as writer:
        assert len(writer.done) == 2  # reading is fine
        with pytest.raises(UserError, match="use another store"):
            writer.claim(PROMPTS, 9)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch) -> None:
    cell = Cell(CONFIG)
    with Writer(tmp_path, cell, PROMPTS, ENVIRONMENT) as writer:
        ids = writer.claim(PROMPTS, 3)
        writer.append(record(ids[0]))
        real, room = os.write, [30]

        def write(fd: int, data: bytes) -> int:
            if room[0] <= 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            count = real(fd, data[: room[0]])
            room[0] -= count
            return count

        monkeypatch.setattr(store_module.os, "write", write)
        with pytest.raises(UserError, match=r"the disk is full.*1 finished samples are kept"):
            writer.append(record(ids[1]))
        monkeypatch.undo()
        assert part(tmp_path, cell).read_bytes().endswith(b"}\n")
        writer.append(record(ids[2]))
    assert sorted(load_store(tmp_path)[cell.id].frame["doc_id"]) == sorted([ids[0], ids[2]])


def test_bad_stores(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below"):
        with pytest.raises(UserError, match="is a file|not a folder"):
            Writer(folder, Cell(CONFIG), PROMPTS, ENVIRONMENT)
    with pytest.raises(UserError, match="no store"):
        load_store(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no records"):
        load_store(tmp_path / "empty")


# ---------------------------------------------------------------- several processes


def test_two_writers_in_one_process_share(tmp_path: Path) -> None:
    cell = Cell(CONFIG)
    with (
        Writer(tmp_path, cell, PROMPTS, ENVIRONMENT) as one,
        Writer(tmp_path, cell, PROMPTS, ENVIRONMENT) as two,
    ):
        mine, theirs = one.claim(PROMPTS, 10), two.claim(PROMPTS, 10)
        assert len(mine) == len(theirs) == 10 and not set(mine) & set(theirs)
        one.append(record(mine[0]))
        one.close()
        assert mine[1] in two.claim(mine, 99) and mine[0] in two.done


def _work(folder: Path, cell: Cell, seed: int, die: bool, death: int) -> None:
    """Write what is missing; one dies at its fifth sample, and the others wait for that at their third."""
    rng = random.Random(seed)
    with Writer(folder, cell, PROMPTS, ENVIRONMENT) as writer:
        written = 0
        while missing := [doc_id for doc_id in PROMPTS if doc_id not in writer.done]:
            for doc_id in writer.claim(missing, rng.randint(1, 5)):
                time.sleep(rng.random() * 0.004)
                if die and written == 4:  # half a line, then gone
                    line = json.dumps({"cell": cell.key, **record(doc_id)}).encode()
                    os.write(writer._part.fileno(), line[: len(line) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                writer.append(record(doc_id))
                written += 1
                if not die and written == 3:
                    os.read(death, 1)  # returns when the last holder of the other end is gone


def test_processes_share_a_store_and_may_be_killed(tmp_path: Path) -> None:
    cell = Cell(CONFIG)
    children = []
    death, alive = os.pipe()
    for seed in range(4):
        if (pid := os.fork()) == 0:
            try:
                if seed:
                    os.close(alive)
                _work(tmp_path, cell, seed, seed == 0, death)
                os._exit(0)
            except BaseException:
                os._exit(1)
        children.append(pid)
    os.close(alive)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [-signal.SIGKILL, 0, 0, 0]
    with Writer(tmp_path, cell, PROMPTS, ENVIRONMENT) as writer:
        assert writer.claim(PROMPTS, 99) == []
    lines = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().split("\n")[:-1]]
    assert sorted(line["doc_id"] for line in lines) == sorted(PROMPTS)
    loaded = load_store(tmp_path)[cell.id]
    assert loaded.meta["totals"]["samples"] == len(loaded.frame) == 40


def test_a_live_writer_s_line_is_not_cut(tmp_path: Path) -> None:
    cell = Cell(CONFIG)
    with Writer(tmp_path, cell, PROMPTS, ENVIRONMENT) as one:
        (doc_id,) = one.claim(PROMPTS, 1)
        one.append(record(doc_id))
        os.write(one._part.fileno(), b'{"half')
        with Writer(tmp_path, cell, PROMPTS, ENVIRONMENT) as two:
            two.claim(PROMPTS, 1)
            assert part(tmp_path, cell).read_bytes().endswith(b'{"half')


# ---------------------------------------------------------------- pairs and packs


def test_pairs(tmp_path: Path) -> None:
    """Runs that may be compared document by document; any that may not are refused in one sentence."""
    full = {**CONFIG, "method": {"name": "full"}}
    fill(tmp_path / "good", 6)
    fill(tmp_path / "good", 6, full)
    both = samples(runs(tmp_path / "good"), tmp_path / "good")
    assert both.groupby("doc_id")["method"].apply(set).tolist() == [{"jot", "full"}] * 6
    assert both["score"].dtype == "float64"

    elsewhere = {**ENVIRONMENT, "hardware": {"kind": "NVIDIA H100"}}

    def another(store: Path, config: dict = full, count: int = 6, prompts=PROMPTS, environment=ENVIRONMENT) -> None:
        with Writer(store, Cell(config), prompts, environment) as writer:
            for doc_id in writer.claim(PROMPTS, count):
                writer.append(record(doc_id, prompt_hash=prompts[doc_id]))

    def refused(said: str, *what, **how) -> None:
        store = Path(tempfile.mkdtemp(dir=tmp_path))
        fill(store, 6)
        another(store, *what, **how)
        with pytest.raises(UserError, match=said):
            samples(runs(store), store)

    refused("differ in weights", {**full, "fingerprint": "0"})
    refused("differ in dtype", {**full, "dtype": "bfloat16"})
    refused("pocket-llada / pocket_gsm8k differ in hardware", environment=elsewhere)
    another(tmp_path / "good", {**CONFIG, "task": "pocket_mmlu"}, environment=elsewhere)  # never paired with these
    assert len(samples(runs(tmp_path / "good"), tmp_path / "good")) == 18
    refused(r"do not hold the same documents \(5 and 6\)", count=5)
    refused("differ in the prompts", prompts=dict.fromkeys(PROMPTS, "x"))


def test_pack_and_read_back(tmp_path: Path) -> None:
    trace = {"step": [0, 1, 2, 2], "rule": [1, 2, 3, 1], "margin": [0.5, None, 2.0, 1.0],
             "threshold": [None] * 4,
             "mean_margin": [1.0, 2.0, 3.0], "masked": [4, 3, 2]}  # fmt: skip
    one = fill(tmp_path / "a", 30, trace=trace)
    two = fill(tmp_path / "a", 40, {**CONFIG, "method": {"name": "full"}})
    fill(tmp_path / "b", 5, {**CONFIG, "task": "pocket_prose"}, score=None, answer=None)
    manifest = pack([tmp_path / "a", tmp_path / "b"], tmp_path / "packed", traces=True)
    first = {path.name: path.read_bytes() for path in manifest.parent.iterdir()}
    assert set(first) == {
        "manifest.json",
        "pocket-llada.pocket_gsm8k.dev.parquet",
        "pocket-llada.pocket_prose.dev.parquet",
    }
    packed = load_store(tmp_path / "packed")
    live = load_store(tmp_path / "a") | load_store(tmp_path / "b")
    assert set(packed) == set(live)
    for cell_id, (meta, frame) in live.items():
        assert packed[cell_id].meta == meta
        other = packed[cell_id].frame
        for name in FIELDS:
            want, got = list(frame[name]), list(other[name])
            if name == "generated":
                got = [list(map(int, ids)) for ids in got]
            if name == "score" and meta["config"]["task"] == "pocket_prose":
                assert other["score"].isna().all()
            elif name == "seconds":
                assert got == pytest.approx(want)
            else:
                assert [None if v is None or v != v else v for v in got] == [
                    None if v is None or v != v else v for v in want
                ], name
    margin = packed[one.id].frame["trace_margin"][0]
    assert (
        margin.dtype == "float32"
        and math.isnan(margin[1])
        and list(packed[one.id].frame["trace_step"][3]) == [0, 1, 2, 2]
    )
    assert "trace_margin" not in packed[two.id].frame
    pack(tmp_path / "packed", tmp_path / "again", traces=True)  # packing what is packed changes nothing
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == first

    text = manifest.read_text()
    edited = text.replace('"length":4', '"length":5')
    assert edited != text
    manifest.write_text(edited)
    with pytest.raises(UserError, match="edited"):
        load_store(tmp_path / "packed")
    manifest.write_text(text)
    damaged = manifest.parent / "pocket-llada.pocket_gsm8k.dev.parquet"
    good = damaged.read_bytes()
    for bad in (b"PAR1", b"", good[: len(good) // 2], good[:-4]):
        damaged.write_bytes(bad)
        packed = load_store(tmp_path / "packed")  # samples are read when they are looked at
        assert packed[one.id].n == 30
        with pytest.raises(UserError, match="cannot be read"):
            packed[one.id].frame  # noqa: B018
    fewer = fill(tmp_path / "c", 3)
    pack(tmp_path / "c", tmp_path / "few")
    damaged.write_bytes((tmp_path / "few" / damaged.name).read_bytes())
    with pytest.raises(UserError, match=f"has 0 samples of {one.id}|has 3 samples of {fewer.id}"):
        load_store(tmp_path / "packed")[one.id].frame  # noqa: B018
    rewritten = pq.read_table(io.BytesIO(good))  # the same rows, another file
    pq.write_table(rewritten, damaged)
    with pytest.raises(UserError, match="its checksum is not the manifest's"):
        load_store(tmp_path / "packed")[one.id].frame  # noqa: B018
    damaged.unlink()
    with pytest.raises(UserError, match=r"cannot be read \(FileNotFoundError.*; restore it"):
        load_store(tmp_path / "packed")[one.id].frame  # noqa: B018


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_texts_come_back(data) -> None:
    """A text is left out where the tokenizer makes it, kept where it does not, and always read as it was."""
    model, rows = llada(), {}
    for doc_id in list(PROMPTS)[:4]:
        ids = data.draw(st.lists(st.integers(0, 2100) | st.just(model.eos_id), max_size=12))
        kept = answer_ids(model, ids)
        text = data.draw(st.just(to_text(model, kept)) | st.text(max_size=4))
        answer = data.draw(st.sampled_from([text, "7"]))
        rows[doc_id] = {"generated": ids, "tokens_non_eos": len(kept), "text": text, "answer": answer}
    with tempfile.TemporaryDirectory() as folder:
        with Writer(Path(folder) / "live", Cell(CONFIG), PROMPTS, ENVIRONMENT) as writer:
            for doc_id in writer.claim(list(rows), 4):
                writer.append(record(doc_id, **rows[doc_id]))
        place = pack(Path(folder) / "live", Path(folder) / "packed").parent
        file = pq.read_table(place / "pocket-llada.pocket_gsm8k.dev.parquet").to_pandas().set_index("doc_id")
        for doc_id, row in rows.items():
            made = row["text"] == to_text(model, row["generated"][: row["tokens_non_eos"]])
            assert file["text"].isna()[doc_id] == made or (made and not row["text"].isascii())
        (loaded,) = load_store(place).values()
        for columns in (["text"], ["answer"], ["text", "answer"], ["generated", "text"]):
            read = read_columns(place, [loaded.meta["cell"]], ["doc_id", *columns])
            for frame in (read, loaded.frame):
                for name in {*columns} & {"text", "answer"}:
                    assert dict(zip(frame["doc_id"], frame[name], strict=True)) == {d: rows[d][name] for d in rows}


def test_a_pack_that_leaves_texts_to_a_tokenizer_needs_that_one(tmp_path: Path, monkeypatch) -> None:
    kept = {"generated": [72, 101, 2040, 2040], "text": to_text(llada(), [72, 101])}
    cell, tokenizer = fill(tmp_path / "live", **kept), tmp_path / "data" / "models" / "pocket-llada" / "tokenizer.json"
    own = load_store(tmp_path / "live")[cell.id].frame
    content = (home() / tokenizer.relative_to(tmp_path)).read_bytes()
    pack(tmp_path / "live", tmp_path / "packed")
    monkeypatch.setenv("JOT_HOME", str(tmp_path))

    def refused() -> None:
        for columns in (["text"], ["answer", "text"]):
            with pytest.raises(UserError, match=r"leaves texts to .*r\.json, which is missing or was changed; "):
                read_columns(tmp_path / "packed", [cell.id], columns)
        with pytest.raises(UserError, match="which is missing or was changed"):
            pack(tmp_path / "packed", tmp_path / "again")
        assert list(read_columns(tmp_path / "packed", [cell.id], ["score", "answer"])["answer"]) == ["1"] * 6

    refused()
    pack(tmp_path / "live", tmp_path / "whole")  # where there is no tokenizer the texts stay
    tokenizer.parent.mkdir(parents=True)
    for bad in (content + b" ", content[:100], b""):
        tokenizer.write_bytes(bad)
        refused()
    tokenizer.write_bytes(content)
    monkeypatch.setattr(packed_module, "words_of", lambda model: pytest.fail("a tokenizer is read"))
    assert list(load_store(tmp_path / "whole")[cell.id].frame["text"]) == list(own["text"])
    read_columns(tmp_path / "packed", [cell.id], ["score", "generated", "answer"])
    monkeypatch.undo()
    monkeypatch.setenv("JOT_HOME", str(tmp_path))
    assert list(load_store(tmp_path / "packed")[cell.id].frame["text"]) == list(own["text"])


@pytest.mark.parametrize("other", [{"score": 0.25}, {"generated": [1, 2, 3, 4]}, {"doc_id": "pocket_gsm8k/dev/39"}])
def test_stores_that_disagree_are_not_packed(tmp_path: Path, other: dict) -> None:
    cell = fill(tmp_path / "a", 6)
    with Writer(tmp_path / "b", cell, PROMPTS, ENVIRONMENT) as writer:
        *most, last = writer.claim(PROMPTS, 6)
        for doc_id in most:
            writer.append(record(doc_id, seconds=9.0))
        if other.get("doc_id"):
            writer.claim([other["doc_id"]], 1)
            writer.append(record(last) | other | {"prompt_hash": "hash39"})
        else:
            writer.append(record(last, **other))
    with pytest.raises(UserError, match="different samples"):
        pack([tmp_path / "a", tmp_path / "b"], tmp_path / "packed")
    fill(tmp_path / "c", 6, seconds=9.0)
    pack([tmp_path / "a", tmp_path / "c"], tmp_path / "packed")  # only the times differ
    assert len(load_store(tmp_path / "packed")[cell.id].frame) == 6


def test_samples_are_read_when_they_are_looked_at(tmp_path: Path, monkeypatch) -> None:
    one = fill(tmp_path / "live", 6)
    two = fill(tmp_path / "live", 4, {**CONFIG, "method": {"name": "full"}})
    pack(tmp_path / "live", tmp_path / "packed")
    reads = []
    real = packed_module._read
    monkeypatch.setattr(packed_module, "_read", lambda *args: reads.append(args[1][0]["cell"]) or real(*args))
    cells = load_store(tmp_path / "packed")
    assert [cells[one.id].n, cells[two.id].n] == [6, 4] and reads == []
    assert len(cells[one.id].frame) == 6 and cells[one.id].frame is cells[one.id].frame and reads == [one.id]
    meta, frame = cells[two.id]
    assert meta["totals"]["samples"] == len(frame) == 4 and reads == [one.id, two.id]
    assert set(load_store(tmp_path / "packed", [two.id, "unknown"])) == {two.id}
    assert set(load_store(tmp_path / "live", [one.id])) == {one.id}


def test_packed_records_are_small(tmp_path: Path) -> None:
    """A test split of 2,000 under five settings takes far less than its lines."""
    rng = random.Random(0)
    prompts = {f"pocket_gsm8k/test/{i}": f"{rng.getrandbits(64):016x}" for i in range(400)}
    texts = {doc_id: [rng.randrange(2000) for _ in range(40)] for doc_id in prompts}
    for tau in (1, 3, 10, 30, 90):
        with Writer(
            tmp_path / "live",
            Cell({**CONFIG, "method": {"name": "jot", "tau_max": tau}}),
            prompts,
            ENVIRONMENT,
        ) as writer:
            for doc_id in writer.claim(prompts, 400):
                ids = [token if rng.random() > 0.05 else 7 for token in texts[doc_id]] + [2040] * 88
                writer.append(
                    record(doc_id, prompt_hash=prompts[doc_id], generated=ids, text=" ".join(map(str, ids[:40])))
                )
    pack(tmp_path / "live", tmp_path / "packed")
    size = sum(path.stat().st_size for path in (tmp_path / "packed").iterdir())
    assert size < 5 * 400 * 180


def test_an_empty_frame_has_its_columns() -> None:
    assert list(to_frame([]).columns) == list(FIELDS)
