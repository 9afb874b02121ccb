"""Who takes part: clients with their data, tasks and models, and the federation they form."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from mutua.data.public import Public, carve
from mutua.data.public import dealt as shared_out
from mutua.data.samples import Layout, Preprocess, Samples, known_classes, together, undeclared
from mutua.data.splits import ClientData, Dealt, Split, split_and_deal
from mutua.errors import InputError, MutuaError, raised_at
from mutua.learning.task import Task
from mutua.models import Architecture, shared_names
from mutua.support.configuration import checked, whole_number
from mutua.support.text import Sheet, several, some

if TYPE_CHECKING:
    from mutua.data.partitions import Partition

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


@dataclass(frozen=True, repr=False)
class Client:
    """A participant: private data, a task and a personal model of its own design."""

    id: str
    train: Samples
    val: Samples
    test: Samples
    model: Architecture
    domain: str | None = None
    opt_in: Tensor | None = None
    """Which training samples the federation may learn from; None: as `train` says, or all of them."""

    def __post_init__(self) -> None:
        for split in ("train", "val", "test"):
            if not isinstance(held := getattr(self, split), Samples):
                what = f"{split} is a {type(held).__name__}"
                raise InputError(f"client {self.id}: {what}; give Samples, as Samples.of(x, y) makes")
        if not isinstance(self.id, str):
            raise InputError(f"client id: {self.id!r}; give text, such as 'north'")
        object.__setattr__(self, "model", Architecture.of(self.model))
        if self.opt_in is None and self.train.opted_out is not None:
            object.__setattr__(self, "opt_in", ~self.train.opted_out)
        if self.opt_in is not None and (self.opt_in.dtype, self.opt_in.shape) != (torch.bool, self.train.y.shape):
            raise InputError(f"client {self.id}: opt_in must be one true or false for each training sample")
        if not _ID.fullmatch(self.id):
            raise InputError(
                f"client id '{self.id}': use letters, digits, '.', '_', '+', '-', at most 64, not '.' first"
            )
        if self.id.casefold() == "global":
            raise InputError(
                f"client id '{self.id}': in a history that is the shared model; give the client another"
            )
        if len(self.train) == 0:
            raise InputError(f"client {self.id}: no training samples; it needs at least one")
        for split, samples in (("val", self.val), ("test", self.test)):
            if samples.x.shape[1:] != self.train.x.shape[1:] or samples.classes != self.train.classes:
                raise InputError(
                    f"client {self.id}: {split} has inputs {tuple(samples.x.shape[1:])} and "
                    f"{len(samples.classes)} classes, train {tuple(self.train.x.shape[1:])} and "
                    f"{len(self.train.classes)}; they must agree"
                )

    def __repr__(self) -> str:
        held = ", ".join(f"{len(getattr(self, split))} {split}" for split in ("train", "val", "test"))
        domain = "" if self.domain is None else f", domain {self.domain}"
        return f"Client({self.id}: model {self.model.title}, {held}{domain}, classes {some(_held(self))})"

    @property
    def task(self) -> Task:
        """What its labels mean."""
        return Task(self.train.classes)

    @property
    def opted_in(self) -> Samples:
        """The training samples that the federation may learn from."""
        return self.train if self.opt_in is None else self.train.take(self.opt_in.nonzero()[:, 0])

    @property
    def takes_part(self) -> bool:
        """Whether it has anything that the federation may learn from."""
        return self.opt_in is None or bool(self.opt_in.any())

    def shown(self, split: Literal["val", "test"]) -> Tensor | None:
        """Which val or test samples may count for what is shared: none of a client that has opted out whole."""
        samples: Samples = getattr(self, split)
        if not self.takes_part:
            return torch.zeros(len(samples), dtype=torch.bool)
        return None if samples.opted_out is None else ~samples.opted_out

    def opted_in_of(self, split: Literal["val", "test"]) -> Samples:
        """The val or test samples that may count for what is shared."""
        samples: Samples = getattr(self, split)
        shown = self.shown(split)
        return samples if shown is None else samples.take(shown.nonzero()[:, 0])

    @property
    def opted_out(self) -> int:
        """How many of its training samples the federation may not learn from."""
        return 0 if self.opt_in is None else int((~self.opt_in).sum())

    @property
    def known_classes(self) -> tuple[str, ...]:
        """Its classes as the federation may know them: those declared, and those that opted-in samples show."""
        shown = {"train": self.opt_in, "val": self.shown("val"), "test": self.shown("test")}
        declared = self.train.declared
        return known_classes([(replace(getattr(self, n), declared=declared), m) for n, m in shown.items()])

    def relabelled(self, classes: Sequence[str]) -> Client:
        """The same client with labels as indices into `classes`, matched by name."""
        parts = {split: getattr(self, split).relabelled(classes) for split in ("train", "val", "test")}
        return replace(self, **parts)


@dataclass(frozen=True, repr=False)
class Federation:
    """Clients, the architecture of the global model, and the common test set.

    With a complete global all clients label by one list of classes, the union of their own by name.
    With a partial global clients may have different classes: each meme ends in an adaptor of its own.
    Where samples are opted out, a class counts that is declared or that an opted-in sample has.
    """

    clients: tuple[Client, ...]
    global_model: Architecture | None = None
    test: Samples | None = None
    notes: tuple[str, ...] = ()
    public: Public | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", _each_a_client(self.clients))
        if not self.clients:
            raise InputError("clients: none; a federation needs at least one")
        if self.global_model is not None:
            object.__setattr__(self, "global_model", Architecture.of(self.global_model))
        _check_ids([client.id for client in self.clients])
        lists = self._class_lists()
        object.__setattr__(self, "clients", tuple(self._labelled(c, lists[c.id]) for c in self.clients))
        if len({*lists.values()}) == 1:
            (classes,) = {*lists.values()}
            if self.test is not None:
                object.__setattr__(self, "test", self._common_test(self.test, classes))
            if self.public is not None:
                parts = {owner: part.relabelled(classes) for owner, part in self.public.parts.items()}
                object.__setattr__(self, "public", replace(self.public, parts=parts))

    def _common_test(self, test: Samples, classes: Sequence[str]) -> Samples:
        try:
            return test.relabelled(classes)
        except InputError as error:
            if not self.opting:
                raise
            raise InputError(f"test: {error}; declare all classes (in a recipe: data.classes)") from None

    def _class_lists(self) -> dict[str, tuple[str, ...]]:
        """By client, what it labels by: all classes with a whole global, else its own, in one order if alike."""
        if not self.partial:
            return dict.fromkeys([client.id for client in self.clients], self.classes)
        own = {c.id: c.known_classes if self.opting else c.train.classes for c in self._in_order}
        # Clients that have opted out whole have no say in the others' order, nor in whether they are alike.
        heard = [own[client.id] for client in self._in_order if client.takes_part]
        alike = len({frozenset(names) for names in heard}) == 1
        return {i: heard[0] if alike and {*names} == {*heard[0]} else names for i, names in own.items()}

    @property
    def opting(self) -> bool:
        """Whether anything may be opted out."""
        return any(client.opt_in is not None for client in self.clients)

    def _labelled(self, client: Client, classes: Sequence[str]) -> Client:
        """The client with these classes; one that has opted out whole keeps its own beside a partial global."""
        try:
            return client.relabelled(classes)
        except InputError:
            if not self.opting:
                raise
            if self.partial and not client.takes_part:
                return client
            held = {part.classes[c] for part in (client.train, client.val, client.test) for c in part.y.unique()}
            raise InputError(f"client {client.id}: {undeclared(held - {*classes})}") from None

    @property
    def _sheet(self) -> Sheet:
        shared = "no global model" if self.global_model is None else f"global {self.global_model.title}"
        common = "" if self.test is None else f", {several(len(self.test), 'common test sample')}"
        counts = several(len(self.clients), "client"), several(len(self.classes), "class", "classes")
        sizes = {split: [len(getattr(c, split)) for c in self.clients] for split in ("train", "val", "test")}
        if self.opting:
            sizes["opted out"] = [c.opted_out for c in self.clients]
        rows = [
            (c.id, c.model.title, some(_held(c)), *(f"{numbers[k]:,}" for numbers in sizes.values()))
            for k, c in enumerate(self.clients)
        ]
        notes = [f"public: {self.public}"] if self.public is not None else []
        notes += [f"note: {note}" for note in self.notes]
        heads = ("client", "model", "classes", *sizes)
        return Sheet(f"Federation of {', '.join(counts)}; {shared}{common}", heads, rows, remarks=notes, left=3)

    def __repr__(self) -> str:
        return str(self._sheet)

    def _repr_html_(self) -> str:
        return self._sheet.html()

    @property
    def partial(self) -> bool:
        """Whether the global is only a part of a model, completed by each client's adaptor."""
        return self.global_model is not None and self.global_model.share != "all"

    @property
    def classes(self) -> tuple[str, ...]:
        """All clients' classes that may be known, in the order in which they first appear among clients by id."""
        opting = self.opting
        own = (client.known_classes if opting else client.train.classes for client in self._in_order)
        return tuple(dict.fromkeys(name for names in own for name in names))

    @property
    def _in_order(self) -> list[Client]:
        """By id, for what must not depend on the order in which clients are listed."""
        return sorted(self.clients, key=lambda client: client.id)

    @cached_property
    def _by_id(self) -> dict[str, Client]:
        return {client.id: client for client in self.clients}

    def __getitem__(self, client_id: str) -> Client:
        try:
            return self._by_id[client_id]
        except KeyError:
            raise InputError(f"client: {client_id!r} is not in it; there are {some(list(self._by_id))}") from None

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any = None,
        *,
        partition: Partition,
        models: Any = None,
        global_model: Any = None,
        seed: int = 0,
        test: tuple[Any, Any] | None = None,
        classes: Sequence[str] | None = None,
        domain: Any = None,
        opted_out: Any = None,
        preprocess: Preprocess | None = None,
        layout: Layout | None = None,
        channels: int | None = None,
        split: Split | Mapping[str, Any] | None = None,
        samples_per_client: int | None = None,
        test_samples: int | None = None,
        public: Any = None,
    ) -> Federation:
        """A federation of arrays or tensors, dealt to clients by a partition.

        `models` is one model for all or one per client: a name, a factory or class, or an `nn.Module`.
        Without `test` a stratified part of the data is set aside (`split`). `opted_out` is true for each sample
        that is kept out of the federation. `layout` says where the channels are, where their number does not;
        `channels` 3 makes grey images RGB. `public` is what everybody knows, for methods that need it: a share of
        each client's data such as 0.1, (x, y), or x alone where it has no labels.
        """
        if y is None:
            raise InputError("y: missing; give the labels; a torch Dataset, which has both, goes to from_samples")
        if test is not None and not (isinstance(test, tuple | list) and len(test) == 2):
            raise InputError(f"test: a {type(test).__name__}; give two arrays, (x_test, y_test)")
        read: Any = {"preprocess": preprocess, "layout": layout, "channels": channels}
        train = Samples.of(x, y, classes=classes, domain=domain, opted_out=opted_out, **read)
        given = None
        if test is not None:
            given = Samples.of(
                *test, classes=train.classes, name="test", **{**read, "preprocess": train.preprocess}
            )
            given = replace(given, declared=train.declared)
        return cls.from_samples(
            train,
            given,
            partition=partition,
            models=models,
            global_model=global_model,
            seed=seed,
            split=split,
            samples_per_client=samples_per_client,
            test_samples=test_samples,
            public=public,
        )

    @classmethod
    def from_samples(
        cls,
        train: Any,
        test: Any = None,
        *,
        partition: Partition,
        models: Any = None,
        global_model: Any = None,
        seed: int = 0,
        split: Split | Mapping[str, Any] | None = None,
        samples_per_client: int | None = None,
        test_samples: int | None = None,
        public: Any = None,
    ) -> Federation:
        """A federation of `Samples`, or of a torch Dataset that yields (input, label), dealt by a partition.

        `public` is as in `from_arrays`, or Samples or a Dataset too.
        """
        train = Samples.given(train, "train")
        seed = whole_number(seed, "seed", least=0)
        for field, number in (("samples_per_client", samples_per_client), ("test_samples", test_samples)):
            if number is not None:
                whole_number(number, field)
        if isinstance(partition, type) or not hasattr(partition, "deal"):
            raise InputError(f"partition: {partition!r}; give an object, such as mutua.partitions.IID(clients=5)")
        dealt = split_and_deal(
            train,
            None if test is None else Samples.given(test, "test", like=train),
            partition,
            _split(split),
            samples_per_client=samples_per_client,
            test_samples=test_samples,
            seed=seed,
        )
        made = cls.of(dealt, models, global_model)
        return made if public is None else made._with_public(public, seed, given_test=test is not None)

    def _with_public(self, given: Any, seed: int, given_test: bool) -> Federation:
        """The federation with a public set as somebody gave it."""
        if any(client.opt_in is not None for client in self.clients):
            raise InputError("public and opted_out are both given; what is public cannot be opted out")
        if isinstance(given, Public):
            return replace(self, public=given)
        if isinstance(given, float | int):
            if not 0 < given < 1:
                raise InputError(f"public: {given}; give a share of each client's data, above 0 and below 1")

            # A share of all data: a test set that came with the data is not the client's to give.
            def whole(client: Client) -> int:
                return len(client.train) + len(client.val) + (0 if given_test else len(client.test))

            return self.sharing(given, seed, whole)
        template, labelled = self.clients[0].train, True
        like: dict[str, Any] = {"classes": template.classes, "preprocess": template.preprocess, "name": "public"}
        if isinstance(given, tuple | list) and len(given) == 2:
            samples = Samples.of(*given, **like)
        elif hasattr(given, "shape"):
            samples, labelled = Samples.of(given, torch.zeros(len(given)), **like), False
        else:
            samples = Samples.given(given, "public", like=template).relabelled(template.classes)
        made = shared_out(samples, [client.id for client in self.clients], seed, labelled)
        made.fits(self.clients[0].id, template)
        return replace(self, public=made)

    def sharing(
        self,
        share: float,
        seed: int,
        whole: Callable[[Client], int],
        split: Literal["train", "test"] = "train",
        labelled: bool = True,
    ) -> Federation:
        """The federation with a share of `whole` of each client's data made public, taken from `split`."""
        clients, parts = [], {}
        for client in self.clients:
            kept, parts[client.id] = carve(getattr(client, split), round(share * whole(client)), seed, client.id)
            clients.append(replace(client, train=kept) if split == "train" else replace(client, test=kept))
        return replace(self, clients=tuple(clients), public=Public(parts, labelled))

    @classmethod
    def of(cls, dealt: Dealt, models: Any, global_model: Any) -> Federation:
        """A federation of dealt data.

        A common test set that came with the data is nobody's, and the observer's; else it is made of the clients'.
        """
        made = cls.of_clients(dealt.clients, models, global_model, tuple(dealt.notes), test=dealt.test)
        if dealt.given_test or all(client.takes_part for client in made.clients):
            return made
        return replace(made, test=together([client.opted_in_of("test") for client in made.clients]))

    @classmethod
    def of_clients(
        cls,
        clients: Sequence[ClientData],
        models: Any,
        global_model: Any,
        notes: tuple[str, ...] = (),
        test: Samples | None = None,
    ) -> Federation:
        """A federation of clients' own data; without `test` the common test set is the union of their opted-in."""
        shared = None if global_model is None else Architecture.of(global_model)
        own = _one_each(models if models is not None else global_model, [c.id for c in clients])
        members = tuple(
            Client(data.id, data.train, data.val, data.test, model, data.domain)
            for data, model in zip(clients, own, strict=True)
        )
        made = cls(members, shared, test, notes)
        alike = len({client.train.x.shape[1:] for client in members}) == 1
        if test is None and not made.partial and alike:
            made = replace(made, test=together([client.opted_in_of("test") for client in made.clients]))
        return made

    def others(self, client_id: str) -> dict[str, Samples] | None:
        """The other domains' val and test samples, where clients have domains: the observer's, for CDP and ACC.

        Since ACC on val selects, what is opted out is not among them.
        """
        own = self[client_id]
        others = [c for c in self.clients if c.id != client_id and c.domain is not None and c.takes_part]
        alike = all((c.task, c.train.x.shape[1:]) == (own.task, own.train.x.shape[1:]) for c in others)
        # Clients with different classes or inputs share no test that one model could take.
        if not others or not alike or own.domain is None:
            return None
        return {
            "val": together([c.opted_in_of("val") for c in others]),
            "test": together([c.opted_in_of("test") for c in others]),
        }

    def drawable(self, needs_global: bool) -> list[str]:
        """The clients that a round may draw: who shares a model must have something to train it on."""
        return sorted(c.id for c in self.clients if c.takes_part or not needs_global)

    def pooled(self) -> Federation:
        """One client that holds everybody's data, also what is public: the ceiling of federations."""
        shapes = {client.train.x.shape[1:] for client in self.clients}
        if len(shapes) > 1:
            listed = ", ".join(str(tuple(shape)) for shape in shapes)
            raise InputError(f"clients: inputs of different shapes ({listed}) cannot be pooled")
        clients = [client.relabelled(self.classes) for client in self._in_order]
        model = self.global_model or clients[0].model
        model = model.model_copy(update={"share": "all"})
        train, val, test = (together([getattr(c, split) for c in clients]) for split in ("train", "val", "test"))
        if self.public is not None and self.public.labelled:
            known = replace(
                self.public, parts={o: p.relabelled(self.classes) for o, p in self.public.parts.items()}
            )
            known.fits("pooled", train)
            train = together([train, known.whole])
        common = test if self.test is None else self.test.relabelled(self.classes)
        return Federation((Client("pooled", train, val, common, model),), model, common, self.notes)

    def check(self, needs_global: bool) -> tuple[str, ...]:
        """Refuse models that cannot be built or do not fit their client's data, before anything runs.

        What is allowed but may be a mistake is given as notes.
        """
        notes = [*_empty_classes(self.clients), *_unscaled(self.clients)]
        if needs_global and self.global_model is None:
            raise InputError(
                "models.global: missing; this method shares a global model, so name its architecture "
                "(global_model= in Python)"
            )
        seen: set[tuple[Any, ...]] = set()
        reference: dict[str, torch.Size] | None = None
        for client in self.clients:
            roles = [("model", client.model)]
            if needs_global and self.global_model is not None:
                roles.append(("global model", self.global_model))
            for role, architecture in roles:
                key = (role, id(architecture), client.train.x.shape[1:], len(client.task.classes))
                if key in seen:
                    continue
                seen.add(key)
                module, scores = _tried(client, role, architecture)
                if scores.shape[1] > 1 and bool(_probable(scores)):
                    notes.append(
                        f"client {client.id}: {role} {architecture.label} gives probabilities; mutua takes scores "
                        "(logits) and makes probabilities of them itself: leave out its last softmax"
                    )
                if role == "model":
                    continue
                self._check_head(module, architecture)
                state = module.state_dict()
                shapes = {name: state[name].shape for name in shared_names(module, architecture.share)}
                reference = reference or shapes
                for name, shape in shapes.items():
                    if reference.get(name) != shape:
                        raise InputError(
                            f"client {client.id}: the shared '{name}' of {architecture.label} is "
                            f"{tuple(shape)} for its data, {tuple(reference.get(name, ()))} for the others'; "
                            "share less of the model (models.global.share) or give all inputs one size"
                        )
        return tuple(notes)

    def _check_head(self, module: torch.nn.Module, architecture: Architecture) -> None:
        """Refuse a head shared by different classes: its rows would be merged by position, not by name."""
        if architecture.share == "body" or len({client.task.classes for client in self.clients}) == 1:
            return
        shared = set(shared_names(module, architecture.share)) & set(shared_names(module, "head"))
        if shared:
            raise InputError(
                f"models.global.share: '{min(shared)}' is of the head, whose rows are classes, and clients have "
                "different classes; share the body or give every client the same classes"
            )


