"""Texts as a model's input: words, as the numbers of a declared or of a hashed vocabulary.

A vocabulary counted over clients would be a statistic that leaves them, so there is none: words are declared, or
each word has the number that a checksum gives it. Nothing here is fitted.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mutua.data.mapped_rows import MappedRows, in_memory
from mutua.data.model_input import ModelInput
from mutua.data.table_encoding import AppliedEncoding

WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
"""Words, with an apostrophe inside, and signs alone."""


@dataclass(frozen=True)
class TextEncoding:
    """How texts become numbers: the first `length` words, in small letters; 0 where a text has ended.

    With declared `words`, each has its position plus 2 and all others are 1; else a word's number is
    1 + crc32(word in UTF-8) mod `buckets`.
    """

    length: int
    buckets: int = 0
    words: tuple[str, ...] = ()
    column: str = "text"
    """Where the texts are."""
    target: str = ""
    """The column that is predicted."""
    group: str = ""
    """The column that says which texts belong together, if any does."""

    fitted = True

    def __call__(self, x: Tensor | MappedRows) -> Tensor:
        """The numbers of words as an embedding takes them."""
        return in_memory(x).long()

    @property
    def declared(self) -> TextEncoding:
        """Itself: there is nothing to fit."""
        return self

    @property
    def applied(self) -> AppliedEncoding:
        """For numbers of words that are a model's input already."""
        return AppliedEncoding(self._input)

    def fit(self, x: Tensor | MappedRows) -> TextEncoding:
        """Itself: there is nothing to fit."""
        return self

    def input(self, x: Tensor | MappedRows) -> ModelInput:
        """What a model is given."""
        return self._input

    @property
    def formula(self) -> str:
        """What it does, for a model's card."""
        number = "position among words + 2, else 1" if self.words else "1 + crc32(word) mod buckets"
        return f"the first {self.length} of the words {WORD.pattern} in small letters; {number}; 0 at the end"

    @property
    def vocabulary(self) -> int:
        """How many numbers a word can have, with 0."""
        return len(self.words) + 2 if self.words else self.buckets + 1

    @cached_property
    def _input(self) -> ModelInput:
        names = (hashlib.sha256("\n".join(self.words).encode()).hexdigest(),) if self.words else ()
        return ModelInput("text", self.length, 1, names, vocabulary=self.vocabulary)

    def stored(self, texts: Iterable[str | None]) -> Tensor:
        """Texts as they are stored: a row of numbers for each."""
        known = {word: i + 2 for i, word in enumerate(self.words)}
        rows = []
        for text in texts:
            found = []
            for word in tokens(text or "")[: self.length]:
                if word not in known:
                    known[word] = 1 if self.words else 1 + zlib.crc32(word.encode()) % self.buckets
                found.append(known[word])
            rows.append(found + [0] * (self.length - len(found)))
        return torch.tensor(rows, dtype=torch.int32).view(-1, self.length)


def tokens(text: str) -> list[str]:
    """The words and signs of a text, in small letters."""
    return WORD.findall(text.lower())
