"""General knowledge behind the fact questions of `pocket_mmlu`.

The tables are in `data/tasks/pocket_mmlu/facts.txt`; `RELATIONS` says how each is asked, in both
directions.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from pocket.paths import TASKS


@dataclass(frozen=True)
class Relation:
    """A table key -> value of one subject, with the words to ask for it in both directions ({k}, {v})."""

    subject: str
    pairs: dict[str, str]
    forward: tuple[str, ...]
    reverse: tuple[str, ...]
    statement: str  # a true sentence about {k} and {v}; "" for none

    def keys_without(self, value: str) -> list[str]:
        """Keys whose value is another one: the safe wrong answers to a reverse question."""
        return [key for key, other in self.pairs.items() if other != value]


@functools.cache
def _tables() -> dict[str, list[list[str]]]:
    """Section name -> rows of fields."""
    tables: dict[str, list[list[str]]] = {}
    for line in (TASKS / "pocket_mmlu" / "facts.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            rows = tables.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            rows.append(line.split("|"))
    return tables


def _column(table: str, key: int, value: int) -> dict[str, str]:
    return {row[key]: row[value] for row in _tables()[table] if row[key] != "-" and row[value] != "-"}


def _members(table: str) -> dict[str, str]:
    return {member: row[0] for row in _tables()[table] for member in row[1:]}


PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()


def ordinal(number: int) -> str:
    """1 -> "1st", 12 -> "12th", 23 -> "23rd"."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


NATIONS = {"Netherlands", "United Kingdom", "Czech Republic", "United States", "Philippines"}


def the(country: str) -> str:
    """The name of a country with its article, where it has one."""
    return f"the {country}" if country in NATIONS else country


def _countries(value: int) -> dict[str, str]:
    return {the(name): other for name, other in _column("countries", 0, value).items()}


PRESIDENT_ORDER = {name: int(number) for number, name in _column("presidents", 0, 1).items()}
EVENT_YEARS = {name: int(year) for name, year in _column("events", 0, 1).items()}
ATOMIC_NUMBERS = {name: int(number) for name, number in _column("elements", 0, 2).items()}

