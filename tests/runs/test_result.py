"""The result of a run in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mutua
from mutua import Federation, InputError
from mutua.methods import FML, Independent

X = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
Y = np.arange(60) % 3
SMALL = {"name": "mlp", "width": 0.05}


def federation(seed: int = 0, **more: Any) -> Federation:
    given = {"partition": mutua.partitions.IID(clients=3), "models": SMALL, "global_model": SMALL, "seed": seed}
    return Federation.from_arrays(X, Y, **{**given, **more})


def quick(method: Any, made: Federation, **more: Any) -> mutua.Result:
    return mutua.run(method, made, progress=False, workers=1, **{"rounds": 1, "batch_size": 8, **more})


def test_a_result_can_be_extended_twice_and_stays_as_it_is(tmp_path: Path) -> None:
    result = quick(FML(), federation())
    shown = str(result)
    once, again = (result.extend(rounds=rounds, progress=False) for rounds in (4, 2))
    assert str(result) == shown
    for longer, rounds in ((once, 4), (again, 2)):
        whole = quick(FML(), federation(), rounds=rounds)
        assert list(longer.history) == list(whole.history)
        assert torch.equal(longer["c2"].predictor(X), whole["c2"].predictor(X))
    assert mutua.open_run(again.save(tmp_path / "longer")).plan.rounds == 2


def test_who_is_not_there_is_said() -> None:
    made = federation()
    for strange in (made, quick(Independent(), made)):
        with pytest.raises(InputError, match="client: 'c9' is not in it; there are c0, c1, c2"):
            strange["c9"]
    with pytest.raises(InputError, match="method independent has no global that predicts alone"):
        quick(Independent(), made).global_predictor()
