"""Clients that fail, also on purpose: the round goes on, it is said who and why, nothing of theirs is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import yaml

import mutua
from mutua import Faults, Federation, InputError, Message, Recipe, RunError
from mutua.data.samples import concatenate
from mutua.engines.faults import CorruptionKind
from mutua.engines.faulty_engine import FaultyEngine, corrupted
from mutua.methods import FML, FedAvg, FedH2L, FedMD, FineTuned, Independent, Participant, weights
from mutua.rounds.events import Finished, Rejected, Retried, RoundEnded, Stopped, Trained
from mutua.rounds.loop import LIMIT
from mutua.runs.execute import execute
from mutua.runs.folder import RunFolder
from mutua.runs.recording import Recorder
from mutua.runs.resuming import ResumedRecorder
from mutua.support.tensor_files import Tensors

pytestmark = pytest.mark.filterwarnings("ignore::mutua.errors.LeftOut")

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]


def rejected(events: list[Any]) -> list[tuple[int, str, str]]:
    """Who was left out when and why; without the place in this file."""
    return [(event.round, event.client, plain(event.reason)) for event in events if isinstance(event, Rejected)]


def plain(reason: str) -> str:
    return re.sub(r" \(\S*test_faults\.py:\d+\)$", "", reason)


def breaking(method: Any, verb: str, **when: str) -> Any:
    """The method, of which this verb raises for some clients: breaking(FML, "train", r2="bc")."""

    def fail(self: Any, client: Participant, *brief: Any) -> Any:
        found = getattr(method, verb)(self, client, *brief)  # after the work, when the state has changed
        if client.id in when.get(f"r{client.round}", ""):
            raise ValueError(f"no more {client.id}\nand a long story")
        return found

    return type(method.__name__, (method,), {verb: fail})()


# Raising


@pytest.mark.parametrize("method", [FML, FedAvg, Independent], ids=lambda m: str(m.name))
def test_a_client_that_raises_is_left_out_and_goes_on_from_its_last_commit(
    method: Any, federate: Federate, simulate: Simulate, identical: Identical, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the others and to itself it is as if it had not been drawn in those rounds."""
    plan = {"rounds": 4, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}
    run = simulate(breaking(method, "train", r2="b", r3="bc"), federate(), **plan)
    reasons = [(2, "b"), (3, "b"), (3, "c")]
    assert rejected(run.events) == [(t, c, f"ValueError: no more {c}") for t, c in reasons]
    assert isinstance(run.events[-1], Finished)
    assert identical(run.engine.kept[3, "b"].get("personal", {}), run.engine.kept[1, "b"].get("personal", {}))
    gone = simulate(method(), federate(), go=False, **plan)
    exchange, everybody = gone._exchange, gone.drawable

    def without(t: int) -> None:
        gone.drawable = [c for c in everybody if (t, c) not in reasons]
        exchange(t)

    monkeypatch.setattr(gone, "_exchange", without)
    gone.run()
    assert run.engine.kept.keys() == gone.engine.kept.keys()
    for at, state in run.engine.kept.items():
        assert all(identical(state[group], gone.engine.kept[at][group]) for group in state)
    assert list(run.history) == list(gone.history)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_exits_is_left_out_like_one_that_raises(workers: int, federate: Federate) -> None:
    class Quitter(FML):
        def train(self, client: Participant, brief: Message | None) -> Message | None:
            match client.id:
                case "a":
                    sys.exit(3)
                case "b":
                    raise MemoryError
            return super().train(client, brief)

    events: list[Any] = []
    mutua.run(Quitter(), federate(), rounds=1, workers=workers, callbacks=[events.append])
    memory = "there was no memory left (use fewer workers), 3 times: this machine's failure, not the client's own"
    assert rejected(events) == [(1, "a", "SystemExit: 3"), (1, "b", memory)]


