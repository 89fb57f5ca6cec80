"""The tokenizer of the pocket models: byte-level BPE, 2,048 entries, single-digit tokens, specials last.

`PYTHONPATH=data python -m pocket.tokenizer` trains it again and writes it beside both pocket models.
"""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pocket.paths import MODELS
from pocket.prompts import prompt_text, response_text

VOCAB_SIZE = 2048
SPECIALS = [
    "<|endoftext|>",
    "<|mdm_mask|>",
    "<|user|>",
    "<|assistant|>",
    "<|startoftext|>",
    "<|reserved_0|>",
    "<|reserved_1|>",
    "<|reserved_2|>",
]
EOS, MASK, USER, ASSISTANT = range(VOCAB_SIZE - len(SPECIALS), VOCAB_SIZE - len(SPECIALS) + 4)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|endoftext|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt or messages[-1]['role'] != 'assistant' %}{{ '<|assistant|>' }}{% endif %}"
)
TASKS = ("pocket_gsm8k", "pocket_mmlu", "pocket_hellaswag", "pocket_humaneval", "pocket_prose")
LENGTHS = {
    "pocket_gsm8k": 128,
    "pocket_mmlu": 3,
    "pocket_hellaswag": 5,
    "pocket_humaneval": 128,
    "pocket_prose": 128,
}
PROMPT_LIMITS = {
    "pocket_gsm8k": 128,
    "pocket_mmlu": 96,
    "pocket_hellaswag": 96,
    "pocket_humaneval": 128,
    "pocket_prose": 64,
}
SAMPLE_CHARACTERS = 2_000_000  # a task, for training the BPE


def generator(task: str) -> Any:
    """The module that generates a pocket task; raises ModuleNotFoundError for an unknown one."""
    return importlib.import_module(f"pocket.{task.removeprefix('pocket_')}")


def _texts(task: str, characters: int) -> Iterable[str]:
    """Training texts of one task, about this many characters, from a seed of their own."""
    rng = random.Random(f"tokenizer/{task}")
    sample = generator(task).sample
    while characters > 0:
        doc = sample(rng)
        parts = [prompt_text(task, doc)] + ([] if task == "pocket_prose" else [response_text(task, doc)])
        characters -= sum(map(len, parts))
        yield from parts


def train_on(texts: Iterable[str], entries: int) -> Any:
    """A `tokenizers.Tokenizer` of at most so many entries trained on texts, and the special tokens after them."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=entries, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


def train(characters: int = SAMPLE_CHARACTERS) -> Any:
    """A `tokenizers.Tokenizer` trained on the same number of characters of every task."""
    tokenizer = train_on((text for task in TASKS for text in _texts(task, characters)), EOS)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(f"the texts gave only {tokenizer.get_vocab_size()} entries; train on more characters")
    return tokenizer


def tokenizer_config(first: int = EOS, longest: int = 256) -> dict[str, Any]:
    """The content of tokenizer_config.json: the id of the first special token, and the most tokens of a prompt."""
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {
            str(first + i): {"content": token, **flags, "special": True} for i, token in enumerate(SPECIALS)
        },
        "bos_token": SPECIALS[4],
        "eos_token": SPECIALS[0],
        "pad_token": SPECIALS[0],
        "mask_token": SPECIALS[1],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "add_eos_token": False,
        "model_max_length": longest,
        "padding_side": "right",
    }


def write(out_dirs: Sequence[str | Path], tokenizer: Any, longest: int = 256) -> None:
    """Write tokenizer.json and tokenizer_config.json of a trained tokenizer into every folder."""
    text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, indent=1) + "\n"
    config = tokenizer_config(tokenizer.token_to_id(SPECIALS[0]), longest)
    for folder in map(Path, out_dirs):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n")


def build(out_dirs: Sequence[str | Path], characters: int = SAMPLE_CHARACTERS) -> None:
    """Train the tokenizer and write tokenizer.json and tokenizer_config.json into every folder."""
    write(out_dirs, train(characters))


def load(folder: str | Path = MODELS / "pocket-llada") -> Any:
    """The plain `tokenizers.Tokenizer`, the fast one for training data."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


def _plain(tokenizer: Any) -> Any:
    """The `tokenizers.Tokenizer` inside a transformers tokenizer, or the tokenizer itself."""
    return getattr(tokenizer, "backend_tokenizer", tokenizer)


def encode_batch(
    task: str, docs: Sequence[Mapping[str, Any]], tokenizer: Any
) -> list[tuple[list[int], list[int]] | None]:
    """(prompt ids with the chat template, response ids padded with EOS to LENGTHS[task]) of each document.

    None stands for a document that is too long: its prompt is over the limit, or no room is left for one EOS.
    Of `pocket_prose` the prompt is the first 64 tokens of the passage, without template, and the response
    is the next 128. Prompt and response are tokenized apart, so no token spans both.
    """
    plain, length, limit = _plain(tokenizer), LENGTHS[task], PROMPT_LIMITS[task]
    out: list[tuple[list[int], list[int]] | None] = []
    if task == "pocket_prose":
        for start in range(0, len(docs), 256):
            texts = [doc["text"][:PROSE_CHARACTERS] for doc in docs[start : start + 256]]
            for doc, encoding in zip(
                docs[start:], plain.encode_batch_fast(texts, add_special_tokens=False), strict=False
            ):
                ids = encoding.ids
                if len(ids) <= limit + length and len(doc["text"]) > PROSE_CHARACTERS:
                    ids = plain.encode(doc["text"], add_special_tokens=False).ids
                out.append((ids[:limit], ids[limit : limit + length]) if len(ids) >= limit + length else None)
        return out
    texts = [text for doc in docs for text in (prompt_text(task, doc), response_text(task, doc))]
    ids = [encoding.ids for encoding in plain.encode_batch_fast(texts, add_special_tokens=False)]
    for prompt, response in zip(ids[::2], ids[1::2], strict=True):
        if len(prompt) + 2 > limit or len(response) >= length:
            out.append(None)
        else:
            out.append(([USER, *prompt, ASSISTANT], response + [EOS] * (length - len(response))))
    return out


PROSE_CHARACTERS = 760  # nearly always 192 tokens; the rare passage with fewer is encoded whole


def encode_document(task: str, doc: Mapping[str, Any], tokenizer: Any) -> tuple[list[int], list[int]] | None:
    """`encode_batch` of a single document."""
    return encode_batch(task, [doc], tokenizer)[0]


if __name__ == "__main__":
    build([MODELS / "pocket-llada", MODELS / "pocket-dream"])
