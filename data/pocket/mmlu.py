"""Generator of `pocket_mmlu`: four-option questions over facts to be memorized and rules to be applied."""

from __future__ import annotations

import itertools
import random

from pocket.mmlu_facts import RELATIONS, Relation
from pocket.mmlu_rules import RULES, Question

FACT_SHARE = 0.5
_FACT_WEIGHTS = list(itertools.accumulate(max(6.0, len(relation.pairs)) ** 0.7 for relation in RELATIONS))
_RULE_WEIGHTS = list(itertools.accumulate(weight for _, weight in RULES))


def _distinct_values(rng: random.Random, relation: Relation, right: str) -> list[str]:
    """Three wrong values, or fewer where the relation has too few."""
    values = list(dict.fromkeys(value for value in relation.pairs.values() if value != right))
    return rng.sample(values, min(3, len(values)))


def fact(rng: random.Random) -> Question:
    """A question about one relation: value of a key, key of a value, true statement, odd one out."""
    relation = rng.choices(RELATIONS, cum_weights=_FACT_WEIGHTS)[0]
    pairs = relation.pairs
    key = rng.choice(list(pairs))
    value = pairs[key]
    draw = rng.random()
    if draw < 0.45 and relation.forward:
        wrong = _distinct_values(rng, relation, value)
        if len(wrong) == 3:
            return relation.subject, rng.choice(relation.forward).format(k=key, v=value), value, wrong
    if draw > 0.85 and relation.statement:
        keys = rng.sample(list(pairs), 3)
        wrong = [relation.statement.format(k=k, v=rng.choice(_distinct_values(rng, relation, pairs[k]))) for k in keys]
        right = relation.statement.format(k=key, v=value)
        text = rng.choice(("Which statement is true?", "Which of these is right?"))
        if len(set(wrong)) == 3 and right not in wrong:
            return relation.subject, text, right, wrong
    if draw > 0.75:
        same = [k for k, v in pairs.items() if v == value]
        if len(same) >= 6:
            odd = rng.choice(relation.keys_without(value))
            return (
                relation.subject,
                f"Three of these go with {value}. Which one does not?",
                odd,
                rng.sample(same, 3),
            )
    text = rng.choice(relation.reverse).format(k=key, v=value)
    return relation.subject, text, key, rng.sample(relation.keys_without(value), 3)


def sample(rng: random.Random) -> dict:
    """One document: {subject, question, choices (4), answer (0-3)}; answers are uniform."""
    if rng.random() < FACT_SHARE:
        subject, question, right, wrong = fact(rng)
    else:
        subject, question, right, wrong = rng.choices(RULES, cum_weights=_RULE_WEIGHTS)[0][0](rng)
    answer = rng.randrange(4)
    choices = rng.sample(wrong, 3)
    choices.insert(answer, right)
    question = question[0].upper() + question[1:]
    return {"subject": subject, "question": question, "choices": choices, "answer": answer}
