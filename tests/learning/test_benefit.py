"""Better off or not: differences against SciPy and by hand, findings, and the sentences that people read."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mutua import InputError
from mutua.learning.benefit import Benefit, best_of, trusts
from mutua.learning.headline import Headline
from mutua.learning.task_behaviour import LabelTask, Task, ValueTask
from mutua.models.composite import Composite, Weighted

TASK = Task(("ill", "well"))


def saying(right: int, n: int, first: int = 0) -> Tensor:
    """Predictions of n samples of class 0, right on `right` of them, beginning with `first`."""
    found = torch.tensor([[0.1, 0.9]]).repeat(n, 1)
    found[first : first + right] = torch.tensor([0.8, 0.2])
    return found


def zeros(n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.long)


def test_joining_that_helps_is_said_as_a_director_reads_it() -> None:
    """50 of 400 more are right, none fewer: Bonett and Price by hand."""
    found = Benefit.of(
        TASK,
        {"alone": saying(300, 400), "personal": saying(350, 400)},
        zeros(400),
        joined="personal",
        noun="patients",
    )
    ups, downs = 51 / 402, 1 / 402
    half = 1.959963984540054 * np.sqrt((ups + downs - (ups - downs) ** 2) / 402)
    assert (found.gain.value, found.gain.low, found.gain.high) == pytest.approx(
        (0.125, ups - downs - half, ups - downs + half)
    )
    assert (found.finding, found.serve) == ("better", "personal")
    assert found.sentence == (
        "Joining helped: 12.5 more of 100 patients are classified correctly, 95 % interval 9.1 to 15.7, "
        "with 400 test patients."
    )
    assert [(one.model, one.value) for one in found.scores] == [("alone", 0.75), ("personal", 0.875)]
    assert found.scores[0].low == pytest.approx(0.7046, abs=1e-3)  # Clopper and Pearson's


def test_joining_that_harms_is_said_and_alone_is_served() -> None:
    both = {"alone": saying(350, 400), "personal": saying(300, 400)}
    found = Benefit.of(TASK, both, zeros(400), joined="personal", serve="personal")
    assert (found.finding, found.serve) == ("worse", "alone")
    assert found.sentence == (
        "Joining did harm: 12.5 fewer of 100 samples are classified correctly, 95 % interval 9.1 to 15.7, "
        "with 400 test samples."
    )


def test_sixteen_patients_show_no_difference() -> None:
    both = {"alone": saying(11, 16), "personal": saying(12, 16)}
    found = Benefit.of(TASK, both, zeros(16), joined="personal", noun="patients")
    assert (found.finding, found.serve) == ("cannot tell", "personal")
    assert found.sentence.startswith(
        "No difference from training alone can be shown with 16 test patients: 6.2 more"
    )
    same = Benefit.of(TASK, {"alone": both["alone"], "personal": both["alone"]}, zeros(16), joined="personal")
    assert same.gain.low is not None
    assert same.gain.low < 0 == same.gain.value


def test_what_was_chosen_without_the_test_samples_stays_unless_they_show_harm() -> None:
    three = {"alone": saying(11, 16), "global": saying(9, 16), "personal": saying(12, 16)}
    found = Benefit.of(TASK, three, zeros(16), joined="global", serve="alone")
    assert (found.joined, found.serve) == ("global", "alone")
    assert [gain.model for gain in found.gains] == ["global", "personal"]


def test_no_test_samples_say_nothing() -> None:
    nothing = {"alone": torch.empty(0, 2), "personal": torch.empty(0, 2)}
    found = Benefit.of(TASK, nothing, zeros(0), joined="personal")
    assert found.sentence == "Whether joining helped cannot be said with 0 test samples."
    assert (found.finding, found.gain.value) == ("cannot tell", None)


def test_values_have_the_paired_t_interval_of_their_absolute_errors() -> None:
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.normal(size=(60, 1)))
    alone, joined = (y + torch.from_numpy(rng.normal(scale=scale, size=(60, 1))) for scale in (1.0, 0.5))
    task = ValueTask(("days",), Headline("mae"))
    found = Benefit.of(task, {"alone": alone, "personal": joined}, y, joined="personal")
    differences = ((alone - y).abs() - (joined - y).abs()).numpy()[:, 0]
    half = 2.0010 * differences.std(ddof=1) / np.sqrt(60)  # Student's t of 59 degrees
    assert found.gain.value == pytest.approx(differences.mean())
    assert found.gain.low == pytest.approx(differences.mean() - half, abs=0.1 * half)
    assert found.gain.high == pytest.approx(differences.mean() + half, abs=0.1 * half)
    assert found.sentence.startswith(f"Joining helped: MAE is {differences.mean():.4g} lower, 95 % interval 0.")


def test_a_share_that_is_no_accuracy_is_told_in_points() -> None:
    y = torch.tensor([0, 1] * 100)
    good = torch.stack([1.0 - y, y.double()], dim=1).clamp(0.2, 0.8)
    bad = good.clone()
    bad[:80] = 0.5
    found = Benefit.of(
        Task(("no", "yes"), Headline("auroc")), {"alone": bad, "personal": good}, y, joined="personal"
    )
    assert "AUROC is " in found.sentence
    assert " points higher" in found.sentence


def test_several_labels_are_compared_by_their_own_metric() -> None:
    y = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0]] * 10)
    task = LabelTask(("a", "b"), Headline("accuracy"))
    said = {"alone": (1 - y).double(), "personal": y.double()}
    assert Benefit.of(task, said, y, joined="personal").gain.value == 1.0


def test_the_best_on_validation_is_chosen_and_of_equals_the_first() -> None:
    said = {"personal": saying(3, 8), "global": saying(5, 8), "alone": saying(5, 8, first=3)}
    assert best_of(TASK, said, zeros(8)) == "global"
    assert best_of(TASK, {name: one[:0] for name, one in said.items()}, zeros(0)) == "personal"


def test_a_model_without_predictions_is_named() -> None:
    with pytest.raises(InputError, match="no predictions of 'alone'; known: personal"):
        Benefit.of(TASK, {"personal": saying(1, 2)}, zeros(2), joined="personal")


def test_a_summary_is_json() -> None:
    both = {"alone": saying(11, 16), "personal": saying(12, 16)}
    told = Benefit.of(TASK, both, zeros(16), joined="personal").summary()
    assert told["models"]["alone"]["value"] == 11 / 16
    assert told["gains"]["personal"]["value"] == 1 / 16
    assert (told["metric"], told["serve"], told["test_samples"]) == ("accuracy", "personal", 16)


def test_rows_for_a_table_have_intervals_and_signs() -> None:
    models = {"alone": saying(300, 400), "global": saying(290, 400), "personal": saying(350, 400)}
    rows = Benefit.of(TASK, models, zeros(400), joined="personal").rows()
    assert [row[0] for row in rows] == ["alone", "global", "personal"]
    assert rows[0][1:] == ("75.0 (70.5 to 79.2)", "")
    assert rows[1][2].startswith("-2.5 (-")
    assert rows[2][2].startswith("+12.5 (+")


# A mixture of experts that validation samples have weighed


def weighed(prior: list[float] | None = None) -> Composite:
    torch.manual_seed(0)
    parts = {"corrected": nn.Linear(2, 2), "personal": nn.Linear(2, 2)}
    return Composite(Weighted(torch.tensor([0.7, 0.3]), 0.01, prior), parts)


def test_what_a_mixture_trusts_and_cannot_lose() -> None:
    assert trusts(nn.Linear(2, 2)) == ()
    assert [(one.model, one.regret) for one in trusts(weighed())] == [("corrected", None), ("personal", None)]
    corrected, personal = trusts(weighed([0.75, 0.25]))
    assert (corrected.weight, personal.weight) == pytest.approx((0.7, 0.3))
    assert (corrected.regret, personal.regret) == pytest.approx((np.log(2 / 0.75), np.log(8)))


def test_the_certificate_is_a_text_for_people_and_can_be_read_again() -> None:
    said = {"alone": saying(30, 40), "global": saying(20, 40), "served": saying(38, 40)}
    experts = trusts(weighed([0.75, 0.25]))
    found = Benefit.of(TASK, said, zeros(40), joined="served", noun="patients", experts=experts)
    assert str(found).splitlines() == [
        "accuracy in % on 40 test patients of its own, with 95 % intervals:",
        "  alone   75.0 (58.8 to 87.3)",
        "  global  50.0 (33.8 to 66.2)  -25.0 (-38.3 to -9.3) against alone",
        "  served  95.0 (83.1 to 99.4)  +20.0 (+5.5 to +32.6) against alone",
        "trust: corrected 70 %, alone 30 %",
        "log-loss on validation samples, in all at most so many nats above: corrected 1.0, alone 2.1",
        "Joining helped: 20.0 more of 100 patients are classified correctly, 95 % interval 5.5 to 32.6, "
        "with 40 test patients.",
        "serve: served",
    ]
    assert Benefit.read(json.loads(json.dumps(found.summary())), "patients") == found
    assert Benefit.read(Benefit.of(TASK, said, zeros(40), joined="served").summary()).experts == ()
