"""LG-FedAvg: bodies of any design stay, the head is shared."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mutua import Federation, InputError
from mutua.methods import FedAvg, Independent, LGFedAvg, Participant
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}

PLAIN = ["body", "head"]
NORMED = ["body", "norm", "head"]


@pytest.mark.parametrize(("net", "every"), [("plain", PLAIN), ("normed", NORMED), ("dropping", PLAIN)])
def test_sharing_all_is_fedavg(
    net: str, every: list[str], nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    """Also with momentum, dropout and batch-norm's counters: a personal model draws and steps as a meme would."""
    model = getattr(nets, net)
    federations = [
        federate((9, 13, 5), models=model, global_model={"name": model, "share": share})
        for share in (every, "all")
    ]
    shared = simulate(LGFedAvg(), federations[0], rounds=3, optimizer=MOMENTUM)
    fedavg = simulate(FedAvg(weights="uniform"), federations[1], rounds=3, optimizer=MOMENTUM)
    assert identical(shared.server.state["global"], fedavg.server.state["global"])


def test_one_client_alone_is_independent_from_the_same_start(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    federation = federate((11,), models=nets.plain, global_model=nets.plain)
    run = simulate(LGFedAvg(), federation, rounds=3)
    head = run.globals[0]

    class SameStart(Independent):
        def start(self, client: Participant) -> None:
            super().start(client)
            client.state["personal"] = {**client.state["personal"], **head}

    alone = simulate(SameStart(), federation, rounds=3)
    assert identical(run.engine.kept[3, "a"]["personal"], alone.engine.kept[3, "a"]["personal"])


def test_what_is_sent_is_the_last_layer_and_bodies_stay(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    run = simulate(LGFedAvg(), federate(), rounds=2)
    for reply in run.engine.replies.values():
        assert set(reply.message.arrays("meme")) == {"head.weight", "head.bias"}
    for client in "abc":
        first, last = (run.engine.kept[r, client]["personal"] for r in (0, 2))
        assert not torch.equal(first["body.weight"], last["body.weight"])
    memes = [run.engine.replies[2, c].message.arrays("meme")["head.weight"].double().numpy() for c in "abc"]
    assert run.globals[-1]["head.weight"].numpy() == pytest.approx(np.mean(memes, 0), abs=1e-6)


def test_designs_that_differ_need_features_of_one_width(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    def made(*designs: Any, shared: Any = nets.plain) -> Federation:
        return federate((9, 12), models=list(designs), global_model=shared)

    with pytest.raises(
        InputError, match=r"models.features: missing; lgfedavg needs .* a's plain gives 6; client b"
    ):
        LGFedAvg().arrange(made(nets.plain, nets.wide))
    with pytest.raises(
        InputError, match=r"client a: the shared 'head.weight' is \(3, 9\) in its wide and \(3, 6\) in"
    ):
        LGFedAvg().arrange(made(nets.wide, nets.wide))
    common = [{"name": net, "features": 3} for net in (nets.plain, nets.wide)]
    run = simulate(LGFedAvg(), made(*common, shared={"name": nets.normed, "features": 3}), rounds=2)
    assert run.server.state["global"]["head.weight"].shape == (3, 3)
    assert [run.engine.kept[2, c]["personal"]["body.body.weight"].shape[0] for c in "ab"] == [6, 9]
    for client in "ab":
        assert run.history.last(client, "predictor", "test", "accuracy") is not None


def test_a_client_serves_with_its_body_under_the_shared_head(
    federate: Federate, simulate: Simulate, modules: Any
) -> None:
    run = simulate(LGFedAvg(), federate(), rounds=2)
    brief, state = run.engine.briefs[3, "a"], run.engine.kept[3, "a"]
    served = run.job.method.predictor(Participant(run.job, run.federation["a"], dict(state), 3, modules), brief)
    for name, array in served.state_dict().items():
        assert torch.equal(array, (brief.arrays("global") if name.startswith("head") else state["personal"])[name])
