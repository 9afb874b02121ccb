"""The result of a run in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mutua
from conftest import X, federation, quick
from mutua import InputError
from mutua.methods import FML, Independent


def test_a_result_can_be_extended_twice_and_stays_as_it_is(tmp_path: Path) -> None:
    result = quick(FML(), federation())
    shown = str(result)
    once, again = (result.extend(rounds=rounds, progress=False) for rounds in (4, 2))
    assert str(result) == shown
    for longer, rounds in ((once, 4), (again, 2)):
        whole = quick(FML(), federation(), rounds=rounds)
        assert list(longer.history) == list(whole.history)
        assert torch.equal(longer["c2"].predictor(X), whole["c2"].predictor(X))
    assert mutua.load_run(again.save(tmp_path / "longer")).plan.rounds == 2


def test_who_is_not_there_is_said() -> None:
    made = federation()
    for strange in (made, quick(Independent(), made)):
        with pytest.raises(InputError, match="client: 'c9' is not in it; known: c0, c1, c2"):
            strange["c9"]
    with pytest.raises(InputError, match="method independent has no global that predicts alone"):
        quick(Independent(), made).global_predictor()
