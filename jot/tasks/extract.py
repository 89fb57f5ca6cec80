"""Answers out of generated text: pure functions of strings that never raise.

Each takes the raw text of a completion and returns a canonical string, `""` where no answer is written.
"""

import decimal
import re
import warnings
from fractions import Fraction

END_MARKS = ("<|eot_id|>", "<|endoftext|>", "<|im_end|>", "</s>")

_SPACES = re.compile(r"\\[,;:! ]|\\q?quad|[\u00a0\u2009\u202f]|(?<=\d)\{,\}(?=\d)")
_NUMBER = re.compile(r"(?<![\w.)\]])-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)|\d[\d,]*(?:\.\d+)?")
# Each has the groups sign, whole, top and bottom; what a reading has not is empty.
_FRACTIONS = [
    re.compile(r"(-?)(\d[\d,]*)\s*\\[dt]?frac\s*\{\s*(\d[\d,]*)\s*\}\s*\{\s*(\d[\d,]*)\s*\}"),
    re.compile(r"(-?)()\\[dt]?frac\s*\{\s*(-?\d[\d,]*)\s*\}\s*\{\s*(-?\d[\d,]*)\s*\}"),
    re.compile(r"(?<![\w.)\]/])(-?)(?:(\d+)\s+)?(\d[\d,]*)\s*/\s*(\d[\d,]*)(?![\d/]|\.\d)"),
]
_MOST_DIGITS = 400  # beyond this int() is slow and the text is degenerate
_BOX = re.compile(r"\\?\b(?:boxed|fbox)\s*\{")
# Characters, and boxes from the end: enough for answers, quick on degenerate text.
_LONGEST_BOX, _MOST_BOXES = 400, 50
_ANSWER_IS = re.compile(r"\banswer\b(?:\s+is|\s*:|\s+=)(?=([^\n]*))", re.IGNORECASE)


def cut(text: str, until: list[str] | tuple[str, ...] = ()) -> str:
    """The text before the first end-of-text mark, then before the first of each string in `until`."""
    for mark in (*END_MARKS, *until):
        if mark:
            text = text.split(mark, 1)[0]
    return text


# ---------------------------------------------------------------- numbers


def _canonical(value: Fraction) -> str:
    try:
        with decimal.localcontext(prec=4 * _MOST_DIGITS, traps=[decimal.Inexact]):
            return f"{decimal.Decimal(value.numerator) / value.denominator:f}"
    except decimal.Inexact:
        return str(value)


def _fraction(match: re.Match[str]) -> Fraction | None:
    sign, *parts = match.groups()
    digits = [(part or "0").replace(",", "") for part in parts]
    if max(map(len, digits)) > _MOST_DIGITS or int(digits[2]) == 0:
        return None
    value = int(digits[0]) + Fraction(int(digits[1]), int(digits[2]))
    return -value if sign else value


def _values(text: str) -> list[tuple[int, Fraction]]:
    """Every number of `text` as (offset, value); a fraction counts as one number."""
    text = text.replace("\u2212", "-").replace("\u2013", "-")
    found: list[tuple[int, Fraction]] = []
    for pattern in _FRACTIONS:
        for match in list(pattern.finditer(text)):
            if (value := _fraction(match)) is not None:
                found.append((match.start(), value))
                text = text[: match.start()] + "x" * len(match[0]) + text[match.end() :]
    for match in _NUMBER.finditer(text):
        digits = match[0].replace(",", "")
        if len(digits) <= _MOST_DIGITS:
            found.append((match.start(), Fraction(digits)))
    return sorted(found)


def _clean(text: str) -> str:
    return _SPACES.sub("", text.replace("\\$", "").replace("$", "").replace("\\%", "%"))


def number(text: str, which: int = 0) -> str:
    """The first (`which=0`) or last (`which=-1`) number of `text` in canonical form: no commas, signs of
    currency, percent or unit, no trailing `.0`; fractions as `3/4` unless they end as decimals. `""` without
    a number."""
    values = _values(_clean(text))
    return _canonical(values[which][1]) if values else ""


def boxed(text: str) -> list[str]:
    r"""Contents of every `\boxed{...}`, in order, braces balanced; an unclosed box ends with its line or at a tag."""
    contents = []
    for match in list(_BOX.finditer(text))[-_MOST_BOXES:]:
        depth, end, last = 1, match.end(), min(len(text), match.end() + _LONGEST_BOX)
        while end < last and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        contents.append(text[match.end() : end - 1] if depth == 0 else re.split(r"[\n<]", text[match.end() : last])[0])
    return contents


def gsm8k(text: str, equations: bool = False) -> str:
    r"""Final number of a worked solution: the last `\boxed{}` that holds a number, else the first `#### N`,
    else the last "the answer is N", which may correct an earlier one, else the last number in the text. Of an equation
    in `#### 3 + 4 = 7` it is the right side with `equations`, else the first number, as in the recorded runs."""
    text = cut(text)
    stated = [re.split(r"\.(?!\d)", line)[0] for line in reversed(_ANSWER_IS.findall(text))]  # to the sentence's end
    final = re.findall(r"####([^\n]*)", text)
    for lines, right in ((reversed(boxed(text)), True), (final, equations), (stated, True)):
        for line in lines:
            if answer := (right and number(line.rsplit("=", 1)[-1])) or number(line):
                return answer
    return number(text, -1)


