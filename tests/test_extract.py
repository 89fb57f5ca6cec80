"""Answers out of text: canonical cases, a file of real outputs, and arbitrary text."""

from __future__ import annotations

import gzip
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jot.tasks import extract


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}", "42"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{\text{about } \boxed{7}} miles", "7"),
        (r"\boxed{1{,}234{,}567}", "1234567"),
        (r"\boxed{385\,000}", "385000"),
        (r"\boxed{\$8,400.00}", "8400"),
        (r"\boxed{8.50}", "8.5"),
        (r"\boxed{12.5\%}", "12.5"),
        (r"\boxed{54 \text{ miles}}", "54"),
        (r"\boxed{-3}", "-3"),
        (r"\boxed{-\$3}", "-3"),
        ("\\boxed{\u22123}", "-3"),
        (r"\boxed{\frac{3}{4}}", "0.75"),
        (r"\boxed{\dfrac{1}{3}}", "1/3"),
        (r"\boxed{-\frac{1}{3}}", "-1/3"),
        (r"\boxed{2\frac{1}{2}}", "2.5"),
        (r"\boxed{1 1/2}", "1.5"),
        (r"\boxed{45/3}", "15"),
        (r"\boxed{3/0}", "3"),
        (r"\boxed{x = 5}", "5"),
        (r"\boxed{3 \times 4 = 12}", "12"),
        ("\\boxed{36\n</answer>", "36"),
        ("\\boxed{36</answer> 99", "36"),
        (r"\boxed{} \boxed{310}", "310"),
        (r"\boxed{310} \boxed{}", "310"),
        (r"the total is 8. \boxed{}", "8"),
        ("<boxed{2.5}", "2.5"),
        (r"\boxed{5} #### 6", "5"),
        ("3 + 4 = 7\n#### 7", "7"),
        ("#### 1,234 dollars\nQ: 99", "1234"),
        ("####\n#### 12", "12"),
        ("The answer is 12. Check: 3", "12"),
        ("the final answer is: $1,000.00 which", "1000"),
        ("Answer: 17 apples and 2 pears", "17"),
        ("The answer is 3 + 4 = 7", "7"),
        ("The answer is 12. Check: 12 / 4 = 3", "12"),
        ("Answer: 5\nWait, that is wrong.\nAnswer: 6", "6"),
        ("The answer is 5. No: the answer is 6.", "6"),
        ("Answer: 5\nAnswer: none", "5"),
        ("she has 10-5 and then 3.", "3"),
        ("that leaves 10-5", "5"),
        ("it costs $.50", "0.5"),
        ("half, 1/2", "0.5"),
        ("#### 7<|eot_id|> 99", "7"),
        ("9<|endoftext|>#### 7", "9"),
        ("no number at all", ""),
        ("", ""),
        ("007", "7"),
        ("-0", "0"),
    ],
)  # fmt: skip
def test_gsm8k(text: str, answer: str) -> None:
    assert extract.gsm8k(text) == answer


@pytest.mark.parametrize(
    ("text", "answer", "recorded"),
    [
        ("#### 3 + 4 = 7", "7", "3"),
        ("#### x = 7 - 2 = 5 dollars", "5", "7"),
        ("####  = 7", "7", "7"),
        ("#### 7 =", "7", "7"),
        ("#### 7", "7", "7"),
    ],
)
def test_equations(text: str, answer: str, recorded: str) -> None:
    assert extract.gsm8k(text, equations=True) == answer and extract.gsm8k(text) == recorded


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [("5", "5.0", True), ("1,000", "1000", True), ("1/2", "0.5", True), ("-5", "5", False), ("", "", False),
     ("x", "x", False), ("$3", "3%", True), ("2", "20", False)],
)  # fmt: skip
def test_equal_numbers_have_one_form(left: str, right: str, same: bool) -> None:
    assert (extract.number(left) == extract.number(right) != "") is same


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"), (" B.", "B"), ("(B)", "B"), ("D. because of it", "D"), ("**C**", "C"), ("A", "A"),
        ("A)", "A"),
        ("The answer is B", "B"), ("the answer is (c).", "C"), ("Answer: D", "D"), ("option A is right", "A"),
        ("I would pick C here", "C"), ("A man walks to B", "B"), ("b", "B"), ("(d)", "D"), ("Because", ""),
        ("E", ""),
        ("", ""), ("Answer: B\nNo.\nAnswer: C", "C"),
        ("The answer is B, option A is wrong", "B"), ("B<|eot_id|>C", "B"), ("Dog", ""), ("It's A.", "A"), ("\nC", "C"),
    ],
)  # fmt: skip
def test_letter(text: str, letter: str) -> None:
    assert extract.letter(text) == letter


