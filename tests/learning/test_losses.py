"""Losses against NumPy, scipy, closed forms and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, rel_entr, softmax
from torch import nn

from mutua import InputError
from mutua.learning import losses
from mutua.learning.losses import cross_entropy, kl, kl_each, taught
from mutua.seeds import torch_stream

N, C = 7, 5


def logits(purpose: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return 3 * torch.randn(N, C, generator=torch_stream(0, purpose), dtype=dtype)


def labels() -> torch.Tensor:
    return torch.randint(C, (N,), generator=torch_stream(0, "labels"))


def test_cross_entropy_is_the_mean_log_probability_of_the_label() -> None:
    x, y = logits("student"), labels()
    by_hand = np.mean([-log_softmax(row)[label] for row, label in zip(x.numpy(), y.tolist(), strict=True)])
    assert cross_entropy(x, y).item() == pytest.approx(by_hand, rel=1e-12)


def test_kl_by_hand() -> None:
    teacher = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64).log()
    student = torch.tensor([[0.25, 0.75], [0.25, 0.75]], dtype=torch.float64).log()
    first = 0.5 * np.log(2) + 0.5 * np.log(2 / 3)
    assert kl_each(teacher, student).numpy() == pytest.approx([first, 0.0], abs=1e-15)
    # The mean over the batch of the sum over classes; a mean over elements would give first / 4.
    assert kl(teacher, student).item() == pytest.approx(first / 2, rel=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_kl_equals_scipys_relative_entropy(temperature: float) -> None:
    teacher, student = logits("teacher"), logits("student")
    p, q = (softmax(x.numpy() / temperature, axis=1) for x in (teacher, student))
    expected = temperature**2 * rel_entr(p, q).sum(axis=1)
    assert kl_each(teacher, student, temperature).numpy() == pytest.approx(expected, rel=1e-10)
    assert kl(teacher, student, temperature).item() == pytest.approx(expected.mean(), rel=1e-10)


def test_kl_does_not_shrink_with_classes_that_nobody_gives_weight() -> None:
    teacher, student = logits("teacher"), logits("student")
    unused = torch.full((N, 90), -1e4, dtype=torch.float64)
    wide = kl(torch.cat([teacher, unused], 1), torch.cat([student, unused], 1))
    assert wide.item() == pytest.approx(kl(teacher, student).item(), rel=1e-12)


def test_kl_points_from_teacher_to_student() -> None:
    sure, unsure = torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    p = softmax([4.0, 0.0])
    assert kl(sure, unsure).item() == pytest.approx(np.sum(p * np.log(2 * p)), rel=1e-6)
    assert kl(unsure, sure).item() == pytest.approx(-np.mean(np.log(2 * p)), rel=1e-6)


def test_kl_is_exactly_zero_where_both_agree() -> None:
    x = 100 * logits("same", torch.float32)
    assert torch.equal(kl_each(x, x.clone(), 3.0), torch.zeros(N))


def test_no_gradient_reaches_the_teacher() -> None:
    teacher, student = logits("teacher").requires_grad_(), logits("student").requires_grad_()
    kl(teacher, student, 2.0).backward()
    assert teacher.grad is None
    assert student.grad is not None
    assert student.grad.abs().sum() > 0


def test_gradient_in_closed_form() -> None:
    teacher, student = logits("teacher"), logits("student").requires_grad_()
    kl(teacher, student).backward()
    expected = (softmax(student.detach().numpy(), axis=1) - softmax(teacher.numpy(), axis=1)) / N
    assert student.grad is not None
    assert student.grad.numpy() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_gradient_by_finite_differences(temperature: float) -> None:
    teacher, student = logits("teacher"), logits("student").requires_grad_()
    kl(teacher, student, temperature).backward()
    assert student.grad is not None
    step = 1e-6
    for i, c in np.ndindex(N, C):
        nudge = torch.zeros(N, C, dtype=torch.float64)
        nudge[i, c] = step
        up, down = (kl(teacher, student.detach() + sign * nudge, temperature).item() for sign in (1, -1))
        assert student.grad[i, c].item() == pytest.approx((up - down) / (2 * step), abs=1e-8)


def test_extreme_logits_stay_finite() -> None:
    teacher = torch.tensor([[1e4, -1e4, 0.0]])
    student = torch.tensor([[-1e4, 1e4, 0.0]], requires_grad=True)
    loss = kl(teacher, student)
    loss.backward()
    assert loss.item() == pytest.approx(2e4)
    assert student.grad is not None
    assert torch.equal(student.grad, torch.tensor([[-1.0, 1.0, 0.0]]))


def test_a_class_the_teacher_rules_out_adds_nothing() -> None:
    probabilities = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64)
    student = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    loss = kl(probabilities.log(), student)
    loss.backward()
    assert loss.item() == pytest.approx(0.25 * np.log(0.75) + 0.75 * np.log(2.25))
    assert student.grad is not None
    assert student.grad.numpy() == pytest.approx(1 / 3 - probabilities.numpy())


@pytest.mark.parametrize("kinds", [(torch.float32, torch.float64), (torch.bfloat16, torch.float32)])
def test_models_of_different_precision_teach_each_other(kinds: tuple[torch.dtype, torch.dtype]) -> None:
    """A model of a user's own may give out less or more than float32."""
    generator = torch.Generator().manual_seed(8)
    one, two = (torch.randn(4, 3, generator=generator).to(kind) for kind in kinds)
    for teacher, student in ((one, two), (two, one)):
        p, q = (logits.double().softmax(1).numpy() for logits in (teacher, student))
        assert kl(teacher, student).item() == pytest.approx((p * np.log(p / q)).sum(1).mean(), rel=0.05)


