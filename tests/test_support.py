"""The README's table of what works is the one that the code gives."""

from __future__ import annotations

import pytest

import jot
from jot.analysis import support
from jot.models import LLaDAModelLM
from jot.runs import settings


def test_readme_holds_the_table(root):
    text = (root / "README.md").read_text()
    assert text.split(support.BEGIN)[1].split(support.END)[0].strip() == support.table()


def test_a_refused_method_says_why():
    with pytest.raises(jot.UserError, match="canvas"):
        settings.method_class("fastdllm_canvas_budget")
    assert not support.works(LLaDAModelLM, "jot", cache="dual", guidance=1.0)
    assert support.works(LLaDAModelLM, "jot", cache="dual")