def worksheet(text: str, problems: int) -> str:
    """Final numbers of numbered answers, the last of a line as in `3: 4 + 5 = 9.`, parted by spaces; `-` where
    there is none, the first where a problem is answered twice."""
    found: dict[str, str] = {}
    for label, final in re.findall(r"^ *(\d{1,4}):.*?(\d{1,9})\D*$", cut(text), re.MULTILINE):
        found.setdefault(label, final)
    return " ".join(found.get(str(i), "-") for i in range(1, problems + 1))


# ---------------------------------------------------------------- letters

_LEADING = re.compile(r"^[\s(\[\"'*`]*([A-Z])(?![A-Za-z'])")
_STATED = re.compile(
    r"\b(?:answer|option|choice|ending)\b(?:\s+(?:is|would be))?[\s:*(\[\"']*([A-Za-z])\b(?!')", re.IGNORECASE
)
_ALONE = re.compile(r"(?<![A-Za-z0-9'])[(\[\"'*]*([A-Z])(?![A-Za-z0-9'])")
_LOWER = re.compile(r"^[\s(\[\"'*`]*([a-z])[\s)\]\"'*`.:,]*$")


def letter(text: str) -> str:
    """The chosen option of a multiple-choice answer: a leading letter ("B", "(B)", "D. text"), else a stated one
    ("the answer is B"), else the first letter that stands alone. The article "A" in a sentence is no option."""
    text = cut(text)
    article = re.compile(r"\s+[a-z]")
    for pattern in (_LEADING, _STATED, _ALONE, _LOWER):
        matches = list(pattern.finditer(text))
        if pattern is _STATED:  # an answer that is stated again corrects the one before
            answers = [match for match in matches if match.group().lower().startswith("answer")]
            matches = answers[::-1] + matches
        for match in matches:
            choice = match.group(1).upper()
            # After "the answer is" the article would be a small one; elsewhere it may open a sentence.
            doubtful = match.group(1) == ("a" if pattern is _STATED else "A")
            is_article = doubtful and article.match(text, match.end(1))
            if choice in "ABCD" and not is_article:
                return choice
    return ""


# ---------------------------------------------------------------- code

_FENCE = re.compile(r"^[ \t]*```[ \t]*([A-Za-z0-9_+-]*)[ \t]*$", re.MULTILINE)
_CODE_LINE = re.compile(r"(?:def |class |import |from |@|async def |if |for |while |return\b|[A-Za-z_]\w*\s*=)")


def _parses(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "<answer>", "exec", dont_inherit=True)  # parsing alone lets a stray `return` pass
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True


def _defines(entry_point: str) -> re.Pattern[str]:
    return re.compile(rf"^([ \t]*)(?:async )?def {re.escape(entry_point)}\b", re.MULTILINE)


def _unfence(text: str, prompt: str, entry_point: str) -> str:
    """The fenced block that defines the entry point, else the first that may be Python; the text without a fence."""
    fences = list(_FENCE.finditer(text))
    if not fences:
        return text.split("```", 1)[0]
    before = text[: fences[0].start()]
    if not fences[0].group(1) and before.strip() and any(_parses(prompt + variant) for variant in _indents(before)):
        return before  # the prompt had opened the fence: this one closes it
    blocks: list[tuple[str, str]] = []
    ends = [fence.start() for fence in fences[1:]] + [len(text)]
    closed = True
    for fence, end in zip(fences, ends, strict=True):
        if closed or fence.group(1):
            blocks.append((fence.group(1), text[fence.end() : end].removeprefix("\n").split("```", 1)[0]))
        closed = not (closed or fence.group(1))
    python = [block for language, block in blocks if language.lower() in ("", "py", "python", "python3")]
    defining = [block for _, block in blocks if entry_point and _defines(entry_point).search(block)]
    return (defining or python or [blocks[0][1]])[0]


def _indents(code: str) -> list[str]:
    """`code` as a function body: as it is, with only its first line indented, with every line indented."""
    lines = code.lstrip("\n").split("\n")
    if not lines[0] or lines[0][0] in " \t":
        return [code]
    return [code, "\n".join(["    " + lines[0], *lines[1:]]), "\n".join("    " + line for line in lines)]


def _definition(code: str, entry_point: str) -> str | None:
    """A full definition of `entry_point` inside `code`, with the imports and helpers before it, without prose."""
    match = _defines(entry_point).search(code)
    if not match:
        return None
    indent, kept = match.group(1), []
    for line in code.split("\n"):
        bare = line.removeprefix(indent)
        if not bare.strip() or bare[0] in " \t)]}#" or _CODE_LINE.match(bare):
            kept.append(bare)
        elif _defines(entry_point).search("\n".join(kept)):
            break  # prose after the definition
    return "\n".join(kept)


def code(text: str, prompt: str = "", entry_point: str = "") -> str:
    """The completion to append to `prompt` (signature and docstring) so that the whole is the answered program.

    Markdown fences (closed or not), prose around the code and a repeated prompt are removed; a body that lost its
    indentation gets it back. Text that cannot be made to parse is returned nearly as it stands, and then fails.
    """
    source = _unfence(cut(text).replace("\r\n", "\n"), prompt, entry_point)
    repeated = _definition(source, entry_point) if entry_point else None
    if repeated is not None:
        # A docstring is a complete body, so a second definition after the prompt replaces the first one.
        return next((c for c in ("\n" + repeated, "    pass\n\n" + repeated) if _parses(prompt + c)), source)
    body = re.split(r"\n(?=[^\s#)\]}])", source.lstrip("\n") if source[:1] == "\n" else source)[0] + "\n"
    candidates = [variant for whole in (source, body) for variant in _indents(whole)]
    return next((candidate for candidate in candidates if _parses(prompt + candidate)), source)
