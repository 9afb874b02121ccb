"""What people write by hand: federated mutual learning as a plain PyTorch loop, correct but untuned.

A DataLoader a client, a deep copy of the global a client, one optimizer a model, all threads for every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

ALPHA = BETA = 0.5
SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}


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
