"""What went wrong in a worked solution, found from its text: the paper's two failure modes and two more.

The paper (appendix "Failure Mode Analysis") names *single-token catastrophic errors*, one wrong operator or
intermediate value with a consistent rest, and *premature answer anchoring*, an intermediate value given as the
answer. The finder adds *overrun* (the right result is reached and the chain goes on) and *other*.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from statsmodels.stats.inter_rater import cohens_kappa

from jot import stats
from jot.runs.parameters import NotebookError, home
from jot.tasks import extract, functions, get, split_file

MODES = ("branch", "anchor", "overrun", "other")
MEANING = {
    "branch": "single-token error: one fault, the rest consistent",
    "anchor": "premature anchoring: the answer is an intermediate value",
    "overrun": "right result reached, the chain goes on",
    "other": "several faults, or no answer",
}
LABELS = Path("data") / "labels" / "failure_modes.csv"
_EQUATION = re.compile(r"(\d+(?:\.\d+)?)\s*([-+*/])\s*(\d+(?:\.\d+)?)\s*=\s*(-?\d+(?:\.\d+)?)")
_ANNOTATED = re.compile(r"<<[^<>]*=\s*(-?[\d.,]+)>>")  # GSM8K's own calculator marks
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_WORDS = {"half": 2, "twice": 2, "double": 2, "third": 3, "triple": 3, "three": 3, "quarter": 4, "four": 4,
          "five": 5, "percent": 100}  # fmt: skip


class Equation(NamedTuple):
    """``left op right = result`` as written; numbers are exact."""

    left: Fraction
    op: str
    right: Fraction
    result: Fraction

    @property
    def holds(self) -> bool:
        if self.op == "/":
            return self.right != 0 and self.left / self.right == self.result
        value = {"+": self.left + self.right, "-": self.left - self.right, "*": self.left * self.right}[self.op]
        return value == self.result


class Worked(NamedTuple):
    """A document's own solution: final answer, values of its steps in order, numbers that the question gives."""

    final: Fraction | None
    values: tuple[Fraction, ...]
    given: frozenset[Fraction]


def _fraction(text: str) -> Fraction | None:
    match = re.fullmatch(r"-?\d[\d,]*(?:\.\d+)?", text.strip())
    return Fraction(text.strip().replace(",", "")) if match else None


def documents(task: str, data: str | Path | None = None) -> dict[str, dict]:
    """Documents of a task's test split by id.

    Raises:
        NotebookError: the task has no worked solutions, or its documents are not on this machine.
    """
    spec = get(task)
    path = split_file(spec, spec.splits[0], data)[1]
    if not task.endswith("gsm8k"):
        raise NotebookError(f"{task} has no worked solutions to compare with; use tasks=pocket_gsm8k")
    if path is None:
        raise NotebookError(f"the documents of {task} are needed beside the records; name their folder with data")
    return {doc["id"]: doc for doc in functions.load(task, spec.splits[0], data)["test"]}


def worked(doc: Mapping) -> Worked:
    """The worked solution of a document, from its fields or from GSM8K's marks in the answer."""
    steps = doc["intermediates"] if "intermediates" in doc else _ANNOTATED.findall(doc["answer"])
    values = tuple(v for v in map(_fraction, steps) if v is not None)
    final = _fraction(doc.get("final") or doc["answer"].rpartition("####")[2])
    given = {Fraction(n.replace(",", "")) for n in _NUMBER.findall(doc["question"])}
    lower = doc["question"].lower()
    given |= {Fraction(value) for word, value in _WORDS.items() if word in lower}
    return Worked(final, values, frozenset(given | {Fraction(2)}))


def chain(text: str) -> list[Equation]:
    """The equations of a solution, in order."""
    return [Equation(Fraction(a), op, Fraction(b), Fraction(result)) for a, op, b, result in _EQUATION.findall(text)]


def faults(steps: Sequence[Equation], answer: Fraction | None, solution: Worked) -> int:
    """How many things are wrong in a chain.

    Each counts one: an equation that does not hold, an operand that neither the question nor an earlier result
    gives, a step more or fewer than in the worked solution, an answer that is not the last result.
    """
    known, count = set(solution.given), 0
    for step in steps:
        count += not step.holds
        count += sum(operand not in known for operand in (step.left, step.right))
        known.add(step.result)
    count += abs(len(steps) - len(solution.values))
    return count + (not steps or answer != steps[-1].result)


def mode(text: str, doc: Mapping) -> str:
    """The failure mode of a wrong output.

    Args:
        text: the generated text.
        doc: its document.

    Returns:
        ``"anchor"``: the answer equals a value of the worked solution other than the final one;
        ``"overrun"``: the right result stands where the worked solution ends, and more steps follow;
        ``"branch"``: at most one fault (see ``faults``); ``"other"``: the rest.
    """
    solution, steps = worked(doc), chain(text)
    answer = _fraction(extract.gsm8k(text))
    if answer is not None and answer != solution.final and answer in solution.values:
        return "anchor"
    last = len(solution.values) - 1
    if any(step.result == solution.final for step in steps[last:-1]):
        return "overrun"
    return "branch" if steps and faults(steps, answer, solution) <= 1 else "other"


def find(frame: pd.DataFrame, docs: Mapping[str, Mapping]) -> pd.Series:
    """The mode of every wrong output of a recorded frame, ``"right"`` for the others, by document."""
    found = {
        doc_id: "right" if score > 0.5 else mode(text, docs[doc_id])
        for doc_id, text, score in zip(frame["doc_id"], frame["text"], frame["score"], strict=True)
    }
    return pd.Series(found, dtype=object)


# --- hand labels --------------------------------------------------------------------------------------------


def labels(path: str | Path | None = None) -> pd.DataFrame:
    """The hand-labelled outputs: doc_id, model, method, tau, label, note, and the text that was read."""
    path = Path(path) if path else home() / LABELS
    if not path.is_file():
        raise NotebookError(f"there is no {LABELS.as_posix()}; check it out")
    frame = pd.read_csv(path, dtype={"text": str, "note": str}, keep_default_na=True)
    return frame.assign(text=frame["text"].fillna(""), note=frame["note"].fillna(""))


def labelled(frame: pd.DataFrame, docs: Mapping[str, Mapping]) -> pd.DataFrame:
    """``labels`` with the finder's answer for the same texts in the column ``found``."""
    found = [mode(text, docs[doc_id]) for doc_id, text in zip(frame["doc_id"], frame["text"], strict=True)]
    return frame.assign(found=found)


def kappa(frame: pd.DataFrame) -> stats.Estimate:
    """Cohen's kappa of hand and finder over the modes, with its asymptotic 95 % interval (Fleiss et al. 1969)."""
    table = pd.crosstab(frame["label"], frame["found"]).reindex(index=MODES, columns=MODES, fill_value=0)
    if (table.to_numpy().sum(0) == len(frame)).any() and (table.to_numpy().sum(1) == len(frame)).any():
        return stats.Estimate(np.nan, np.nan, np.nan)  # one mode throughout: chance agreement is certain
    result = cohens_kappa(table.to_numpy())
    return stats.Estimate(float(result.kappa), float(result.kappa_low), float(min(1.0, result.kappa_upp)))
