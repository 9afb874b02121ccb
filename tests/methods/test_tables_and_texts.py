"""Every method on a table and on texts: clients' own models, whole and partial globals, public sets."""

from typing import Any

import pytest
import torch

import mutua
from method_needs import AGREED, method_named
from mutua.methods import base

SMALL: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch_size": 8, "optimizer": {"name": "sgd", "lr": 0.05}}
MODELS: dict[str, list[str]] = {
    "hospitals": ["mlp", "res-mlp", "linear"],
    "phrases": ["text-bag", "text-cnn", "text-gru"],
}
GLOBAL = {"hospitals": "mlp", "phrases": "text-bag"}
OPTIONS: dict[str, dict[str, Any]] = {"fedmd": {"subset": 8}}


def recipe(data: str, method: str, **changes: Any) -> mutua.Recipe:
    models = {"global": {"name": GLOBAL[data], "width": 0.05}, "clients": MODELS[data]}
    known = method_named(method)
    if method in ("fedproto", "lgfedavg"):  # their clients share what stands on features of one width
        models = {
            "global": {**models["global"], "features": 3},
            "clients": [{"name": n, "features": 3} for n in MODELS[data]],
        }
    if method == "fedgkt":  # its server's model stands on such features
        models["global"] = {"name": "mlp"}
        models["clients"] = [{"name": n, "features": 3} for n in MODELS[data]]
    if method == "fedrolex":  # clients train parts of the global
        models["clients"] = models["global"]
    if method == "feddf":  # its server has the designs that it is told, one of each
        models["clients"] = models["global"]
    if not known.own_models:
        models["clients"] = models["global"]
    tree = {
        "data": {"name": data, "samples_per_client": 40},
        "partition": {"kind": "domains"},
        "models": models,
        "method": {"name": method, **AGREED.get(method, {}), **OPTIONS.get(method, {})},
        **({"public": {"share": 0.2}} if known.needs_public else {}),
        **SMALL,
        **changes,
    }
    return mutua.Recipe.of(tree)


@pytest.mark.parametrize("data", ["hospitals", "phrases"])
@pytest.mark.parametrize("method", base.method_names())
def test_every_method(method: str, data: str) -> None:
    made = recipe(data, method)
    if (method, data) == ("fedrolex", "phrases"):
        with pytest.raises(mutua.InputError, match="no chain of linear layers, convolutions and batch-norms"):
            mutua.run(made.method, made.federation(), plan=made.plan())
        return
    result = mutua.run(made.method, made.federation(), plan=made.plan())
    assert all(client.trained and client.accuracy() is not None for client in result.clients)


@pytest.mark.parametrize("method", ["fml", "fmlu", "fedavg", "mixture"])
def test_clients_with_columns_of_their_own_share_what_follows_the_first_layer(method: str) -> None:
    tables = {
        "a": {"age": [float(i) for i in range(40)], "y": [i % 2 for i in range(40)]},
        "b": {
            "age": [float(i) for i in range(40)],
            "bmi": [i % 7 for i in range(40)],
            "y": [i % 2 for i in range(40)],
        },
    }
    shared = {"name": "mlp", "width": 0.05, "share": ["fc2", "head"]}
    federation = mutua.Federation.from_tables(
        tables, target="y", own_columns=True, models={"name": "mlp", "width": 0.05}, global_model=shared
    )
    assert [client.train.channels for client in federation.clients] == [1, 2]
    result = mutua.run(base.method_of({"name": method}), federation, rounds=2, batch_size=8)
    assert result.global_state is not None
    assert {name.partition(".")[0] for name in result.global_state} == {"fc2", "head"}


def test_different_columns_are_not_merged_by_position() -> None:
    tables = {
        "a": {"age": [float(i) for i in range(40)], "y": [i % 2 for i in range(40)]},
        "b": {"bmi": [float(i) for i in range(40)], "y": [i % 2 for i in range(40)]},
    }
    federation = mutua.Federation.from_tables(
        tables, target="y", own_columns=True, models="mlp", global_model="mlp"
    )
    with pytest.raises(
        mutua.InputError, match=r"'fc1' is shared, but .*\(age\).*\(bmi\); share the rest \(fc2, head\)"
    ):
        mutua.run(mutua.methods.FedAvg(), federation, rounds=1)


def test_every_worker_count_gives_the_same_bytes() -> None:
    made = recipe("hospitals", "fml")
    one, two = (
        mutua.run(made.method, made.federation(), plan=made.plan(), workers=workers).global_state
        for workers in (1, 2)
    )
    assert one is not None and two is not None
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("model", ["text-bag", "text-cnn", "text-gru", "res-mlp", "mlp"])
def test_body_and_head_are_split(model: str) -> None:
    samples = mutua.load("phrases" if model.startswith("text") else "hospitals").train
    given: dict[str, Any] = {"channels": samples.channels, "size": samples.size, "input": samples.model_input}
    module = mutua.Architecture.of(model).build(classes=2, seed=0, **given)
    body = set(mutua.models.shared_names(module, "body"))
    head = set(mutua.models.shared_names(module, "head"))
    assert head == {"head.weight", "head.bias"} and body | head == set(module.state_dict())


@pytest.mark.parametrize("model", ["text-bag", "text-cnn", "text-gru"])
def test_padding_changes_nothing_that_a_bag_or_a_network_of_states_says(model: str) -> None:
    samples = mutua.load("phrases").train
    given: dict[str, Any] = {"channels": 12, "size": 1, "input": samples.model_input}
    module = mutua.Architecture.of(model).build(classes=2, seed=0, **given).eval()
    x = samples.preprocess(samples.x[:4])
    x[:, 6:] = 0
    assert torch.allclose(module(x), module(x[:, :6]), atol=1e-6) or model == "text-cnn"
    assert bool(module(torch.zeros(1, 12, dtype=torch.long)).isfinite().all())  # a text without words


def test_one_hot_times_weights_is_an_embedding() -> None:
    samples = mutua.load("hospitals").train
    given: dict[str, Any] = {"channels": samples.channels, "size": 1, "input": samples.model_input}
    columns = mutua.Architecture.of("res-mlp").build(classes=2, seed=0, **given).columns
    first, number = columns.categories[0]
    x = torch.zeros(number + 1, samples.channels)
    x[range(number), range(first, first + number)] = 1
    rest = len(columns.rest)
    embedded = columns(x)[:, rest : rest + columns.embeddings[0].out_features]
    assert torch.equal(embedded[:-1], columns.embeddings[0].weight.T) and not embedded[-1].any()


def own_module(classes: int, input: Any) -> torch.nn.Module:
    return torch.nn.Linear(len(input.features), classes)


def test_a_users_own_module_takes_features_and_words() -> None:
    federation = mutua.Federation.from_samples(
        mutua.load("hospitals").train,
        partition=mutua.partitions.Domains(),
        models=own_module,
    )
    assert mutua.run(mutua.methods.Independent(), federation, rounds=1, batch_size=32).mean_accuracy()
