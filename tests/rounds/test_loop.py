"""The round loop: who is drawn, what is refused, what is evaluated and when, and that order changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mutua import SGD, Federation, InputError, Message, Plan, Refused, RunError
from mutua import run as run_method
from mutua.engines.local import LocalEngine
from mutua.learning.evaluation import measure
from mutua.learning.metrics import SCALARS
from mutua.methods import (
    FML,
    Centralised,
    FedAvg,
    FineTuned,
    Independent,
    Method,
    MixtureOfExperts,
    count,
    weights,
)
from mutua.rounds.events import (
    Finished,
    Merged,
    Reached,
    Rejected,
    RoundEnded,
    RoundStarted,
    Started,
    Stopped,
    Trained,
)
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]

METHODS: list[Any] = [FML(), FedAvg(), Independent()]


def everything(run: Any) -> dict[Any, Any]:
    """All bytes of a run: what crossed, what is kept and what was measured."""
    sent = {("up", *key): reply.message.encode() for key, reply in run.engine.replies.items() if reply.message}
    sent |= {("down", *key): brief.encode() for key, brief in run.engine.briefs.items()}
    kept = {
        (key, group): Message(x=weights(arrays)).encode()
        for key, state in run.engine.kept.items()
        for group, arrays in state.items()
    }
    return {**sent, **kept, "history": sorted(map(str, run.history)), "ledger": sorted(map(str, run.ledger))}


# The same bytes


@pytest.mark.parametrize("method", METHODS, ids=lambda m: str(m.name))
def test_a_seed_gives_the_same_bytes_twice_and_in_any_order_of_clients(
    method: Any, nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate(models=[nets.dropping, nets.normed, nets.wide], global_model=nets.normed)
    settings = {"rounds": 3, "client_fraction": 0.7, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}
    first = everything(simulate(method, federation, **settings))
    assert everything(simulate(method, federation, **settings)) == first
    for clients in permutations(federation.clients):
        assert everything(simulate(method, replace(federation, clients=clients), **settings)) == first


@pytest.mark.parametrize("method", [FML(), FedAvg(), Centralised()], ids=lambda m: str(m.name))
def test_order_changes_nothing_where_class_lists_differ(
    method: Any, federate: Federate, simulate: Simulate
) -> None:
    names = [("cat", "bee"), ("ape", "cat"), ("bee", "cat", "ape")]
    federation = federate(classes=names)
    first = everything(simulate(method, federation))
    for clients in permutations(federate(classes=names).clients):
        assert everything(simulate(method, replace(federation, clients=clients))) == first


class HeadFirst(nn.Module):
    """The head is drawn before the body, so the body's first weights depend on the number of classes."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(5, classes)
        self.body = nn.Linear(channels, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.body(x)))
        return out


def test_order_changes_nothing_where_tasks_differ(federate: Federate, simulate: Simulate) -> None:
    names = [("ape", "bee"), ("cat", "dog", "elk"), ("bee", "cat", "ape", "fox")]
    federation = federate(classes=names, global_model={"name": HeadFirst, "share": "body"})
    first = everything(simulate(FML(), federation))
    for clients in permutations(federation.clients):
        assert everything(simulate(FML(), replace(federation, clients=clients))) == first


# Drawing


@pytest.mark.parametrize(("clients", "fraction", "drawn"), [(4, 0.5, 2), (5, 0.5, 2), (4, 0.7, 2), (10, 0.3, 3)])
def test_so_many_are_drawn_by_seed_and_differently_each_round(
    clients: int, fraction: float, drawn: int, federate: Federate, simulate: Simulate
) -> None:
    federation = federate([3] * clients)
    one, again, other = (
        simulate(FML(), federation, rounds=12, client_fraction=fraction, seed=seed, evaluate_every=99)
        for seed in (0, 0, 1)
    )
    by_round = [event.clients for event in one.events if isinstance(event, RoundStarted)]
    assert all(len(ids) == len(set(ids)) == drawn for ids in by_round)
    assert all(list(ids) == sorted(ids) for ids in by_round)
    assert len(set(by_round)) > 2
    assert by_round == [event.clients for event in again.events if isinstance(event, RoundStarted)]
    assert by_round != [event.clients for event in other.events if isinstance(event, RoundStarted)]
    assert set(one.engine.replies) == {(t, c) for t, ids in enumerate(by_round, start=1) for c in ids}