def build(architecture: Architecture, client: Client, seed: int, classes: int | None = None) -> torch.nn.Module:
    """The architecture for this client's inputs and classes."""
    samples = client.train
    classes = classes or len(client.task.classes)
    return architecture.build(channels=samples.channels, size=samples.size, classes=classes, seed=seed)


def _check_ids(ids: Sequence[str]) -> None:
    """Refuse an id that is there twice, or twice but for its case: on many disks their folders would be one."""
    known: dict[str, str] = {}
    for name in ids:
        other = known.setdefault(name.casefold(), name)
        if other != name:
            raise InputError(f"clients: the ids '{other}' and '{name}' differ only in case; give others")
    if len(known) != len(ids):
        raise InputError(f"clients: the id '{Counter(ids).most_common(1)[0][0]}' is used twice; ids must differ")


def _empty_classes(clients: Sequence[Client]) -> list[str]:
    """Classes of which nobody has a sample: a gap in the labels, perhaps, or one name too many."""
    counts: Counter[str] = Counter()
    for client in clients:
        counts.update(dict.fromkeys(client.task.classes, 0))
        for samples in (client.train, client.val, client.test):
            counts.update(dict(zip(samples.classes, samples.counts().tolist(), strict=True)))
    empty = [name for name, count in counts.items() if not count]
    if not empty:
        return []
    named = ", ".join(empty[:10]) + (", ..." if len(empty) > 10 else "")
    return [f"no client has a sample of {len(empty)} of {len(counts)} classes: {named}"]


