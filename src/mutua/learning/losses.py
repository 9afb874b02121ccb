"""The two losses that every method is made of, each a mean over the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over the batch of −log softmax(logits) at the label."""
    return F.cross_entropy(logits, y)


def kl(teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """T² · KL(softmax(teacher/T) ‖ softmax(student/T)), mean over the batch; no gradient to the teacher."""
    return kl_each(teacher_logits, student_logits, temperature).mean()


def kl_each(teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """`kl` of every sample: a sum over classes, shape (N,)."""
    teacher = F.log_softmax(teacher_logits.detach() / temperature, dim=1)
    student = F.log_softmax(student_logits / temperature, dim=1)
    p = teacher.exp()
    # A class that the teacher rules out (a logit of −inf, the log of a received 0) adds 0, not NaN.
    terms = torch.where(p > 0, p * (teacher - student), 0.0)
    return terms.sum(dim=1) * temperature**2