@pytest.mark.parametrize("method", [FML, Independent], ids=lambda m: str(m.name))
def test_where_every_client_fails_the_run_stops_with_the_first_reason_and_can_go_on(
    method: Any, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    whole = simulate(method(), federate(), rounds=3)
    run = simulate(breaking(method, "train", r2="abc"), federate(), rounds=3, go=False)
    with pytest.raises(
        RunError, match=r"^round 2: every client failed; a: ValueError: no more a \(\S+:\d+\)$"
    ) as error:
        run.run()
    assert isinstance(error.value.__cause__.__cause__, ValueError)  # for who has written the method
    assert len(rejected(run.events)) == 3
    stopped = run.events[-1]
    assert isinstance(stopped, Stopped) and stopped.run_state.round == 1
    again = simulate(method(), federate(), rounds=3, go=False)
    again.engine.open(again.job, again.federation, stopped.run_state.stores)
    type(again)(again.prepared, again.engine, run_state=stopped.run_state).run()
    for client in "abc":
        assert identical(again.engine.kept[4, client]["personal"], whole.engine.kept[4, client]["personal"])


def test_below_min_replies_all_faults_are_said(federate: Federate, simulate: Simulate) -> None:
    run = simulate(breaking(FML, "train", r2="bc"), federate(), min_replies=2, go=False)
    with pytest.raises(
        RunError,
        match=r"^round 2: 1 of 3 .* min_replies is 2; refused: b: .*no more b .*; c: .*no more c .*$",
    ):
        run.run()


def test_a_start_that_fails_stops_the_run(federate: Federate, simulate: Simulate) -> None:
    run = simulate(breaking(FML, "start", r0="b"), federate(), go=False)
    with pytest.raises(RunError, match=r"^client b, round 0: ValueError: no more b \(\S+:\d+\)$"):
        run.run()
    assert isinstance(run.events[-1], Stopped)


def test_last_work_that_fails_leaves_a_client_with_what_it_had(federate: Federate, simulate: Simulate) -> None:
    run = simulate(breaking(FineTuned, "finish", r3="b"), federate(), rounds=2)
    assert rejected(run.events) == [(3, "b", "its last work failed: ValueError: no more b")]
    assert run.engine.stores["b"].commits[-1].round == 2
    at = {"round": 2, "split": "test", "metric": "loss"}
    for client in "abc":
        tuned, shared = (
            run.history.select(client=client, model=m, **at)[0].value for m in ("predictor", "global")
        )
        assert (tuned == shared) == (client == "b")
    with pytest.raises(RunError, match="round 3: every client failed; a: its last work failed: ValueError"):
        simulate(breaking(FineTuned, "finish", r3="abc"), federate(), rounds=2)


def test_nonsense_instead_of_a_message_is_the_clients_own_affair(federate: Federate, simulate: Simulate) -> None:
    class Odd(FML):
        def train(self, client: Participant, brief: Message | None) -> Any:
            reply = super().train(client, brief)
            return reply if client.id != "b" else {"meme": 3}

    run = simulate(Odd(), federate(), rounds=1)
    assert [(t, c) for t, c, _ in rejected(run.events)] == [(1, "b")]


# Evaluations


def test_an_evaluation_that_fails_leaves_its_numbers_out(federate: Federate, simulate: Simulate) -> None:
    """Round 1's, of one client: the others' numbers, and the global's on the common test set, are as they were."""
    good = simulate(FML(), federate(), rounds=2)
    run = simulate(breaking(FML, "predictor", r2="b"), federate(), rounds=2)  # with the brief of round 2
    assert rejected(run.events) == [(1, "b", "its evaluation failed: ValueError: no more b")]
    assert list(run.history) == [row for row in good.history if (row.round, row.client, row.split) not in GONE]
    with pytest.raises(RunError, match="round 1: every client failed; a: its evaluation failed: ValueError"):
        simulate(breaking(FML, "predictor", r2="abc"), federate(), rounds=2)


GONE = [(1, "b", "val"), (1, "b", "test")]


def test_the_global_is_scored_though_a_client_with_a_part_of_the_common_test_set_fails(federate: Federate) -> None:
    """Where clients' test samples make up the common test set, they are what is scored: unless one is missing."""
    made = federate(common=0)
    common = concatenate([client.test for client in made.clients])
    federation = replace(made, test=common)
    good, bad = (
        mutua.run(method, federation, rounds=2, workers=1, batch_size=4, device="cpu")
        for method in (FML(), breaking(FML, "predictor", r2="b"))
    )
    mine = [[row for row in run.history if row.client == "global"] for run in (good, bad)]
    assert [row[:5] for row in mine[0]] == [row[:5] for row in mine[1]]
    assert [row.value for row in mine[0]] == pytest.approx([row.value for row in mine[1]])


def test_who_fails_to_the_end_has_no_numbers_and_no_card(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = FML.predictor

    def fail(self: FML, client: Participant, brief: Message | None) -> Any:
        if (client.id, client.round) == ("c1", 3):
            raise ValueError("no more")
        return predictor(self, client, brief)

    monkeypatch.setattr(FML, "predictor", fail)
    recipe, place = Recipe.of({**tiny, "rounds": 1}), tmp_path / "run"
    result = execute(recipe, recipe.federation(), Recorder.create("tiny", 0, place))
    monkeypatch.undo()
    first, second = result.report()["clients"]
    assert first["accuracy"]["predictor"] is not None
    assert second["accuracy"] == {"predictor": None, "global": None}
    assert [path.name for path in sorted((place / "clients" / "c1").iterdir())] == ["personal.safetensors"]
    assert list(RunFolder.open(place).clients()) == ["c0"]
    told = [json.loads(line) for line in (place / "events.jsonl").read_text().splitlines()]
    [event] = [event for event in told if event["event"] == "rejected"]
    assert plain(event["reason"]) == "its evaluation failed: ValueError: no more"


# Length


def test_a_reply_of_more_than_ten_times_the_length_is_refused_unseen(
    federate: Federate, simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(FML, "check", lambda self, server, client, reply: seen.append(client))
    honest = simulate(FML(), federate(), rounds=1).engine.replies[1, "b"].message
    seen.clear()

    def tamper(round: int, client: str, message: Message) -> Message:
        more = {"more": torch.zeros((10 * honest.nbytes - honest.nbytes) // 4 + (0 if client == "b" else -200))}
        return message if client == "a" else Message(**message, more=weights(more))

    run = simulate(FML(), federate(), rounds=1, tamper=tamper)
    (_, b, long), (_, c, short) = rejected(run.events)
    assert (b, c) == ("b", "c") and seen == ["a"]
    sent = run.engine.replies[1, "b"].message
    assert sent.nbytes == len(sent.encode())
    assert long == f"its reply has {sent.nbytes} bytes; the most is {10 * honest.nbytes}"
    assert "'more' may not leave" in short


def test_where_a_method_does_not_say_how_long_a_reply_is_there_is_a_limit(
    federate: Federate, simulate: Simulate
) -> None:
    run = simulate(Independent(), federate(), go=False)
    assert run.longest == LIMIT
    huge = Message(meme=weights({"x": torch.zeros(1).expand(LIMIT // 4)}))  # of next to no memory
    with pytest.raises(mutua.Refused, match=f"the most is {LIMIT}"):
        run._check_length(huge)
    run._check_length(Message(meme=weights({"x": torch.zeros(1).expand(LIMIT // 4 - 100)})))
    run.engine.close()


# On purpose: what is drawn


def test_draws_depend_on_seed_client_and_round_alone() -> None:
    often = {"probability": 0.3}
    faults = Faults.model_validate({"dropout": [often], "corruption": [{"kind": "nan", **often}]})
    who = [(client, round) for client in "abcdefghij" for round in range(1, 101)]
    absent = [faults.absent(0, *at) for at in who]
    assert 0.25 < sum(absent) / 1000 < 0.35  # three and a half deviations
    assert absent == [faults.absent(0, *at) for at in reversed(who)][::-1]
    assert absent != [faults.absent(1, *at) for at in who]
    assert absent != [bool(faults.corruptions(0, *at)) for at in who]
    own = faults.model_copy(update={"seed": 0})
    assert absent == [own.absent(1, *at) for at in who]
    more = Faults.model_validate({"dropout": [often, {"clients": ["z"]}], "stragglers": [{"seconds": 2, **often}]})
    assert absent == [more.absent(0, *at) for at in who]


def test_clients_and_rounds_say_whom_a_fault_strikes() -> None:
    faults = Faults.model_validate(
        {
            "dropout": [{"clients": ["a"], "rounds": [2, 3]}, {"rounds": [5]}],
            "stragglers": [{"seconds": 1.5, "rounds": [1]}, {"seconds": 2, "clients": ["b"]}],
        }
    )
    assert [(c, t) for c in "ab" for t in range(1, 7) if faults.absent(0, c, t)] == [
        ("a", 2),
        ("a", 3),
        ("a", 5),
        ("b", 5),
    ]
    assert [faults.delay(0, c, t) for c in "ab" for t in (1, 2)] == [1.5, 0, 3.5, 2]


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({"dropouts": []}, "faults.dropouts: unknown key; did you mean 'dropout'"),
        ({"dropout": [{}]}, "faults.dropout.0: give clients, rounds or probability"),
        ({"dropout": {"probability": 1}}, "faults.dropout: .* it must be a list"),
        ({"dropout": [{"probability": 0}]}, "faults.dropout.0.probability: 0; it must be above 0"),
        ({"dropout": [{"rounds": [0]}]}, r"faults.dropout.0.rounds.0: 0; it must be at least 1$"),
        ({"stragglers": [{"clients": ["a"]}]}, "faults.stragglers.0.seconds: missing"),
        ({"corruption": [{"kind": "Nan", "rounds": [1]}]}, "faults.corruption.0.kind: 'Nan'; did you mean 'nan'"),
    ],
)
def test_a_file_of_faults_is_checked_like_a_recipe(tree: Any, says: str, tmp_path: Path, tiny: Any) -> None:
    (tmp_path / "faults.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(InputError, match=says):
        Faults.load(tmp_path / "faults.yaml")
    with pytest.raises(InputError, match=says):
        Recipe.of({**tiny, "faults": tree})


def test_strangers_cannot_fail(federate: Federate) -> None:
    faults = Faults.model_validate({"dropout": [{"probability": 0.1}, {"clients": ["b", "z"]}]})
    with pytest.raises(InputError, match=r"faults.dropout.1.clients: 'z' is no client; known: a, b, c"):
        mutua.run(FML(), federate(), faults=faults, device="cpu", rounds=1)


# On purpose: what comes of it

SPOILT = {
    "nan": "hold NaN or infinity",
    "inf": "hold NaN or infinity",
    "shape": "are torch.float32 (1, 6, 4), the global's torch.float32 (6, 4)",
    "name": "weights 'misnamed' may not leave",
    "dtype": "are torch.float64 (6, 4), the global's torch.float32",
    "norm": "is over 10 times the round's median",
    "bytes": "bytes; the most is",
    "raise": "it broke down, as it was told to",
}


def failing(method: Any, federation: Federation, faults: Any, workers: int = 1, **settings: Any) -> Any:
    """Events and result of a run with faults."""
    events: list[Any] = []
    settings = {"rounds": 3, "batch_size": 4, "device": "cpu", "optimizer": {"name": "sgd", "lr": 0.1}} | settings
    found = Faults.model_validate(faults)
    result = mutua.run(method, federation, faults=found, workers=workers, callbacks=[events.append], **settings)
    return events, result


@pytest.mark.parametrize("kind", SPOILT)
def test_what_is_spoilt_is_refused_and_nothing_else_changes(
    kind: str, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    corruption = [{"kind": kind, "clients": ["b"], "rounds": [2]}]
    events, result = failing(FML(max_norm_ratio=10), federate(), {"corruption": corruption})
    [(round, client, reason)] = rejected(events)
    assert (round, client) == (2, "b") and SPOILT[kind] in reason
    assert result.job.method == FML(max_norm_ratio=10)  # and no trace of what made it fail
    # The others merge what they merge without it. Itself it loses what it learned only if it broke down.
    gone = simulate(breaking(FML, "train", r2="b"), federate(), rounds=3)
    assert identical(result.global_state, gone.globals[3]) == (kind == "raise")
    vanished = failing(FML(), federate(), {"dropout": [{"clients": ["b"], "rounds": [2]}]}, rounds=2)[1]
    until = failing(FML(max_norm_ratio=10), federate(), {"corruption": corruption}, rounds=2)[1]
    assert identical(until.global_state, vanished.global_state)
    kept, trained = until.clients[1].state["personal"], simulate(FML(), federate(), rounds=2).engine.kept
    assert identical(kept, trained[1 if kind == "raise" else 2, "b"]["personal"])


@pytest.mark.parametrize("method", [FedH2L(), FedMD(subset=20)], ids=lambda m: str(m.name))
def test_signals_and_scores_are_refused_too(method: Any) -> None:
    recipe = Recipe.of(
        {
            "data": {"name": "mnist5k", "samples_per_client": 40, "image_size": 8},
            "partition": {"kind": "iid", "clients": 3},
            "public": {"share": 0.2},
            "models": {"global": {"name": "mlp", "width": 0.05}},
            "method": method.name,
        }
    )
    kinds = [kind for kind in SPOILT if kind != "norm" or method.name == "fedh2l"]
    corruption = [{"kind": kind, "clients": ["c1"], "rounds": [t]} for t, kind in enumerate(kinds, start=1)]
    plan = {"rounds": len(kinds), "steps": 1, "evaluate_every": 100}
    events, _ = failing(method, recipe.federation(), {"corruption": corruption}, **plan)
    assert [(t, c) for t, c, _ in rejected(events)] == [(t, "c1") for t, _ in enumerate(kinds, start=1)]


def test_a_spoilt_message_is_spoilt_as_it_says() -> None:
    before = {"w": torch.ones(2, 2), "n": torch.tensor(3)}
    brief = Message(**{"global": weights(before)})
    sent = {"w": torch.tensor([[1.0, 2.0], [1.0, 1.5]]), "n": torch.tensor(3)}
    message = Message(meme=weights(sent))

    def changed(kind: CorruptionKind) -> Tensors:
        return corrupted(message, kind, brief).arrays("meme")

    assert torch.equal(changed("norm")["w"], torch.tensor([[1.0, 1001.0], [1.0, 501.0]]))
    assert changed("norm")["n"] == 3
    assert changed("nan")["w"].isnan().tolist() == [[True, False], [False, False]]
    assert changed("inf")["w"].isinf().tolist() == [[True, False], [False, False]]
    assert changed("shape")["w"].shape == (1, 2, 2)
    assert changed("dtype")["w"].dtype == torch.float64
    assert sorted(changed("name")) == ["misnamed", "n"]
    assert corrupted(message, "bytes", brief).nbytes > 10 * message.nbytes
    assert corrupted(message, "raise", brief) == message == Message(meme=weights(sent))
    assert torch.equal(corrupted(message, "norm", None).arrays("meme")["w"], 1000 * sent["w"])
    assert corrupted(Message(meme=weights({"n": torch.tensor(3)})), "nan", None).arrays("meme") == {"n": 3}


def test_a_straggler_without_a_deadline_changes_nothing(federate: Federate, identical: Identical) -> None:
    late, prompt = (
        failing(FML(), federate(), {"stragglers": faults})
        for faults in ([{"seconds": 0.3, "clients": ["b"], "rounds": [2]}], [])
    )
    assert identical(late[1].global_state, prompt[1].global_state)
    assert late[1].history.rows == prompt[1].history.rows and not rejected(late[0])
    seconds = {(e.round, e.client): e.reply.seconds for e in late[0] if hasattr(e, "reply")}
    assert seconds[2, "b"] >= 0.3


# Hanging

linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


class Hanging(FML):
    """Hangs where it is told to, in a call that only a signal can end."""

    verb: str
    at: int

    def _maybe(self, verb: str, client: Participant) -> None:
        while (self.verb, self.at, "b") == (verb, client.round, client.id):
            signal.pause()

    def start(self, client: Participant) -> None:
        self._maybe("start", client)
        super().start(client)

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        self._maybe("train", client)
        return super().train(client, brief)

    def finish(self, client: Participant, brief: Message | None) -> None:
        self._maybe("finish", client)
        super().finish(client, brief)

    def predictor(self, client: Participant, brief: Message | None) -> Any:
        self._maybe("predictor", client)
        return super().predictor(client, brief)


@linux
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("verb", "at", "said"),
    [("train", 2, (2, "")), ("finish", 4, (4, "its last work")), ("predictor", 3, (2, "its"))],
)
def test_who_hangs_past_the_deadline_is_left_out(
    verb: str, at: int, said: Any, workers: int, federate: Federate
) -> None:
    events: list[Any] = []
    method, plan = Hanging(verb=verb, at=at), {"rounds": 3, "batch_size": 4, "device": "cpu", "deadline": 2}
    result = mutua.run(method, federate(), workers=workers, callbacks=[events.append], **plan)
    [(round, client, reason)] = rejected(events)
    assert (round, client) == (said[0], "b") and reason.startswith(said[1])
    assert reason.endswith("it took longer than the deadline of 2 s")
    assert isinstance(events[-1], Finished)
    assert result.clients[1].accuracy() is not None


@linux
def test_a_start_that_hangs_stops_the_run(federate: Federate) -> None:
    with pytest.raises(RunError, match="client b, start: it took longer than the deadline of 2 s"):
        mutua.run(Hanging(verb="start", at=0), federate(), workers=1, device="cpu", deadline=2)


@linux
def test_a_deadline_that_everybody_meets_changes_no_byte(federate: Federate, identical: Identical) -> None:
    one, two = (mutua.run(FML(), federate(), device="cpu", rounds=2, deadline=d, workers=1) for d in (None, 100))
    assert identical(one.global_state or {}, two.global_state or {})
    assert one.history.rows == two.history.rows and list(one.ledger) == list(two.ledger)


@linux
def test_a_worker_that_dies_again_and_again_costs_its_client_the_round(federate: Federate) -> None:
    class Dying(FML):
        def train(self, client: Participant, brief: Message | None) -> Message | None:
            if (client.round, client.id) == (2, "b"):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().train(client, brief)

    events: list[Any] = []
    plan = {"rounds": 3, "batch_size": 4, "device": "cpu", "workers": 2}
    result = mutua.run(Dying(), federate(), callbacks=[events.append], **plan)
    [(round, client, reason)] = rejected(events)
    assert (round, client) == (2, "b") and "its worker process ended by signal 9" in reason
    assert reason.endswith(", 3 times: this machine's failure, not the client's own")
    faults = Faults.model_validate({"corruption": [{"kind": "raise", "clients": ["b"], "rounds": [2]}]})
    assert result.history.rows == mutua.run(FML(), federate(), faults=faults, **plan).history.rows


@linux
@pytest.mark.parametrize("how", ["killed", "memory"])
@pytest.mark.parametrize("workers", [1, 2])
def test_what_the_machine_fails_in_now_and_then_changes_no_byte(
    how: str, workers: int, federate: Federate, identical: Identical, tmp_path: Path
) -> None:
    if (how, workers) == ("killed", 1):
        pytest.skip("that is the run itself")

    class Unlucky(FML):
        def _strike(self, client: Participant, what: str) -> None:
            mark = tmp_path / f"{what}-{client.round}-{client.id}"
            if client.id == "b" and not mark.exists():
                mark.touch()
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise MemoryError

        def train(self, client: Participant, brief: Message | None) -> Message | None:
            sent = super().train(client, brief)  # after its work, which must leave no trace
            self._strike(client, "train")
            return sent

        def finish(self, client: Participant, brief: Message | None) -> None:
            self._strike(client, "finish")
            super().finish(client, brief)

        def predictor(self, client: Participant, brief: Message | None) -> Any:
            self._strike(client, "evaluate")
            return super().predictor(client, brief)

    events: list[Any] = []
    plan = {"rounds": 2, "batch_size": 4, "device": "cpu"}
    one = mutua.run(FML(), federate(), workers=1, **plan)
    two = mutua.run(Unlucky(), federate(), workers=workers, callbacks=[events.append], **plan)
    assert rejected(events) == []
    struck = [(event.round, event.client) for event in events if isinstance(event, Retried)]
    assert struck == [(0, "b"), (1, "b"), (1, "b"), (2, "b"), (3, "b"), (2, "b")]
    assert identical(one.global_state or {}, two.global_state or {})
    assert one.history.rows == two.history.rows and list(one.ledger) == list(two.ledger)


def test_a_deadline_where_nothing_can_be_ended_is_refused(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mutua.engines.local.can_fork", lambda: False)
    with pytest.raises(InputError, match="deadline: 3, but only a worker process can be ended"):
        mutua.run(FML(), federate(), deadline=3, device="cpu")


# Twenty clients, five of which fail in every way

WAYS = ["raise", "nan", "inf", "shape", "name", "dtype", "norm", "bytes"]


@linux
def test_five_of_twenty_fail_in_every_way_and_the_others_do_not_notice() -> None:
    """As long as none of the five sends anything sound, the others' numbers are those of a run without them."""
    recipe = Recipe.of(
        {
            "data": {"name": "mnist5k", "samples_per_client": 250},
            "partition": {"kind": "shards", "clients": 20, "shards_per_client": 2},
            "models": {"global": {"name": "mlp", "width": 0.1}},
            "method": {"name": "fml", "max_norm_ratio": 10},
        }
    )
    everybody, bad = recipe.federation(), ["c01", "c06", "c10", "c13", "c19"]
    good = replace(everybody, clients=tuple(client for client in everybody.clients if client.id not in bad))
    # In one way after the other, away for three rounds, too late in one, in all ways but two again; then back.
    away, late, spoilt_in = [9, 10, 11], [12], [*range(1, 9), *range(13, 19)]
    ways = {(t, client): WAYS[(k + t) % 8] for t in spoilt_in for k, client in enumerate(bad)}
    faults = Faults.model_validate(
        {
            "corruption": [{"kind": way, "clients": [client], "rounds": [t]} for (t, client), way in ways.items()],
            "dropout": [{"clients": bad, "rounds": away}],
            "stragglers": [{"clients": bad, "rounds": late, "seconds": 600}],
        }
    )
    expected = {at: SPOILT[way].partition(" (")[0] for at, way in ways.items()}
    expected |= {(t, client): "no reply came" for client in bad for t in away}
    expected |= {(t, client): "it took longer than the deadline of 3 s" for client in bad for t in late}

    plan = {"rounds": 20, "steps": 4, "batch_size": 25, "optimizer": {"lr": 0.05}, "evaluate_every": 9}
    plan |= {"device": "cpu", "min_replies": 15, "workers": 5}
    events: list[Any] = []
    without = mutua.run(recipe.method, good, **plan | {"workers": 1})
    result = mutua.run(recipe.method, everybody, faults=faults, deadline=3, callbacks=[events.append], **plan)
    said = {(round, client): reason for round, client, reason in rejected(events)}
    assert said.keys() == expected.keys()
    assert [at for at in said if expected[at] not in said[at]] == []
    theirs, ours = (
        [row for row in run.history if row.round <= 18 and row.client not in bad] for run in (without, result)
    )
    assert theirs == ours
    means = [fmean(c.accuracy() or 0.0 for c in run.clients if c.id not in bad) for run in (without, result)]
    assert abs(means[0] - means[1]) <= 0.01 and means[0] > 0.9, means
    back = [event.round for event in events if isinstance(event, Trained) and event.client in bad]
    assert back.count(19) == back.count(20) == 5


# In a run's folder

STORM = {
    "seed": 3,
    "dropout": [{"probability": 0.3}],
    "corruption": [{"kind": "nan", "probability": 0.2}, {"kind": "raise", "probability": 0.2}],
}


def test_a_run_that_goes_on_meets_the_same_faults(tiny: Any, tmp_path: Path) -> None:
    changes = {"partition": {"kind": "iid", "clients": 5}, "rounds": 4, "checkpoints": {"seconds": 0}}
    recipe = Recipe.of({**tiny, **changes, "faults": STORM})
    federation = recipe.federation()

    def left(place: Path) -> dict[str, Any]:
        told = [json.loads(line) for line in (place / "events.jsonl").read_text().splitlines()]
        record = json.loads((place / "run.json").read_text())
        del record["summary"]["seconds"]
        files = [place / "history.csv", place / "ledger.csv", *sorted(place.glob("*/**/*.safetensors"))]
        return {
            "files": [(str(f.relative_to(place)), f.read_bytes()) for f in files if "checkpoints" not in f.parts],
            "record": record,
            "rejected": {(e["round"], e["client"], e["reason"]) for e in told if e["event"] == "rejected"},
        }

    execute(recipe, federation, Recorder.create("tiny", 0, tmp_path / "whole"))
    whole = left(tmp_path / "whole")
    assert {reason for _, _, reason in whole["rejected"]} >= {"no reply came", "it broke down, as it was told to"}
    for round in (1, 2, 3):

        def stop(event: Any, at: int = round) -> None:
            if isinstance(event, RoundEnded) and event.round == at:  # merged, and not yet saved
                raise KeyboardInterrupt

        place = tmp_path / f"stopped-{round}"
        with pytest.raises(RunError, match="--resume"):
            execute(recipe, federation, Recorder.create("tiny", 0, place), callbacks=[stop])
        folder = ResumedRecorder(place)
        assert folder.recipe.faults == recipe.faults
        execute(folder.recipe, federation, folder)
        assert left(place) == whole


def test_the_command_takes_a_file_of_faults_and_keeps_it(command: Any, tmp_path: Path) -> None:
    (tmp_path / "faults.yaml").write_text("corruption: [{kind: shape, clients: [c1], rounds: [1]}]")
    done = command("run", "tiny.yaml", "--faults", "faults.yaml", "--out", "run")
    assert done.code == 0
    assert "clients fail on purpose" in done.err and "round 1: without c1: weights '" in done.err
    told = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    [event] = [event for event in told if event["event"] == "rejected"]
    assert (event["round"], event["client"]) == (1, "c1")
    assert (
        yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["faults"]["corruption"][0]["kind"]
        == "shape"
    )
    mistakes = {
        ("run", "--resume", "run", "--faults", "faults.yaml"): "--faults: a run goes on with its own recipe",
        ("run", "tiny.yaml", "--faults", "none.yaml"): "faults: none.yaml: No such file",
        (
            "run",
            "tiny.yaml",
            "--set",
            "faults={dropout: [{clients: [c7]}]}",
        ): "faults.dropout.0.clients: 'c7' is no",
    }
    for words, says in mistakes.items():
        done = command(*words)
        assert done.code == 2 and says in " ".join(done.err.split()), done.err
        assert len(done.err.strip().splitlines()) <= 3


def test_any_engine_can_have_faults(federate: Federate, simulate: Simulate) -> None:
    """What it is wrapped around need only speak the protocol."""
    run = simulate(FML(), federate(), rounds=2, go=False)
    events: list[Any] = []
    faults = Faults.model_validate({"dropout": [{"clients": ["a"], "rounds": [1]}]})
    engine = FaultyEngine(run.engine, faults)
    engine.open(run.job, run.federation)
    mutua.rounds.loop.Rounds(run.prepared, engine, [events.append]).run()
    engine.close()
    assert rejected(events) == [(1, "a", "no reply came")]
