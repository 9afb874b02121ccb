"""What a method is: an objective and an exchange, in a few verbs.

A method never says how to loop over clients, batch data, place tensors, send bytes, save, log or draw.

Over 400 lines: one class has all the verbs, and says of each what it is.
"""

from __future__ import annotations

import math
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, PydanticUserError, ValidationError
from torch import nn

from mutua.data.public import Public
from mutua.data.targets import TaskKind
from mutua.errors import InputError, suggest
from mutua.federation.client import build
from mutua.federation.federation import Federation
from mutua.federation.message import NUMBERS, Kind, Message, Part, Shares, weights
from mutua.federation.model_checks import common_features
from mutua.federation.plan import Plan
from mutua.learning import merging
from mutua.learning.early_stopping import EarlyStopping
from mutua.learning.schedules import Cosine, Linear, Listed, value
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.checks import check_arrays_like
from mutua.methods.participant import Participant
from mutua.methods.promises import doubt, misspelt, promised
from mutua.methods.server import Server
from mutua.models import Architecture, shared_names
from mutua.support.configuration import Spec, explain
from mutua.support.importing import import_object, path_of, trust_object, trust_shipped_classes
from mutua.support.tensor_files import Tensors

BANDWIDTH = {
    Kind.WEIGHTS: "a model",
    Kind.PROBABILITIES: "classes × a batch",
    Kind.SCORES: "classes × a public subset",
    Kind.PROTOTYPES: "classes × features",
    Kind.CONTROL: "a model",
    Kind.FACTORS: "less than a model",
    Kind.FEATURES: "samples × features",
    Kind.LABELS: "samples",
}
"""What a round's reply grows with, by kind; a lone number is next to nothing."""

How = Literal["global", "finetune", "mutual"]