def test_every_client_is_drawn_equally_often() -> None:
    """Uniform: 3 of 10 over 600 rounds, each about 180 times (five standard deviations are 56)."""
    plan = Plan(client_fraction=0.3)
    from mutua.seeds import numpy_stream, public

    ids = [str(k) for k in range(10)]
    assert plan.drawn(10) == 3
    assert [Plan(client_fraction=0.29).drawn(n) for n in (100, 10, 1)] == [29, 2, 1]
    drawn = Counter(
        client
        for round in range(600)
        for client in numpy_stream(public(0), round, "clients").choice(ids, 3, replace=False).tolist()
    )
    assert all(abs(times - 180) < 56 for times in drawn.values())


def test_a_client_not_drawn_keeps_its_store_untouched(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    federation = federate([5, 5, 5, 5], global_model={"name": nets.plain, "share": "body"})
    run = simulate(FML(), federation, rounds=5, client_fraction=0.5, optimizer={"name": "adam", "lr": 0.01})
    rested = 0
    for round in range(1, 6):
        for client in "abcd":
            before, after = run.engine.kept[round - 1, client], run.engine.kept[round, client]
            if (round, client) in run.engine.replies:
                assert before is not after
            else:
                rested += 1
                assert before is after
    assert rested == 5 * 2


def test_the_method_does_not_change_who_is_drawn(federate: Federate, simulate: Simulate) -> None:
    those = [FML(), FedAvg(), Independent(drawn_only=True)]
    runs = [simulate(method, federate([3] * 6), rounds=4, client_fraction=0.5) for method in those]
    drawn = [[event.clients for event in run.events if isinstance(event, RoundStarted)] for run in runs]
    assert drawn[0] == drawn[1] == drawn[2]


# Refusing


def broken(how: str) -> Callable[[Message], Message]:
    def change(message: Message) -> Message:
        arrays = {name: array.clone() for name, array in message.arrays("meme").items()}
        if how == "extra name":
            arrays["personal.weight"] = torch.zeros(2)
        elif how == "missing name":
            del arrays["head.bias"]
        elif how == "wrong shape":
            arrays["head.bias"] = torch.zeros(4)
        elif how == "wrong dtype":
            arrays["head.bias"] = arrays["head.bias"].double()
        elif how == "nan":
            arrays["body.weight"][0, 0] = float("nan")
        elif how == "infinity":
            arrays["body.weight"][0, 0] = float("-inf")
        elif how == "no meme":
            return Message(**{"global": weights(arrays)})
        elif how == "empty":
            return Message()
        elif how == "another kind":
            return Message(meme=replace_kind(arrays))
        elif how == "undeclared part":
            return Message(meme=weights(arrays), labels=count(3))
        return Message(meme=weights(arrays))

    return change


def replace_kind(arrays: Tensors) -> Any:
    from mutua import Kind
    from mutua.methods import Part

    return Part(Kind.METRIC, arrays)


HOWS = {
    "extra name": "personal.weight",
    "missing name": "head.bias",
    "wrong shape": "head.bias",
    "wrong dtype": "head.bias",
    "nan": "body.weight",
    "infinity": "body.weight",
    "no meme": "global",
    "empty": "meme",
    "another kind": "meme",
    "undeclared part": "labels",
}


@pytest.mark.parametrize("how", HOWS)
def test_a_broken_reply_is_refused_with_the_clients_name_and_the_round_goes_on(
    how: str, federate: Federate, simulate: Simulate
) -> None:
    def tamper(round: int, client: str, message: Message) -> Message:
        return broken(how)(message) if (round, client) == (2, "b") else message

    run = simulate(FML(), federate(), rounds=3, tamper=tamper)
    rejected = [event for event in run.events if isinstance(event, Rejected)]
    assert [(event.round, event.client) for event in rejected] == [(2, "b")]
    assert f"'{HOWS[how]}'" in rejected[0].reason
    for round, clients in ((1, "abc"), (2, "ac"), (3, "abc")):
        memes = [run.engine.replies[round, client].message.arrays("meme")["head.weight"] for client in clients]
        merged = np.mean([meme.double().numpy() for meme in memes], axis=0)
        assert run.globals[round]["head.weight"].numpy() == pytest.approx(merged, abs=1e-6)
    # It crossed, so it is counted.
    crossed = sum(e.bytes for e in run.ledger if (e.round, e.client, e.direction) == (2, "b", "up"))
    assert crossed == len(run.engine.replies[2, "b"].message.encode())


def test_below_the_minimum_of_replies_the_run_stops_with_the_last_global(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    def tamper(round: int, client: str, message: Message) -> Message:
        return broken("nan")(message) if round == 2 and client in "ab" else message

    assert len(simulate(FML(), federate(), rounds=2, tamper=tamper, min_replies=1).globals) == 3
    run = simulate(FML(), federate(), rounds=3, tamper=tamper, min_replies=2, go=False)
    with pytest.raises(RunError, match=r"round 2: 1 of 3 .* min_replies is 2"):
        run.run()
    assert identical(run.server.state["global"], run.globals[1])
    assert {event.client for event in run.events if isinstance(event, Rejected)} == {"a", "b"}
    assert not any(isinstance(event, Finished) for event in run.events)


def test_a_round_in_which_every_reply_is_refused_stops_the_run(federate: Federate, simulate: Simulate) -> None:
    run = simulate(FedAvg(), federate(), tamper=lambda *args: broken("nan")(args[2]), go=False)
    with pytest.raises(RunError, match="0 of 3"):
        run.run()


def vanish(monkeypatch: pytest.MonkeyPatch, *gone: tuple[int, str]) -> None:
    """From now on no reply comes of these clients in these rounds, as if they were not there."""
    train = LocalEngine.train

    def some(self: LocalEngine, round: int, briefs: Any) -> Any:
        return train(self, round, {c: brief for c, brief in briefs.items() if (round, c) not in gone})

    monkeypatch.setattr(LocalEngine, "train", some)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: str(m.name))
def test_a_client_that_vanishes_is_named_and_the_round_goes_on(
    method: Any, federate: Federate, simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    vanish(monkeypatch, (1, "b"), (2, "b"), (2, "c"))
    run = simulate(method, federate(), rounds=3)
    rejected = [(e.round, e.client, e.reason) for e in run.events if isinstance(e, Rejected)]
    assert rejected == [(1, "b", "no reply came"), (2, "b", "no reply came"), (2, "c", "no reply came")]
    assert set(run.engine.replies) == {(1, "a"), (1, "c"), (2, "a"), (3, "a"), (3, "b"), (3, "c")}
    assert isinstance(run.events[-1], Finished)
    trained = [(e.round, e.client) for e in run.events if isinstance(e, Trained)]
    assert trained == sorted(run.engine.replies)
    if method.shares:
        memes = [run.engine.replies[2, "a"].message.arrays("meme")["head.weight"]]
        assert torch.equal(run.globals[2]["head.weight"], memes[0])
    assert [store.commits[-1].round for store in run.engine.stores.values()] == [4, 4, 4]


def test_with_too_few_left_the_run_stops_where_it_can_go_on(
    federate: Federate, simulate: Simulate, identical: Identical, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = simulate(FML(), federate(), rounds=3)
    with monkeypatch.context() as patch:
        vanish(patch, (2, "a"), (2, "c"))
        run = simulate(FML(), federate(), rounds=3, min_replies=2, go=False)
        with pytest.raises(RunError, match=r"^round 2: 1 of 3 .*; refused: a: no reply came; c: no reply came$"):
            run.run()
    stopped = run.events[-1]
    assert isinstance(stopped, Stopped) and stopped.run_state.round == 1
    assert max(row.round for row in stopped.run_state.history) == 1
    assert max(entry.round for entry in stopped.run_state.ledger) == 1
    # They are back. The one that had done its work does not do it again.
    engine, events = type(run.engine)(), []
    engine.open(run.job, run.federation, stopped.run_state.stores)
    again = type(run)(run.prepared, engine, [events.append], stopped.run_state)
    again.run()
    second = [event.reply for event in events if isinstance(event, Trained) and event.round == 2]
    assert [reply.seconds == 0 for reply in second] == [False, True, False]
    assert list(again.history) == list(whole.history) and list(again.ledger) == list(whole.ledger)
    assert identical(again.server.state["global"], whole.server.state["global"])


def test_a_round_broken_off_when_it_was_merged_stands_before_it(
    federate: Federate, simulate: Simulate, identical: Identical, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = simulate(FML(), federate(), rounds=3)
    evaluate = LocalEngine.evaluate

    def stop(self: LocalEngine, round: int, briefs: Any, shared: Any) -> Any:
        if round == 2:
            raise KeyboardInterrupt
        return evaluate(self, round, briefs, shared)

    run = simulate(FML(), federate(), rounds=3, go=False)
    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "evaluate", stop)
        with pytest.raises(KeyboardInterrupt):
            run.run()
    assert identical(run.server.state["global"], whole.globals[2])
    run_state = run.events[-1].run_state
    assert run_state.round == 1 and identical(run_state.server["global"], whole.globals[1])
    assert list(run_state.history) == [row for row in whole.history if row.round <= 1]
    assert list(run_state.ledger) == [entry for entry in whole.ledger if entry.round <= 1]
    assert [store.commits[-1].round for store in run_state.stores.values()] == [2, 2, 2]
    engine = type(run.engine)()
    engine.open(run.job, run.federation, run_state.stores)
    again = type(run)(run.prepared, engine, run_state=run_state)
    again.run()
    assert list(again.history) == list(whole.history) and list(again.ledger) == list(whole.ledger)


def test_methods_that_send_nothing_need_no_replies(federate: Federate, simulate: Simulate) -> None:
    run = simulate(Independent(), federate(), rounds=2, min_replies=3)
    assert isinstance(run.events[-1], Finished)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"min_replies": 4}, "min_replies: 4, but a round draws 3 of 3 clients; give at most 3"),
        (
            {"min_replies": 2, "client_fraction": 0.4},
            "min_replies: 2, but a round draws 1 of 3 clients; give at most 1",
        ),
    ],
)
def test_a_minimum_that_no_round_can_reach_is_refused_before_anything_runs(
    settings: dict[str, Any], said: str, federate: Federate
) -> None:
    events: list[Any] = []
    with pytest.raises(InputError) as refused:
        run_method(FML(), federate(), rounds=1, callbacks=[events.append], **settings)
    assert str(refused.value) == said and not events
    run_method(Independent(), federate(), rounds=0, **settings)  # which sends nothing
    run_method(FML(), federate(), rounds=1, min_replies=3, device="cpu")