def _unscaled(clients: Sequence[Client]) -> list[str]:
    """Images whose values look like bytes but are not: they are not scaled, as bytes are."""
    told = []
    for client in clients:
        x = client.train.x
        if x.dim() != 4 or x.dtype == torch.uint8 or client.train.preprocess != Preprocess():
            continue
        low, high = float(x.min()), float(x.max())
        if low >= 0 and 127 < high <= 255:
            told.append(client.id)
    if not told:
        return []
    who = ", ".join(told[:10]) + (", ..." if len(told) > 10 else "")
    return [
        f"{who}: pixels from 0 to 255 that are not bytes are used as they are, not scaled; give bytes (uint8), "
        "divide by 255, or give a preprocess"
    ]


def _probable(scores: Tensor) -> Tensor:
    """Whether rows are probabilities already."""
    return (scores >= 0).all() & ((scores.double().sum(1) - 1).abs() < 1e-4).all()


def _tried(client: Client, role: str, architecture: Architecture) -> tuple[torch.nn.Module, Tensor]:
    """Build it and pass two samples through: a model that cannot take its client's data is said so at once."""
    what = f"client {client.id}: {role} {architecture.label}"
    try:
        module = build(architecture, client, seed=0).eval()
    except MutuaError:
        raise
    except Exception as error:  # whatever a user's factory raises
        raise InputError(f"{what} cannot be built: {_reason(error)}") from error
    x = client.train.preprocess(client.train.x[:1].repeat(2, *[1] * (client.train.x.dim() - 1)))
    try:
        with torch.no_grad():
            out = module(x)
    except Exception as error:  # whatever a user's forward raises
        raise InputError(f"{what} fails on inputs of shape {tuple(x.shape)}: {_reason(error)}") from error
    expected = (2, len(client.task.classes))
    if not isinstance(out, torch.Tensor) or tuple(out.shape) != expected:
        found = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise InputError(f"{what} gives {found} for two samples; it must give {expected}, one score per class")
    return module, out


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}{raised_at(error)}"