RELATIONS = [
    Relation(
        "world capitals",
        _countries(1),
        ("What is the capital of {k}?", "Which city is the capital of {k}?", "The capital city of {k} is"),
        ("{v} is the capital of which country?", "Which country has {v} as its capital?"),
        "{v} is the capital of {k}",
    ),
    Relation(
        "geography",
        _countries(2),
        ("On which continent is {k}?", "{k} is a country in"),
        ("Which country is in {v}?", "Which of these lies in {v}?"),
        "{k} is in {v}",
    ),
    Relation(
        "currencies",
        _countries(3),
        ("What is the currency of {k}?", "In {k} people pay with the"),
        ("Which country uses the {v}?", "The {v} is the currency of"),
        "{k} uses the {v}",
    ),
    Relation(
        "languages",
        _countries(4),
        ("What is the main language of {k}?", "Most people in {k} speak"),
        ("In which country is {v} the main language?", "{v} is the main language of"),
        "{v} is the main language of {k}",
    ),
    Relation(
        "us states",
        _column("states", 0, 1),
        ("What is the capital of the US state {k}?", "Which city is the state capital of {k}?"),
        ("{v} is the capital of which US state?", "Which US state has {v} as its capital?"),
        "{v} is the capital of {k}",
    ),
    Relation(
        "us states",
        _column("states", 0, 2),
        ("What is the postal code of {k}?", "{k} is written on letters as"),
        ("Which state has the postal code {v}?", "{v} is the postal code of"),
        "{k} has the postal code {v}",
    ),
    Relation(
        "chemistry",
        _column("elements", 0, 1),
        ("What is the chemical symbol of {k}?", "Which symbol stands for {k}?"),
        ("Which element has the symbol {v}?", "{v} is the chemical symbol of"),
        "{v} is the symbol of {k}",
    ),
    Relation(
        "chemistry",
        _column("elements", 0, 2),
        ("What is the atomic number of {k}?", "How many protons has an atom of {k}?"),
        ("Which element has the atomic number {v}?", "An atom with {v} protons is"),
        "",
    ),
    Relation(
        "chemistry",
        _column("elements", 0, 3),
        (),
        ("Which element is a {v} at room temperature?", "At room temperature, which of these is a {v}?"),
        "",
    ),
    Relation(
        "zoology",
        _members("animals"),
        ("What kind of animal is the {k}?", "To which class does the {k} belong?"),
        ("Which animal belongs to the class {v}?", "Which of these is classed as {v}?"),
        "the {k} belongs to the class {v}",
    ),
    Relation(
        "zoology",
        _column("young", 0, 1),
        ("What is a young {k} called?", "The young of the {k} is the"),
        ("A {v} is the young of the", "Which animal was once a {v}?"),
        "a {v} is a young {k}",
    ),
    Relation(
        "music",
        _members("instruments"),
        ("To which family does the {k} belong?", "What kind of instrument is the {k}?"),
        ("Which is a {v} instrument?", "Which of these belongs to the {v} family?"),
        "the {k} is a {v} instrument",
    ),
    Relation(
        "music",
        _column("composers", 0, 1),
        ("Who composed {k}?", "{k} is a work by the composer"),
        ("Which work did {v} compose?", "Which of these is by the composer {v}?"),
        "{v} composed {k}",
    ),
    Relation(
        "literature",
        _column("books", 0, 1),
        ("Who wrote {k}?", "{k} is a work by the author"),
        ("Which work was written by {v}?", "{v} is the author of"),
        "{v} wrote {k}",
    ),
    Relation(
        "art",
        _column("paintings", 0, 1),
        ("Who painted {k}?", "{k} is a painting by"),
        ("Which painting is by {v}?", "{v} painted"),
        "{v} painted {k}",
    ),
    Relation(
        "us history",
        {ordinal(number): name for name, number in PRESIDENT_ORDER.items()},
        ("Who was the {k} president of the United States?", "The {k} US president was"),
        ("{v} was which president of the United States?", "In the row of US presidents {v} was the"),
        "{v} was the {k} US president",
    ),
    Relation(
        "world history",
        _column("events", 0, 1),
        ("What was the year of {k}?", "Which year saw {k}?"),
        ("What happened in {v}?", "Which event belongs to the year {v}?"),
        "",
    ),
    Relation(
        "mythology",
        _column("gods", 0, 1),
        ("What was the Roman name of the Greek deity {k}?", "The Romans called {k}"),
        ("The Roman deity {v} was known in Greece as", "Which Greek deity is the Roman {v}?"),
        "{k} is the Greek name of {v}",
    ),
    Relation(
        "physics",
        _column("si_units", 0, 1),
        ("What is the unit of {k}?", "In which unit is {k} measured?"),
        ("What is measured in the unit {v}?", "The {v} is a unit of"),
        "the {v} is a unit of {k}",
    ),
    Relation(
        "sciences",
        _column("sciences", 0, 1),
        ("What does {k} study?", "{k} is the study of"),
        ("What is the study of {v} called?", "Which science studies {v}?"),
        "{k} is the study of {v}",
    ),
    Relation(
        "anatomy",
        _column("organs", 0, 1),
        ("The main task of the {k} is",),
        ("Which part of the body is for {v}?",),
        "",
    ),
    Relation(
        "vocabulary",
        _column("synonyms", 0, 1),
        ("Which word means the same as {k}?", "A synonym of {k} is"),
        ("Which word means the same as {v}?", "A synonym of {v} is"),
        "{k} means {v}",
    ),
    Relation(
        "vocabulary",
        _column("antonyms", 0, 1),
        ("Which word is the opposite of {k}?", "An antonym of {k} is"),
        ("Which word is the opposite of {v}?", "An antonym of {v} is"),
        "{k} is the opposite of {v}",
    ),
]