class Method(Spec, ABC):
    """A federated algorithm. Its fields are its hyper-parameters; numbers may be schedules."""

    name: ClassVar[str]
    needs_global: ClassVar[bool] = False
    needs_public: ClassVar[bool] = False
    own_models: ClassVar[bool] = False
    """Whether clients may have models of different designs; only `mutua methods` tells it."""
    same_models: ClassVar[bool] = False
    """Whether every client's personal model must have the global's design."""
    needs_features: ClassVar[bool] = False
    """Whether all clients' models must give their heads features of one width."""
    own_classes: ClassVar[bool] = False
    """Whether clients may have lists of classes of their own (`models.global.share: body`, or no global)."""
    different_data: ClassVar[bool] = False
    """Whether it is made for clients with different data."""
    server_does: ClassVar[str] = "nothing"
    reply_grows_with: ClassVar[str] = ""
    """What the size of a reply depends on, where it is not what `BANDWIDTH` says of its kinds."""
    honours_opt_out: ClassVar[bool] = False
    """Whether samples that are opted out of the federation cannot change what leaves a client."""
    only_own_gradients: ClassVar[bool] = False
    """Whether a sample changes the meme by its own gradient, in one `fit` per round, and in no other way."""
    terms: ClassVar[tuple[str, ...]] = ()
    """Names of its objectives' terms, beside those of the models."""
    any_task: ClassVar[bool] = False
    """Whether it learns by the task's own losses alone, and so also several labels at once, and values."""
    joins_by: ClassVar[How] = "finetune"
    """How a newcomer joins if nobody says."""
    keeps_alone: ClassVar[bool] = False
    """Whether the personal model in a client's store is what it would have alone, as `independent` makes it."""
    pools_data: ClassVar[bool] = False
    """Whether all data is brought to one place."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Refuse an option that would hide what is of the class, such as `name: str = "mine"`."""
        if hidden := sorted(Method.__class_vars__ & set(cls.model_fields)):
            what = hidden[0]
            raise InputError(
                f"{cls.__name__}.{what}: no option can have this name; write {what}: ClassVar[...] = ..."
            )
        if wrong := misspelt(cls, _VERBS):
            raise InputError(f"{cls.__name__}.{wrong[0]}: did you mean '{wrong[1]}'? A helper needs another name")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).model_fields:
            return super().__setattr__(name, value)
        kind = type(self).__name__
        raise InputError(
            f"{kind}.{name}: a {kind} is frozen; what lasts belongs into client.state or server.state"
        )

    @property
    def stops_early(self) -> bool:
        """Whether clients train, after the last round, until validation says stop."""
        return False

    @property
    def needs_labels(self) -> str:
        """What it does with the public set that takes labels, such as "trains on it"; empty for nothing."""
        return ""

    @property
    def needs_classes(self) -> str:
        """What it does that takes one class per sample, such as "weighs by their entropy"; empty for nothing."""
        return ""

    @property
    def works_alone(self) -> bool:
        """Whether clients work without a server: each in every round, drawn or not, reached or not."""
        return False

    @property
    def replies_from(self) -> int:
        """The first round in which clients send something; before it, `train` may return None for all of them."""
        return 1

    @property
    def made_at_end(self) -> bool:
        """Whether clients get the model they serve with only in `finish`; earlier evaluations are of another."""
        return self.stops_early

    @property
    def shares(self) -> Shares:
        """All that may leave a client: the name of each part and its kind."""
        return {}

    @property
    def averages(self) -> bool:
        """Whether the server takes the mean of all that was sent, and uses it in no other way."""
        return False

    def breaks(self, promise: str) -> str:
        """Why a promise of the class, such as `honours_opt_out`, does not hold with these options, if so."""
        return ""

    def numbers(self, round: int, rounds: int) -> Numbers:
        """This round's hyper-parameters, schedules made plain numbers."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        schedules = Linear | Cosine | Listed
        return Numbers(
            **{name: value(v, round, rounds) if isinstance(v, schedules) else v for name, v in fields.items()}
        )

    def arrange(self, federation: Federation) -> Federation:
        """The federation as this method sees it; refuses one that lacks what the method needs."""
        if self.needs_public and federation.public is None:
            raise InputError(
                f"public: missing; {self.name} learns from a public set, such as public: {{share: 0.1}}"
            )
        if self.needs_public and federation.public is not None:
            for client in federation.clients:
                federation.public.fits(client.id, client.train)
            if self.needs_labels and not federation.public.labelled:
                raise InputError(f"public.labelled: false, but {self.name} {self.needs_labels}; give labels")
        if (kind := federation.aim.kind) != "classification":
            check_task(self, kind)
        if self.needs_global and not any(client.takes_part for client in federation.clients):
            raise InputError("opt_out: every client has opted out whole; at least one must be in")
        shared = federation.global_model
        for client in federation.clients if self.same_models else ():
            if shared is not None and not client.model.same_design(shared):
                raise InputError(
                    f"client {client.id}: its model is {client.model.spec()}, but {self.name} needs the global's "
                    f"design, {shared.spec()}; leave models.clients out"
                )
        if self.needs_features:
            common_features(federation, self.name)
        broken = self.breaks("honours_opt_out")
        kept = promised(type(self), "honours_opt_out") and not broken
        if not kept and any(client.opt_in is not None for client in federation.clients):
            able = ", ".join(name for name, kind in sorted(_METHODS.items()) if promised(kind, "honours_opt_out"))
            leaves = f"method {self.name} would let opted-out samples leave"
            why = doubt(type(self), "honours_opt_out") or (f"{leaves}: {broken}" if broken else leaves)
            raise InputError(f"opt_out: {why}; use one of {able}")
        return federation

    def reply_bytes(self, federation: Federation, plan: Plan) -> int:
        """How long a reply is at most, for a budget to divide rounds by; 0 where nothing leaves."""
        return 0

    @abstractmethod
    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """What a client minimises: named terms, which the trainer sums, differentiates and logs."""

    def open(self, server: Server) -> None:
        """On the server, once: its first state."""
        return

    def start(self, client: Participant) -> None:
        """On the client, once, before its first work."""
        return

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """On the server: the message for this client this round, or None."""
        return None

    @abstractmethod
    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """On the client: local work; the message that leaves, or None."""

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """On the server: raise `Refused` for a reply that may not be merged."""
        return

    def outliers(self, server: Server, replies: Mapping[str, Message]) -> dict[str, str]:
        """On the server: which of the replies that passed `check` to refuse, compared with the others, and why."""
        return {}

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """On the server: make the next state of these replies, which come in the order of client ids."""
        return

    def finish(self, client: Participant, brief: Message | None) -> None:
        """On the client, once, after the last round."""
        return

    def stopping(self, watch: str) -> EarlyStopping:
        """When training outside the rounds ends, by the validation loss of the model `watch`."""
        return EarlyStopping(watch)

    def personalise(self, client: Participant, brief: Message | None, how: How) -> None:
        """On a client that joins after training: make a model of its own of what is shared."""
        raise InputError(f"method {self.name}: it has no global model that a newcomer could join with")

    @abstractmethod
    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """On the client: the model it serves with, given the next brief. Changes no state."""

    def evaluated(self, client: Participant, brief: Message | None) -> Mapping[str, nn.Module]:
        """On the client: the models that are evaluated beside its predictor, by name. Changes no state."""
        if not self.needs_global or brief is None or "global" not in brief:
            return {}
        return {"global": client.fork(brief)}

    def made_of(self, client: Participant) -> dict[str, Any]:
        """What `predictor` is, for a model's card: a name and width, or those of its parts."""
        own = "personal" in client.state
        return (client.architecture if own else client.global_architecture).spec()


