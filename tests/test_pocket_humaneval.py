"""The function generator: solutions pass their tests, other solutions fail, the space is large."""

import ast
import os
import random
import re
from collections import Counter

import pytest
from pocket.humaneval import FAMILIES, Draw, sample

DRAWS = max(2000, int(os.environ.get("JOT_TEST_DRAWS", 0)))  # a longer check: 20000


@pytest.fixture(scope="module")
def docs() -> list[dict]:
    rng = random.Random(500)
    return [sample(rng) for _ in range(DRAWS)]


def passes(doc: dict, prompt: str, body: str, entry_point: str) -> bool:
    """Whether a function passes the document's tests; only for generated sources."""
    scope: dict = {}
    try:
        exec(prompt + body, scope)
        exec(doc["test"], scope)
        scope["check"](scope[entry_point])
    except Exception:
        return False
    return True


def signature(doc: dict) -> str:
    return re.search(r"\((.*?)\)", doc["prompt"])[1]


def test_canonical_solutions_pass(docs):
    for doc in docs[:1000]:
        assert passes(doc, doc["prompt"], doc["canonical_solution"], doc["entry_point"]), doc


def test_examples_in_the_prompt_are_right(docs):
    shown = 0
    for doc in docs[:1000]:
        scope: dict = {}
        exec(doc["prompt"] + doc["canonical_solution"], scope)
        for call, result in re.findall(r">>> (.*)\n    (.*)\n", doc["prompt"]):
            assert repr(eval(call, scope)) == result, doc
            shown += 1
    assert shown > 300


def test_tests_tell_solutions_apart(docs):
    rng = random.Random(1)
    fooled = tried = 0
    groups: dict[str, list[dict]] = {}
    for doc in docs:
        if "while" in doc["canonical_solution"]:  # may not end on another document's inputs
            continue
        groups.setdefault(doc["family"] + signature(doc), []).append(doc)
    for doc in docs[:800]:
        peers = [
            d
            for d in groups.get(doc["family"] + signature(doc), [])
            if d["canonical_solution"] != doc["canonical_solution"]
        ]
        if not peers:
            continue
        other = rng.choice(peers)
        tried += 1
        fooled += passes(doc, other["prompt"], other["canonical_solution"], other["entry_point"])
    assert tried > 500
    assert fooled < 0.03 * tried


def test_constants_and_identity_fail(docs):
    for doc in docs[:500]:
        first = signature(doc).split(",")[0]
        for value in ("0", "1", "-1", "None", "True", "[]", "''", first):
            if value == first and "," in signature(doc):
                continue
            assert not passes(doc, doc["prompt"], f"    return {value}", doc["entry_point"]), doc


def test_shape(docs):
    for doc in docs:
        assert doc["prompt"].startswith(f"def {doc['entry_point']}(")
        assert doc["prompt"].endswith('"""\n')
        lines = doc["canonical_solution"].split("\n")
        assert 1 <= len(lines) <= 7
        assert all(line.startswith("    ") for line in lines)
        assert lines[-1].lstrip().startswith("return ")
        assert doc["test"].startswith("def check(candidate):\n    assert candidate(")
        assert 4 <= doc["test"].count("assert candidate(") <= 8
        ast.parse(doc["prompt"] + doc["canonical_solution"])
        assert not re.search(r"[{}]x[{}]|  +[a-z]+ +  ", doc["prompt"].split("\n")[1]), doc["prompt"]
        assert len(doc["prompt"].split()) <= 95


def test_families_and_lengths_are_covered(docs):
    families = Counter(doc["family"] for doc in docs)
    assert set(families) == set(FAMILIES)
    assert min(families.values()) > 0.03 * len(docs)
    lines = Counter(doc["canonical_solution"].count("\n") + 1 for doc in docs)
    assert all(lines[n] > 0.01 * len(docs) for n in range(1, 7))


def test_the_space_is_large():
    """Chao's lower bound on the number of distinct solutions of three families, argument names aside."""
    bound = 0.0
    for family in ("ints", "chain", "branch"):
        rng, counts = random.Random(2), Counter()
        for _ in range(max(DRAWS, 5000)):
            spec = FAMILIES[family][0](Draw(rng))
            body = "\n".join(spec.body)
            for name, _ in spec.args:
                body = re.sub(rf"\b{name}\b", "A", body)
            counts[body] += 1
        once, twice = (sum(c == k for c in counts.values()) for k in (1, 2))
        bound += len(counts) + once * (once - 1) / (2 * (twice + 1))
    assert bound > 250_000


def test_without_tests_the_same_documents():
    one, two = random.Random(9), random.Random(9)
    for _ in range(300):
        full, short = sample(one), sample(two, tests=False)
        assert short == {**full, "test": ""}


def test_determinism():
    one, two, other = random.Random(5), random.Random(5), random.Random(6)
    first = [sample(one) for _ in range(200)]
    assert first == [sample(two) for _ in range(200)]
    assert first != [sample(other) for _ in range(200)]
