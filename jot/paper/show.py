"""Tables and paragraphs that read well as HTML, in a code host's sanitized view, and as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

import pandas as pd


class Table:
    """A table of text cells that reads well as HTML (plain tags, which code hosts keep) and as text.

    In a cell ``**x**`` is bold, ``__x__`` underlined, and what follows a newline is set smaller below.
    Columns may have two levels.
    """

    def __init__(self, frame: pd.DataFrame, caption: str):
        self.frame, self.caption = frame, caption

    def __repr__(self) -> str:
        flat = self.frame.replace("\n", " ", regex=True)
        if flat.columns.nlevels > 1:
            flat.columns = [" ".join(filter(None, c)) for c in flat.columns]
        return self.caption + "\n\n" + flat.to_string(index=False)

    def _repr_html_(self) -> str:
        columns = self.frame.columns
        levels = [columns] if columns.nlevels == 1 else [columns.get_level_values(i) for i in range(columns.nlevels)]
        head = "".join(f"<tr>{_header(level)}</tr>" for level in levels)
        body = "".join(
            "<tr>" + "".join(f"<td>{_inline(v)}</td>" for v in row) + "</tr>"
            for row in self.frame.itertuples(index=False, name=None)
        )
        return f"<p>{escape(self.caption)}</p>\n<table><thead>{head}</thead><tbody>{body}</tbody></table>"


class Note:
    """A paragraph in Markdown that also reads as text."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text.replace("**", "")

    def _repr_markdown_(self) -> str:
        return self.text


def _header(names: Iterable[str]) -> str:
    spans: list[list] = []
    for name in names:
        if spans and name and spans[-1][0] == name:
            spans[-1][1] += 1
        else:
            spans.append([name, 1])
    return "".join(f'<th colspan="{n}">{escape(str(name))}</th>' for name, n in spans)


def _inline(value: object) -> str:
    first, *rest = escape(str(value)).split("\n")
    first = re.sub(r"(?<=\w)-(?=\w)", "\u2011", first).replace("τ = ", "τ\u00a0=\u00a0")  # keep names on one line
    for mark, tag in (("**", "b"), ("__", "ins")):
        if first.startswith(mark) and first.endswith(mark) and len(first) > 4:
            first = f"<{tag}>{first[2:-2]}</{tag}>"
    return first + "".join(f"<br><sub>{line}</sub>" for line in rest)
