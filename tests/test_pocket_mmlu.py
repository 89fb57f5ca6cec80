"""pocket_mmlu: well-formed, one right option, facts and rules checked by independent means."""

import random
import re
from collections import Counter

import pytest
from pocket import mmlu
from pocket.mmlu_facts import RELATIONS
from pocket.mmlu_rules import RULES

DOCS = [mmlu.sample(random.Random(seed)) for seed in range(4000)]


def test_fields_and_distinct_options():
    for doc in DOCS:
        assert set(doc) == {"subject", "question", "choices", "answer"}
        assert len(doc["choices"]) == len(set(doc["choices"])) == 4
        assert all(isinstance(choice, str) and choice for choice in doc["choices"])
        assert "{" not in doc["question"]


def test_many_subjects_and_uniform_answers():
    assert len({doc["subject"] for doc in DOCS}) >= 20
    counts = Counter(doc["answer"] for doc in DOCS)
    assert all(abs(counts[place] / len(DOCS) - 0.25) < 0.03 for place in range(4))


def test_same_seed_same_document():
    assert [mmlu.sample(random.Random(seed)) for seed in range(50)] == DOCS[:50]


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.reverse[0])
def test_relations_leave_enough_wrong_options(relation):
    assert all(len(relation.keys_without(value)) >= 3 for value in relation.pairs.values())
    assert relation.reverse


@pytest.mark.parametrize("rule", [rule for rule, _ in RULES], ids=lambda rule: rule.__name__)
def test_rules_give_three_wrong_options(rule):
    rng = random.Random(3)
    for _ in range(2000):
        _, question, right, wrong = rule(rng)
        assert len(set(wrong)) >= 3 and right not in wrong, question


def _value(doc):
    return doc["choices"][doc["answer"]]


def test_arithmetic_agrees_with_python():
    rng, seen = random.Random(5), 0
    for _ in range(30000):
        doc = mmlu.sample(rng)
        match = re.fullmatch(r"(?:What is|The value of|Compute) ([\d +x/-]+?)(?: is|\?|\.)", doc["question"])
        if match and re.search(r"[+x/-]", match[1]):
            seen += 1
            assert eval(match[1].replace("x", "*")) == float(_value(doc))
    assert seen > 500


def test_exactly_one_option_has_the_property():
    checks = {
        r"Which (?:number|of these) is prime\?": lambda n: all(n % d for d in range(2, n)),
        r"Which (?:number|of these) is even\?": lambda n: n % 2 == 0,
        r"Which (?:number|of these) is odd\?": lambda n: n % 2 == 1,
        r"Which (?:number|of these) is a square number\?": lambda n: round(n**0.5) ** 2 == n,
    }
    rng, seen = random.Random(6), Counter()
    for _ in range(30000):
        doc = mmlu.sample(rng)
        for pattern, test in checks.items():
            if re.fullmatch(pattern, doc["question"]):
                seen[pattern] += 1
                assert [test(int(choice)) for choice in doc["choices"]].count(True) == 1
                assert test(int(_value(doc)))
        if match := re.fullmatch(r"Which (?:number|of these) is divisible by (\d+)\?", doc["question"]):
            assert [int(choice) % int(match[1]) == 0 for choice in doc["choices"]].count(True) == 1
        if match := re.fullmatch(r"Which number lies between (\d+) and (\d+)\?", doc["question"]):
            low, high = int(match[1]), int(match[2])
            assert [low < int(choice) < high for choice in doc["choices"]].count(True) == 1
    assert set(seen) == set(checks)
