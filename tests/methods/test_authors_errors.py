"""A method author's mistakes: said with file and line, with the whole traceback for who asks, in any process."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

import mutua
from mutua import Federation, InputError, RunError
from mutua.methods import FML
from mutua.rounds.loop import Rejected

Federate = Callable[..., Federation]
METHOD = """
from mutua.methods import FML

class Broken(FML):
    def objective(self, models, batch, hp):
        loss = self.helper(models, batch)
        return {"personal": loss}

    def helper(self, models, batch):
        return models["personal"](batch.x).lost()
"""
RAISED = "AttributeError: 'Tensor' object has no attribute 'lost' (authored_{}.py:10)"


class Odd(Exception):
    """It cannot be copied to another process."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__("odd")


def broken(raised: type[Exception], *args: object, only: str = "") -> FML:
    class Broken(FML):
        def train(self, client: Any, brief: Any) -> Any:
            if only in ("", client.id):
                raise raised(*args)
            return super().train(client, brief)

    return Broken()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("raised", "args"), [(ValueError, ("in my own method",)), (Odd, (1, 2))])
def test_the_whole_traceback_is_chained_wherever_the_client_worked(
    raised: type[Exception], args: tuple[object, ...], workers: int, federate: Federate
) -> None:
    with pytest.raises(RunError, match=rf"{raised.__name__}: .* \(\S*test_authors_errors.py:\d+\)$") as error:
        mutua.run(broken(raised, *args), federate(), workers=workers, rounds=1, device="cpu")
    whole = "".join(traceback.format_exception(error.value))
    assert "raise raised(*args)" in whole and "test_authors_errors.py" in whole
    fault = error.value.__cause__
    assert fault is not None
    if raised is ValueError:
        assert isinstance(fault.__cause__, ValueError) and fault.__cause__.args == args


@pytest.mark.parametrize("workers", [1, 2])
def test_who_listens_gets_the_traceback_of_a_client_that_was_left_out(workers: int, federate: Federate) -> None:
    events: list[Any] = []
    method = broken(KeyError, "x", only="b")
    mutua.run(method, federate(), workers=workers, rounds=1, device="cpu", callbacks=[events.append])
    (event,) = (event for event in events if isinstance(event, Rejected))
    assert event.client == "b" and "raise raised(*args)" in event.trace and "KeyError: 'x'" in event.trace


@pytest.mark.parametrize("where", ["run", "compare"])
@pytest.mark.parametrize("asked", [False, True])
def test_the_command_line_says_file_and_line_and_by_option_everything(
    asked: bool, where: str, command: Callable[..., Any], tmp_path: Path, tiny: dict[str, Any]
) -> None:
    name = f"{where}_{asked}"
    (tmp_path / f"authored_{name}.py").write_text(METHOD)
    recipe = {**tiny, "method": f"authored_{name}:Broken"} if where == "run" else tiny
    if where == "run":
        words = ["run", "own.yaml", "--out", "x", "--workers", 2]
    else:
        words = ["compare", "own.yaml", "--methods", f"authored_{name}:Broken", "--seeds", 0, "--out", "x"]
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(recipe))
    done = command(*words, *(["--traceback"] if asked else []))
    assert done.code == 1
    assert RAISED.format(name) in done.err.splitlines()[-1]
    assert ("Traceback (most recent call last)" in done.err) == asked
    assert ('return models["personal"](batch.x).lost()' in done.err) == asked


def test_the_run_folder_keeps_the_place(command: Callable[..., Any], tmp_path: Path, tiny: dict[str, Any]) -> None:
    (tmp_path / "authored_folder.py").write_text(METHOD)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**tiny, "method": "authored_folder:Broken"}))
    command("run", "own.yaml", "--out", "x")
    events = [json.loads(line) for line in (tmp_path / "x" / "events.jsonl").read_text().splitlines()]
    assert {event["reason"] for event in events if event["event"] == "rejected"} == {RAISED.format("folder")}


# What an objective returns


class Returning(FML):
    """FML whose objective returns what it is told to."""

    made: ClassVar[Callable[..., Any]]

    def objective(self, models: Any, batch: Any, hp: Any) -> Any:
        return self.made(super().objective(models, batch, hp))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            lambda t: t["personal"] + t["meme"],
            "objective: it returned a Tensor; give named terms, such as {'personal': loss}",
        ),
        (lambda t: None, "objective: it returned a NoneType; give named terms"),
        (lambda t: {**t, "mene": t["meme"]}, "objective: unknown term 'mene'; known: 'meme', 'personal'; "),
        (
            lambda t: {"personal": t["personal"]},
            r"objective: no term (personal) reaches model 'meme', which is trained; ",
        ),
        (lambda t: {**t, "meme": 3.0}, "objective: term 'meme' is a float; it must be a tensor of one number"),
        (lambda t: {**t, "meme": t["meme"][None]}, "objective: term 'meme' is shape (1,); it must be"),
        (lambda t: {k: v.detach() for k, v in t.items()}, "objective: no term (personal, meme) has a gradient"),
    ],
    ids=["tensor", "nothing", "unknown", "left out", "number", "vector", "detached"],
)
def test_an_objective_that_cannot_be_is_refused_by_name(made: Any, said: str, federate: Federate) -> None:
    method = type("Returning", (Returning,), {"made": staticmethod(made)})()
    with pytest.raises(RunError) as error:
        mutua.run(method, federate(), workers=1, rounds=1, device="cpu")
    assert f"every client failed; a: {said}" in str(error.value)
    assert isinstance(error.value.__cause__.__cause__, InputError)  # type: ignore[union-attr]


def test_a_term_of_ones_own_is_declared(federate: Federate) -> None:
    class Extra(FML):
        terms: ClassVar[tuple[str, ...]] = ("penalty",)

        def objective(self, models: Any, batch: Any, hp: Any) -> Any:
            penalty = sum(p.square().sum() for p in models["meme"].parameters())
            return {**super().objective(models, batch, hp), "penalty": 0.01 * penalty}

    result = mutua.run(Extra(), federate(), workers=1, rounds=1, device="cpu")
    assert len(result.history.select(model="penalty", split="train")) == 3