PROMPT = 'import math\n\ndef double(x):\n    """Twice x."""\n'
DEFINITION = 'def double(x):\n    """Twice x."""\n    return 2 * x'


@pytest.mark.parametrize(
    "text",
    [
        "    return 2 * x",
        "    return 2 * x\n",
        "return 2 * x",
        "y = 2 * x\nreturn y",
        "y = 2 * x\n    return y",
        "    return 2 * x\n```\nThis doubles.",
        "    y = 2 * x\n\n    return y\n\ndouble(3) is 6, as you can see.",
        f"```python\n{DEFINITION}\n```",
        f"Here it is:\n\n```python\n{DEFINITION}\n```\nIt doubles.",
        f"Here it is:\n\n```\n{DEFINITION}\n```\nIt doubles.",
        f"```python\n{DEFINITION}",
        f"```python\n{PROMPT}    return 2 * x\n```",
        f"{DEFINITION}\n\nThis function doubles x.",
        f"Sure! The function:\n\n{DEFINITION}\n\nIt doubles.",
        "```python\n    return 2 * x\n```",
        "    return 2 * x<|eot_id|><|endoftext|>junk",
        "from math import fabs\n\ndef double(x):\n    return 2 * x",
        "    def double(x):\n        return 2 * x",
        f"First:\n```bash\npip install numpy\n```\nThen:\n```python\n{DEFINITION}\n```",
        f"```\n$ ls\n```\n```python\nimport os\n```\n```python\n{DEFINITION}\n```\n```py\nassert f()\n```",
        f"```sh\nls\n```\n```\n{DEFINITION}\n```\nor\n```python\ndef double(x):\n    return 0\n```",
        "```bash\nls\n```\n```python\n    return 2 * x\n```",
        f"```bash\nls\n```python\n{DEFINITION}\n```",
        f"```python\n{DEFINITION}\n```\n".replace("\n", "\r\n"),
        f"Sure:\n```bash\nls\n```\n```python\n{DEFINITION}\n```".replace("\n", "\r\n"),
        "    y = 2 * x\r\n    return y\r\n",
    ],
)
def test_code(text: str) -> None:
    space: dict = {}
    exec(PROMPT + extract.code(text, PROMPT, "double"), space)
    assert space["double"](21) == 42


def test_code_keeps_wrong_code_wrong() -> None:
    assert extract.code("    return (", PROMPT, "double") == "    return ("
    assert "3 * x" in extract.code("    return 3 * x", PROMPT, "double")


def test_every_written_box_is_found(shared) -> None:
    path = shared / "data" / "llada8b_instruct_gsm8k_outputs.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    boxed = 0
    for row in rows:
        # An independent reading: a box with a plain number, the last one before the end of the turn.
        found = re.findall(
            r"\\boxed\{\\?\$?(-?[\d,]*\.?\d+)(?![\d/])",
            re.split(r"<\|e", row["output"])[0].replace("\\,", ""),
        )
        if found:
            boxed += 1
            assert extract.gsm8k(row["output"]) == extract.number(found[-1]), row["id"]
    assert len(rows) == 600 and boxed > 570


TEXT = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(["\\boxed{", "}", "\\frac{", "1", "-", "/", ",", ".", "0", " ", "\n", "#### ",
                              "```", "python",
                              "def f(", "):", "    return x", "The answer is", "<|eot_id|>", "A", "{", "=",
                              "$", "\\"]),
             max_size=25).map("".join),
)  # fmt: skip


@given(TEXT)
def test_never_raises(text: str) -> None:
    number = extract.gsm8k(text)
    assert number == extract.number(number)
    assert extract.letter(text) in ("", *"ABCD")
    assert isinstance(extract.code(text, PROMPT, "f"), str)
    extract.boxed(text), extract.cut(text, ["x"])


@pytest.mark.parametrize(
    "text", ["9" * 5000, "1/" + "9" * 5000, "\\boxed{" * 3000, "(" * 5000, "1/" * 3000, "{" * 9000 + "1", "1,1" * 3000]
)
def test_long_degenerate_text_is_quick(text: str) -> None:
    extract.gsm8k(text), extract.letter(text), extract.code(text, PROMPT, "f")
