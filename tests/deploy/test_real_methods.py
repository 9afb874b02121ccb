"""Deployments of other methods than FML, with real processes: the bytes of a run on one machine."""

from __future__ import annotations

import pytest
from by_hand import RECIPES, write_own_labels, write_tables
from real_deployment import SITES, RealDeployment, assert_same_as_local

pytestmark = pytest.mark.deploy


@pytest.mark.parametrize("name", ["labels", "fmlu", "fedavg", "fedmd", "mixture", "fedh2l", "table"])
def test_every_method_is_the_same_computation(deployed: RealDeployment, name: str) -> None:
    """Partial globals with different label sets, and a mixture with a site that has opted out, among them."""
    recipe = {
        "name": "trial",
        "data": {"name": "mnist5k", "samples_per_client": 30},
        "partition": {"kind": "iid", "clients": 3},
        "models": {"clients": "linear"},
        "rounds": 2,
        "batch_size": 10,
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
        "evaluate_every": 2,
        **RECIPES[name],
    }
    if "clients" in recipe:
        del recipe["data"], recipe["partition"]
        write_own_labels(deployed.place)
    write_tables(deployed.place)
    deployed.prepare(recipe, SITES)
    deployed.start(*SITES)
    deployed.begin("run", "deploy", "run", "organiser").done()
    assert_same_as_local(deployed)
