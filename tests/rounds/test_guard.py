"""One bad reply costs nobody a model: what diverges is not kept, and a merge that makes all diverge is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mutua
from mutua import Federation, Kind, Message, Privacy, RunError
from mutua.data.public import Public, carve
from mutua.federation.saved_state import decode_state, encode_state
from mutua.federation.store import State, Store, not_finite
from mutua.methods import FML, FMLU, FedAvg, FedMD, FineTuned, Independent, Part, Participant, Schedule, weights
from mutua.rounds.events import Finished, Reached, Rejected, Stopped
from mutua.rounds.guard import LARGE_REPLY, Guard, too_long
from mutua.rounds.loop import Rounds
from mutua.rounds.state import RunState
from mutua.support.tensor_files import Tensors

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
Identical = Callable[[Tensors, Tensors], bool]
Members = Callable[[], Federation]
PLAN = {"rounds": 4, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}


def times(factor: float, *rounds: int, client: str = "c") -> Callable[[int, str, Message], Message]:
    """On the way, all real numbers of this client's replies become so many times as large."""

    def tamper(round: int, who: str, message: Message) -> Message:
        if who != client or round not in rounds:
            return message
        parts = {
            name: Part(part.kind, {k: a * factor if a.is_floating_point() else a for k, a in part.arrays.items()})
            for name, part in message.items()
            if part.kind in (Kind.WEIGHTS, Kind.SCORES)
        }
        return Message(**{**message, **parts})

    return tamper


@pytest.fixture
def members(federate: Federate, nets: SimpleNamespace) -> Members:
    """Clients whose models have no bounds: such as diverge on huge weights."""
    return lambda: federate(models=nets.wide, global_model=nets.wide)


def refused(run: Any) -> list[tuple[int, str]]:
    return [(event.round, event.client) for event in run.events if isinstance(event, Rejected)]


def all_finite(run: Any) -> bool:
    return all(
        bool(array.isfinite().all())
        for state in run.engine.kept.values()
        for g in state.values()
        for array in g.values()
    )


def same(one: State, two: State, identical: Identical) -> bool:
    return one.keys() == two.keys() and all(identical(one[group], two[group]) for group in one)