# Taught by labels and by another model


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize(("by_label", "by_teacher"), [(0.3, 0.7), (1, 1), (1, 0), (0, 1)])
def test_taught_is_the_weighted_sum_of_both(by_label: float, by_teacher: float, temperature: float) -> None:
    teacher, student, y = logits("teacher").requires_grad_(), logits("student").requires_grad_(), labels()
    loss = taught(student, y, teacher, by_label, by_teacher, temperature)
    loss.backward()
    assert teacher.grad is None

    def by_hand(student: np.ndarray) -> float:
        said = teacher.detach().numpy()
        p, q = (softmax(x / temperature, axis=1) for x in (said, student))
        learned = -log_softmax(student, axis=1)[np.arange(N), y.numpy()].mean()
        return float(by_label * learned + by_teacher * temperature**2 * rel_entr(p, q).sum(axis=1).mean())

    at = student.detach().numpy()
    assert loss.item() == pytest.approx(by_hand(at), rel=1e-10)
    assert student.grad is not None
    step = 1e-6
    for i, c in np.ndindex(N, C):
        nudge = np.zeros((N, C))
        nudge[i, c] = step
        slope = (by_hand(at + nudge) - by_hand(at - nudge)) / (2 * step)
        assert student.grad[i, c].item() == pytest.approx(slope, abs=1e-8)


def test_taught_by_labels_alone_learns_as_by_cross_entropy() -> None:
    """To the bit: FML whose memes do not listen is FedAvg."""
    x, y = logits("student", torch.float32), labels()
    one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
    taught(one, y, logits("teacher", torch.float32), 1, 0).backward()
    cross_entropy(two, y).backward()
    assert one.grad is not None
    assert two.grad is not None
    assert torch.equal(one.grad, two.grad)


def test_taught_by_a_teacher_that_rules_a_class_out() -> None:
    probabilities = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64)
    student = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    loss = taught(student, torch.tensor([2]), probabilities.log(), 0.5, 0.5)
    loss.backward()
    divergence = 0.25 * np.log(0.75) + 0.75 * np.log(2.25)
    assert loss.item() == pytest.approx(0.5 * np.log(3) + 0.5 * divergence)
    assert student.grad is not None
    assert student.grad.numpy() == pytest.approx(1 / 3 - np.array([[0.125, 0.375, 0.5]]))


@pytest.mark.parametrize("kinds", [(torch.float32, torch.float64), (torch.bfloat16, torch.float32)])
def test_taught_by_a_model_of_another_precision(kinds: tuple[torch.dtype, torch.dtype]) -> None:
    one, two = (logits(name).to(kind) for name, kind in zip(("one", "two"), kinds, strict=True))
    for teacher, student in ((one, two), (two, one)):
        expected = 0.5 * cross_entropy(student, labels()) + 0.5 * kl(teacher, student)
        assert taught(student, labels(), teacher, 0.5, 0.5).item() == pytest.approx(expected.item(), rel=0.02)


def test_logits_may_lie_in_memory_as_they_like() -> None:
    teacher, student = logits("teacher"), logits("student")
    turned = [x.T.contiguous().T for x in (teacher, student)]
    assert not turned[0].is_contiguous()
    assert torch.equal(kl(*turned), kl(teacher, student))
    apart = taught(turned[1], labels(), turned[0], 0.3, 0.7) - taught(student, labels(), teacher, 0.3, 0.7)
    assert float(apart) == 0


@pytest.mark.parametrize(
    ("model", "other", "said"),
    [
        (nn.Linear(2, 3), nn.Linear(2, 4), "weight is (3, 2) in the one and (4, 2) in the other"),
        (nn.Linear(1, 3), nn.Linear(2, 3), "weight is (3, 1) in the one and (3, 2) in the other"),
        (nn.Linear(2, 3), nn.Linear(2, 3, bias=False), "bias is (3,) in the one and missing in the other"),
        (nn.Linear(2, 3), nn.Sequential(nn.Linear(2, 3)), "weight is (3, 2) in the one and missing in the other"),
    ],
    ids=["shape", "would broadcast", "fewer", "names"],
)
def test_a_distance_is_of_two_models_of_one_design(model: nn.Module, other: nn.Module, said: str) -> None:
    with pytest.raises(InputError) as error:
        losses.squared_distance(model, other)
    assert f"squared_distance: {said}; both must be of one design" in str(error.value)
    one, two = nn.Linear(2, 3), nn.Linear(2, 3)
    flat = [torch.cat([p.detach().flatten() for p in m.parameters()]).numpy() for m in (one, two)]
    assert losses.squared_distance(one, two).item() == pytest.approx(float(((flat[0] - flat[1]) ** 2).sum()))
