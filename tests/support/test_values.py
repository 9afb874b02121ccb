"""Values that are numbers only by accident: true and false, infinities, and what no machine can count to."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import yaml
from pydantic import BaseModel, ValidationError

import mutua
from mutua import InputError, Recipe, Samples
from mutua.methods import base
from mutua.support.configuration import Spec

Command = Callable[..., Any]


def specs(kind: type[Spec] = Spec) -> Iterator[type[Spec]]:
    """Everything that can be written in a recipe."""
    for sub in kind.__subclasses__():
        if sub.__module__.startswith("mutua."):
            yield sub
        yield from specs(sub)


def parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from parts(inner)


def numbers() -> list[tuple[type[BaseModel], str, set[Any]]]:
    """Every field of numbers, in every section and method."""
    for name in base.method_names():
        base.method_of({"name": name})
    found = []
    for kind in sorted(set(specs()), key=lambda kind: (kind.__module__, kind.__name__)):
        kind.model_rebuild()
        for name, field in kind.model_fields.items():
            types = {part for part in parts(field.annotation) if isinstance(part, type)}
            if types & {int, float} and bool not in types:
                found.append((kind, name, types))
    return found


def complaints(kind: type[BaseModel], field: str, value: Any) -> str:
    """What is said of this one field, whatever else may be missing."""
    key = kind.model_fields[field].alias or field
    try:
        kind.model_validate({key: value})
    except ValidationError as error:
        found = [(*one["loc"], one.get("ctx", {}).get("field"))[0] for one in error.errors()]
        return key if key in found else ""
    except InputError as error:
        return str(error)
    return ""


def test_no_number_is_true_or_infinite() -> None:
    found = numbers()
    assert len(found) > 60
    for kind, field, types in found:
        for value in (True, False, [True], *([math.inf, -math.inf, math.nan] if float in types else [])):
            assert complaints(kind, field, value), f"{kind.__name__}.{field} takes {value}"


BAD = {
    "partition.clients=true": "partition.clients: True; it must be a whole number",
    "rounds=true": "rounds: True; it must be a whole number",
    "client_fraction=yes": "client_fraction: True; it must be a number",
    "optimizer={name: adam, lr: 0.1, eps: .inf}": "optimizer.eps: inf; it must be a finite number",
    "optimizer={name: sgd, lr: [0.1, true]}": "optimizer.lr: [0.1, True]; it must be a number",
    "method={name: fml, alpha: true}": "method.alpha: True; it must be a number",
    "deadline=.inf": "deadline: inf; it must be a finite number",
    "deadline=.nan": "deadline: nan; it must be",
    "models.global.width=true": "models.global.width: True; it must be a number",
    "models.global.width=.inf": "models.global.width: ",
    "data.image_size=1000000000": "data.image_size: 1000000000; it must be at most 8192",
    "faults={stragglers: [{clients: [c0], seconds: .inf}]}": "faults.stragglers.0.seconds: inf; it must be ",
    "faults={dropout: [{rounds: [true]}]}": "faults.dropout.0.rounds: [True]; it must be a whole number",
}


@pytest.mark.parametrize("change", BAD)
def test_such_values_are_refused_by_name(change: str, command: Command) -> None:
    done = command("run", "tiny.yaml", "--out", "x", "--set", change)
    assert done.code == 2 and done.err.startswith(f"mutua: tiny.yaml: {BAD[change]}") and done.err.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="a deadline needs Linux")
@pytest.mark.parametrize("seconds", ["9.3e18", "1.7e308"])
def test_a_deadline_may_be_further_off_than_can_be_counted(seconds: str, command: Command) -> None:
    assert command("run", "tiny.yaml", "--out", "x", "--set", f"deadline={seconds}").code == 0


def test_a_straggler_may_be_later_than_can_be_counted(tiny: dict[str, Any], monkeypatch: Any) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    faults = {"stragglers": [{"clients": ["c0"], "seconds": 1e300}]}
    recipe = Recipe.of({**deepcopy(tiny), "faults": faults})
    mutua.run(recipe.method, recipe.federation(), plan=recipe.plan(), faults=recipe.faults, workers=1)
    assert slept == [1e9, 0.0] or slept == [1e9, 0]


@pytest.mark.parametrize("labels", [np.array([0, 1j]), np.array([0, np.inf]), np.array([0, np.nan])])
def test_labels_are_whole_numbers(labels: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"^data\.y: labels must be whole numbers"):
        Samples.of(np.zeros((2, 4)), labels)


# Little memory


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v")
@pytest.mark.parametrize("gigabytes", [0.9, 1.5])
def test_little_memory_is_enough_or_one_line(gigabytes: float, tiny: dict[str, Any], tmp_path: Path) -> None:
    program = f"ulimit -v {int(gigabytes * 2**20)}; exec {sys.executable} -m mutua run tiny.yaml --out x"
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny))
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)
    if done.returncode:
        assert done.stderr.splitlines()[-1].startswith("mutua: there was no memory left")


def test_a_run_without_memory_says_how_to_go_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(*_: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("mutua.methods.fml.FML.merge", merge)
    done = command("run", "tiny.yaml", "--out", "x")
    assert done.code == 1 and done.err.splitlines()[-1] == (
        "mutua: there was no memory left; free some; to go on: mutua run --resume x"
    )
