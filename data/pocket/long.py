"""Training of the long pair on worksheets: full canvases of 256 to 2,048 generated tokens, a tokenizer of its own.

``PYTHONPATH=data python -m pocket.long files`` writes the tokenizer and the held-out worksheets;
``PYTHONPATH=data python -m pocket.long train --family llada --out DIR`` trains, with the options of ``pocket.train``.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar

from jot.decode import decode_stream
from jot.models import home
from jot.sampler.exits import JoT
from jot.tasks import extract
from jot.tasks.functions import score_worksheet
from pocket import splits, tokenizer, worksheet
from pocket.evaluate import BLOCKS, documents
from pocket.recipe import Recipe, network
from pocket.rows import Row

COUNTS = {256: (1000, 1000), 512: (200, 1000), 1024: (100, 300), 2048: (50, 150)}  # (dev, test) of each length
MEASURED = (256, 512)  # lengths that are decoded along the way; the longer ones would take their time from training
MODELS = ("pocket-long-llada", "pocket-long-dream")
SPECIALS = ("<|mdm_mask|>", "<|endoftext|>", "<|startoftext|>")
VOCABULARY = 480  # the tokenizer has fewer; the rest pads the matrices
ENTRIES = 1000  # more than the worksheets' language has merges for
SHORTEST = 11  # tokens of a line of an answer
TEXTS = 20_000  # lines of each kind that the tokenizer is trained on


@dataclass
class LongRecipe(Recipe):
    """What decides a training run of the long pair; the fields of the pocket tasks' mix are of no use here."""

    WIDTHS: ClassVar[dict[str, int]] = {
        "tiny": 96, "few": 208, "short": 424, "half": 848, "whole": 1696, "double": 3392
    }  # fmt: skip
    ALL: ClassVar[tuple[str, ...]] = tuple(WIDTHS)
    batch_compact: int = 0
    batch_long: int = 0
    batch_choice: int = 0
    batch_tiny: int = 256  # two problems: that a line is answered by its own is learned here, and holds further
    batch_few: int = 96  # three to five problems: from two to eight at once, a label keeps another one's work
    batch_short: int = 48
    batch_half: int = 16
    batch_whole: int = 6
    batch_double: int = 3
    choice_all: float = 0.2
    hidden: int = 128  # of a network small enough that the pair takes 5 MB
    layers: int = 5
    inner: int = 384
    heads: int = 4
    repeats: int = 4
    leading: float = 0.5
    tail: float = 0.15

    @property
    def tokenizer(self) -> str:
        return f"pocket-long-{self.family}"

    def network(self):
        ids = map(tokenizer.load(home() / "data" / "models" / MODELS[0]).token_to_id, SPECIALS)
        shape = dict(hidden=self.hidden, layers=self.layers, heads=self.heads, inner=self.inner)
        return network(self.family, VOCABULARY, *ids, **shape, positions=4096)

    def rows(self, index: int, group: str, total: int, tok, rng: random.Random) -> list[Row]:
        width = self.WIDTHS[group]
        draw, encode, taken = random.Random(f"worksheet/train/{self.seed}/{index}/{group}"), encoder(tok), []
        skip = held_out()
        while len(taken) < total:
            length = int(width * 0.6)
            last = max(1, worksheet.LABELS - length // SHORTEST)
            first = draw.choice((1, draw.randint(1, last)))  # half begin as held-out ones do
            doc = worksheet.sample(draw, length, lambda text: len(encode(text)), skip, first)
            prompt, answer = chat(tok, encode(doc["question"])), encode(doc["answer"])
            if (left := width - len(prompt)) > len(answer):
                taken.append(
                    Row(prompt + answer + [tok.eos_token_id] * (left - len(answer)), [*range(len(prompt), width)])
                )
        return taken

    def measure(self, model, tasks, limit: int, device: str) -> tuple[dict, dict]:
        """No held-out loss; the share of dev problems that JoT at tau 90 solves on the two shorter lengths."""
        from pocket.stream import tokenizer as loaded

        tok, shares = loaded(self.tokenizer), {}
        encode = encoder(tok)
        for length in MEASURED:
            docs = documents(f"pocket_worksheet_{length}", "dev", max(2, limit * 256 // length))
            prompts = [(i, chat(tok, encode(doc["question"]))) for i, doc in enumerate(docs)]
            stream = decode_stream(
                model, prompts, JoT(90.0), slots=64, length=length, block_length=BLOCKS[model.family]
            )
            right = 0.0
            for i, out in stream:
                given = extract.worksheet(tok.decode(out.generated), len(docs[i]["finals"]))
                right += score_worksheet(docs[i], [given])["exact_match"]
            shares[length] = round(right / len(docs), 4)
        return {}, shares


def chat(tok, question: list[int]) -> list[int]:
    """The prompt's tokens, as the chat template has them."""
    user, assistant = tok.convert_tokens_to_ids(["<|user|>", "<|assistant|>"])
    return [user, *question, assistant]


def encoder(tok):
    """Token ids of a text, a line at a time: a line's tokens do not depend on the lines beside it."""
    plain = tok.backend_tokenizer

    @lru_cache(maxsize=4096)
    def line(text: str) -> list[int]:
        return plain.encode(text, add_special_tokens=False).ids

    return lambda text: [token for part in text.splitlines(keepends=True) for token in line(part)]


@cache
def held_out() -> frozenset[str]:
    """The problems of all held-out worksheets, none of which training draws."""
    found = set()
    for length in COUNTS:
        for split in ("dev", "test"):
            for doc in splits.read_split(f"pocket_worksheet_{length}", split):
                found.update(problems(doc["question"]))
    return frozenset(found)


def problems(question: str) -> list[str]:
    """The problems of a worksheet, without their numbers."""
    return [line.split(": ", 1)[1].removesuffix(".") for line in question.splitlines()]


def files() -> None:
    """Write the tokenizer beside both models, and the held-out worksheets, no problem of which occurs twice."""
    from tokenizers import AddedToken

    rng = random.Random("tokenizer/worksheet")
    texts = []
    for _ in range(TEXTS):
        question, worked, _ = worksheet.problem(rng)
        texts += [
            f"{rng.randint(1, worksheet.LABELS)}: {question}.\n",
            f"{rng.randint(1, worksheet.LABELS)}: {worked}\n",
        ]
    trained = tokenizer.train_on(texts, ENTRIES)
    labels = [f"{n}:" for n in range(1, worksheet.LABELS + 1)]
    trained.add_tokens([AddedToken(text, normalized=False) for text in labels])  # numbers: by their digits
    tokenizer.write([home() / "data" / "models" / name for name in MODELS], trained, 4096)
    seen: set[str] = set()

    def tokens(text: str) -> int:
        return len(trained.encode(text, add_special_tokens=False).ids)

    for length, counts in COUNTS.items():
        for split, count in zip(("dev", "test"), counts, strict=True):
            name, docs = f"pocket_worksheet_{length}", []
            draw = random.Random(f"{name}/{split}")
            for i in range(count):
                doc = worksheet.sample(draw, length, tokens, seen)
                seen.update(problems(doc["question"]))
                docs.append({"id": f"{name}/{split}/{i}", "question": doc["question"], "finals": doc["finals"]})
            splits.write_jsonl(splits.DATA / name / f"{split}.jsonl.xz", docs)


if __name__ == "__main__":
    from pocket import train

    if sys.argv[1:2] == ["files"]:
        files()
    else:
        sys.argv[1:2] = []
        train.main(LongRecipe)
