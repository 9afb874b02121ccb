"""Who is worse in one of two runs, by hand; and what a run leaves for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mutua import InputError
from mutua.studies.measures import Measure, RunNumbers
from mutua.studies.paired_clients import below, right


def leave(run: Path, **hits: str) -> Path:
    for client, told in hits.items():
        (run / "clients" / client).mkdir(parents=True)
        table = {"classes": ["a"], "cells": [], "right": told}
        (run / "clients" / client / "confusion.json").write_text(json.dumps(table))
    return run


def test_worse_is_by_a_standard_error_and_by_a_point(tmp_path: Path) -> None:
    alone = leave(tmp_path / "alone", a="1" * 100, b="1" * 100, c="1" * 50 + "0" * 50, d="1" * 300, e="11")
    own = leave(
        tmp_path / "own",
        a="1" * 97 + "000",  # three of 100: 0.03 > 0.0171, its standard error
        b="1" * 100,
        c="0" * 50 + "1" * 50,  # other samples, no difference
        d="1" * 298 + "00",  # 0.0067, less than a point
        e="1",  # other test samples: not compared
    )
    assert below(own, alone) == pytest.approx(1 / 4)
    assert below(alone, own) == 0
    assert below(tmp_path / "none", alone) is None


def test_a_run_leaves_on_which_samples_it_is_right(finished: Callable[..., tuple[Path, Any]]) -> None:
    folder, result = finished()
    for client in result.clients:
        hits = right(folder)[client.id]
        said = client.predictor(client.client.test.x).argmax(1).numpy()
        assert (hits == (said == client.client.test.y.numpy())).all()
        assert hits.mean() == pytest.approx(client.accuracy())


def test_measures_of_the_worst_and_of_those_below_alone(finished: Callable[..., tuple[Path, Any]]) -> None:
    ours, alone = (RunNumbers(finished(name)[0]) for name in ("fedavg", "independent"))
    values = list(ours.by_client("predictor").values())
    assert ours.measure(Measure.of("worst_decile")) == min(values)  # of two clients the tenth is one
    found = ours.measure(Measure.of("below_alone"), alone)
    assert found == below(Path(ours.path), Path(alone.path)) and found in (0.0, 0.5, 1.0)
    assert ours.measure(Measure.of("below_alone")) is None
    with pytest.raises(InputError, match="is not a measure"):
        Measure.of("below_all")
    assert np.isfinite(found)
