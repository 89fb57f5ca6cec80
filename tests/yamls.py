"""The tasks' YAML files: their content, and the prompts that their templates make."""

from __future__ import annotations

from collections.abc import Mapping

import yaml
from lm_eval.utils import apply_template

from jot import tasks


class _Loader(yaml.SafeLoader):
    """Functions stay names."""


_Loader.add_constructor("!function", lambda loader, node: node.value)


def read(name: str) -> dict:
    return yaml.load((tasks.FOLDER / f"{name}.yaml").read_text(), _Loader)


def rendered(name: str, field: str, doc: Mapping) -> str:
    return apply_template(read(name)[field], doc)
