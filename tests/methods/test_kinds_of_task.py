"""Every method with every kind of task: it runs, or it refuses by name with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import mutua
from mutua.methods import Batch, FedAvg, Independent, Models, Numbers, Terms
from mutua.methods.base import needs_classes

RNG = np.random.default_rng(5)
X = RNG.normal(size=(90, 4)).astype(np.float32)
WEIGHTS = RNG.normal(size=(4, 2))
LABELS = (X @ WEIGHTS > 0).astype(int)
VALUES = X @ WEIGHTS[:, 0] * 5 + 20
REGRESSION = mutua.tasks.Regression(mean=20, std=5)
OWN_DESIGNS = ("aggregated", "dml", "fedh2l", "fedmd", "fd", "fedkd", "fml", "fmlu", "independent", "no-regret")
REFUSE = ("fd", "fedh2l", "fmlu", "mixture", "no-regret")
"""Of the methods here; other methods may refuse too, and say why."""


def federation(task: Any, y: Any, name: str = "fml", **more: Any) -> mutua.Federation:
    shared = (
        "mlp" if name in ("fedper", "fedrep", "fedbabu") else "linear"
    )  # without its head a linear model is nothing
    models: Any = ["linear", "mlp", "linear"] if name in OWN_DESIGNS else shared
    given = {"partition": mutua.partitions.IID(clients=3), "global_model": shared, "models": models} | more
    return mutua.Federation.from_arrays(X, y, task=task, **given)


def run(name: str, of: mutua.Federation, **more: Any) -> mutua.Result:
    given: dict[str, Any] = {"rounds": 2, "steps": 3, "batch_size": 8, "workers": 1, "progress": False} | more
    return mutua.run(mutua.methods.of({"name": name}), of, **given)


def refusal(name: str, of: mutua.Federation) -> str:
    """Why a method refuses a federation; empty if it does not."""
    try:
        mutua.methods.of({"name": name}).arrange(of)
    except mutua.InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", mutua.methods.names())
@pytest.mark.parametrize(("task", "y"), [(REGRESSION, VALUES), ("multi-label", LABELS)], ids=["values", "labels"])
def test_every_method_runs_or_refuses_by_name(name: str, task: Any, y: Any) -> None:
    of = federation(task, y, name, public=0.1)
    refused = refusal(name, of)
    if refused:
        assert refused.startswith(f"task: {of.aim.kind}, but ")
        assert name in refused
        assert "use one of" in refused
        return
    result = run(name, of)
    assert name not in REFUSE
    metric = of.headline.metric
    assert result.mean_score() is not None
    assert [client.score() for client in result.clients] == [
        c[metric]["predictor"] for c in result.summary()["clients"]
    ]
    last = {row.metric for row in result.history if row.round == 2 and row.split == "test"}
    assert {"rmse", "mae", "r2", "loss"} <= last or {
        "auroc",
        "average_precision",
        "sensitivity",
        "auroc[0]",
    } <= last


@pytest.mark.parametrize("name", REFUSE)
def test_those_that_need_classes_say_what_for(name: str) -> None:
    kind = type(mutua.methods.of({"name": name}))
    assert needs_classes(kind)
    with pytest.raises(mutua.InputError, match=needs_classes(kind)):
        run(name, federation("multi-label", LABELS, name, public=0.1))


def test_fmlu_without_uncertainty_is_fml_with_values_too() -> None:
    plain = mutua.methods.of({"name": "fmlu", "uncertain_update": False, "uncertain_merge": False})
    of = federation(REGRESSION, VALUES)
    one = mutua.run(plain, of, rounds=2, steps=2, workers=1, progress=False)
    other = run("fml", of, steps=2, batch_size=mutua.Plan().batch_size)
    assert all(torch.equal(one.global_state[k], other.global_state[k]) for k in one.global_state)


def test_a_method_that_nobody_declared_is_refused() -> None:
    class Own(FedAvg):
        name: ClassVar[str] = "own-for-values"

        def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
            return {"meme": F.mse_loss(models["meme"](batch.x), batch.y)}

    of = federation(REGRESSION, VALUES, "fedavg")
    with pytest.raises(mutua.InputError, match="Own overrides objective, of which nobody has declared any_task"):
        mutua.run(Own(), of, rounds=1, steps=1, workers=1, progress=False)

    class Declared(Own):
        any_task: ClassVar[bool] = True

    mutua.run(Declared(), of, rounds=1, steps=1, workers=1, progress=False)


def test_a_linear_regression_alone_finds_the_least_squares() -> None:
    x, y = torch.from_numpy(X).double(), torch.from_numpy(VALUES).double()[:, None]
    of = federation(REGRESSION, VALUES, "independent", models="linear", partition=mutua.partitions.IID(clients=1))
    given: Any = {"optimizer": {"name": "sgd", "lr": 0.3}, "batch_size": 1000, "evaluate_every": 300}
    result = run("independent", of, rounds=300, steps=1, **given)
    found = result.clients[0].predictor(X)
    held = torch.cat([x, torch.ones(90, 1).double()], 1)
    exact = held @ torch.linalg.lstsq(held, y).solution  # the values are linear in x: no noise
    assert torch.allclose(found.double(), exact, atol=0.05)
    assert result.clients[0].score() < 0.05


def test_the_same_bytes_from_workers_and_after_a_stop() -> None:
    of = federation("multi-label", LABELS)
    one, two = run("fml", of), run("fml", of, workers=2)
    assert list(one.history) == list(two.history)
    longer = run("fml", of, rounds=1).extend(2, progress=False)
    assert list(longer.history) == list(one.history)


def test_labels_and_values_go_by_name_between_clients() -> None:
    first = mutua.Samples.of(X[:30], LABELS[:30], classes=["cough", "fever"], kind="multi-label")
    other = mutua.Samples.of(X[30:60], LABELS[30:60], classes=["fever", "cough"], kind="multi-label")
    clients = [
        mutua.Client(i, s.take(range(20)), s.take([]), s.take(range(20, 30)), "linear")
        for i, s in (("a", first), ("b", other))
    ]
    of = mutua.Federation(tuple(clients), "linear")
    assert of.classes == ("cough", "fever")
    assert torch.equal(of["b"].train.y, other.take(range(20)).y[:, [1, 0]])
    third = replace(
        clients[1],
        id="c",
        **{s: replace(getattr(clients[1], s), classes=("fever", "rash")) for s in ("train", "val", "test")},
    )
    with pytest.raises(mutua.InputError, match="with multi-label all must have the same"):
        mutua.Federation((clients[0], third), "linear")


def test_all_clients_have_one_task() -> None:
    values = mutua.Samples.of(X[:30], VALUES[:30], kind="regression")
    classes = mutua.Samples.of(X[:30], LABELS[:30, 0])
    clients = [mutua.Client(i, s, s.take([]), s, "linear") for i, s in (("a", values), ("b", classes))]
    with pytest.raises(mutua.InputError, match="a learns regression , b classification ; all clients"):
        mutua.Federation(tuple(clients))
    with pytest.raises(mutua.InputError, match="client a: its task is multi-label, its labels are of regression"):
        replace(clients[0], aim=mutua.tasks.MultiLabel())


def test_partitions_by_class_are_refused() -> None:
    with pytest.raises(mutua.InputError, match="'shards' deals by class, and regression has no one class"):
        federation(REGRESSION, VALUES, partition=mutua.partitions.Shards(clients=3, shards_per_client=2))


# Weights of classes, and what must not shape them


def test_balanced_weights_are_of_each_clients_own_opted_in_training_samples() -> None:
    y, out = LABELS[:, 0], RNG.random(90) < 0.3
    of = federation({"class_weights": "balanced"}, y, "fedavg", opted_out=out)
    for client in of.clients:
        mine = client.opted_in.y.numpy()
        assert client.task.weights == tuple(len(mine) / (2 * np.bincount(mine, minlength=2)))
    flipped = np.where(out, 1 - y, y)  # the opted-out labels: nothing that leaves may change
    other = federation({"class_weights": "balanced"}, flipped, "fedavg", opted_out=out)
    one, two = run("fedavg", of), run("fedavg", other)
    assert all(torch.equal(one.global_state[k], two.global_state[k]) for k in one.global_state)


def test_balanced_weights_change_what_is_learned_from_unbalanced_data() -> None:
    noisy = VALUES + 15 * RNG.normal(size=len(VALUES))
    y = (noisy > np.quantile(noisy, 0.8)).astype(int)
    plain, weighted = (
        run("independent", federation(task, y, "independent", models="linear"), rounds=10, steps=20)
        for task in (None, {"class_weights": "balanced", "headline": "balanced_accuracy"})
    )

    def recall(of: mutua.Result) -> float:
        tables = [client.confusion() for client in of.clients]
        return sum(t[1, 1] for t in tables) / sum(t[1].sum() for t in tables)

    assert recall(weighted) > recall(plain)
    assert weighted.history.headline.metric == "balanced_accuracy"


def test_privacy_per_example_takes_declared_weights_and_every_kind_of_task() -> None:
    private: Any = {
        "privacy": {"level": "example", "clip": 1.0, "noise": 0.5, "delta": 1e-3, "randomness": "seeded"}
    }
    y, fedavg = LABELS[:, 0], mutua.methods.FedAvg(weights="uniform")
    given: Any = {"rounds": 1, "steps": 2, "batch_size": 8, "workers": 1, "progress": False} | private
    for task, labels in ((REGRESSION, VALUES), ("multi-label", LABELS), ({"class_weights": {"1": 3}}, y)):
        assert mutua.run(fedavg, federation(task, labels, "fedavg"), **given).mean_score() is not None
    with pytest.raises(mutua.InputError, match="class_weights: balanced, with privacy"):
        mutua.run(fedavg, federation({"class_weights": "balanced"}, y, "fedavg"), **given)


# Selection by the headline, in its own direction


def test_the_best_round_of_a_regression_is_the_one_with_the_smallest_error() -> None:
    of = federation(REGRESSION, VALUES)
    result = run("fml", of, rounds=4, selection="best", optimizer={"name": "sgd", "lr": 0.8})
    best = result.history.best_rounds()
    for client in of.clients:
        mine = {
            r.round: r.value
            for r in result.history.select(client=client.id, model="predictor", split="val", metric="rmse")
            if r.round
        }
        assert best[client.id, "predictor"] == min(mine, key=mine.__getitem__)
        assert (
            result[client.id].score(selection="best")
            == result.history.select(
                round=best[client.id, "predictor"],
                client=client.id,
                model="predictor",
                split="test",
                metric="rmse",
            )[0].value
        )


def test_early_stopping_and_newcomers_work_with_values(tmp_path: Any) -> None:
    of = federation(REGRESSION, VALUES, "finetuned")
    assert run("finetuned", of).mean_score() is not None
    alone = mutua.run(Independent(patience=2, most_epochs=5), of, rounds=1, workers=1, progress=False)
    assert alone.mean_score() is not None