def test_a_minimum_counts_those_who_may_be_drawn(federate: Federate) -> None:
    federation = federate()
    a, *rest = federation.clients
    out = replace(a, opt_in=torch.zeros(len(a.train), dtype=torch.bool))
    with pytest.raises(InputError, match="min_replies: 3, but a round draws 2 of 3 clients; give at most 2"):
        run_method(FedAvg(), replace(federation, clients=(out, *rest)), rounds=1, min_replies=3)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (FineTuned(tune_epochs=1), True),
        (MixtureOfExperts(mixture_epochs=1), True),
        (Independent(patience=1, most_epochs=1), True),
        (Independent(), False),
        (FedAvg(), False),
        (Centralised(patience=1, most_epochs=1), False),  # all clients' data together has some
    ],
)
def test_who_cannot_stop_early_is_named_in_the_notes(method: Method, told: bool, federate: Federate) -> None:
    federation = replace(federate(), notes=("first",))
    a, *rest = federation.clients
    some = replace(federation, clients=(replace(a, val=a.val.take([])), *rest))
    result = run_method(method, some, rounds=1, device="cpu")
    note = f"no val sample for a to stop {method.name} early by: it trains for one round's work instead"
    assert result.federation.notes == (("first", note) if told else ("first",))
    assert run_method(method, federation, rounds=0, device="cpu").federation.notes == ("first",)