# A global that makes everybody diverge


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is refused for its size before somebody diverges."""
    monkeypatch.setattr("mutua.rounds.guard.HUGE_REPLY", float("inf"))


@pytest.mark.parametrize("factor", [1e4, 1e10, 1e30, -3e37])
@pytest.mark.parametrize("method", [FML(), FMLU(), FedAvg()], ids=lambda m: str(m.name))
def test_a_reply_that_cannot_be_honest_is_refused_at_once(
    method: Any, factor: float, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    run, at_once = (simulate(method, federate(), tamper=times(f, 2), **PLAN) for f in (factor, float("nan")))
    assert refused(run) == refused(at_once) == [(2, "c")]
    (why,) = (event.reason for event in run.events if isinstance(event, Rejected))
    assert why.startswith("its reply is ") and why.endswith(" times as long as the median")
    for at, state in at_once.engine.kept.items():
        assert same(run.engine.kept[at], state, identical), at


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("factor", [1e30, -3e37])
@pytest.mark.parametrize("method", [FML(), FMLU(), FedAvg(serve="local")], ids=lambda m: str(m.name))
def test_a_huge_reply_is_refused_when_others_diverge_on_it_as_if_it_had_been_at_once(
    method: Any, factor: float, members: Members, simulate: Simulate, identical: Identical
) -> None:
    run = simulate(method, members(), tamper=times(factor, 2), **PLAN)
    at_once = simulate(method, members(), tamper=times(float("nan"), 2), **PLAN)
    assert isinstance(run.events[-1], Finished)
    assert refused(run) == refused(at_once) == [(2, "c")]
    (why,) = (event.reason for event in run.events if isinstance(event, Rejected))
    assert "times as long as the median; " in why and "of 2 clients diverged on what was merged of it" in why
    assert all_finite(run)
    for at, state in at_once.engine.kept.items():
        if at[0] > 2:
            assert same(run.engine.kept[at], state, identical), at
    assert identical(run.server.state["global"], at_once.server.state["global"])


@pytest.mark.usefixtures("late")
def test_who_goes_on_lying_is_refused_every_time_from_then_on(members: Members, simulate: Simulate) -> None:
    run = simulate(FML(), members(), tamper=times(1e30, 2, 3, 4), **PLAN)
    assert refused(run) == [(2, "c"), (3, "c"), (4, "c")]
    assert all_finite(run) and not_finite(run.server.state, {}) is None


@pytest.mark.usefixtures("late")
def test_even_a_liar_whose_own_reply_still_comes_is_found(members: Members, simulate: Simulate) -> None:
    """It never looks at what it is sent, so it does not diverge as the others do."""

    class Liar(FML):
        def train(self, client: Participant, brief: Message | None) -> Message | None:
            assert brief is not None
            if client.id == "c":
                return Message(
                    meme=weights({k: torch.full_like(a, 1e30) for k, a in brief.arrays("global").items()})
                )
            return super().train(client, brief)

    run = simulate(Liar(), members(), **PLAN)
    assert [who for _, who in refused(run)] == ["c"] * 4
    assert all_finite(run)


@pytest.mark.usefixtures("late")
def test_from_wherever_it_is_resumed_the_bytes_are_the_same(
    members: Members, simulate: Simulate, identical: Identical
) -> None:
    """Also between the bad merge and its discovery: what is needed to undo it is in the checkpoint."""
    whole = simulate(FML(), members(), tamper=times(1e30, 2, 3), **PLAN)
    for round in range(5):
        (reached,) = (e.run_state for e in whole.events if isinstance(e, Reached) and e.run_state.round == round)
        again = simulate(FML(), members(), tamper=times(1e30, 2, 3), go=False, **PLAN)
        first = simulate(FML(), members(), tamper=times(1e30, 2, 3), go=False, **PLAN)
        stopped = stop_after(first, round)
        saved = decode_state(b"".join(bytes(piece) for piece in encode_state(stopped.server, round=round)))[0]
        assert same(saved, reached.server, identical)
        again.engine.open(again.job, again.federation, stopped.stores)
        rest = type(again)(again.prepared, again.engine, run_state=replace(stopped, server=saved))
        rest.run()
        assert identical(rest.server.state["global"], whole.server.state["global"]), round
        for client in "abc":
            assert same(again.engine.stores[client].state, whole.engine.kept[5, client], identical), round


def stop_after(run: Rounds, round: int) -> RunState:
    found: list[RunState] = []

    def stop(event: Any) -> None:
        if isinstance(event, Reached) and event.run_state.round == round:
            raise KeyboardInterrupt
        if isinstance(event, Stopped):
            found.append(event.run_state)

    run.callbacks = [stop]
    with pytest.raises(KeyboardInterrupt):
        run.run()
    return found[0]


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("workers", [1, 2])
def test_in_python_and_in_any_process(workers: int, members: Members) -> None:
    class Liar(FML):
        def reply(self, client: Participant, meme: Any) -> Message:
            reply = super().reply(client, meme)
            return times(1e30, 2)(client.round, client.id, reply)

    events: list[Any] = []
    result = mutua.run(Liar(), members(), rounds=4, workers=workers, device="cpu", callbacks=[events.append])
    assert [(e.round, e.client) for e in events if isinstance(e, Rejected)] == [(2, "c")]
    assert all(client.accuracy() is not None for client in result.clients)


# Divergence that is nobody else's fault


class Sick(FML):
    def train(self, client: Participant, brief: Message | None) -> Message | None:
        reply = super().train(client, brief)
        if (client.id, client.round) == ("b", 2):
            client.state["personal"] = {k: a * float("nan") for k, a in client.state["personal"].items()}
        return reply


def test_a_client_that_diverges_alone_keeps_its_last_good_state_and_is_named(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    run = simulate(Sick(), federate(), **PLAN)
    (event,) = (event for event in run.events if isinstance(event, Rejected))
    said = "its training diverged: personal 'body.weight' would hold NaN or infinity; is optimizer.lr too high?"
    assert (event.round, event.client, event.reason) == (2, "b", said)
    assert same(run.engine.kept[2, "b"], run.engine.kept[1, "b"], identical)
    assert all_finite(run)


@pytest.mark.parametrize("base", [FML, FedAvg, Independent], ids=lambda m: str(m.name))
def test_where_all_diverge_the_run_stops_with_what_was_good(
    base: Any, federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    class Exploding(base):  # type: ignore[misc]
        by: Schedule = 1.0

        def objective(self, models: Any, batch: Any, hp: Any) -> Any:
            return {name: term * hp.by for name, term in super().objective(models, batch, hp).items()}

    method = Exploding(by=[1, 1, 1e38])
    run = simulate(method, federate(), go=False, rounds=3)
    with pytest.raises(RunError, match=r"^round 3: every client failed; a: its training diverged: ") as error:
        run.run()
    assert ("; of the replies merged before, none is far longer" in str(error.value)) == bool(method.shares)
    stopped = run.events[-1]
    assert isinstance(stopped, Stopped) and stopped.run_state.round == 2
    assert all_finite(run)
    for client in "abc":
        assert same(stopped.run_state.stores[client].state, run.engine.kept[2, client], identical)


def test_a_round_of_refused_replies_leaves_everybody_where_they_were_and_can_be_done_again(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    def spoil(round: int, client: str, message: Message) -> Message:
        return times(float("nan"), 2, client=client)(round, client, message)

    run = simulate(FML(), federate(), tamper=spoil, go=False, **PLAN)
    with pytest.raises(RunError, match=r"^round 2: 0 of 3 replies .*; refused: a: .*; b: .*; c: .* hold NaN"):
        run.run()
    stopped = run.events[-1]
    assert isinstance(stopped, Stopped) and stopped.run_state.round == 1
    assert [store.commits[-1].round for store in stopped.run_state.stores.values()] == [1, 1, 1]
    whole, again = simulate(FML(), federate(), **PLAN), simulate(FML(), federate(), go=False, **PLAN)
    again.engine.open(again.job, again.federation, stopped.run_state.stores)
    rest = type(again)(again.prepared, again.engine, run_state=stopped.run_state)
    rest.run()
    assert identical(rest.server.state["global"], whole.server.state["global"])


def test_under_privacy_a_refused_reply_is_sent_again_as_it_was_not_noised_anew(
    federate: Federate, simulate: Simulate, identical: Identical
) -> None:
    """Two noises on one round's work would cost twice the ε that is counted."""

    def spoil(round: int, client: str, message: Message) -> Message:
        return times(float("nan"), 2, client=client)(round, client, message)

    plan = {**PLAN, "privacy": Privacy(clip=1.0, noise=1.0)}
    run = simulate(FML(), federate(), tamper=spoil, go=False, **plan)
    with pytest.raises(RunError, match=r"^round 2: 0 of 3 replies could be merged"):
        run.run()
    run_state = run.events[-1].run_state
    sent = {client: store.commits[-1].reply for client, store in run_state.stores.items()}
    again = simulate(FML(), federate(), go=False, **plan)
    again.engine.open(again.job, again.federation, run_state.stores)
    type(again)(again.prepared, again.engine, run_state=run_state).run()
    for client, message in sent.items():
        assert identical(again.engine.replies[2, client].message.arrays("meme"), message.arrays("meme"))


