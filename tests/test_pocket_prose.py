"""pocket_prose: real addresses, split by address, fixed passages, verbatim-copy rate."""

import math
import random

from pocket import prose


def test_splits_are_by_address():
    rows = prose.addresses()
    assert len(rows) == 233 and len({(row["year"], row["president"]) for row in rows}) == 233
    texts = {split: set(prose.split_documents(split)) for split in ("train", "dev", "test")}
    assert sum(map(len, texts.values())) == 233
    assert not texts["train"] & texts["dev"] and not texts["train"] & texts["test"]
    assert sum(len(text.split()) for text in texts["train"]) > 1_400_000


def test_text_is_plain():
    for row in prose.addresses():
        assert "  " not in row["text"] and "\n" not in row["text"] and "[laughter]" not in row["text"].lower()


def test_samples_are_passages_of_train():
    train = prose.split_documents("train")
    for seed in range(30):
        text = prose.sample(random.Random(seed))["text"]
        assert len(text) == prose.PASSAGE and any(text in whole for whole in train)
        assert text == prose.sample(random.Random(seed))["text"]


def test_passages_do_not_overlap():
    for split, count in prose.COUNTS.items():
        docs = prose.passages(split)
        assert len(docs) == count == len({doc["text"] for doc in docs})
        whole = prose.split_documents(split)
        for text in whole:
            places = sorted(text.find(doc["text"]) for doc in docs if doc["text"] in text)
            assert all(b - a >= prose.PASSAGE for a, b in zip(places, places[1:], strict=False))


def test_copy_rate():
    train = prose.split_documents("train")[3][500:3000]
    assert prose.copy_rate([train]) > 0.98
    assert prose.copy_rate(["purple elephants juggle seventeen quiet teapots near my old submarine"]) == 0
    assert prose.copy_rate([doc["text"] for doc in prose.passages("dev")]) < 0.01
    assert math.isnan(prose.copy_rate(["too short"]))