def test_the_check_says_no_to_what_has_no_meme(federate: Federate, simulate: Simulate) -> None:
    run = simulate(FML(), federate(), rounds=1)
    with pytest.raises(Refused, match="'meme'"):
        run.job.method.check(run.server, "a", Message())


# Evaluating


@pytest.mark.parametrize(
    ("rounds", "every", "evaluated"),
    [
        (4, 1, [0, 1, 2, 3, 4]),
        (4, 2, [0, 2, 4]),
        (5, 2, [0, 2, 4, 5]),
        (3, 10, [0, 3]),
        (1, 1, [0, 1]),
        (0, 1, [0]),
    ],
)
def test_rounds_are_evaluated_before_training_every_so_often_and_after_the_last(
    rounds: int, every: int, evaluated: list[int], federate: Federate, simulate: Simulate
) -> None:
    run = simulate(FML(), federate(), rounds=rounds, evaluate_every=every)
    for client, model in (("global", "global"), ("a", "predictor"), ("b", "global")):
        rows = run.history.select(client=client, model=model, split="test", metric="accuracy")
        assert [row.round for row in rows] == evaluated
    ended = [event.round for event in run.events if isinstance(event, RoundEnded)]
    assert ended == list(range(rounds + 1))


def test_the_numbers_are_those_of_the_merged_model_after_each_round(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate
) -> None:
    """Recomputed from the globals that crossed, on each client's data and on the common test set."""
    federation = federate(models=nets.wide, global_model=nets.normed)
    run = simulate(FML(), federation, rounds=3)
    assert federation.global_model is not None
    assert federation.test is not None
    shared = federation.global_model.build(channels=4, size=1, classes=3, seed=0)
    personal = federation["a"].model.build(channels=4, size=1, classes=3, seed=0)
    for round in range(4):
        shared.load_state_dict(run.globals[round])
        personal.load_state_dict(run.engine.kept[round, "a"]["personal"])
        for client, model, split, samples, module in (
            ("global", "global", "test", federation.test, shared),
            ("a", "global", "val", federation["a"].val, shared),
            ("c", "global", "test", federation["c"].test, shared),
            ("a", "predictor", "test", federation["a"].test, personal),
        ):
            expected = measure(module, samples, federation["a"].task)
            metrics = list(SCALARS) if round == 3 else ["accuracy", "loss"]
            rows = run.history.select(round=round, client=client, model=model, split=split)
            assert {row.metric: row.value for row in rows} == {m: expected[m] for m in metrics}
            assert len(rows) == len(metrics)
    assert run.globals[2]["norm.running_mean"].ne(run.globals[3]["norm.running_mean"]).any()