_VERBS = frozenset(name for name, value in vars(Method).items() if name[0] != "_" and hasattr(value, "__get__"))
trust_shipped_classes(Method)


@dataclass(frozen=True)
class Job:
    """What server and clients of a run all know: method, plan, the global's architecture, the public set."""

    method: Method
    plan: Plan
    global_model: Architecture | None
    public: Public | None = None

    @property
    def global_architecture(self) -> Architecture:
        """The global's architecture, for methods that have one."""
        assert self.global_model is not None, "Federation.check refuses a hub method without a global model"
        return self.global_model


class Hub(Method):
    """A method in which clients fork a global model and send their trained memes to be merged."""

    needs_global: ClassVar[bool] = True
    own_classes: ClassVar[bool] = True
    server_does: ClassVar[str] = "merges weights"
    combine: merging.Combiner = Field(default_factory=merging.Mean)
    max_norm_ratio: float | None = Field(None, gt=1)

    @property
    def shares(self) -> Shares:
        """The meme, or its shared part."""
        return {"meme": Kind.WEIGHTS}

    def open(self, server: Server) -> None:
        """Initialise the global under the public seed; only its shared part is kept."""
        assert server.model is not None
        module = server.build()
        state = module.state_dict()
        server.state["global"] = {name: state[name] for name in shared_names(module, server.model.share)}

    def reply_bytes(self, federation: Federation, plan: Plan) -> int:
        """A meme and the numbers that are declared beside it."""
        client = federation.clients[0]
        assert federation.global_model is not None
        module = build(federation.global_model, client, plan.seed)
        state = module.state_dict()
        meme = {name: state[name] for name in shared_names(module, federation.global_model.share)}
        numbers = {name: Part(kind, {"": NUMBERS[kind]}) for name, kind in self.shares.items() if kind in NUMBERS}
        return Message(meme=weights(meme), **numbers).nbytes

    def global_for(self, server: Server, client_id: str) -> Tensors:
        """The global that this client works with: one for all, unless a method has several."""
        return server.state["global"]

    def forked_from(self, server: Server, client_id: str, reply: Message) -> Tensors:
        """The global that this reply's meme was forked from."""
        return self.global_for(server, client_id)

    def offered(self, server: Server) -> Mapping[str, Tensors]:
        """Where there are several globals, all of them, by the names of a brief's parts: newcomers choose."""
        return {}

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """The global."""
        return Message(**{"global": weights(self.global_for(server, client_id))})

    @property
    def averages(self) -> bool:
        """If the combiner is the mean, no update is refused for its norm and all replies count the same.

        The methods here weight replies only by what is sent beside the meme. An author's method may do otherwise.
        """
        verbs = (
            getattr(type(self), verb)
            for verb in ("global_for", "forked_from", "brief", "check", "outliers", "merge", "merge_weights")
        )
        known = all(verb.__module__.startswith("mutua.methods.") for verb in verbs)
        alike = list(self.shares.values()) == [Kind.WEIGHTS] and self.max_norm_ratio is None
        return known and alike and type(self.combine) is merging.Mean

    def reply(self, client: Participant, meme: nn.Module) -> Message:
        """What leaves after training: the shared part of the meme."""
        return Message(meme=weights(client.shared(meme)))

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """The meme must be the global's in names, shapes and types, and finite."""
        check_arrays_like(reply, "meme", "weights", self.global_for(server, client_id))

    def outliers(self, server: Server, replies: Mapping[str, Message]) -> dict[str, str]:
        """By option, memes that are much farther from the global than the others."""
        if self.max_norm_ratio is None or not replies:
            return {}
        forked = {client: self.forked_from(server, client, reply) for client, reply in replies.items()}
        groups: dict[int, list[str]] = {}
        for client, before in forked.items():
            groups.setdefault(id(before), []).append(client)
        outliers: dict[str, str] = {}
        for clients in groups.values():
            memes, before = [replies[c].arrays("meme") for c in clients], forked[clients[0]]
            found = merging.overlong_updates(memes, before, self.max_norm_ratio)
            outliers |= {client: found[i] for i, client in enumerate(clients) if i in found}
        return outliers

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """The memes, weighted by the method and combined by its combiner."""
        memes, given = [reply.arrays("meme") for reply in replies.values()], self.merge_weights(replies)
        if len(given) != len(memes) or not 0 < sum(given) < math.inf or min(given) < 0:
            shown = reprlib.repr(given)
            raise InputError(f"merge_weights: {shown}; give {len(memes)} numbers, none below 0 and one above 0")
        server.state["global"] = self.combine(memes, given, server.state["global"])
        server.weights = dict(zip(replies, given, strict=True))

    def merge_weights(self, replies: Mapping[str, Message]) -> list[float]:
        """How much each reply counts; uniform unless a method says otherwise."""
        return [1.0] * len(replies)

    def personalise(self, client: Participant, brief: Message | None, how: How) -> None:
        """Use the global as it is, or continue it on the newcomer's data until validation says stop."""
        if how not in get_args(How):
            raise InputError(f"how: '{how}' is not a way to join; {suggest(how, list(get_args(How)))}")
        if how == "mutual":
            raise InputError(f"how: 'mutual', but {self.name} does no mutual learning; use 'global' or 'finetune'")
        if how == "finetune":
            can_stop_early(client, how)
            self.adapt(client, brief, self.stopping("tuned"))

    def adapt(self, client: Participant, brief: Message | None, until: EarlyStopping) -> None:
        """Continue the global on the client's own data and keep the result."""
        client.keep("tuned", client.fork(brief))
        client.fit(supervised, {"tuned": client.model("tuned")}, until=until)
        client.state.pop("tuned.optimizer", None)

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The global, or what the client tuned it to."""
        return client.model("tuned") if "tuned" in client.state else client.fork(brief)


def check_task(method: Method, kind: TaskKind) -> None:
    """Refuse a task of this kind that the method cannot learn."""
    able = ", ".join(
        name
        for name, known in sorted(_METHODS.items())
        if promised(known, "any_task") and not needs_classes(known)
    )
    if why := method.needs_classes:
        raise InputError(f"task: {kind}, but {method.name} {why}; use one of {able}")
    if not promised(type(method), "any_task"):
        why = doubt(type(method), "any_task") or (
            f"nobody has declared that {method.name} learns by the task's own losses alone; if it does, declare "
            f"any_task: ClassVar[bool] = True in {type(method).__name__}"
        )
        raise InputError(f"task: {kind}, but {why}; or use one of {able}")


def needs_classes(method: type[Method]) -> str:
    """What a method does, with its own defaults, that takes one class per sample; empty for nothing."""
    try:
        return method().needs_classes
    except ValidationError:  # it has no defaults for all of its options
        return ""


def can_stop_early(client: Participant, how: How) -> None:
    """Refuse a newcomer without validation samples to stop by."""
    if not len(client.val):
        raise InputError(f"client {client.id}: no validation samples; '{how}' stops early by them")


def supervised(models: Models, batch: Batch, hp: Numbers) -> Terms:
    """Each model on its own: the task's loss, such as cross-entropy."""
    return {name: batch.task.loss(model(batch.x), batch.y) for name, model in models.items()}


