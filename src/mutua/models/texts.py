"""Models for texts: numbers of words (N, length), 0 where a text has ended."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mutua.data.model_input import InputKind, ModelInput
from mutua.errors import InputError
from mutua.models.parts import Dense, Size, chain, scaled
from mutua.models.registry import register_model

TEXT: tuple[InputKind, ...] = ("text",)


def _words(input: ModelInput | None) -> int:
    if input is None or input.kind != "text":
        raise InputError("this model is for texts; use it with data of name: text")
    return input.vocabulary


@register_model("text-bag", takes=TEXT)
def text_bag(
    channels: int, size: Size, classes: int, width: float = 1.0, input: ModelInput | None = None
) -> nn.Sequential:
    """The mean of embedded words, of 64 numbers each, and a layer of 64."""
    embedded = scaled(64, width)
    return chain(
        words=Words(_words(input), embedded),
        bag=MeanOfWords(),
        fc1=Dense(embedded, embedded),
        head=nn.Linear(embedded, classes),
    )


@register_model("text-cnn", takes=TEXT)
def text_cnn(
    channels: int, size: Size, classes: int, width: float = 1.0, input: ModelInput | None = None
) -> nn.Sequential:
    """Convolutions over 3, 4 and 5 words, 32 of each, and their maxima."""
    filters = scaled(32, width)
    embedded = scaled(64, width)
    return chain(
        words=Words(_words(input), embedded),
        convolutions=WordConvolutions(embedded, filters, (3, 4, 5)),
        head=nn.Linear(3 * filters, classes),
    )


@register_model("text-gru", takes=TEXT)
def text_gru(
    channels: int, size: Size, classes: int, width: float = 1.0, input: ModelInput | None = None
) -> nn.Sequential:
    """A gated recurrent network of 64 over words; the mean of its states."""
    embedded = scaled(64, width)
    return chain(
        words=Words(_words(input), embedded),
        gru=MeanOfStates(embedded, embedded),
        head=nn.Linear(embedded, classes),
    )


class Words(nn.Module):
    """Embedded words, and beside them 1 where there is a word and 0 where the text has ended."""

    def __init__(self, vocabulary: int, embedded: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedded)
        nn.init.normal_(self.embedding.weight, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        """(N, length, embedded + 1)."""
        there = (x > 0).unsqueeze(-1)
        embedded = self.embedding(x)
        return torch.cat([embedded * there, there.to(embedded.dtype)], dim=-1)


def _mean(values: Tensor, there: Tensor) -> Tensor:
    """The mean over the words of a text; zeros where it has none."""
    return (values * there).sum(1) / there.sum(1).clamp(min=1)


class MeanOfWords(nn.Module):
    """The mean of a text's embedded words."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, embedded)."""
        return _mean(x[..., :-1], x[..., -1:])


class WordConvolutions(nn.Module):
    """The largest answer of each filter anywhere in the text."""

    def __init__(self, embedded: int, filters: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.each = nn.ModuleList(nn.Conv1d(embedded, filters, width, padding=width // 2) for width in widths)

    def forward(self, x: Tensor) -> Tensor:
        """(N, filters × widths)."""
        words = x[..., :-1].transpose(1, 2)
        return torch.cat([F.relu(convolution(words)).amax(2) for convolution in self.each], dim=1)


class MeanOfStates(nn.Module):
    """A gated recurrent network, and the mean of its states over a text's words."""

    def __init__(self, embedded: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(embedded, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(N, hidden)."""
        states, _ = self.gru(x[..., :-1])
        return _mean(states, x[..., -1:])
