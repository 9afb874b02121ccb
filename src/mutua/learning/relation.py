"""How clients' models relate: the matrix Ω by which tr(WΩWᵀ) ties the columns of W, one per client."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Relation = Literal["learned", "mean", "none"]
LEAST = 1e-7
"""The least eigenvalue that WᵀW may have: it is inverted."""


def task_relation(W: Tensor, relation: Relation) -> Tensor:
    """Ω: (WᵀW)^½ over its trace, inverted; I − 11ᵀ/K, which ties all to their mean; or I, which ties nobody.

    The learned one is the minimum of tr(WΩWᵀ) over Ω⁻¹ with trace 1 (Zhang and Yeung 2010).
    """
    K = W.shape[1]
    if relation != "learned":
        return torch.eye(K, dtype=W.dtype) - (1 / K if relation == "mean" else 0)
    values, vectors = torch.linalg.eigh(W.T @ W)
    root = values.clamp_min(LEAST).sqrt()
    inverse: Tensor = vectors @ torch.diag(root.sum() / root) @ vectors.T
    return inverse
