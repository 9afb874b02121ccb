"""What a method promises of privacy and of opting out: it counts only for code that the promise was made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

import mutua
from mutua import Federation, InputError
from mutua.federation.privacy import Privacy
from mutua.methods import FML, FedAvg, FineTuned, Hub, base, supervised
from mutua.methods.promises import promised
from mutua.rounds.privacy_guarantee import check_privacy

Federate = Callable[..., Federation]
EXAMPLE = Privacy(level="example", clip=1.0, noise=1.0)
PROMISES = ("only_own_gradients", "honours_opt_out")


class Bleeds(FedAvg):
    """Its personal model learns every sample without noise, and leaves as the meme."""

    name: ClassVar[str] = "bleeds"

    def start(self, client: Any) -> None:
        client.initialise("personal", like="global")

    def train(self, client: Any, brief: Any) -> Any:
        client.fit(supervised, {"personal": client.model("personal")})
        meme = client.fork(brief)
        meme.load_state_dict(client.model("personal").state_dict())
        return self.reply(client, meme)


class Named(Bleeds):
    """Overrides nothing, and so inherits the doubt."""

    name: ClassVar[str] = "named"


class Declared(Named):
    """Says that it looked."""

    only_own_gradients: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True


class Later(Declared):
    """Overrides a hook after the declaration."""

    def models(self, client: Any, brief: Any) -> Any:
        return super().models(client, brief)


class Mixin:
    """Not a method, but it overrides a verb of one."""

    def objective(self, models: Any, batch: Any, hp: Any) -> Any:
        scores = models["meme"](batch.x)
        return {"meme": batch.task.loss(scores, batch.y) + (scores.mean(0) ** 2).sum()}


class Mixed(Mixin, FedAvg):
    """FedAvg with the mixin's objective."""


class Serving(FedAvg):
    """What only the server does, or what only serves, breaks no promise about what leaves a client."""

    lam: float = 0.1

    def merge(self, server: Any, replies: Any) -> None:
        super().merge(server, replies)

    def predictor(self, client: Any, brief: Any) -> Any:
        return super().predictor(client, brief)


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_counts_for_the_code_it_was_made_of(promise: str) -> None:
    kept = {kind: promised(kind, promise) for kind in (Bleeds, Named, Declared, Later, Mixed, Serving)}
    assert kept == {Bleeds: False, Named: False, Declared: True, Later: False, Mixed: False, Serving: True}


def test_the_packages_own_methods_keep_theirs() -> None:
    kept = {promise: {n for n, kind in base._METHODS.items() if promised(kind, promise)} for promise in PROMISES}
    learning = {"fedavg", "fedprox", "finetuned", "mixture", "ditto", "fedper", "fedbn", "no-regret"}
    learning |= {"fedopt", "reptile", "feddf", "fedbabu", "fedsem", "cfl", "fedrolex"}
    assert kept["only_own_gradients"] == learning
    assert kept["honours_opt_out"] == learning | {"independent", "alone-again", "aggregated"} | {
        *("fedrep", "lgfedavg", "afl", "fedrod", "scaffold", "moon", "fedgkt", "pfedbayes"),
        *("apfl", "l2gd", "perfedavg", "fedala", "fd", "mocha", "datasharing"),
    }


@pytest.mark.parametrize(
    ("kind", "who", "verb"),
    [(Bleeds, "Bleeds", "start"), (Named, "Bleeds", "start"), (Later, "Later", "models"), (Mixed, "Mixin", "obj")],
)
def test_no_epsilon_is_told_of_code_that_nobody_vouched_for(kind: type[FedAvg], who: str, verb: str) -> None:
    with pytest.raises(InputError) as error:
        check_privacy(EXAMPLE, kind(weights="uniform"), normed=False)
    said = str(error.value)
    assert f"privacy.level: 'example', but {who} overrides {verb}" in said
    assert f"declare only_own_gradients: ClassVar[bool] = True in {kind.__name__}" in said


def test_what_was_vouched_for_and_what_never_was() -> None:
    check_privacy(EXAMPLE, Declared(weights="uniform"), normed=False)
    check_privacy(EXAMPLE, FineTuned(weights="uniform"), normed=False)
    with pytest.raises(InputError, match=r"privacy.level: 'example', but in fml the meme also learns from"):
        check_privacy(EXAMPLE, FML(), normed=False)


def opted_out(federation: Federation) -> Federation:
    first, *others = federation.clients
    some = replace(first, opt_in=torch.arange(len(first.train)) > 1)
    return replace(federation, clients=(some, *others))


def test_opted_out_samples_are_trusted_to_nobody_who_has_not_declared_it(federate: Federate) -> None:
    with pytest.raises(InputError) as error:
        mutua.run(Bleeds(), opted_out(federate()), rounds=1, workers=1, device="cpu")
    assert "opt_out: Bleeds overrides start and train, of which nobody has declared honours_opt_out" in str(
        error.value
    )
    assert "declare honours_opt_out: ClassVar[bool] = True in Bleeds" in str(error.value)
    mutua.run(Serving(), opted_out(federate()), rounds=1, workers=1, device="cpu")


class Vouching(Hub):
    """An author's method that says of itself that its server only averages."""

    name: ClassVar[str] = "vouching"

    @property
    def averages(self) -> bool:
        return True

    objective, train = FedAvg.objective, FedAvg.train


class Weighing(Vouching):
    """Merges otherwise, and has not said so."""

    def merge_weights(self, replies: Any) -> list[float]:
        return [1.0 + n for n in range(len(replies))]


def test_averaging_is_promised_in_the_same_way() -> None:
    assert promised(Vouching, "averages") and not promised(Weighing, "averages")
    assert all(promised(kind, "averages") for kind in base._METHODS.values())
