"""The word-problem generator: right arithmetic, coverage, variety, sizes."""

import os
import random
import re
from collections import Counter

import pytest
from pocket.gsm8k import ALL_NAMES, FAMILIES, sample

DRAWS = max(4000, int(os.environ.get("JOT_TEST_DRAWS", 0)))  # a longer check: 20000
EQUATION = re.compile(r"(?:([A-Za-z]+): )?(\d+) ([+*/-]) (\d+) = (\d+)")


@pytest.fixture(scope="module")
def docs() -> list[dict]:
    rng = random.Random(20_000)
    return [sample(rng) for _ in range(DRAWS)]


def test_every_equation_is_right(docs):
    for doc in docs:
        *steps, last = doc["answer"].split(". ")
        assert last == f"#### {doc['final']}"
        values = []
        for step in steps:
            match = EQUATION.fullmatch(step)
            assert match, step
            a, op, b, value = int(match[2]), match[3], int(match[4]), int(match[5])
            assert b or op != "/"
            if op == "/":
                assert a == value * b, step
            else:
                assert value == {"+": a + b, "-": a - b, "*": a * b}[op], step
            assert 0 <= value <= 9999
            values.append(str(value))
        assert values == doc["intermediates"]
        assert len(values) == doc["n_steps"]
        assert doc["final"] == values[-1]


def test_operands_come_from_the_text_or_an_earlier_step(docs):
    words = {"2", "3", "4", "5", "6", "100"}  # twice, half, a third, ..., percent
    for doc in docs:
        known = set(re.findall(r"\d+", doc["question"])) | words
        for match in EQUATION.finditer(doc["answer"]):
            assert {match[2], match[4]} <= known, doc
            known.add(match[5])


def test_families_and_steps_are_covered(docs):
    assert len(FAMILIES) >= 8
    families = Counter(doc["family"] for doc in docs)
    assert set(families) == set(FAMILIES)
    assert min(families.values()) > 0.02 * len(docs)
    steps = Counter(doc["n_steps"] for doc in docs)
    assert set(steps) == set(range(2, 9))
    assert steps[3] + steps[4] > 0.5 * len(docs)
    assert steps[7] + steps[8] < 0.06 * len(docs)


def test_two_in_five_hold_unused_numbers(docs):
    assert 0.33 < sum(doc["unused"] > 0 for doc in docs) / len(docs) < 0.47


def test_duplicates_are_rare(docs):
    assert len({doc["question"] for doc in docs}) > 0.995 * len(docs)


def test_sizes(docs):
    assert max(len(doc["question"].split()) for doc in docs) <= 95
    vocabulary = {word for doc in docs for word in re.findall(r"[A-Za-z]+", doc["question"])}
    assert len(vocabulary) < 900


def test_text_is_tidy(docs):
    for doc in docs:
        question = doc["question"]
        assert question[-1] == "?" and question.count("?") == 1
        assert not re.search(r"  |\{|\}|\.\.| [.,?]", question), question
        assert all(sentence[0].isupper() or sentence[0].isdigit() for sentence in re.split(r"[.] ", question))
        assert not re.search(r"(?<![\d])\b1 (?!km|meters)[a-z]+s\b", question), question


def test_the_asked_value_is_not_always_the_last_event(docs):
    middle = [doc for doc in docs if doc["family"] == "possessions" and " end of " in doc["question"]]
    assert middle
    for doc in middle:
        day = re.search(r"at the end of (\w+)\?", doc["question"])[1]
        assert re.search(rf"On {day}, .*\. On \w+day, ", doc["question"]), doc


def test_determinism():
    one, two, other = random.Random(5), random.Random(5), random.Random(6)
    first = [sample(one) for _ in range(200)]
    assert first == [sample(two) for _ in range(200)]
    assert first != [sample(other) for _ in range(200)]


def test_names_have_one_pronoun():
    assert len(set(ALL_NAMES)) == len(ALL_NAMES) == 32