def test_without_samples_a_client_reports_nothing(federate: Federate, simulate: Simulate) -> None:
    run = simulate(FML(), federate(held=0), rounds=1)
    rows = run.history.select(client="a", split="test")
    assert rows
    assert all(row.value is None for row in rows)
    assert run.history.last("global", "global", "test", "accuracy") is not None
    assert run.history.curve("predictor") == []


def test_a_partial_global_has_no_accuracy_of_its_own(
    nets: SimpleNamespace, federate: Federate, blobs: Callable[..., Any], simulate: Simulate
) -> None:
    federation = federate(global_model={"name": nets.plain, "share": "body"})
    run = simulate(FML(), replace(federation, test=blobs(20)), rounds=1)
    assert run.history.last("global", "global", "test", "accuracy") is None
    assert run.history.last("a", "global", "test", "accuracy") is not None


def test_evaluating_changes_nothing(nets: SimpleNamespace, federate: Federate, simulate: Simulate) -> None:
    federation = federate(models=nets.dropping, global_model={"name": nets.normed, "share": "body"})
    often, seldom = (
        simulate(FML(), federation, rounds=4, client_fraction=0.5, evaluate_every=every) for every in (1, 9)
    )
    ours, theirs = everything(often), everything(seldom)
    del ours["history"], theirs["history"]
    assert ours == theirs


def test_what_clients_do_at_the_end_is_evaluated(federate: Federate, simulate: Simulate) -> None:
    run = simulate(FineTuned(tune_epochs=5), federate([6, 6]), rounds=2)
    module = run.federation.global_model.build(channels=4, size=1, classes=3, seed=0)
    for client in "ab":
        module.load_state_dict(run.engine.kept[3, client]["tuned"])
        expected = measure(module, run.federation[client].test, run.federation[client].task)
        assert run.history.last(client, "predictor", "test", "loss") == expected["loss"]
    # Rounds count from 1: what follows the last round belongs to it.
    assert max(row.round for row in run.history) == 2