def _held(client: Client) -> list[str]:
    """The classes of which it has training samples."""
    return [client.train.classes[i] for i in client.train.y.unique().tolist()]


def _each_a_client(clients: Any) -> tuple[Client, ...]:
    if not isinstance(clients, Sequence):
        raise InputError(f"clients: a {type(clients).__name__}; give a list of Client")
    strange = next((one for one in clients if not isinstance(one, Client)), None)
    if strange is not None:
        raise InputError(f"clients: a {type(strange).__name__} among them; give Client(...) objects")
    return tuple(clients)


def _split(given: Split | Mapping[str, Any] | None) -> Split:
    """A split, also as a recipe writes it: {"val": 0.1, "test": 0.2}."""
    if given is None or isinstance(given, Split):
        return given or Split()
    if not isinstance(given, Mapping):
        raise InputError(f"split: {given!r}; give mutua.Split(val=0.1, test=0.2)")
    return checked(Split, given, at="split")


def _one_each(models: Any, ids: Sequence[str]) -> list[Architecture]:
    """One architecture a client; equal ones are one object."""
    if models is None:
        raise InputError("models: missing; name one for all clients or one per client")
    if isinstance(models, list | tuple):
        if len(models) != len(ids):
            raise InputError(f"models: {len(models)} for {len(ids)} clients; give one for all or one per client")
        known: list[Architecture] = []
        for model in map(Architecture.of, models):
            known.append(next((k for k in known if k == model), model))
        return known
    return [Architecture.of(models)] * len(ids)
