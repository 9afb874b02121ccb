"""Sites on a network, without the network: requests go to `Site` objects as bytes, and come back as bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mutua import Federation, Plan
from mutua.engines.network import NetworkEngine
from mutua.engines.site import FAILED, Site
from mutua.engines.site_requests import BadHeader, SiteAnswer, SiteRequest
from mutua.errors import RunError
from mutua.federation.message import Message
from mutua.federation.site_ledger import check_chain, entries
from mutua.federation.site_policy import SitePolicy
from mutua.methods import FML, FedAvg
from mutua.rounds.loop import Rounds
from mutua.rounds.preparation import prepare
from mutua.seeds import private

Federate = Callable[..., Federation]
Simulate = Callable[..., Any]
RUN, AGREED = "0123456789abcdef", "what all agree on"


@dataclass
class Wire:
    """A line that carries bytes, keeps them, and may lose a site or deliver twice."""

    sites: dict[str, Callable[[], Site]]
    carried: dict[tuple[str, int, str], bytes] = field(default_factory=dict)
    """By verb, round and client, the body that came back."""
    gone: Callable[[str, SiteRequest], bool] = lambda client, request: False
    twice: bool = False

    def here(self) -> set[str]:
        return set(self.sites)

    def ask(self, requests: Mapping[str, SiteRequest], wait: float) -> dict[str, SiteAnswer]:
        answers = {}
        for client, request in requests.items():
            if self.gone(client, request):
                continue
            for _ in range(2 if self.twice else 1):
                found = self.sites[client]().answer(SiteRequest.of(request.header, request.body))
            answers[client] = SiteAnswer.of(found.header, found.body)
            self.carried[request.verb, request.round, client] = found.body
        return answers


@dataclass
class Sites:
    """A federation whose clients are sites: each with a folder, known to the others by messages alone."""

    federation: Federation
    method: Any
    place: Path
    policies: dict[str, SitePolicy] = field(default_factory=dict)
    restarts: bool = False
    """Whether a site begins anew, from its folder, for every request."""
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prepared = prepare(self.method, self.federation, Plan(**self.settings))
        self._made: dict[str, Site] = {}
        self.wire = Wire(
            {client.id: (lambda name=client.id: self.site(name)) for client in self.federation.clients}
        )

    def site(self, name: str) -> Site:
        if name not in self._made or self.restarts:
            client = self.prepared.federation[name]
            client = replace(client, seed=private(self.prepared.job.plan.seed, name))
            folder = self.place / name
            folder.mkdir(exist_ok=True)
            policy = self.policies.get(name, SitePolicy(report=("all",)))
            self._made[name] = Site(self.prepared.job, client, policy, AGREED, folder)
        return self._made[name]

    def run(self) -> Rounds:
        engine = NetworkEngine(self.wire, RUN, AGREED, wait=0)
        self.wrong = engine.hello(sorted(self.wire.sites))
        engine.open(self.prepared.job, self.prepared.federation)
        rounds = Rounds(self.prepared, engine)
        rounds.run()
        return rounds


@pytest.fixture
def sites(federate: Federate, nets: SimpleNamespace, tmp_path: Path) -> Callable[..., Sites]:
    def make(method: Any = None, **given: Any) -> Sites:
        federation = given.pop("federation", None) or federate(
            [9, 12, 7], models=[nets.linear, nets.wide, nets.normed]
        )
        own = {name: given.pop(name) for name in ("policies", "restarts") if name in given}
        settings = {
            "rounds": 3,
            "batch_size": 4,
            "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
            **given,
        }
        return Sites(federation, method or FML(), tmp_path, settings=settings, **own)

    return make


def assert_same_run(made: Sites, there: Rounds, here: Any) -> None:
    """The bytes of a simulation: of the global and of what each client keeps; and the rows of the ledger."""
    assert Message(x=_weights(there.server.state)) == Message(x=_weights(here.server.state))
    assert [*there.ledger] == [*here.ledger]
    for client in made.federation.clients:
        kept, own = made.site(client.id).store(RUN).state, here.engine.stores[client.id].state
        assert kept.keys() == own.keys()
        assert all(
            Message(x=_weights({"g": kept[g]}, "g")) == Message(x=_weights({"g": own[g]}, "g")) for g in own
        )


def merged(run: Rounds, client: str) -> int:
    return sum(row.client == client and row.outcome == "merged" for row in run.participation)


def _weights(state: Mapping[str, Any], group: str = "global") -> Any:
    from mutua.federation.message import weights

    return weights(state.get(group, {}))


@pytest.mark.parametrize("restarts", [False, True], ids=["resident", "restarted for every request"])
@pytest.mark.parametrize("method", [FML(), FedAvg()], ids=["fml", "fedavg"])
def test_sites_compute_what_a_simulation_computes(
    sites: Callable[..., Sites], simulate: Simulate, method: Any, restarts: bool, federate: Federate
) -> None:
    federation = federate([9, 12, 7]) if method.name == "fedavg" else None
    made = sites(method, restarts=restarts, federation=federation)
    there = made.run()
    here = simulate(method, made.federation, **made.settings)
    assert_same_run(made, there, here)
    assert made.wrong == {}


def test_a_site_that_tells_everything_makes_the_same_history(
    sites: Callable[..., Sites], simulate: Simulate
) -> None:
    """But for the global on the common test set, which nobody has."""
    made = sites()
    there, here = made.run(), simulate(FML(), made.federation, **made.settings)
    rows = [row for row in here.history if row.client != "global"]
    assert sorted(there.history) == sorted(rows)


def test_a_site_that_says_nothing_tells_no_number(sites: Callable[..., Sites]) -> None:
    made = sites(policies=dict.fromkeys("abc", SitePolicy()))
    assert len(made.run().history) == 0
    assert not any(verb == "evaluate" for verb, _, _ in made.wire.carried)
    headers = [
        json.loads(entry.told) for client in "abc" for entry in entries(made.place / client / "ledger.jsonl")
    ]
    assert {name for header in headers for name in header["facts"]} == {"mutua", "takes_part", "opting", "reports"}


def test_requests_that_come_twice_change_nothing(sites: Callable[..., Sites], simulate: Simulate) -> None:
    made = sites()
    made.wire.twice = True
    assert_same_run(made, made.run(), simulate(FML(), made.federation, **made.settings))


def test_the_ledger_has_the_hash_and_size_of_every_message(sites: Callable[..., Sites]) -> None:
    made = sites()
    made.run()
    for client in "abc":
        path = made.place / client / "ledger.jsonl"
        kept = {(entry.verb, entry.round): entry for entry in entries(path)}
        for (verb, round, who), body in made.wire.carried.items():
            if who == client:
                entry = kept[verb, round]
                assert (entry.bytes, entry.sha256) == (len(body), hashlib.sha256(body).hexdigest())
                assert sum(entry.parts.values()) == len(body)
        chain = check_chain(path)
        assert (chain.good, chain.wrong) == (len(path.read_bytes().splitlines()), None)


def test_nothing_of_a_personal_model_or_of_a_sample_leaves(sites: Callable[..., Sites]) -> None:
    made = sites()
    made.run()
    sent = b"".join(made.wire.carried.values())
    for client in made.federation.clients:
        for name, array in made.site(client.id).store(RUN).state["personal"].items():
            if array.numel() > 1:
                assert array.numpy().tobytes() not in sent, name
        for sample in client.train.x:
            assert sample.numpy().tobytes() not in sent


def test_a_late_site_begins_with_its_first_request(sites: Callable[..., Sites]) -> None:
    made = sites()
    made.wire.gone = lambda client, request: client == "b" and request.round < 2
    there = made.run()
    assert merged(there, "b") == 2
    assert made.site("b").store(RUN).committed(4) is not None


def test_an_absent_site_goes_on_from_its_last_round(sites: Callable[..., Sites]) -> None:
    made = sites(rounds=4)
    made.wire.gone = lambda client, request: client == "c" and request.round in (2, 3)
    there = made.run()
    assert [row.outcome for row in there.participation if row.client == "c"].count("failed") == 2
    assert made.site("c").store(RUN).committed(4) is not None


REFUSALS = {
    "policy.may_leave: weights 'meme' would leave": SitePolicy(may_leave=()),
    "policy.bytes_per_round: ": SitePolicy(bytes_per_round=10),
    "policy.bytes_in_all: ": SitePolicy(bytes_in_all=10),
    "policy.partners: 2 other sites in this round; this site asks for 3": SitePolicy(partners=3),
    "policy.privacy: this site asks for differential privacy": SitePolicy(privacy={"noise": 1}),
}


@pytest.mark.parametrize("said", REFUSALS)
def test_a_policy_keeps_everything_at_home(sites: Callable[..., Sites], said: str) -> None:
    """Both sides say it in one line, nothing is committed, and the others go on."""
    made = sites(policies={"b": REFUSALS[said]})
    there = made.run()
    reasons = {row.reason for row in there.participation if row.client == "b" and row.outcome == "failed"}
    assert all(reason.startswith(f"the site refused: {said}") for reason in reasons)
    assert reasons
    assert all(not body for (_, _, client), body in made.wire.carried.items() if client == "b")
    told = [json.loads(entry.told) for entry in entries(made.place / "b" / "ledger.jsonl")]
    assert said in "\n".join(header["reason"] for header in told)
    assert merged(there, "a") == 3


def test_bytes_in_all_end_after_a_round(sites: Callable[..., Sites]) -> None:
    made = sites(policies={"b": SitePolicy(bytes_in_all=10**9)})
    made.run()
    [size] = {
        len(body) for (verb, _, client), body in made.wire.carried.items() if (verb, client) == ("train", "b")
    }
    again = sites(policies={"b": SitePolicy(bytes_in_all=2 * size)}, federation=made.federation)
    again.place = made.place / "again"
    again.place.mkdir()
    there = again.run()
    assert merged(there, "b") == 2
    assert there.ledger.bytes("up", "b") == 2 * size


def test_numbers_of_evaluations_count_as_bytes(sites: Callable[..., Sites]) -> None:
    """Without room for them they stay at home, even if the site reports; a repeat does not count twice."""
    made = sites(policies={"b": SitePolicy(report=("all",))})
    made.run()
    sizes = {(verb, at): len(body) for (verb, at, client), body in made.wire.carried.items() if client == "b"}
    assert sizes["evaluate", 2]
    most = max(sum(size for (_, at), size in sizes.items() if at == round) for round in (1, 2, 3))
    assert most > max(sizes.values())
    for number, room in (("less", -1), ("enough", 0)):
        policy = SitePolicy(report=("all",), bytes_per_round=most + room)
        again = sites(policies={"b": policy}, federation=made.federation)
        again.wire.twice = True
        again.place = made.place / number
        again.place.mkdir()
        there = again.run()
        told = [json.loads(entry.told)["ending"] for entry in entries(again.place / "b" / "ledger.jsonl")]
        assert ("refused" in told) is (room < 0)
        assert merged(there, "b") == 3


def test_another_recipe_is_refused_before_anything_is_trained(sites: Callable[..., Sites]) -> None:
    made = sites()
    answer = made.site("a").answer(SiteRequest("train", RUN, "something else", 1, 2))
    assert (answer.ending, answer.body) == ("refused", b"")
    assert "another recipe" in answer.reason
    assert not (made.place / "a" / "state").exists()


@pytest.mark.parametrize("run", ["", "../../etc", "0123456789ABCDEF", "0123456789abcdef\n"])
def test_a_run_names_no_folder_of_its_own_choice(sites: Callable[..., Sites], run: str) -> None:
    assert sites().site("a").answer(SiteRequest("train", run, AGREED, 1)).ending == "refused"


def test_a_round_that_is_not_in_the_recipe_is_refused(sites: Callable[..., Sites]) -> None:
    made = sites()
    assert "the run has 3" in made.site("a").answer(SiteRequest("train", RUN, AGREED, 5)).reason


def test_an_error_tells_nothing_of_the_data(sites: Callable[..., Sites], monkeypatch: pytest.MonkeyPatch) -> None:
    made = sites()

    def raises(*given: Any) -> None:
        raise ValueError("patient 4711 has a bad value")

    monkeypatch.setattr(FML, "train", raises)
    with pytest.raises(RunError, match="every client failed"):
        made.run()
    told = [entry.told for client in "abc" for entry in entries(made.place / client / "ledger.jsonl")]
    assert any(FAILED in header for header in told)
    assert not any("4711" in header for header in told)


# The ledger


@pytest.fixture
def ledger(sites: Callable[..., Sites]) -> Path:
    made = sites()
    made.run()
    return made.place / "a" / "ledger.jsonl"


def test_one_changed_byte_anywhere_is_found(ledger: Path) -> None:
    data = ledger.read_bytes()
    ends = [i for i, byte in enumerate(data) if byte == 10]
    for at in range(0, len(data), 7):
        for other in (data[at] ^ 1, 32):
            if other == data[at]:
                continue
            ledger.write_bytes(data[:at] + bytes([other]) + data[at + 1 :])
            line = sum(end < at for end in ends) + 1
            found = check_chain(ledger)
            assert found.good == line - 1
            assert found.wrong is not None or at == ends[-1]
            if found.wrong is not None:
                assert found.wrong.startswith((f"line {line}: ", f"line {line + 1}: "))


def test_a_removed_or_moved_entry_is_found(ledger: Path) -> None:
    lines = ledger.read_bytes().splitlines(keepends=True)
    for changed in (
        lines[1:],
        [*lines[:2], *lines[3:]],
        [lines[1], lines[0], *lines[2:]],
        [*lines[:2], *lines[1:]],
    ):
        ledger.write_bytes(b"".join(changed))
        assert "does not follow" in str(check_chain(ledger).wrong)


def test_a_changed_ledger_is_not_continued(sites: Callable[..., Sites]) -> None:
    made = sites(restarts=True)
    made.run()
    path = made.place / "a" / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round":1', b'"round":2', 1))
    with pytest.raises(RunError, match="it has been changed"):
        made.site("a")


def test_a_half_written_entry_was_not_sent_and_is_removed(sites: Callable[..., Sites]) -> None:
    made = sites(restarts=True)
    made.run()
    path = made.place / "a" / "ledger.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"entry":99,"ti')
    assert check_chain(path).wrong is None
    made.site("a")
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "header",
    ["", "[]", "{}", "null", "x" * 2**21, SiteRequest("hello", RUN, AGREED).header.replace("hello", "steal")],
)
def test_headers_of_strangers_are_refused(header: str) -> None:
    with pytest.raises(BadHeader):
        SiteRequest.of(header, b"")
    with pytest.raises(BadHeader):
        SiteAnswer.of(header, b"")
