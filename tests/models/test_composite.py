"""Composite predictors: rules against NumPy, and building them again of a description and weights."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax  # type: ignore[import-untyped]
from torch import Tensor, nn

from mutua import InputError
from mutua.models.composite import (
    _RULES,
    Composite,
    Gate,
    NearestPrototype,
    Rule,
    Shifted,
    Weighted,
    build_composite,
    of_mixture,
    register_rule,
)


def layer(seed: int, out: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(4, out, dtype=torch.float64)


X = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def scores(part: nn.Module) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(part(X).numpy())


@pytest.mark.parametrize("smoothing", [0.0, 0.01])
def test_fixed_weights_with_smoothing(smoothing: float) -> None:
    parts = {name: layer(k) for k, name in enumerate(("one", "two", "three"))}
    w = np.array([0.5, 0.3, 0.2])
    found = scores(Composite(Weighted(torch.tensor(w), smoothing), parts))
    mixed = sum(u * softmax(scores(part), axis=1) for u, part in zip(w, parts.values(), strict=True))
    assert np.exp(found) == pytest.approx((1 - smoothing) * mixed + smoothing / 3, abs=1e-12)


def test_a_weight_of_zero_rules_a_part_out() -> None:
    parts = {"one": layer(0), "two": layer(1)}
    with torch.no_grad():
        parts["two"].bias.fill_(torch.nan)  # type: ignore[union-attr,operator]
    whole = scores(Composite(Weighted(torch.tensor([1.0, 0.0])), {"one": parts["one"], "two": layer(1)}))
    assert np.exp(whole) == pytest.approx(softmax(scores(parts["one"]), axis=1), abs=1e-12)


def test_corrected_logits_and_nearest_prototypes() -> None:
    shift = torch.tensor([0.1, -2.0, 3.0], dtype=torch.float64)
    assert scores(Composite(Shifted(shift), {"model": layer(0)})) == pytest.approx(
        scores(layer(0)) + shift.numpy()
    )
    net = nn.Sequential()
    net.body, net.head = layer(3, 2), nn.Linear(2, 3, dtype=torch.float64)
    prototypes = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found = scores(Composite(NearestPrototype(prototypes, torch.tensor([True, False, True])), {"model": net}))
    far = ((scores(net.body)[:, None] - prototypes.numpy()[None]) ** 2).sum(2)
    assert found[:, [0, 2]] == pytest.approx(-far[:, [0, 2]], abs=1e-9) and np.isneginf(found[:, 1]).all()


def test_frozen_parts_neither_learn_nor_count_statistics() -> None:
    parts = {
        "expert": nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)),
        "personal": nn.Linear(4, 3),
        "gate": nn.Linear(4, 1),
    }
    model = Composite(Gate(), parts, frozen=("expert",)).train()
    model(X.float()).sum().backward()
    assert all(p.grad is None for p in parts["expert"].parameters())
    assert all(p.grad is not None for name in ("personal", "gate") for p in parts[name].parameters())
    assert parts["expert"][0].num_batches_tracked == 0 and model.training and parts["personal"].training


SPEC = {"name": "linear", "width": 1.0}


def nested() -> Composite:
    inner = Composite(
        Shifted(torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)), {"model": layer(0)}, {"model": SPEC}
    )
    parts = {"corrected": inner, "personal": layer(1)}
    return Composite(
        Weighted(torch.tensor([0.75, 0.25]), 0.01), parts, {"corrected": inner.spec, "personal": SPEC}
    )


def test_it_is_built_again_of_its_description_and_its_weights_alone() -> None:
    model = nested()
    spec = json.loads(json.dumps(model.spec))
    weights = dict(model.state_dict())
    again = build_composite(spec, weights, lambda part: layer(99))
    again.load_state_dict(weights)
    assert np.array_equal(scores(again), scores(model))
    assert again.spec == model.spec and "weights[m]" in spec["rule"]["formula"]


def test_a_rule_of_your_own_and_one_that_nobody_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mutua.models.composite._RULES", dict(_RULES))

    class Best(Rule):
        name = "best"  # type: ignore[misc]
        formula = "the surest part of each sample"  # type: ignore[misc]

        def forward(self, parts: Any, x: Tensor) -> Tensor:
            said = torch.stack([torch.softmax(part(x), 1) for part in parts.values()])
            return said[said.max(2).values.argmax(0), torch.arange(len(x))].log()

    model = Composite(Best(), {"one": layer(0), "two": layer(1)}, {"one": SPEC, "two": SPEC})
    with pytest.raises(InputError, match=r"rule 'best' is not known; .*import what registers it"):
        build_composite(model.spec, model.state_dict(), lambda part: layer(5))
    register_rule(Best)
    build_composite(model.spec, model.state_dict(), lambda part: layer(5)).load_state_dict(model.state_dict())


def deep(depth: int) -> dict[str, Any]:
    return (
        SPEC
        if not depth
        else {"name": "composite", "rule": {"name": "shifted"}, "parts": {"model": deep(depth - 1)}}
    )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (deep(5), "1 parts, 5 deep; at most 16 and 4"),
        ({"rule": {"name": "gate"}, "parts": {}}, "0 parts"),
        ({"rule": {"name": "gate"}, "parts": {f"p{k}": SPEC for k in range(17)}}, "17 parts"),
        ({"rule": {"name": "gat"}, "parts": {"model": SPEC}}, "rule 'gat' is not known; did you mean 'gate'"),
        ({"rule": {"name": "shifted"}, "parts": {"rule": SPEC}}, "no part can be called 'rule'"),
        ({"rule": {"name": "shifted"}, "parts": {"forward": SPEC}}, "no part can be called 'forward'"),
    ],
)
def test_descriptions_that_cannot_be(spec: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        build_composite(spec, {}, lambda part: layer(0))


def test_mistakes_of_authors() -> None:
    one = layer(0)
    with pytest.raises(InputError, match="two of its parts are one module"):
        Composite(Gate(), {"expert": one, "personal": one, "gate": layer(1, 1)})
    for weights in ([0.5, 0.6], [1.5, -0.5], [[1.0]]):
        with pytest.raises(InputError, match="of sum 1"):
            Weighted(torch.tensor(weights))
    with pytest.raises(InputError, match="2 weights for 1 parts"):
        Composite(Weighted(torch.tensor([0.5, 0.5])), {"one": one})(X)


def test_cards_of_mixtures_from_before_there_were_composites() -> None:
    spec = of_mixture(
        {"name": "mixture", "mix": "log-probabilities", "expert": SPEC, "personal": SPEC, "gate": SPEC}
    )
    model = Composite(Gate("log-probabilities"), {"expert": layer(0), "personal": layer(1), "gate": layer(2, 1)})
    built = build_composite(spec, model.state_dict(), lambda part: layer(9, part.get("outputs", 3)))
    built.load_state_dict(model.state_dict())
    assert np.array_equal(scores(built), scores(model))
