"""What a model is given: images, plain features, a table's features or the words of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

InputKind = Literal["images", "features", "table", "text"]

NAMES: dict[InputKind, str] = {
    "images": "images",
    "features": "plain features",
    "table": "a table",
    "text": "texts",
}
"""In messages."""


@dataclass(frozen=True)
class ModelInput:
    """A model's input: channels and size of images, or how many features or words, and what they are."""

    kind: InputKind
    channels: int
    """Of an image; else how many features, or how many words a text has at most."""
    size: int | tuple[int, int] = 1
    """Side of an image, or (height, width); 1 for all else."""
    features: tuple[str, ...] = ()
    """A table's features by name, in order."""
    categories: tuple[tuple[int, int], ...] = ()
    """Where among them a category is one-hot: its first feature, and how many it has."""
    vocabulary: int = 0
    """How many different words a text may have, with 0, which is no word."""

    @staticmethod
    def of(channels: int, size: int | tuple[int, int]) -> ModelInput:
        """Images or, where the size is 1, plain features."""
        return ModelInput("features" if size == 1 else "images", channels, size)

    @property
    def blank(self) -> Tensor:
        """One input of zeros, as models get it."""
        if self.kind == "text":
            return torch.zeros(1, self.channels, dtype=torch.long)
        sides = () if self.size == 1 else self.size if isinstance(self.size, tuple) else (self.size, self.size)
        return torch.zeros(1, self.channels, *sides)

    def __str__(self) -> str:
        if self.kind == "table":
            names = ", ".join(self.features[:6]) + (", ..." if len(self.features) > 6 else "")
            return f"a table of {self.channels} features ({names})"
        if self.kind == "text":
            return f"texts of {self.channels} words at most, of {self.vocabulary}"
        return f"{NAMES[self.kind]} of {self.channels}" + (
            f" channels, size {self.size}" if self.size != 1 else ""
        )