_METHODS: dict[str, type[Method]] = {}


def register(method: type[Method]) -> type[Method]:
    """Make a method known by its name."""
    known = _METHODS.get(method.name, method)
    # A notebook cell that runs again defines the same class again; anything else is a mistake.
    if path_of(known) != path_of(method):
        raise InputError(
            f"method.name: '{method.name}' is {path_of(known)}; give {method.__name__} a name of its own, "
            "name: ClassVar[str] = ..."
        )
    _METHODS[method.name] = method
    return method


def method_names() -> list[str]:
    """The names of all known methods."""
    return sorted(_METHODS)


def method_of(section: Mapping[str, Any]) -> Method:
    """The method that a recipe's `method:` section describes."""
    options = dict(section)
    name = str(options.pop("name", ""))
    found = import_object(name, "method.name") if ":" in name else _METHODS.get(name.lower())
    if found is None:
        own = "; one of your own is named by its path, such as my_methods:MyMethod"
        raise InputError(f"method.name: '{name}' is not a method; {suggest(name, method_names())}{own}")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"method.name: '{name}' is not a Method class")
    if missing := sorted(found.__abstractmethods__):
        raise InputError(f"method.name: '{name}' does not define {' and '.join(missing)}, which every method must")
    try:
        return found.model_validate(options)
    except ValidationError as error:
        raise InputError(explain(error, found, "method")) from None
    except PydanticUserError as error:  # such as an option of a type that no recipe can give
        raise InputError(f"method.name: '{name}': {str(error).splitlines()[0]}") from None


def section_of(method: Method) -> dict[str, Any]:
    """The `method:` section that describes this method, defaults filled in."""
    trust_object(type(method))
    return {"name": recipe_name(method), **method.model_dump(mode="json")}


def shown_name(method: Method) -> str:
    """Its name in tables or, where it has inherited its name or took another's, "package.module:Class"."""
    kind = type(method)
    own = "name" in vars(kind) and path_of(_METHODS.get(method.name, kind)) == path_of(kind)
    return method.name if own else path_of(kind)


def recipe_name(method: Method) -> str:
    """Its name or, of a class that is not registered and may have inherited its name, "package.module:Class"."""
    return method.name if _METHODS.get(method.name) is type(method) else path_of(type(method))
