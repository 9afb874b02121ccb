"""Tasks: losses, divergences and metrics against NumPy, scikit-learn and closed forms, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.utils.class_weight import compute_class_weight
from torch.distributions import Bernoulli, Normal, kl_divergence
from torch.nn import functional as F

from mutua.data.samples import Samples
from mutua.errors import InputError
from mutua.learning import losses, metrics
from mutua.learning.headline import Headline
from mutua.learning.tasks import Classification, MultiLabel, Regression, aim_of

GENERATOR = torch.Generator().manual_seed(3)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def labels(*shape: int) -> torch.Tensor:
    return torch.randint(0, 2, shape, generator=GENERATOR).double()


def samples(y: object, kind: str = "classification", **more: object) -> Samples:
    return Samples.of(np.zeros((len(y), 2), np.float32), y, kind=kind, **more)  # type: ignore[arg-type]


# Losses


def test_weighted_cross_entropy_is_a_mean_over_samples() -> None:
    y = np.array([0, 0, 0, 1, 2, 2])
    task = Classification(class_weights="balanced").of(samples(y))
    wanted = compute_class_weight("balanced", classes=np.arange(3), y=y)
    assert np.allclose(task.weights, wanted)
    logits, at = rows(6, 3), torch.from_numpy(y)
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    by_hand = np.mean(wanted[y] * -np.log(p[np.arange(6), y]))
    assert float(task.loss(logits, at)) == pytest.approx(by_hand)
    # torch divides by the sum of the weights, which is the number of samples if they are balanced over the batch
    assert float(task.loss(logits, at)) == pytest.approx(float(F.cross_entropy(logits, at, torch.tensor(wanted))))
    # and a sample counts the same alone as in its batch
    alone = sum(float(task.loss(logits[i : i + 1], at[i : i + 1])) for i in range(6)) / 6
    assert alone == pytest.approx(by_hand)
    assert task.metrics(torch.from_numpy(p), at)["loss"] == pytest.approx(by_hand)


def test_declared_weights_go_by_name_and_balanced_ones_leave_absent_classes_alone() -> None:
    held = samples([0, 1, 1], classes=["well", "ill", "odd"])
    assert Classification(class_weights={"ill": 4.0}).of(held).weights == (1.0, 4.0, 1.0)
    assert Classification(class_weights="balanced").of(held).weights == (1.5, 0.75, 1.0)
    with pytest.raises(InputError, match="class_weights: 'sick' is not among the classes well, ill, odd"):
        Classification(class_weights={"sick": 4.0}).check(held.classes)


def test_weights_are_taught_with_too() -> None:
    task = Classification(class_weights={"0": 3.0}).of(samples([0, 1]))
    student, teacher, y = rows(4, 2), rows(4, 2), torch.tensor([0, 1, 1, 0])
    wanted = 0.3 * task.loss(student, y) + 0.7 * losses.kl(teacher, student, 2.0)
    assert torch.allclose(task.taught(student, y, teacher, 0.3, 0.7, 2.0), wanted)


def test_binary_cross_entropy_sums_over_labels_and_weighs_like_torch() -> None:
    logits, y = rows(5, 3), labels(5, 3)
    torch_sum = F.binary_cross_entropy_with_logits(logits, y, reduction="sum") / 5
    assert torch.allclose(losses.binary_cross_entropy(logits, y), torch_sum)
    positive = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    given = {"0": 1.0, "1": 3.0, "2": 0.5}
    task = MultiLabel(class_weights=given).of(samples(y.numpy(), "multi-label"))
    wanted = F.binary_cross_entropy_with_logits(logits, y, pos_weight=positive, reduction="sum") / 5
    assert torch.allclose(task.loss(logits, y), wanted)
    found = task.metrics(torch.sigmoid(logits), y)["loss"]
    assert found == pytest.approx(float(wanted), rel=1e-6)


def test_balanced_weights_of_labels_equal_scikit_learns() -> None:
    y = np.array([[1, 0], [0, 0], [0, 0], [1, 0], [0, 0]])
    task = MultiLabel(class_weights="balanced").of(samples(y, "multi-label"))
    first = compute_class_weight("balanced", classes=np.arange(2), y=y[:, 0])
    assert task.label_weights is not None
    assert np.allclose(task.label_weights, [first, [1.0, 1.0]])  # nobody has the second: its absence weighs 1


def test_bernoulli_kl_is_torchs_and_never_nan() -> None:
    teacher, student = rows(6, 4), rows(6, 4).requires_grad_()
    wanted = kl_divergence(Bernoulli(logits=teacher), Bernoulli(logits=student)).sum(1)
    assert torch.allclose(losses.bernoulli_kl_each(teacher, student), wanted)
    soft = kl_divergence(Bernoulli(logits=teacher / 3), Bernoulli(logits=student / 3)).sum(1) * 9
    assert torch.allclose(losses.bernoulli_kl_each(teacher, student, 3.0), soft)
    task = aim_of("multi-label").of(samples(labels(3, 4).numpy(), "multi-label"))
    task.divergence(teacher.requires_grad_(), student).backward()
    assert teacher.grad is None
    assert student.grad is not None
    sure = torch.tensor([[torch.inf, -torch.inf, 200.0]])
    assert torch.isfinite(losses.bernoulli_kl_each(sure, torch.zeros(1, 3))).all()


def test_regression_losses_and_the_kl_of_gaussians() -> None:
    said, y = rows(7, 2), rows(7, 2)
    gaussian = -Normal(said, torch.ones_like(said)).log_prob(y).sum(1).mean()
    constant = float(np.log(2 * np.pi))  # of two values, half of it each
    assert float(losses.squared(said, y)) == pytest.approx(float(gaussian) - constant)
    wanted = kl_divergence(Normal(y, 1.0), Normal(said, 1.0)).sum(1).mean()
    task = Regression().of(samples(y.numpy(), "regression"))
    assert torch.allclose(task.divergence(y, said), wanted)
    assert torch.allclose(task.divergence(y, said, 4.0), wanted)  # temperature cancels
    error = (y - said).abs()
    by_hand = torch.where(error < 0.5, error**2 / 2, 0.5 * (error - 0.25)).sum(1).mean()
    assert torch.allclose(losses.huber(said, y, 0.5), by_hand)
    assert torch.allclose(losses.huber(said, y, 100.0), losses.squared(said, y))


def test_declared_scales_are_of_the_loss_and_predictions_are_in_the_values_own_unit() -> None:
    y = torch.tensor([[52.0], [48.0]], dtype=torch.float64)
    task = Regression(mean=50, std=2).of(samples(y.numpy(), "regression"))
    outputs = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    assert task.predictions(outputs).tolist() == [[52.0], [50.0]]
    assert float(task.loss(outputs, y)) == pytest.approx(0.25)  # ½·(0² + 1²) / 2
    found = task.metrics(task.predictions(outputs), y)
    assert (found["loss"], found["mae"]) == (pytest.approx(0.25), pytest.approx(1.0))


# Metrics against scikit-learn; scores of a few steps, so that there are ties

SCORES = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40)


@given(SCORES)
def test_binary_metrics_equal_scikit_learns_with_ties(pairs: list[tuple[int, bool]]) -> None:
    scores, positive = np.array([s / 6 for s, _ in pairs]), np.array([p for _, p in pairs])
    found = metrics.binary_auroc(scores, positive), metrics.average_precision(scores, positive)
    sensitive = metrics.sensitivity(scores, positive, 0.8)
    if positive.all() or not positive.any():
        assert (*found, sensitive) == (None, None, None)
        return
    assert found[0] == pytest.approx(sk.roc_auc_score(positive, scores))
    assert found[1] == pytest.approx(sk.average_precision_score(positive, scores))
    false, true, _ = sk.roc_curve(positive, scores, drop_intermediate=False)
    assert sensitive == pytest.approx(true[1 - false >= 0.8 - 1e-9].max())


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 2**31))
def test_label_metrics_equal_scikit_learns(n: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, y = rng.integers(0, 11, (n, width)) / 10, rng.integers(0, 2, (n, width))
    names = [f"l{i}" for i in range(width)]
    found = metrics.label_scalars(torch.from_numpy(p), torch.from_numpy(y), names, 0.9)
    said = p >= 0.5
    assert found["accuracy"] == pytest.approx(1 - sk.hamming_loss(y, said))
    assert found["exact_match"] == pytest.approx(sk.accuracy_score(y, said))
    both = [i for i in range(width) if 0 < y[:, i].sum() < n]
    for i in range(width):
        wanted = sk.roc_auc_score(y[:, i], p[:, i]) if i in both else None
        assert found[f"auroc[l{i}]"] == (wanted if wanted is None else pytest.approx(wanted))
    if not both:
        assert found["auroc"] is found["average_precision"] is found["balanced_accuracy"] is None
    else:
        wanted = sk.roc_auc_score(y[:, both], p[:, both], average="macro")
        assert found["auroc"] == pytest.approx(wanted)
        wanted = sk.average_precision_score(y[:, both], p[:, both], average="macro")
        assert found["average_precision"] == pytest.approx(wanted)
        wanted = np.mean([sk.balanced_accuracy_score(y[:, i], said[:, i]) for i in both])
        assert found["balanced_accuracy"] == pytest.approx(wanted)
    held = [i for i in range(width) if y[:, i].any()]
    if held:
        assert found["macro_f1"] == pytest.approx(np.mean([sk.f1_score(y[:, i], said[:, i]) for i in held]))
    clipped = np.clip(p, metrics.LEAST_PROBABILITY, 1)
    other = np.clip(1 - p, metrics.LEAST_PROBABILITY, 1)
    assert found["loss"] == pytest.approx(-np.where(y, np.log(clipped), np.log(other)).sum(1).mean())


def test_calibration_of_labels_by_hand() -> None:
    p, y = torch.tensor([[0.9, 0.9], [0.9, 0.1]]), torch.tensor([[1, 0], [1, 0]])
    # 0.9 three times, of which two thirds are true: 3/4·|2/3 − 0.9|; 0.1 once and not true: 1/4·0.1
    assert metrics.label_scalars(p, y, ["a", "b"], 0.9)["ece"] == pytest.approx(0.75 * (0.9 - 2 / 3) + 0.025)


@given(st.integers(2, 30), st.integers(1, 3), st.integers(0, 2**31))
def test_value_metrics_equal_scikit_learns(n: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    said, y = rng.normal(size=(n, width)), rng.normal(size=(n, width))
    names = [f"v{i}" for i in range(width)]
    found = metrics.value_scalars(torch.from_numpy(said), torch.from_numpy(y), names)
    assert found["rmse"] == pytest.approx(
        np.mean([np.sqrt(sk.mean_squared_error(y[:, i], said[:, i])) for i in range(width)])
    )
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(y, said))
    assert found["r2"] == pytest.approx(sk.r2_score(y, said))
    assert ("rmse[v0]" in found) == (width > 1)


def test_metrics_without_meaning_are_none() -> None:
    alike = metrics.value_scalars(torch.tensor([[1.0], [2.0]]), torch.tensor([[0.1], [0.1]]), ["v"])
    assert alike["r2"] is None
    assert alike["mae"] == pytest.approx(1.4)
    assert metrics.value_scalars(torch.zeros(1, 1), torch.ones(1, 1), ["v"])["r2"] is None
    nothing = Regression().of(samples([[1.0]], "regression")).metrics(torch.zeros(0, 1), torch.zeros(0, 1))
    assert set(nothing.values()) == {None}
    nothing = metrics.label_scalars(torch.zeros(0, 2), torch.zeros(0, 2), ["a", "b"], 0.9)
    assert set(nothing.values()) == {None}
    some = metrics.label_scalars(torch.zeros(1, 2), torch.zeros(1, 2), ["a", "b"], 0.9)
    assert set(nothing) == set(some)


def test_two_classes_have_a_positive_one() -> None:
    p, y = torch.tensor([[0.3, 0.7], [0.6, 0.4], [0.2, 0.8], [0.9, 0.1]]), torch.tensor([1, 0, 0, 1])
    last = Classification().of(samples([0, 1])).metrics(p, y)
    first = Classification(positive="0").of(samples([0, 1])).metrics(p, y)
    assert last["average_precision"] == pytest.approx(sk.average_precision_score(y == 1, p[:, 1]))
    assert first["average_precision"] == pytest.approx(sk.average_precision_score(y == 0, p[:, 0]))
    assert last["auroc"] == pytest.approx(sk.roc_auc_score(y == 1, p[:, 1]))
    three = Classification().of(samples([0, 1, 2])).metrics(torch.eye(3), torch.arange(3))
    assert "average_precision" not in three
    with pytest.raises(InputError, match="it must be one of two classes; known: 0, 1"):
        Classification(positive="x").check(("0", "1"))


# What is said wrongly


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("binary", "task: 'binary'; it is classification of two classes: give 'classification'"),
        ("regresion", "task: 'regresion' is not a kind of task; did you mean 'regression'"),
        ({"kind": "regression", "loss": "absolute"}, "loss"),
        ({"kind": "regression", "class_weights": "balanced"}, "class_weights"),
        ({"kind": "regression", "delta": 2.0}, "delta is of loss: huber"),
        ({"kind": "regression", "std": 0}, "std"),
        ({"kind": "multi-label", "headline": "rmse"}, "headline"),
        ({"class_weights": {"a": -1}}, "class_weights"),
        (3, "task: 3; give 'regression'"),
    ],
)
def test_a_wrong_task_is_one_line(given: object, said: str) -> None:
    with pytest.raises(InputError) as error:
        aim_of(given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("y", "kind", "said"),
    [
        ([[0, 2], [1, 0]], "multi-label", "2; multi-label needs 0 or 1"),
        ([0, 1], "multi-label", "shape (2,) for 2 inputs; give a 0 or 1 for each label per sample"),
        ([1.0, float("nan")], "regression", "NaN or infinity in 1 of 2 samples"),
        ([1.5, 2.5], "classification", "values are a regression's"),
        (["a", "b"], "regression", "numeric"),
        ([[1.0], [2.0], [3.0]], "regression", "shape (3, 1) for 2 inputs"),
    ],
)
def test_labels_that_do_not_fit_are_one_line(y: object, kind: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        Samples.of(np.zeros((2, 3), np.float32), y, kind=kind)  # type: ignore[arg-type]
    assert said in str(error.value)


def test_a_headline_knows_which_way_is_better() -> None:
    rmse, accuracy = Headline("rmse"), Headline()
    assert rmse.better(1.0, 2.0)
    assert accuracy.better(0.2, 0.1)
    assert rmse.best([(1, 3.0), (2, 1.0), (3, 1.0)]) == 2
    assert accuracy.best([(1, 0.3), (2, 0.5), (3, 0.5)]) == 2
    assert (rmse.worst([1.0, 4.0]), accuracy.worst([0.1, 0.4])) == (4.0, 0.1)
    assert (rmse.shown(12.3456), accuracy.shown(0.123), rmse.shown(None)) == ("12.35", "12.3", "–")
