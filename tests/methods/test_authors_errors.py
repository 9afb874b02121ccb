"""A method author's mistakes: said with file and line, with the whole traceback for who asks, in any process."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml

import mutua
from mutua import Federation, InputError, MutuaError, RunError
from mutua.methods import FML, FedAvg, Kind, Message, Part, Schedule, base, losses, of, register, weights
from mutua.rounds.events import Rejected
from mutua.runs.listing import RunOverview

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
        (
            lambda t: {**t, "mene": t["meme"]},
            "objective: unknown term 'mene'; did you mean 'meme'? known: meme, personal; ",
        ),
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


# What else an author gets wrong: one line says what, and where


class Near(FedAvg):
    """A method with a personal model, of which each test below spoils one thing."""

    name: ClassVar[str] = "near"
    pull: float = 0.1

    def start(self, client: Any) -> None:
        client.initialise("personal", like="global")

    def train(self, client: Any, brief: Any) -> Any:
        client.fit(self.near, self.given(client, brief))
        return super().train(client, brief)

    def given(self, client: Any, brief: Any) -> Any:
        return {"personal": client.model("personal"), "global": client.frozen(brief)}

    def near(self, models: Any, batch: Any, hp: Any) -> Any:
        distance = losses.squared_distance(models["personal"], models["global"])
        return {"personal": batch.task.loss(models["personal"](batch.x), batch.y) + hp.pull / 2 * distance}

    def predictor(self, client: Any, brief: Any) -> Any:
        return client.model("personal")


def replying(made: Callable[..., Any]) -> Callable[..., Any]:
    def train(self: Any, client: Any, brief: Any) -> Any:
        meme = client.fork(brief)
        client.fit(self.objective, {"meme": meme})
        return made(client, meme)

    return train


def keeping(kept: object) -> Callable[..., Any]:
    def train(self: Any, client: Any, brief: Any) -> Any:
        client.state["note"] = kept
        return FedAvg.train(self, client, brief)

    return train


def forgetting(self: Any, client: Any) -> None:
    return None


def own_typo(self: Any, models: Any, batch: Any, hp: Any) -> Any:
    return {"personal": models["persnal"](batch.x).sum()}


DECLARED = "the method declares weights 'meme', count 'samples'"
CLIENTS: list[tuple[str, dict[str, Any], str]] = [
    (
        "state dict",
        {"train": replying(lambda c, m: m.state_dict())},
        "train: it returned a OrderedDict; give a Mes",
    ),
    ("model", {"train": replying(lambda c, m: m)}, "train: it returned a Sequential; give a Message of parts"),
    (
        "no part",
        {"train": replying(lambda c, m: Message(meme=c.shared(m)))},
        "train: 'meme' is a dict; make it a part",
    ),
    (
        "another name",
        {"train": replying(lambda c, m: Message(model=weights(c.shared(m))))},
        f"weights 'model' may not leave; {DECLARED}",
    ),
    (
        "another kind",
        {"train": replying(lambda c, m: Message(meme=Part(Kind.SCORES, c.shared(m))))},
        f"scores 'meme' may not leave; {DECLARED}",
    ),
    (
        "no start",
        {"start": forgetting},
        "client.model('personal'): its store has no such model, it has nothing; put",
    ),
    (
        "forgot keep",
        {"predictor": lambda self, client, brief: client.model("tuned")},
        "client.model('tuned'): its store has no such model, it has 'personal'; put it there with client.init",
    ),
    (
        "a number",
        {"train": keeping(3)},
        "client.state['note'] holds a int; give named arrays, such as {'value': to",
    ),
    ("numbers", {"train": keeping({"n": 3})}, "client.state['note'] holds a int; give named arrays"),
    (
        "no model",
        {"predictor": lambda self, client, brief: None},
        "predictor: it returned a NoneType; give a model",
    ),
    (
        "not by name",
        {"given": lambda self, client, brief: client.model()},
        "fit: its models are a Sequential; give them by name",
    ),
    (
        "another's name",
        {"given": lambda self, client, brief: {"mine": client.model()}},
        "fit: the store's model 'personal' is given as 'mine', so what it learns would be lost; give it",
    ),
    (
        "one model twice",
        {"given": lambda self, client, brief: {"meme": client.fork(brief), "mine": client.fork(brief)}},
        "fit: 'meme' and 'mine' are one model; client.keep one of them",
    ),
    (
        "not frozen",
        {"given": lambda self, client, brief: {"personal": client.model(), "global": client.fork(brief)}},
        "fit: 'global' would be trained; give client.frozen(brief)",
    ),
    (
        "unknown model",
        {"near": own_typo},
        "models['persnal']: no such model is trained here; did you mean 'personal'? known: personal, glo",
    ),
]


@pytest.mark.parametrize(("spoilt", "said"), [case[1:] for case in CLIENTS], ids=[case[0] for case in CLIENTS])
def test_a_clients_side_says_what_is_wrong(spoilt: dict[str, Any], said: str, federate: Federate) -> None:
    method = type("Spoilt", (Near,), spoilt)()
    with pytest.raises(RunError, match="every client failed; a: ") as error:
        mutua.run(method, federate(), workers=1, rounds=1, device="cpu")
    assert said in str(error.value)
    in_own_code = not said.startswith(("train:", "weights", "scores", "client.state", "predictor:"))
    assert bool(re.search(r" \(\S*test_authors_errors\.py:\d+\)", str(error.value))) == in_own_code


def test_as_it_should_be_it_runs(federate: Federate) -> None:
    result = mutua.run(Near(), federate(), workers=1, rounds=1, device="cpu")
    plain = mutua.run(FedAvg(), federate(), workers=1, rounds=1, device="cpu")
    assert all(torch.equal(result.global_state[name], array) for name, array in plain.global_state.items())
    assert "personal" in result.clients[0].state


def zero(self: Any, *_: Any) -> Any:
    return 1 // 0


def merged(what: object) -> Callable[..., None]:
    def merge(self: Any, server: Any, replies: Any) -> None:
        server.state["global"] = what

    return merge


SERVER: list[tuple[dict[str, Any], str]] = [
    ({"open": zero}, r"open: ZeroDivisionError: .* \(\S*test_authors_errors.py:\d+\)"),
    ({"brief": zero}, r"brief: ZeroDivisionError: .* \(\S*test_authors_errors.py:\d+\)"),
    ({"check": zero}, r"check: ZeroDivisionError: .* \(\S*test_authors_errors.py:\d+\)"),
    ({"outliers": zero}, r"outliers: ZeroDivisionError: .* \(\S*test_authors_errors.py:\d+\)"),
    ({"merge": zero}, r"merge: ZeroDivisionError: .* \(\S*test_authors_errors.py:\d+\)"),
    (
        {"brief": lambda self, server, *_: dict(server.state)},
        "brief: it returned a dict; give a Message",
    ),
    ({"merge": merged(3)}, r"server.state\['global'\] holds a int; give named arrays"),
    ({"merge_weights": lambda self, replies: [0.0 for _ in replies]}, r"merge_weights: \[0.0, .*one above 0"),
    ({"merge_weights": lambda self, replies: [1.0]}, r"merge_weights: \[1.0\]; give 3 numbers"),
]


@pytest.mark.parametrize(("spoilt", "said"), SERVER)
def test_the_servers_side_says_what_is_wrong(spoilt: dict[str, Any], said: str, federate: Federate) -> None:
    with pytest.raises(MutuaError, match=said):
        mutua.run(type("Spoilt", (Near,), spoilt)(), federate(), workers=1, rounds=1, device="cpu")


def test_a_class_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match=r"Odd.name: no option can have this name; write name: ClassVar\[...\] = ..."
    ):

        class Odd(Near):
            name: str = "odd"  # type: ignore[misc]

    with pytest.raises(
        InputError, match=r"method\.name: 'fedavg' is mutua.methods.fedavg:FedAvg; give Twin a name of"
    ):

        @register
        class Twin(FedAvg):
            pass

    with pytest.raises(
        InputError, match=r"'near' is not a method; .*one of your own is named by its path, such as my_me"
    ):
        of({"name": "near"})
    lines = "import torch\nfrom mutua.methods import FedAvg, Hub\nclass Bare(Hub):\n    name = 'bare'\n"
    lines += "class Typed(FedAvg):\n    name = 'typed'\n    cache: torch.Tensor = None\n"
    (tmp_path / "lacking_methods.py").write_text(lines)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        InputError, match="'lacking_methods:Bare' does not define objective and train, which every"
    ):
        of({"name": "lacking_methods:Bare"})
    with pytest.raises(
        InputError, match="'lacking_methods:Typed': Unable to generate pydantic-core schema for <class"
    ):
        of({"name": "lacking_methods:Typed"})


def test_a_class_that_is_defined_again_is_registered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_METHODS", dict(base._METHODS))
    for _ in range(2):  # as a notebook's cell that runs twice

        @register
        class Again(FedAvg):
            name: ClassVar[str] = "again"

    assert type(of({"name": "again"})) is Again


# What was silent, or said half


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("predicter", "predictor"),
        ("objectiv", "objective"),
        ("train_", "train"),
        ("mrege", "merge"),
        ("personalize", "personalise"),
        ("share", "shares"),
    ],
)
def test_a_misspelt_verb_is_refused_when_the_class_is_defined(wrong: str, right: str) -> None:
    with pytest.raises(InputError, match=f"Spelt.{wrong}: did you mean '{right}'?"):
        type("Spelt", (FedAvg,), {wrong: lambda self, *_: None})
    type("Spelt", (FedAvg,), {f"_{wrong}": lambda self, *_: None, "helper": lambda self: 3})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reply_that_nobody_returned_is_missed_in_the_first_round(workers: int, federate: Federate) -> None:
    method = type("Spoilt", (Near,), {"train": lambda self, client, brief: None})()
    with pytest.raises(
        RunError, match=r"None for every client, but .*:Spoilt declares what leaves, weights 'meme'.*replies_from"
    ):
        mutua.run(method, federate(), workers=workers, rounds=2, device="cpu")


def test_a_method_may_say_in_which_round_its_first_replies_come(federate: Federate) -> None:
    def silent(before: int) -> dict[str, Any]:
        def train(self: Any, client: Any, brief: Any) -> Any:
            found = Near.train(self, client, brief)
            return found if client.round > before else None

        return {"train": train, "replies_from": property(lambda self: 3)}

    result = mutua.run(type("Late", (Near,), silent(2))(), federate(), workers=1, rounds=4, device="cpu")
    assert {entry.round for entry in result.ledger if entry.direction == "up"} == {3, 4}
    with pytest.raises(RunError, match=r"round 3: train returned None for every client"):
        mutua.run(type("Later", (Near,), silent(3))(), federate(), workers=1, rounds=4, device="cpu")


def test_what_a_method_keeps_on_itself_belongs_into_a_state(federate: Federate) -> None:
    def train(self: Any, client: Any, brief: Any) -> Any:
        self.G = client.frozen(brief)

    with pytest.raises(RunError, match=r"Spoilt.G: a Spoilt is frozen; what lasts belongs into client.state or"):
        mutua.run(type("Spoilt", (Near,), {"train": train})(), federate(), workers=1, rounds=1, device="cpu")
    with pytest.raises(InputError, match=r"Near.pull: a Near is frozen; make another, with pull="):
        Near().pull = 3.0


class Scheduled(Near):
    """Calculates with an option that may be a schedule."""

    pull: Schedule = 0.1  # type: ignore[assignment]

    def near(self, models: Any, batch: Any, hp: Any) -> Any:
        loss = batch.task.loss(models["personal"](batch.x), batch.y)
        return {"personal": loss * self.pull if batch.x.shape[0] % 2 else self.pull / 2 * loss}


def test_a_schedule_in_arithmetic_says_where_its_number_is(federate: Federate) -> None:
    method = Scheduled(pull={"schedule": "linear", "start": 0, "end": 1})  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"a schedule is not a number; in an objective write hp.NAME for self.NAME"):
        mutua.run(method, federate(), workers=1, rounds=1, device="cpu")


def test_a_personal_model_of_another_design_is_refused_in_one_line(federate: Federate, nets: Any) -> None:
    mixed = federate(models=nets.wide, global_model=nets.plain)
    with pytest.raises(
        RunError, match=r"client.initialise\('personal', like='global'\): its design is .*same_models"
    ):
        mutua.run(Near(), mixed, workers=1, rounds=1, device="cpu")
    strict = type("Strict", (Near,), {"same_models": True, "__annotations__": {"same_models": ClassVar[bool]}})
    with pytest.raises(InputError, match=r"client a: its model is .*, but near needs the global's design"):
        mutua.run(strict(), mixed, workers=1, rounds=1, device="cpu")
    same = federate(models=nets.plain, global_model=nets.plain)
    mutua.run(strict(), same, workers=1, rounds=1, device="cpu")


def test_an_inherited_or_taken_name_is_not_shown_as_if_it_were_its_own() -> None:
    inherits = type("Inherits", (FedAvg,), {})()
    taken = type("Taken", (FedAvg,), {"name": "fedprox", "__annotations__": {"name": ClassVar[str]}})()
    shown = [base.shown_name(method) for method in (FedAvg(), Near(), inherits, taken)]
    assert shown[:2] == ["fedavg", "near"] and shown[2].endswith(":Inherits") and shown[3].endswith(":Taken")


def test_a_run_goes_by_the_name_that_is_shown(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inherits = type("Inherits", (FedAvg,), {})()
    result = mutua.run(inherits, federate(), workers=1, rounds=1, device="cpu", progress=True)
    assert result.summary()["method"].endswith(":Inherits")
    assert ":Inherits: round 1/1" in capsys.readouterr().err
    assert RunOverview.of(result.save(tmp_path / "run")).method.endswith(":Inherits")
