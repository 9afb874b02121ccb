"""A task: what a client's labels mean, and how its models are taught and judged."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mutua.learning import losses, metrics


@dataclass(frozen=True)
class Task:
    """Single-label classification among classes known by name."""

    classes: tuple[str, ...]

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy, mean over the batch."""
        return losses.cross_entropy(logits, y)

    def divergence(self, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
        """KL(teacher ‖ student) of two models' logits; no gradient reaches the teacher."""
        return losses.kl(teacher, student, temperature)

    def taught(
        self,
        student: Tensor,
        y: Tensor,
        teacher: Tensor,
        by_label: float,
        by_teacher: float,
        temperature: float = 1.0,
    ) -> Tensor:
        """by_label · loss(student, y) + by_teacher · divergence(teacher, student); no gradient to the teacher.

        A task with a loss or a divergence of its own has its own sum of them too.
        """
        return losses.taught(student, y, teacher, by_label, by_teacher, temperature)

    def divergences(self, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
        """`divergence` of every sample."""
        return losses.kl_each(teacher, student, temperature)

    def entropies(self, probabilities: Tensor) -> Tensor:
        """How uncertain each row of class probabilities is: −Σ p ln p."""
        entropies: Tensor = torch.special.entr(probabilities).sum(dim=1)
        return entropies

    def probabilities(self, logits: Tensor) -> Tensor:
        """Class probabilities of a model's output."""
        return torch.softmax(logits, dim=1)

    def metrics(self, probabilities: Tensor, y: Tensor) -> dict[str, float | None]:
        """Every scalar metric; None where it has no meaning (no samples, one class)."""
        return metrics.scalars(probabilities, y)
