"""Models for tables: a residual network whose categories are embedded."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mutua.data.model_input import ModelInput
from mutua.models.parts import Size, chain, scaled
from mutua.models.registry import register_model

MOST_EMBEDDED = 32
"""The most numbers that stand for a category."""


@register_model("res-mlp", takes=("features", "table"))
def res_mlp(
    channels: int, size: Size, classes: int, width: float = 1.0, input: ModelInput | None = None
) -> nn.Sequential:
    """Residual MLP for tables: embedded categories, a layer of 128, three blocks."""
    hidden = scaled(128, width)
    input = input or ModelInput.of(channels, size)
    columns = EmbeddedColumns(channels, input.categories)
    return chain(
        columns=columns,
        first=nn.Linear(columns.outputs, hidden),
        blocks=nn.Sequential(*(ResidualDense(hidden) for _ in range(3))),
        norm=nn.LayerNorm(hidden),
        head=nn.Linear(hidden, classes),
    )


class EmbeddedColumns(nn.Module):
    """A table's features, where each one-hot category becomes its embedding; a value of none becomes zeros."""

    def __init__(self, features: int, categories: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.categories = [(first, number) for first, number in categories if number > 2]
        inside = {k for first, number in self.categories for k in range(first, first + number)}
        self.rest = [k for k in range(features) if k not in inside]
        sizes = [min(MOST_EMBEDDED, (number + 1) // 2) for _, number in self.categories]
        # One-hot times weights is the row of the category's embedding.
        pairs = zip(self.categories, sizes, strict=True)
        self.embeddings = nn.ModuleList(nn.Linear(number, most, bias=False) for (_, number), most in pairs)
        for embedding in self.embeddings:
            nn.init.normal_(embedding.weight)  # type: ignore[arg-type]
        self.outputs = len(self.rest) + sum(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Numbers as they are, then the embeddings."""
        held = zip(self.categories, self.embeddings, strict=True)
        parts = [embedding(x[:, first : first + number]) for (first, number), embedding in held]
        return torch.cat([x[:, self.rest], *parts], dim=1)


class ResidualDense(nn.Module):
    """x + W·ReLU(V·norm(x)): a layer norm needs no other samples, so single rows can be learned from."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """The input, and what the block adds."""
        y: Tensor = self.outer(F.relu(self.inner(self.norm(x))))
        return x + y
