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
    if temperature != 1:
        scaled = kl_each(teacher_logits / temperature, student_logits / temperature)
        return scaled * temperature**2
    teacher = F.log_softmax(teacher_logits.detach(), dim=1)
    # A class that the teacher rules out (a logit of −inf, the log of a received 0) adds 0, not NaN.
    teacher = teacher.clamp_min(torch.finfo(teacher.dtype).min)
    student = F.log_softmax(student_logits, dim=1)
    return F.kl_div(student, teacher, reduction="none", log_target=True).sum(dim=1)
