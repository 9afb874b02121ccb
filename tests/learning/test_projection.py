"""FedH2L's projection against a numerical solver of its quadratic program, and PCGrad by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from mutua.learning.projection import pcgrad, project
from mutua.seeds import numpy_stream


def vectors(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Two random vectors of different lengths: they conflict in half of the cases."""
    rng = numpy_stream(seed, "vectors")
    return rng.normal(size=size) * rng.uniform(0.1, 3), rng.normal(size=size) * rng.uniform(0.1, 3)


def solved(g: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Eq. (8) by sequential quadratic programming: the nearest z to g with ⟨z, a⟩ ≥ 0."""
    found = minimize(
        lambda z: 0.5 * ((z - g) ** 2).sum(),
        x0=a,
        jac=lambda z: z - g,
        constraints={"type": "ineq", "fun": lambda z: z @ a, "jac": lambda z: a},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 200},
    )
    assert found.success
    return np.asarray(found.x)


def test_the_projection_solves_the_papers_quadratic_program() -> None:
    conflicts = 0
    for seed in range(60):
        g, a = vectors(seed, size=2 + seed % 9)
        found = project(torch.from_numpy(g), torch.from_numpy(a)).numpy()
        assert found == pytest.approx(solved(g, a), abs=1e-5)
        conflicts += bool(g @ a < 0)
    assert 15 < conflicts < 45


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 40))
def test_what_is_left_does_not_undo_and_what_does_not_conflict_is_left_alone(seed: int, size: int) -> None:
    g, a = (torch.from_numpy(v) for v in vectors(seed, size))
    found = project(g, a)
    scale = float(g.norm() * a.norm())
    if g @ a >= 0:
        assert torch.equal(found, g)
    else:
        assert float(found @ a) == pytest.approx(0, abs=1e-12 * scale)
        # The dual's solution, Eq. (14): what was added is a nonnegative multiple of a.
        v = float((found - g) @ a / (a @ a))
        assert v == pytest.approx(max(0.0, float(-(g @ a) / (a @ a))))
        assert torch.allclose(found, g + v * a, rtol=0, atol=1e-12)


def test_a_zero_gradient_projects_nothing() -> None:
    g = torch.tensor([1.0, -2.0])
    zero = torch.zeros(2)
    assert torch.equal(project(g, zero), g)
    assert torch.equal(project(zero, g), zero)
    for one, other in ((g, zero), (zero, g), (zero, zero)):
        assert torch.equal(pcgrad(one, other), one)


def test_a_gradient_too_small_to_square_projects_nothing() -> None:
    """In float32 its squared length is 0, though it points against: dividing by it would give infinities."""
    g, tiny = torch.tensor([1.0, 2.0]), torch.tensor([-1e-30, 0.0])
    assert float(g @ tiny) < 0 == float(tiny @ tiny)
    assert torch.equal(project(g, tiny), g)


def test_opposite_gradients_cancel() -> None:
    g = torch.tensor([3.0, -4.0])
    assert torch.allclose(project(g, -2 * g), torch.zeros(2))


@pytest.mark.parametrize(
    ("g", "a", "projected", "both"),
    [
        # ⟨g, a⟩ = −1: g loses its part along a; a loses its part along g, which is g itself times −1/2.
        ([1.0, 1.0], [-1.0, 0.0], [0.0, 1.0], [0.5, 1.5]),
        # ⟨g, a⟩ = −2, ‖a‖² = 5, ‖g‖² = 4: g + 2/5·a, and a is given 2/4·g.
        ([0.0, -2.0], [2.0, 1.0], [0.8, -1.6], [0.8, -2.6]),
        ([1.0, 2.0], [3.0, 0.0], [1.0, 2.0], [1.0, 2.0]),
        ([0.0, 5.0], [1.0, 0.0], [0.0, 5.0], [0.0, 5.0]),
    ],
)
def test_by_hand(g: list[float], a: list[float], projected: list[float], both: list[float]) -> None:
    """PCGrad's step is the sum of both projected gradients, of which the local one has been taken whole before."""
    gradient, applied = torch.tensor(g), torch.tensor(a)
    assert project(gradient, applied).tolist() == pytest.approx(projected)
    assert pcgrad(gradient, applied).tolist() == pytest.approx(both)


def test_after_pcgrad_both_steps_add_up_to_the_symmetric_sum() -> None:
    def against(one: Tensor, other: Tensor) -> Tensor:
        """Yu et al. 2020, Algorithm 1, for one other task."""
        return one - (one @ other) / other.square().sum() * other if one @ other < 0 else one

    for seed in range(20):
        g, a = (torch.from_numpy(v) for v in vectors(seed, 5))
        assert torch.allclose(a + pcgrad(g, a), against(g, a) + against(a, g))


def test_arguments_stay_as_they_are() -> None:
    g, a = torch.tensor([1.0, 1.0]), torch.tensor([-1.0, 0.5])
    project(g, a), pcgrad(g, a)
    assert g.tolist() == [1.0, 1.0]
    assert a.tolist() == [-1.0, 0.5]