def test_a_merge_that_is_not_finite_is_not_kept(federate: Federate, simulate: Simulate) -> None:
    class Odd(FML):
        def merge(self, server: Any, replies: Any) -> None:
            super().merge(server, replies)
            if "velocity" in server.state:
                server.state["global"] = {k: a / 0 for k, a in server.state["global"].items()}
            server.state["velocity"] = {}

    run = simulate(Odd(), federate(), go=False, **PLAN)
    with pytest.raises(RunError, match=r"^round 2: global 'body.weight' of the merged would hold NaN"):
        run.run()
    assert not_finite(run.server.state, {}) is None
    assert run.events[-1].run_state.round == 1


def test_masks_of_infinity_are_no_divergence() -> None:
    mask = torch.tensor([0.0, -torch.inf])
    state = {"personal": {"mask": mask, "w": torch.ones(2)}}
    assert not_finite(state, {}) is None
    assert not_finite({"personal": {"mask": mask.clone()}}, state) is None
    assert not_finite({"personal": {"w": mask}}, state) == "personal 'w'"
    assert not_finite({"personal": {"w": torch.tensor([torch.nan, 0])}}, {}) == "personal 'w'"
    assert not_finite({"personal": {"w": torch.full((9,), 3e38)}}, state) is None  # whose sum overflows


