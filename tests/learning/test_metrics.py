"""Metrics against scikit-learn, an independent loop and closed forms."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor

from mutua.learning import metrics
from mutua.learning.losses import cross_entropy
from mutua.seeds import numpy_stream

NAMES = ["accuracy", "loss", "balanced_accuracy", "macro_f1", "auroc", "ece"]


def draw(seed: int, n: int = 200, present: list[int] | None = None, ties: bool = False) -> tuple[Tensor, Tensor]:
    """Probabilities over six classes that know something of the labels, drawn from the classes `present`."""
    stream = numpy_stream(seed, "metrics")
    y = stream.choice(present or list(range(6)), n)
    p = np.exp(stream.normal(size=(n, 6)) + 1.5 * np.eye(6)[y])
    p /= p.sum(1, keepdims=True)
    return torch.tensor(p.round(1) if ties else p), torch.tensor(y)


CASES = {
    "all classes": draw(0),
    "few classes": draw(1, present=[1, 4, 5]),
    "ties": draw(2, ties=True),
    "few classes and ties": draw(3, present=[0, 3], ties=True),
    "few samples": draw(4, n=9),
}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    return CASES[request.param]


def of(metric: str, p: Tensor, y: Tensor) -> float | None:
    return metrics.scalars(p, y)[metric]


def test_labels_against_scikit_learn(case: tuple[Tensor, Tensor]) -> None:
    p, y = case
    predicted, present = p.numpy().argmax(1), np.unique(y)
    assert of("accuracy", p, y) == pytest.approx(sk.accuracy_score(y, predicted))
    assert of("macro_f1", p, y) == pytest.approx(sk.f1_score(y, predicted, labels=present, average="macro"))
    recall = sk.recall_score(y, predicted, labels=present, average="macro")
    assert of("balanced_accuracy", p, y) == pytest.approx(recall)
    assert metrics.confusion_matrix(p, y).tolist() == sk.confusion_matrix(y, predicted, labels=range(6)).tolist()


def test_auroc_against_scikit_learn(case: tuple[Tensor, Tensor]) -> None:
    p, y = case
    areas = [sk.roc_auc_score(y == c, p[:, c]) for c in np.unique(y)]
    assert of("auroc", p, y) == pytest.approx(np.mean(areas))


def test_log_loss_against_scikit_learn_and_cross_entropy() -> None:
    p, y = CASES["few classes"]
    assert of("loss", p, y) == pytest.approx(sk.log_loss(y, p, labels=range(6)))
    assert of("loss", p, y) == pytest.approx(cross_entropy(p.log(), y).item())


def test_ece_by_a_loop(case: tuple[Tensor, Tensor]) -> None:
    p, y = case
    expected = 0.0
    edges = np.linspace(0, 1, 16)
    for low, high in pairwise(edges):
        inside = [i for i in range(len(y)) if low < p[i].max() <= high]
        if inside:
            right = np.mean([float(p[i].argmax() == y[i]) for i in inside])
            sure = np.mean([float(p[i].max()) for i in inside])
            expected += len(inside) / len(y) * abs(right - sure)
    assert expected > 0
    assert of("ece", p, y) == pytest.approx(expected)


def test_macro_f1_leaves_out_classes_that_are_only_predicted() -> None:
    p, y = torch.eye(3)[[0, 0, 1, 2]], torch.tensor([0, 0, 1, 1])
    assert of("macro_f1", p, y) == pytest.approx((1 + 2 / 3) / 2)
    assert sk.f1_score(y, p.argmax(1), average="macro", zero_division=0) == pytest.approx((1 + 2 / 3) / 3)
    assert of("balanced_accuracy", p, y) == pytest.approx(0.75)


def test_perfect_predictions() -> None:
    y = torch.tensor([2, 0, 1, 1])
    assert metrics.scalars(torch.eye(3)[y], y) == {
        "accuracy": 1.0,
        "loss": 0.0,
        "balanced_accuracy": 1.0,
        "macro_f1": 1.0,
        "auroc": 1.0,
        "ece": 0.0,
    }


def test_uniform_predictions() -> None:
    p, y = torch.full((4, 4), 0.25), torch.arange(4)
    found = metrics.scalars(p, y)
    assert found["loss"] == pytest.approx(np.log(4))
    assert found["auroc"] == 0.5
    assert found["accuracy"] == 0.25
    assert found["ece"] == pytest.approx(0.0)


def test_auroc_counts_ties_half_and_inverted_scores_as_zero() -> None:
    y = torch.tensor([1, 1, 0])
    assert of("auroc", torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]]), y) == 0.75
    assert of("auroc", torch.tensor([[0.75, 0.25], [0.75, 0.25], [0.25, 0.75]]), y) == 0.0


def test_ece_of_overconfidence() -> None:
    p = torch.tensor([[0.9, 0.1]], dtype=torch.float64).repeat(10, 1)
    assert of("ece", p, torch.tensor([0] * 6 + [1] * 4)) == pytest.approx(0.3)


def test_ece_bins_are_fifteen_and_closed_above() -> None:
    # 0.95 and 0.99 share the last bin of 15, so their gaps of +0.05 and −0.99 are added before the modulus.
    p, y = torch.tensor([[0.95, 0.05], [0.99, 0.01]], dtype=torch.float64), torch.tensor([0, 1])
    assert of("ece", p, y) == pytest.approx((0.99 - 0.05) / 2)
    # 0.6 is the upper edge of a bin, 0.61 lies in the next: their gaps stay apart.
    p = torch.tensor([[0.6, 0.4], [0.61, 0.39]], dtype=torch.float64)
    assert of("ece", p, y) == pytest.approx((0.4 + 0.61) / 2)


def test_one_class_has_no_auroc() -> None:
    p, _ = draw(5, n=10)
    y = torch.full((10,), 3)
    found = metrics.scalars(p, y)
    assert found["auroc"] is None
    assert found["balanced_accuracy"] == found["accuracy"]


def test_no_samples_give_none() -> None:
    p, y = torch.empty(0, 4), torch.empty(0, dtype=torch.long)
    assert metrics.scalars(p, y) == dict.fromkeys(NAMES)
    assert metrics.confusion_matrix(p, y).tolist() == np.zeros((4, 4)).tolist()


def test_scalars_are_plain_floats_by_name() -> None:
    p, y = draw(6)
    found = metrics.scalars(p.float(), y)
    assert list(found) == NAMES
    assert all(type(number) is float for number in found.values())


def test_zero_probability_of_the_label_is_a_large_finite_loss() -> None:
    loss = of("loss", torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert loss == pytest.approx(-np.log(np.finfo(np.float32).tiny))


def test_a_diverged_model_shows_as_nan() -> None:
    found = metrics.scalars(torch.full((3, 2), torch.nan), torch.tensor([0, 1, 1]))
    assert np.isnan([found["loss"], found["ece"]]).all()
