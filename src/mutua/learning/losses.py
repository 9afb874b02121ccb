"""The losses that methods are made of; those of samples are means over the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mutua.errors import InputError


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over the batch of −log softmax(logits) at the label."""
    return F.cross_entropy(logits, y)


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
