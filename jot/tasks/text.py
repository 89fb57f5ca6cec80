"""Between text and token ids: chat prompts, the end of an answer."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence

from jot.errors import UserError, is_text
from jot.models.base import DiffusionModel
from jot.tasks.extract import END_MARKS


def render(model: DiffusionModel, chat: Sequence[Mapping[str, str]], instead: str = "") -> str:
    """A chat as prompt text; a final assistant turn is left open to be continued.

    ``instead``: the other way out of a broken template, as the caller's user knows it.
    """
    if model.tokenizer is None or not model.tokenizer.chat_template:
        return "".join(turn["content"] for turn in chat)
    prefilled = chat[-1]["role"] == "assistant"
    try:
        return model.tokenizer.apply_chat_template(
            list(chat), tokenize=False, add_generation_prompt=not prefilled, continue_final_message=prefilled
        )
    except Exception as error:  # a template is a program of the checkpoint's: it fails as it likes
        raise UserError(
            f"the chat template of {model.name} cannot be used ({error}); fetch it again{instead}"
        ) from error


def untemplated(model: DiffusionModel) -> str | None:
    """The sentence on a model that reads text and has no chat template; None where it has one."""
    if model.tokenizer is None or model.tokenizer.chat_template:
        return None
    return f"{model.name} has no chat template, so prompts reach it bare; a model tuned on chats needs its own"


def check_text(text: str) -> None:
    """Refuse a prompt with bytes or halves of characters that are no UTF-8."""
    if not is_text(text):
        raise UserError("the prompt is not UTF-8 text; give it in UTF-8")


def encode(model: DiffusionModel, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of prompt texts; special tokens are those that the text spells out."""
    if model.tokenizer is None:
        raise UserError(f"{model.name} has no tokenizer, so it cannot read text; add tokenizer.json to its folder")
    for text in texts:
        check_text(text)
    return model.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]


def hashed(ids: Sequence[int]) -> str:
    """The hash of a prompt that a record keeps."""
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16]


def ends(model: DiffusionModel) -> set[int]:
    """Ids that end an answer: end of text, padding, and the end of a chat turn where there is one."""
    found = {model.eos_id, model.tokenizer.pad_token_id, *model.tokenizer.convert_tokens_to_ids(list(END_MARKS))}
    return found - {None, model.tokenizer.unk_token_id}


def answer_ids(model: DiffusionModel, generated: Sequence[int]) -> list[int]:
    """The generated ids before the first that ends the answer."""
    stop = ends(model)
    return list(generated[: next((i for i, token in enumerate(generated) if token in stop), len(generated))])


def to_text(model: DiffusionModel, ids: Sequence[int]) -> str:
    """The text of token ids; each id that the model has and its tokenizer has not is a replacement character."""
    parts = []
    for known, part in itertools.groupby(ids, lambda i: model.tokenizer.convert_ids_to_tokens(i) is not None):
        part = list(part)
        decode = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        parts.append(model.tokenizer.decode(part, **decode) if known else "\ufffd" * len(part))
    return "".join(parts)
