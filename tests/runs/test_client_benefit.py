"""Is a client better off for having joined? Asked of a result, of a saved run, and told by a report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mutua
from mutua import Federation, InputError
from mutua.learning.benefit import Benefit
from mutua.methods import FML, FedAvg, Independent, Method, NoRegret

Federate = Callable[..., Federation]
PLAN: dict[str, Any] = {
    "rounds": 2,
    "batch_size": 4,
    "optimizer": mutua.SGD(lr=0.1),
    "progress": False,
    "workers": 1,
}


def run(method: Method, federation: Federation, **more: Any) -> mutua.Result:
    return mutua.run(method, federation, **{**PLAN, **more})


def scores(found: Benefit) -> dict[str, float | None]:
    return {one.model: one.value for one in found.scores}


def test_no_regret_has_what_the_client_would_have_alone(federate: Federate) -> None:
    federation = federate([30, 20], models="linear", global_model="linear", held=20)
    result, alone = run(NoRegret(), federation), run(Independent(), federation)
    for client, other in zip(result.clients, alone.clients, strict=True):
        found = client.benefit()
        assert list(scores(found)) == ["alone", "global", "corrected", "tuned", "served"]
        assert scores(found) == {
            "alone": other.accuracy(),
            "served": client.accuracy(),
            **{name: client.accuracy(name) for name in ("global", "corrected", "tuned")},
        }
        assert (found.joined, found.samples) == ("served", 20)
        w = client.state["no-regret.mixture"]["weights"].tolist()
        assert {name: one.weight for name, one in found.trusted.items()} == pytest.approx(
            dict(zip(("corrected", "tuned", "alone"), w, strict=True))
        )
        assert client.serves == "weighted of corrected, tuned, personal"
        assert "weighted of corrected" in repr(client)


@pytest.mark.parametrize("method", [FML(), FedAvg(), NoRegret(teach=1.0)], ids=lambda m: str(m.name))
def test_of_other_methods_alone_is_trained_for_it_or_given(method: Method, federate: Federate) -> None:
    federation = federate([30, 20], held=20)
    result, alone = (
        run(method, federation, client_fraction=0.5),
        run(Independent(), federation, client_fraction=0.5),
    )
    found = result.clients[1].benefit()
    assert found == result.clients[1].benefit(alone=alone.clients[1])
    assert scores(found)["alone"] == alone.clients[1].accuracy()
    joined = {"fml": "personal", "fedavg": "global", "no-regret": "served"}[str(method.name)]
    assert (found.joined, scores(found)[joined]) == (joined, result.clients[1].accuracy())
    assert ("personal" in scores(found)) is (method.name != "fedavg")


def test_questions_that_have_no_answer(federate: Federate) -> None:
    federation = federate([9, 9])
    alone = run(Independent(), federation)
    with pytest.raises(InputError, match="client a: independent shares nothing, so nobody has joined"):
        alone.clients[0].benefit()
    result = run(FedAvg(), federation)
    with pytest.raises(InputError, match="give client a of a run of independent"):
        result.clients[0].benefit(alone=alone.clients[1])
    with pytest.raises(InputError, match="client a: no test samples"):
        run(FedAvg(), federate([9, 9], held=0)).clients[0].benefit()


def test_a_saved_run_says_it_too_and_its_report(federate: Federate, tmp_path: Path) -> None:
    result = run(NoRegret(), federate([30, 20], models="linear", global_model="linear", held=20))
    result.save(tmp_path / "run")
    saved = mutua.load_run(tmp_path / "run")
    assert saved.benefit("b") == result.clients[1].benefit()
    with pytest.raises(InputError, match="client: 'x' is not in it; known: a, b"):
        saved.benefit("x")
    mutua.report(saved, html=tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert result.clients[0].benefit().sentence in page
    assert "no-regret: each client's models" in page.replace("&#x27;", "'")
    assert "no run has the same clients train alone" not in page

    x = result.clients[0].client.test.x
    assert torch.equal(saved.predictor("a", None)(x), result.clients[0].predictor(x))

    run(FML(), federate([30, 20], models="linear", global_model="linear", held=20)).save(tmp_path / "fml")
    with pytest.raises(InputError, match="client a: its run did not keep what it would have alone"):
        mutua.load_run(tmp_path / "fml").benefit("a")
    (tmp_path / "run/clients/b/benefit.json").write_text("{}")
    with pytest.raises(InputError, match=r"benefit.json cannot be read .*; it is damaged"):
        saved.benefit("a")