def test_who_is_suspect_and_how_it_is_saved() -> None:
    sent = {"a": 1.0, "b": 2.0, "c": 21.0, "d": 3e38}
    replies = {client: Message(meme=weights({"w": torch.full((4,), v)})) for client, v in sent.items()}
    found = too_long({c: replies[c] for c in "abc"}, LARGE_REPLY)
    assert found == pytest.approx({"c": 10.5})
    assert list(too_long(replies, LARGE_REPLY)) == ["c", "d"]
    assert too_long({}, LARGE_REPLY) == {} == too_long({"a": replies["d"]}, LARGE_REPLY)
    guard = Guard(True, {"c": 10.5}, {"global": {"w": torch.ones(2)}, "velocity": {}})
    state, back = Guard.loaded(guard.saved({"global": {"w": torch.zeros(2)}}))
    assert list(state) == ["global"] and back.up and back.suspects == guard.suspects
    assert back.spare is not None and list(back.spare) == ["global", "velocity"]
    assert Guard.loaded(state)[1] == Guard()


# Scores


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("every", [1, 1000])
def test_fedmd_refuses_the_huge_scores_and_not_the_honest_clients(
    at_once: bool,
    every: int,
    federate: Federate,
    simulate: Simulate,
    identical: Identical,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once or, where the limit is higher, when the others diverge on what came of them."""
    if not at_once:
        monkeypatch.setattr("mutua.rounds.guard.HUGE_REPLY", float("inf"))
    federation = federate([13, 16, 11], global_model=None)
    split = {client.id: carve(client.train, 4, 0, client.id) for client in federation.clients}
    clients = tuple(replace(client, train=split[client.id][0]) for client in federation.clients)
    federation = replace(federation, clients=clients, public=Public({k: v for k, (_, v) in split.items()}))
    method = FedMD(digest="mse", public_epochs=1, private_epochs=1)
    runs = []
    for factor in (1e30, float("nan")):
        tamper = times(factor, 2, 3)
        runs.append(simulate(method, federation, tamper=tamper, rounds=3, evaluate_every=every))
    run, honest = runs
    assert all_finite(run)
    assert refused(run) == [(2, "c"), (3, "c")]
    for client in "abc":
        assert same(run.engine.kept[4, client], honest.engine.kept[4, client], identical)


def test_one_who_diverges_beside_a_liar_is_not_blamed(
    members: Members, simulate: Simulate, identical: Identical
) -> None:
    """That some stay finite on what came of the lie is luck; who does not is not at fault."""

    class Frail(FML):
        def train(self, client: Participant, brief: Message | None) -> Message | None:
            reply = super().train(client, brief)
            assert brief is not None
            largest = max(float(array.abs().max()) for array in brief.arrays("global").values())
            if client.id == "a" and largest > 10:
                client.state["personal"] = {k: a * float("nan") for k, a in client.state["personal"].items()}
            return reply

    run, at_once = (simulate(Frail(), members(), tamper=times(f, 2), **PLAN) for f in (100.0, float("nan")))
    assert refused(run) == refused(at_once) == [(2, "c")]
    assert identical(run.server.state["global"], at_once.server.state["global"])


@pytest.mark.parametrize("base", [FML, FedAvg], ids=lambda m: str(m.name))
def test_broken_off_before_the_lie_is_found_the_bytes_are_the_same(
    base: Any, members: Members, simulate: Simulate, identical: Identical
) -> None:
    """Who has done that round's work must be able to do it again: a checkpoint holds one commit of each."""
    stop = [False]

    class Frail(base):  # type: ignore[misc]
        def train(self, client: Participant, brief: Message | None) -> Message | None:
            assert brief is not None
            largest = max(float(array.abs().max()) for array in brief.arrays("global").values())
            reply = super().train(client, brief)
            if client.id == "b" and largest > 10:
                if stop[0]:
                    raise KeyboardInterrupt
                client.state["odd"] = {"": torch.tensor(float("nan"))}
            return reply

    whole = simulate(Frail(), members(), tamper=times(100.0, 2), **PLAN)
    assert refused(whole) == [(2, "c")]
    stop[0] = True
    first = simulate(Frail(), members(), tamper=times(100.0, 2), go=False, **PLAN)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    stop[0] = False
    stopped = first.events[-1].run_state
    assert stopped.round == 2
    stores = {client: Store(store.commits[-1:]) for client, store in stopped.stores.items()}
    again = simulate(Frail(), members(), tamper=times(100.0, 2), go=False, **PLAN)
    again.engine.open(again.job, again.federation, stores)
    rest = type(again)(again.prepared, again.engine, run_state=replace(stopped, stores=stores))
    rest.run()
    assert identical(rest.server.state["global"], whole.server.state["global"])
    assert list(rest.participation) == list(whole.participation)
    assert list(rest.ledger) == list(whole.ledger)


def test_a_lie_is_not_laid_to_a_round_in_which_nobody_sent_anything(members: Members, simulate: Simulate) -> None:
    class EverySecond(FML):
        def train(self, client: Participant, brief: Message | None) -> Message | None:
            reply = super().train(client, brief)
            if client.id == "a" and client.round == 4:
                client.state["odd"] = {"": torch.tensor(float("nan"))}
            return None if client.round == 3 else reply

    run = simulate(EverySecond(), members(), tamper=times(100.0, 2), **PLAN)
    assert isinstance(run.events[-1], Finished)
    assert refused(run) == [(4, "a")]


def test_a_method_may_call_a_part_of_the_servers_state_as_it_likes() -> None:
    state = {"global": {"w": torch.ones(2)}, "guardian": {"w": torch.zeros(2)}}
    back, guard = Guard.loaded(Guard(True, {"c": 1234.56789}).saved(state))
    assert list(back) == ["global", "guardian"]
    assert guard.suspects == {"c": 1234.56789}  # to the last bit: it stands in what a resumed run says


def test_what_is_opted_out_does_not_decide_whether_a_merge_is_undone(
    members: Members, simulate: Simulate, identical: Identical
) -> None:
    """After the last round clients train on all of their data: that some diverge then changes no global."""

    def told(secret: float) -> Any:
        federation = members()
        first, *others = federation.clients
        x, opt_in = first.train.x.clone(), torch.arange(len(first.train)) > 0
        x[0] = secret
        # Without val nothing is stopped early, nor is what was best put back.
        first = replace(first, train=replace(first.train, x=x), val=first.val.take([]), opt_in=opt_in)
        return simulate(FineTuned(), replace(federation, clients=(first, *others)), tamper=times(100.0, 4), **PLAN)

    calm, wild = told(0.0), told(3e38)
    assert refused(calm) == [] and (5, "a") in refused(wild)
    assert identical(wild.server.state["global"], calm.server.state["global"])


PRIVATE = {"privacy": Privacy(clip=1.0, noise=1e-3)}


@pytest.mark.parametrize(("more", "there"), [({}, True), ({"min_replies": 3}, False), (PRIVATE, False)])
def test_what_a_merge_could_be_undone_to_is_kept_only_where_it_may_be(
    more: dict[str, Any], there: bool, members: Members, simulate: Simulate
) -> None:
    """Not of too few replies; nor under privacy, where both would have to be counted."""
    run = simulate(FML(), members(), tamper=times(100.0, 2), **PLAN, **more)
    (after,) = (e.run_state for e in run.events if isinstance(e, Reached) and e.run_state.round == 2)
    assert ("guard spare global" in after.server) == there


def test_under_privacy_no_reply_is_refused_for_its_length(members: Members, simulate: Simulate) -> None:
    """Updates are bounded: how they differ beyond that is not to be told."""
    run = simulate(FML(), members(), tamper=times(1e4, 2), **PLAN, **PRIVATE)
    assert refused(run) == [] and run.participation.merged[2] == 3


def test_under_privacy_a_client_that_diverges_keeps_its_state_and_replies_all_the_same(
    members: Members, simulate: Simulate, identical: Identical
) -> None:
    run = simulate(Sick(), members(), **PLAN, **PRIVATE)
    assert refused(run) == [] and run.participation.merged == dict.fromkeys(range(1, 5), 3)
    assert same(run.engine.kept[2, "b"], run.engine.kept[1, "b"], identical)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("at_once", [True, False])
def test_who_is_refused_late_counts_as_refused_once(at_once: bool, members: Members, simulate: Simulate) -> None:
    """When its merge is not finite, or when others diverge on it."""

    class Odd(FML):
        def merge(self, server: Any, replies: Any) -> None:
            super().merge(server, replies)
            if at_once and "c" in replies and float(replies["c"].arrays("meme")["head.bias"].abs().max()) > 1e9:
                server.state["global"] = {k: a * float("nan") for k, a in server.state["global"].items()}

    run = simulate(Odd(), members(), tamper=times(1e30, 2), **PLAN)
    assert run.participation.merged == {1: 3, 2: 2, 3: 3, 4: 3}
    mine = run.participation.of("c")
    assert (mine.asked, mine.answered, list(mine.refused.values())) == (4, 3, [[2]])
    outcomes = [turn.outcome for turn in run.participation if turn[:2] == (2, "c")]
    assert outcomes == (["refused"] if at_once else ["merged", "undone"])


@pytest.mark.parametrize("tuned", [True, False])
def test_a_merge_undone_in_the_last_evaluation_leaves_no_last_work_done_on_it(
    tuned: bool, members: Members, simulate: Simulate, identical: Identical
) -> None:
    """What the others' predictors diverge on was fit for their last work: that is done again, on what is good."""

    class Frail(FineTuned):
        def predictor(self, client: Participant, brief: Message | None) -> Any:
            assert brief is not None
            largest = max(float(array.abs().max()) for array in brief.arrays("global").values())
            if client.id != "c" and largest > 10:
                client.state["odd"] = {"": torch.tensor(float("nan"))}
            return super().predictor(client, brief)

        def finish(self, client: Participant, brief: Message | None) -> None:
            if tuned:
                super().finish(client, brief)
            elif client.id == "b":  # whoever fails in it is told of once
                raise ValueError("out of luck")

    run, at_once = (simulate(Frail(), members(), tamper=times(f, 4), **PLAN) for f in (100.0, float("nan")))
    assert isinstance(run.events[-1], Finished)
    assert refused(run) == refused(at_once) == [(4, "c")] + [(5, "b")] * (not tuned)
    for client in "abc":
        assert same(run.engine.kept[5, client], at_once.engine.kept[5, client], identical)
    assert list(run.history) == list(at_once.history)
    after = [[turn for turn in one.participation if turn.round == 5] for one in (run, at_once)]
    assert after[0] == after[1]


@pytest.mark.filterwarnings("ignore::mutua.errors.LeftOut")
def test_a_result_whose_last_merge_was_undone_becomes_longer(members: Members) -> None:
    class Frail(FineTuned):
        def train(self, client: Participant, brief: Message | None) -> Message | None:
            reply = super().train(client, brief)
            self.shaken(client, brief)
            assert reply is not None
            return times(100.0, 2)(client.round, client.id, reply)

        def finish(self, client: Participant, brief: Message | None) -> None:
            self.shaken(client, brief)

        def shaken(self, client: Participant, brief: Message | None) -> None:
            assert brief is not None
            largest = max(float(array.abs().max()) for array in brief.arrays("global").values())
            if client.id != "c" and largest > 10:
                client.state["odd"] = {"": torch.tensor(float("nan"))}

    plan: dict[str, Any] = {"workers": 1, "progress": False, "device": "cpu"}
    short, planned = (mutua.run(Frail(), members(), rounds=rounds, **plan) for rounds in (2, 4))
    longer = short.extend(rounds=4)
    assert [turn.outcome for turn in short.participation if turn[:2] == (2, "c")] == ["merged", "undone"]
    for log in ("history", "ledger", "participation"):
        assert list(getattr(longer, log)) == list(getattr(planned, log)), log


# Two, of whom nobody knows which is wrong


@pytest.mark.parametrize("factor", [1e-4, 1e4])
@pytest.mark.parametrize("method", [FML(), FedAvg(), FML(max_norm_ratio=10)], ids=["fml", "fedavg", "by option"])
def test_of_two_none_is_refused_for_being_longer(
    method: Any, factor: float, federate: Federate, simulate: Simulate
) -> None:
    """Else one that sends next to nothing would have the honest one refused."""
    run = simulate(method, federate([9, 12]), tamper=times(factor, 2, 3, client="b"), **PLAN)
    assert refused(run) == [] and run.participation.merged == dict.fromkeys(range(1, 5), 2)


def test_of_two_none_is_taken_out_again(federate: Federate, simulate: Simulate) -> None:
    """Who sends next to nothing and then says that it diverged does not have the other undone."""

    class Liar(FedAvg):
        def train(self, client: Participant, brief: Message | None) -> Message | None:
            reply = super().train(client, brief)
            if (client.id, client.round) == ("b", 3):
                client.state["odd"] = {"": torch.tensor(float("nan"))}
            return reply

    run = simulate(Liar(), federate([9, 12]), tamper=times(1e-4, 2, client="b"), **PLAN)
    assert refused(run) == [(3, "b")] and "undone" not in [turn.outcome for turn in run.participation]


def test_three_are_compared(federate: Federate, simulate: Simulate) -> None:
    run = simulate(FML(), federate([9, 12, 7]), tamper=times(1e-4, 2, client="b"), **PLAN)
    assert refused(run) == []  # the shortest is not the median
    assert refused(simulate(FML(), federate([9, 12, 7]), tamper=times(1e4, 2), **PLAN)) == [(2, "c")]
