"""Gradient projection: taking out of one gradient what would undo another."""

from __future__ import annotations

from torch import Tensor


def project(gradient: Tensor, against: Tensor) -> Tensor:
    """The closest vector to `gradient` that does not point against `against`.

    The closed form of FedH2L's quadratic program (Eqs. 8 to 14): g + v·a with v = max(0, −⟨g, a⟩/‖a‖²).
    """
    inner, norm = gradient @ against, against @ against
    if inner >= 0 or norm == 0:
        return gradient
    return gradient - (inner / norm) * against


def pcgrad(gradient: Tensor, applied: Tensor) -> Tensor:
    """PCGrad (Yu et al. 2020) of two gradients, where a step along `applied` has been made already.

    PCGrad sums both gradients, each projected against the other; this is what that sum still lacks.
    """
    return project(gradient, applied) + project(applied, gradient) - applied