def test_the_last_global_goes_to_everyone_and_is_in_the_ledger(federate: Federate, simulate: Simulate) -> None:
    run = simulate(FedAvg(), federate([4] * 5), rounds=2, client_fraction=0.2)
    last = {e.client: e for e in run.ledger if e.round == 3 and e.kind == "weights"}
    assert sorted(last) == list("abcde")
    assert all(e.direction == "down" for e in last.values())


# Events


def test_events_come_in_order(federate: Federate, simulate: Simulate) -> None:
    run = simulate(FML(), federate(), rounds=2)
    kinds = [type(event) for event in run.events]
    round = [RoundStarted, Trained, Trained, Trained, Merged]
    first, last = [RoundEnded, Reached], [Reached, RoundEnded, Reached]  # before and after clients finish
    assert kinds == [Started, RoundEnded, Reached, *round, *first, *round, *last, Finished]
    trained = [(event.round, event.client) for event in run.events if isinstance(event, Trained)]
    assert trained == [(1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "b"), (2, "c")]


# The whole of it


def test_run_gives_the_same_as_the_loop_and_predictors_for_raw_inputs(
    nets: SimpleNamespace, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    from mutua import run

    federation = federate(models=[nets.wide, nets.dropping, nets.normed])
    plan = Plan(rounds=2, batch_size=4, optimizer=SGD(lr=0.1), device="cpu")
    result, loop = run(FML(), federation, plan=plan), simulate(FML(), federation)
    assert result.global_state is not None
    assert identical(result.global_state, loop.globals[2])
    assert sorted(map(str, result.history)) == sorted(map(str, loop.history))
    for client in result.clients:
        test = client.client.test
        probabilities = client.predictor(test.x)
        assert probabilities.sum(1).numpy() == pytest.approx(np.ones(len(test)), abs=1e-5)
        right = (probabilities.argmax(1) == test.y).double().mean().item()
        assert client.accuracy() == pytest.approx(right)
        assert client.predictor.labels(test.x)[0] == test.classes[int(probabilities[0].argmax())]
    assert result.mean_accuracy() == pytest.approx(np.mean([c.accuracy() for c in result.clients]))
    summary = result.summary()
    assert summary["bytes"] == {"up": loop.ledger.bytes("up"), "down": loop.ledger.bytes("down")}
    assert summary["global"]["accuracy"] == loop.history.last("global", "global", "test", "accuracy")


# What each reply counted


def _merged(run: Any) -> list[Merged]:
    return [event for event in run.events if isinstance(event, Merged)]


def test_who_was_merged_is_told_with_its_share(
    federate: Federate, simulate: Simulate, nets: SimpleNamespace
) -> None:
    """n_k / n over those whose reply was merged: a refused one is not among them."""
    sizes = {"a": 6, "b": 12, "c": 18}

    def spoil(round: int, client: str, message: Message) -> Message:
        if (round, client) != (2, "b"):
            return message
        broken = {name: array * float("nan") for name, array in message.arrays("meme").items()}
        return Message(**{**message, "meme": weights(broken)})

    run = simulate(FedAvg(), federate(list(sizes.values())), tamper=spoil)
    first, second = _merged(run)
    assert first.weights == pytest.approx({"a": 6 / 36, "b": 12 / 36, "c": 18 / 36})
    assert second.weights == pytest.approx({"a": 6 / 24, "c": 18 / 24})
    [even] = _merged(simulate(FML(), federate(list(sizes.values())), rounds=1))
    assert even.weights == pytest.approx(dict.fromkeys(sizes, 1 / 3))


def test_a_method_that_weights_nothing_tells_no_share(federate: Federate, simulate: Simulate) -> None:
    class Silent(FedAvg):
        def merge(self, server: Any, replies: Any) -> None:
            server.state["global"] = next(iter(replies.values())).arrays("meme")

    [told] = _merged(simulate(Silent(), federate([6, 12]), rounds=1))
    assert told.weights == {"a": None, "b": None}
    assert _merged(simulate(Independent(), federate([6, 12]), rounds=1)) == []
