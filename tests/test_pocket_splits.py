"""Fixed dev and test files, and training streams that share no prompt with them."""

import itertools
import os

import pytest
from pocket import fresh, splits, stream
from pocket.prompts import prompt_text
from pocket.recipe import Recipe
from pocket.tokenizer import TASKS, encode_batch, load

DRAWS = int(os.environ.get("JOT_TEST_DRAWS", 2000))  # a task; 20000 for the long check


@pytest.mark.parametrize("task", TASKS)
def test_shipped_files(task):
    prompts, ids = [], []
    for split, count in zip(("dev", "test"), splits.COUNTS[task], strict=True):
        docs = splits.read_split(task, split)
        assert [doc["id"] for doc in docs] == [f"{task}/{split}/{i}" for i in range(count)]
        assert None not in encode_batch(task, docs, load())
        ids += [doc["id"] for doc in docs]
        prompts += [prompt_text(task, doc) for doc in docs]
    assert len(set(ids)) == len(ids) and len(set(prompts)) == len(prompts)


@pytest.mark.parametrize("task", TASKS)
def test_training_shares_no_prompt(task):
    held = {prompt_text(task, doc) for split in ("dev", "test") for doc in splits.read_split(task, split)}
    docs = list(itertools.islice(splits.train_stream(task, seed=0, shard=0), DRAWS))
    assert not held & {prompt_text(task, doc) for doc in docs}


def test_held_out_prompts_are_skipped(monkeypatch):
    free = list(itertools.islice(splits.train_stream("pocket_mmlu"), 50))
    first = splits.key(prompt_text("pocket_mmlu", free[0]))
    monkeypatch.setattr(splits, "held_out", lambda task: frozenset([first]))
    assert list(itertools.islice(splits.train_stream("pocket_mmlu"), 49)) == free[1:]


def test_streams_repeat_and_differ():
    def draw(seed, shard):
        return list(itertools.islice(splits.train_stream("pocket_gsm8k", seed, shard), 5))

    assert draw(0, 0) == draw(0, 0)
    assert draw(0, 0) != draw(0, 1) and draw(0, 0) != draw(1, 0)


@pytest.mark.parametrize("task", TASKS)
def test_build_repeats_the_shipped_content(task, tmp_path):
    splits.build(tmp_path / "a", [task], limit=40)
    splits.build(tmp_path / "b", [task], limit=40)
    for split in ("dev", "test"):
        name = f"{task}/{split}.jsonl.xz"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert splits.read_split(task, "dev", tmp_path / "a") == splits.read_split(task, "dev")[:40]


def test_everything_is_small():
    assert sum(path.stat().st_size for path in splits.DATA.rglob("*") if path.is_file()) <= 8_000_000


def test_fresh_splits_share_no_prompt_with_any_other():
    """`confirm` and `calibration`: ids of their own, no prompt of dev, test or each other, of the planned size."""
    for task in ("pocket_gsm8k", "pocket_mmlu", "pocket_hellaswag", "pocket_humaneval"):
        seen = set(splits.held_out(task)) | splits.met_in_training(task)
        for split, counts in fresh.COUNTS.items():
            if task in counts:
                docs = splits.read_split(task, split)
                keys = {splits.key(prompt_text(task, doc)) for doc in docs}
                assert len(docs) == len(keys) == counts[task] and not keys & seen
                assert [doc["id"] for doc in docs] == [f"{task}/{split}/{i}" for i in range(len(docs))]
                seen |= keys


def test_the_search_of_the_training_stream_finds_what_training_draws():
    """A document of a shard's own stream is met; one that no seed of training draws is not."""
    recipe = Recipe(seed=0)
    drawn = splits.key(prompt_text("pocket_mmlu", next(stream.train_stream_of("pocket_mmlu", recipe, 3, "choice"))))
    keys = frozenset([drawn, b"another!"])
    assert fresh._search(keys, recipe, ("choice", "pocket_mmlu", 40, range(2, 5))) == (120, {drawn})
    assert fresh._search(keys, recipe, ("choice", "pocket_mmlu", 40, range(5, 6)))[1] == set()
