"""pocket_hellaswag: well-formed, endings distinct, state families checked by replaying the context."""

import random
import re
from collections import Counter

from pocket import hellaswag

DOCS = [hellaswag.sample(random.Random(seed)) for seed in range(5000)]


def _right(doc):
    return doc["endings"][doc["label"]]


def test_fields_and_distinct_endings():
    for doc in DOCS:
        assert set(doc) == {"activity_label", "ctx", "endings", "label"}
        assert len(doc["endings"]) == len(set(doc["endings"])) == 4
        assert not re.search(r"[{}~|]", doc["ctx"] + "".join(doc["endings"]))
        assert not re.search(r"\ba [aeiou]", doc["ctx"] + "".join(doc["endings"]))


def test_many_activities_and_uniform_labels():
    assert len({doc["activity_label"] for doc in DOCS}) >= 35
    counts = Counter(doc["label"] for doc in DOCS)
    assert all(abs(counts[place] / len(DOCS) - 0.25) < 0.03 for place in range(4))


def test_scenes_are_complete():
    for label, slots, steps in hellaswag.scenes():
        assert len(steps) >= 4, label
        assert all(len(set(values)) == len(values) >= 3 for values in slots.values()), label
        used = set(re.findall(r"{(\w+)}", " ".join(steps))) - {"his"}
        assert used == set(slots), label
        plain = [step.lstrip("~") for step in steps]
        assert len(set(plain)) == len(plain), label


def test_two_wrong_endings_share_words_with_the_context():
    shares = 0
    for doc in DOCS:
        words = set(re.findall(r"\w{3,}", doc["ctx"].lower())) - {"the", "and", "with"}
        wrong = [ending for i, ending in enumerate(doc["endings"]) if i != doc["label"]]
        near = sum(bool(words & set(re.findall(r"\w{3,}", ending.lower()))) for ending in wrong)
        shares += near >= 2
    assert shares > 0.8 * len(DOCS)


def test_things_are_taken_from_where_they_are():
    seen = 0
    for doc in DOCS:
        if doc["activity_label"] == "Looking for things":
            where = dict(re.findall(r"the (\w+) in the (\w+)", doc["ctx"]))
            where.update(re.findall(r"moves the (\w+) to the (\w+)", doc["ctx"]))
            wanted = re.search(r"needs the (\w+) and", doc["ctx"])[1]
            assert _right(doc) == f"takes the {wanted} out of the {where[wanted]}."
            seen += 1
    assert seen > 300


def test_counts_add_up():
    for doc in DOCS:
        if doc["activity_label"] == "Counting":
            total = int(re.search(r"has (\d+)", doc["ctx"])[1])
            total -= sum(map(int, re.findall(r"takes (\d+) out", doc["ctx"])))
            total += sum(map(int, re.findall(r"puts (\d+) more in", doc["ctx"])))
            assert re.search(r"\d+", _right(doc))[0] == str(total) and total > 0


def test_the_first_in_line_is_served():
    for doc in DOCS:
        if doc["activity_label"] == "Waiting in line":
            behind = dict(re.findall(r"(\w+) stands behind (\w+)", doc["ctx"]))
            first = (set(behind.values()) - set(behind)).pop()
            ahead = {front: back for back, front in behind.items()}
            gone = f"{first} is served and leaves" in doc["ctx"]
            assert _right(doc) == f"{ahead[first] if gone else first} is served."


def test_things_passed_on_end_with_the_last():
    for doc in DOCS:
        if doc["activity_label"] == "Passing things on":
            has = {thing: who for who, thing in re.findall(r"(\w+) has an? (\w+)", doc["ctx"])}
            for _, taker, thing in re.findall(r"(\w+) gives (\w+) the (\w+)", doc["ctx"]):
                has[thing] = taker
            who, thing = re.fullmatch(r"(\w+) has the (\w+)\.", _right(doc)).groups()
            assert has[thing] == who
