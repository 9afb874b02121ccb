"""The losses that methods are made of; those of samples are means over the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mutua.errors import InputError


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over the batch of −log softmax(logits) at the label."""
    return F.cross_entropy(logits, y)


def weighted_cross_entropy(logits: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Mean over the batch of w·(−log softmax(logits)) at the label, w the label's weight.

    It is divided by the number of samples, not by the sum of their weights: so a sample counts the same whatever
    else is in its batch, and also where it is a batch by itself.
    """
    return F.cross_entropy(logits, y, weights, reduction="none").mean()


def binary_cross_entropy(logits: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean over the batch of the sum over labels of −log p: p is σ(logit) where the label is 1, else 1 − σ(logit).

    `weights` (labels, 2) are by label those of 0 and of 1.
    """
    each = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
    if weights is not None:
        each = each * (weights[:, 0] + (weights[:, 1] - weights[:, 0]) * y)
    return each.sum(dim=1).mean()


def bernoulli_kl_each(teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """T² · KL of independent labels, of every sample: a sum over labels (N,); no gradient to the teacher."""
    teacher, student = teacher_logits.detach() / temperature, student_logits / temperature
    least = torch.finfo(teacher.dtype).min
    # The probabilities' logarithms, of a label and of its absence; one that is ruled out adds 0, not NaN.
    there, absent = F.logsigmoid(teacher).clamp_min(least), F.logsigmoid(-teacher).clamp_min(least)
    kl = there.exp() * (there - F.logsigmoid(student)) + absent.exp() * (absent - F.logsigmoid(-student))
    return kl.sum(dim=1) * temperature**2


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean over the batch of the sum over values of ½(y − output)²: a Gaussian of variance 1, up to a constant."""
    return squared_each(y, outputs).mean()


def squared_each(teacher: Tensor, student: Tensor) -> Tensor:
    """½(teacher − student)² of every sample, a sum over values: KL of Gaussians of variance 1."""
    return (teacher.detach() - student).square().sum(dim=1) / 2


def huber(outputs: Tensor, y: Tensor, delta: float) -> Tensor:
    """As `squared` up to an error of `delta`, and linear beyond: large errors pull less."""
    return F.huber_loss(outputs, y, reduction="none", delta=delta).sum(dim=1).mean()


def kl(teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """T² · KL(softmax(teacher/T) ‖ softmax(student/T)), mean over the batch; no gradient to the teacher."""
    teacher, student = _logs(teacher_logits, student_logits, temperature)
    # A dot product is one kernel where a product, a sum and a mean are three: a hundredth of a small model's step.
    total = torch.dot(teacher.exp().view(-1), (teacher - student).view(-1))
    return total / (len(teacher) / temperature**2)


def taught(
    student_logits: Tensor,
    y: Tensor,
    teacher_logits: Tensor,
    by_label: float,
    by_teacher: float,
    temperature: float = 1.0,
) -> Tensor:
    """by_label · cross_entropy(student, y) + by_teacher · kl(teacher, student, temperature)."""
    if temperature != 1:
        learned = by_label * cross_entropy(student_logits, y)
        return learned + by_teacher * kl(teacher_logits, student_logits, temperature)
    # Both are sums of −q·ln(student), with the label's q and the teacher's: with the two q added up it is one sum,
    # and in as few calls as can be a small model's step takes a twentieth less.
    teacher, student = _logs(teacher_logits, student_logits, temperature)
    q = teacher.exp().mul_(by_teacher / len(y))
    known = torch.dot(q.view(-1), teacher.view(-1))
    q.scatter_add_(1, y.unsqueeze(1), q.new_full((len(y), 1), by_label / len(y)))
    return known - torch.dot(q.view(-1), student.view(-1))


def squared_distance(model: nn.Module, other: nn.Module) -> Tensor:
    """‖w − v‖² over all parameters of two models of one design; freeze or detach the one that is not to move."""
    ours, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    shapes, others = ({name: tuple(p.shape) for name, p in m.items()} for m in (ours, theirs))
    if shapes != others:
        name = next(name for name in [*ours, *theirs] if shapes.get(name) != others.get(name))
        one, two = (m.get(name, "missing") for m in (shapes, others))
        raise InputError(
            f"squared_distance: {name} is {one} in the one and {two} in the other; both must be of one design"
        )
    return torch.stack([(w - theirs[name]).square().sum() for name, w in ours.items()]).sum()


def kl_each(teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """`kl` of every sample: a sum over classes, shape (N,)."""
    teacher, student = _logs(teacher_logits, student_logits, temperature)
    return (teacher.exp() * (teacher - student)).sum(dim=1) * temperature**2


def _logs(teacher_logits: Tensor, student_logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The logarithms of both models' probabilities, in one precision; no gradient to the teacher."""
    teacher_logits = teacher_logits.detach()
    if temperature != 1:
        teacher_logits, student_logits = teacher_logits / temperature, student_logits / temperature
    kind = torch.promote_types(teacher_logits.dtype, student_logits.dtype)
    teacher, student = (F.log_softmax(x, dim=1, dtype=kind) for x in (teacher_logits, student_logits))
    # A class that the teacher rules out (a logit of −inf, the log of a received 0) adds 0, not NaN.
    return teacher.clamp_min_(torch.finfo(teacher.dtype).min), student
