"""What people write by hand: federated mutual learning as a plain PyTorch loop, correct but untuned.

One DataLoader and one deep copy of the global per client, one optimizer per model, all threads for every step,
and models of torch's own layers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from copy import deepcopy
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

ALPHA = BETA = 0.5
SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}


NETWORKS: dict[str, tuple[list[tuple[int, int, int, int]], list[int]]] = {
    "mlp": ([], [784, 200, 200, 10]),
    "lenet5": ([(1, 6, 5, 2), (6, 16, 5, 0)], [400, 120, 84, 10]),
    "cnn1": ([(1, 6, 3, 1), (6, 16, 3, 1)], [784, 120, 10]),
    "cnn2": ([(1, 128, 3, 1), (128, 128, 3, 1), (128, 128, 3, 1)], [1152, 10]),
    "cnn-5x5": ([(1, 32, 5, 0), (32, 64, 5, 0)], [1024, 512, 10]),
}
"""For grey images of 28×28: convolutions (from, to, kernel, padding) with ReLU and pooling, then dense layers."""


def model(name: str) -> nn.Sequential:
    """One of them, as a tutorial writes it."""
    convs, sizes = NETWORKS[name]
    layers: dict[str, nn.Module] = {}
    for i, (inputs, outputs, kernel, padding) in enumerate(convs, 1):
        layers[f"conv{i}"] = nn.Conv2d(inputs, outputs, kernel, padding=padding)
        layers |= {f"conv{i}_relu": nn.ReLU(), f"conv{i}_pool": nn.MaxPool2d(2)}
    layers["flatten"] = nn.Flatten()
    for i, (inputs, outputs) in enumerate(pairwise(sizes[:-1]), 1):
        layers |= {f"fc{i}": nn.Linear(inputs, outputs), f"fc{i}_relu": nn.ReLU()}
    return nn.Sequential(OrderedDict(layers, head=nn.Linear(*sizes[-2:])))


class PlainFML:
    """Clients with a personal model each, and a global that their memes are averaged into."""

    def __init__(
        self,
        shared: nn.Module,
        personals: Mapping[str, nn.Module],
        train: Mapping[str, TensorDataset],
        test: Mapping[str, TensorDataset],
        common: TensorDataset,
    ) -> None:
        self.shared, self.personals, self.train, self.test, self.common = shared, personals, train, test, common
        self.optimizers = {k: torch.optim.SGD(model.parameters(), **SGD) for k, model in personals.items()}

    def round(self, batches: Mapping[str, list[list[int]]]) -> dict[str, float]:
        """One round, then the global on the common test set and every personal model on its own."""
        memes = {}
        for k, personal in self.personals.items():
            meme = memes[k] = deepcopy(self.shared)
            optimizer = torch.optim.SGD(meme.parameters(), **SGD)
            personal.train(), meme.train()
            for x, y in DataLoader(self.train[k], batch_sampler=batches[k]):
                own, other = personal(x), meme(x)
                loss = ALPHA * F.cross_entropy(own, y) + (1 - ALPHA) * kl(other.detach(), own)
                loss_meme = BETA * F.cross_entropy(other, y) + (1 - BETA) * kl(own.detach(), other)
                self.optimizers[k].zero_grad()
                loss.backward()
                self.optimizers[k].step()
                optimizer.zero_grad()
                loss_meme.backward()
                optimizer.step()
        states = [meme.state_dict() for meme in memes.values()]
        merged = {}
        for name, first in states[0].items():
            stacked = torch.stack([state[name].float() for state in states])
            merged[name] = stacked.mean(0).to(first.dtype)
        self.shared.load_state_dict(merged)
        own_accuracy = {k: accuracy(model, self.test[k]) for k, model in self.personals.items()}
        return {"global": accuracy(self.shared, self.common), **own_accuracy}


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL divergence of two models' logits, the teacher's first."""
    return F.kl_div(F.log_softmax(student, 1), F.softmax(teacher, 1), reduction="batchmean")


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """The share of samples that the model labels right."""
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=128):
            right += int((model(x).argmax(1) == y).sum())
    return right / len(data)
