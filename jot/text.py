"""Between text and token ids: chat prompts, the end of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jot.errors import UserError
from jot.models.base import DiffusionModel
from jot.tasks.extract import END_MARKS


def render(model: DiffusionModel, chat: Sequence[Mapping[str, str]]) -> str:
    """A chat as prompt text; a final assistant turn is left open to be continued."""
    if model.tokenizer is None or not model.tokenizer.chat_template:
        return "".join(turn["content"] for turn in chat)
    prefilled = chat[-1]["role"] == "assistant"
    return model.tokenizer.apply_chat_template(
        list(chat), tokenize=False, add_generation_prompt=not prefilled, continue_final_message=prefilled
    )


def encode(model: DiffusionModel, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of prompt texts; special tokens are those that the text spells out."""
    if model.tokenizer is None:
        raise UserError(f"{model.name} has no tokenizer, so it cannot read text; add tokenizer.json to its folder")
    return model.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]


def ends(model: DiffusionModel) -> set[int]:
    """Ids that end an answer: end of text, padding, and the end of a chat turn where there is one."""
    found = {
        model.eos_id,
        model.tokenizer.pad_token_id,
        *model.tokenizer.convert_tokens_to_ids(list(END_MARKS)),
    }
    return found - {None, model.tokenizer.unk_token_id}


def answer_ids(model: DiffusionModel, generated: Sequence[int]) -> list[int]:
    """The generated ids before the first that ends the answer."""
    stop = ends(model)
    return list(generated[: next((i for i, token in enumerate(generated) if token in stop), len(generated))])


def to_text(model: DiffusionModel, ids: Sequence[int]) -> str:
    return model.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
