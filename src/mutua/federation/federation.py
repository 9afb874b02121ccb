"""The federation: its clients, the global's architecture, and the data that all know.

Over 400 lines: the class's constructors from arrays, samples and tables are what users call on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any, Literal

from mutua.data.array_files import opened
from mutua.data.layouts import Layout
from mutua.data.partitions import IID, ByColumn, Partition
from mutua.data.public import Public, carve
from mutua.data.public import dealt as shared_out
from mutua.data.samples import Preprocess, Samples, concatenate, undeclared
from mutua.data.splits import ClientData, DealtSamples, Split, split_and_deal
from mutua.data.tabular_reading import given_tables
from mutua.data.tabular_sources import KINDS
from mutua.data.targets import NAMED
from mutua.errors import InputError, suggest
from mutua.federation.client import Client
from mutua.federation.client_checks import check_aims, check_ids, each_a_client, one_each
from mutua.federation.clients import Clients
from mutua.learning.headline import Headline
from mutua.learning.tasks import CLASSIFICATION, Aim, aim_of
from mutua.models import Architecture
from mutua.seeds import derive
from mutua.support.configuration import checked, whole_number
from mutua.support.text import Sheet, several, some


@dataclass(frozen=True, repr=False)
class Federation:
    """Clients, the architecture of the global model, and the common test set.

    With a complete global all clients label by one list of classes, the union of their own by name.
    With a partial global clients may have different classes: each meme ends in an adaptor of its own.
    Where samples are opted out, a class counts that is declared or that an opted-in sample has.
    """

    clients: Sequence[Client]
    global_model: Architecture | None = None
    test: Samples | None = None
    notes: tuple[str, ...] = ()
    public: Public | None = None

    def __post_init__(self) -> None:
        packed, given = self.clients, each_a_client(self.clients)
        object.__setattr__(self, "clients", given)
        if not given:
            raise InputError("clients: none; a federation needs at least one")
        if self.global_model is not None:
            object.__setattr__(self, "global_model", Architecture.of(self.global_model))
        check_ids([client.id for client in given])
        check_aims(given)
        lists = self._class_lists()
        labelled = [self._labelled(client, lists[client.id]) for client in given]
        as_packed = type(packed) is Clients and all(a is b for a, b in zip(labelled, given, strict=True))
        object.__setattr__(self, "clients", packed if as_packed else Clients(labelled))
        self.aim.check(self.classes)
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

    @cached_property
    def opting(self) -> bool:
        """Whether anything may be opted out."""
        return any(client.opt_in is not None for client in self.clients)

    def _labelled(self, client: Client, classes: Sequence[str]) -> Client:
        """The client with these classes; one that has opted out whole keeps its own beside a partial global."""
        try:
            return client.relabelled(classes)
        except InputError:
            if not self.opting or client.aim.kind != "classification":
                raise
            if self.partial and not client.takes_part:
                return client
            held = {part.classes[c] for part in (client.train, client.val, client.test) for c in part.y.unique()}
            raise InputError(f"client {client.id}: {undeclared(held - {*classes})}") from None

    @property
    def _sheet(self) -> Sheet:
        shared = "no global model" if self.global_model is None else f"global {self.global_model.title}"
        common = "" if self.test is None else f", {several(len(self.test), 'common test sample')}"
        counts = several(len(self.clients), "client"), several(len(self.classes), *NAMED[self.aim.kind])
        sizes = {split: [len(getattr(c, split)) for c in self.clients] for split in ("train", "val", "test")}
        if self.opting:
            sizes["opted out"] = [c.opted_out for c in self.clients]
        rows = [
            (c.id, c.model.title, some(c.held_classes), *(f"{numbers[k]:,}" for numbers in sizes.values()))
            for k, c in enumerate(self.clients)
        ]
        notes = [f"public: {self.public}"] if self.public is not None else []
        notes += [f"note: {note}" for note in self.notes]
        heads = ("client", "model", NAMED[self.aim.kind][1], *sizes)
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
    def aim(self) -> Aim:
        """What all its clients learn."""
        return self.clients[0].aim

    @property
    def headline(self) -> Headline:
        """The metric by which its models are shown, selected and compared."""
        return Headline(self.aim.headline)

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
    def _numbers(self) -> dict[str, int]:
        return {client.id: number for number, client in enumerate(self.clients)}

    def __getitem__(self, client_id: str) -> Client:
        try:
            return self.clients[self._numbers[client_id]]
        except KeyError:
            raise InputError(f"client: {client_id!r} is not in it; {suggest(client_id, self._numbers)}") from None

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
        task: Any = None,
    ) -> Federation:
        """A federation of arrays or tensors, dealt to clients by a partition.

        `x` that NumPy has mapped, or the path of an .npy file, stays there until a client works with its samples.
        `models` is one model for all or one per client: a name, a factory or class, or an `nn.Module`.
        Without `test` a stratified part of the data is set aside (`split`). `opted_out` is true for each sample
        that is kept out of the federation. `layout` says where the channels are, where their number does not;
        `channels` 3 makes grey images RGB. `public` is what everybody knows, for methods that need it: a share of
        each client's data such as 0.1, (x, y), or x alone where it has no labels. `task` is what `y` is: classes
        unless it says "multi-label", "regression" or, with options, `mutua.tasks.Regression(loss="huber")`.
        """
        if y is None:
            raise InputError("y: missing; give the labels; a torch Dataset, which has both, goes to from_samples")
        x, y = opened(x, y)
        if test is not None and not (isinstance(test, tuple | list) and len(test) == 2):
            raise InputError(f"test: a {type(test).__name__}; give two arrays, (x_test, y_test)")
        aim = aim_of(task)
        read: Any = {"preprocess": preprocess, "layout": layout, "channels": channels, "kind": aim.kind}
        train = Samples.of(x, y, classes=classes, domain=domain, opted_out=opted_out, **read)
        given = None
        if test is not None:
            read |= {"preprocess": train.preprocess, "classes": train.classes, "name": "test"}
            given = replace(Samples.of(*opened(*test), **read), declared=train.declared)
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
            task=aim,
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
        task: Any = None,
    ) -> Federation:
        """A federation of `Samples`, or of a torch Dataset that yields (input, label), dealt by a partition.

        `public` is as in `from_arrays`, or Samples or a Dataset too; `task` as there, where it is more than the
        kind that Samples have.
        """
        aim = aim_of(train.kind if task is None and isinstance(train, Samples) else task)
        train = Samples.given(train, "train", kind=aim.kind)
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
        made = cls.of(dealt, models, global_model, aim)
        return made if public is None else made._with_public(public, seed, given_test=test is not None)

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        partition: Partition,
        models: Any = None,
        global_model: Any = None,
        seed: int = 0,
        classes: Sequence[str] | None = None,
        opted_out: str | None = None,
        split: Split | Mapping[str, Any] | None = None,
        samples_per_client: int | None = None,
        public: Any = None,
        task: Any = None,
        **data: Any,
    ) -> Federation:
        """A federation of one table, dealt by a partition; `partitions.ByColumn` gives each hospital its rows.

        `table` is a pandas or polars DataFrame, columns by name, or a path. `data` are the keys of a recipe's
        `data`: `target`, `columns`, `group`, and `text` where a column of texts is the input. `opted_out` is the
        column that is true where a row is kept out of the federation. `task` is as in `from_arrays`; several
        labels or values are a list of columns, `target=["pain", "fever"]`.
        """
        by, aim = partition.column if isinstance(partition, ByColumn) else None, aim_of(task)
        [made] = given_tables([table], ["table"], data, classes=classes, by=by, mask=opted_out, task=aim.kind)
        federation = cls.from_samples(
            made.samples,
            partition=partition,
            models=models,
            global_model=global_model,
            seed=seed,
            split=split,
            samples_per_client=samples_per_client,
            public=public,
            task=aim,
        )
        return replace(federation, notes=(*federation.notes, *made.notes))

    @classmethod
    def from_tables(
        cls,
        tables: Mapping[str, Any],
        *,
        models: Any = None,
        global_model: Any = None,
        seed: int = 0,
        classes: Sequence[str] | None = None,
        opted_out: str | None = None,
        split: Split | Mapping[str, Any] | None = None,
        task: Any = None,
        **data: Any,
    ) -> Federation:
        """A federation of one table for each client, by its id; the rest is as in `from_table`.

        Columns are matched by name: what a client's table lacks is missing there. With `own_columns=True` each
        client keeps its own, and the global can share only what comes after a model's first layer.
        """
        if not isinstance(tables, Mapping):
            raise InputError(
                f"tables: a {type(tables).__name__}; give a table by client, such as {{'north': frame}}"
            )
        ids, seed = [*tables], whole_number(seed, "seed", least=0)
        aim = aim_of(task)
        given: Any = {"classes": classes, "mask": opted_out, "task": aim.kind}
        if data.get("own_columns"):
            found = [given_tables([tables[name]], [name], data, **given)[0] for name in ids]
        else:
            found = given_tables([*tables.values()], ids, data, **given)
        parts = []
        for name, made in zip(ids, found, strict=True):
            dealt = split_and_deal(made.samples, None, IID(clients=1), _split(split), seed=derive(seed, name))
            parts.append(replace(dealt.clients[0], id=name))
        notes = tuple(f"{name}: {note}" for name, made in zip(ids, found, strict=True) for note in made.notes)
        return cls.of_clients(parts, models, global_model, notes, aim=aim)

    def _with_public(self, given: Any, seed: int, given_test: bool) -> Federation:
        """The federation with a public set as somebody gave it."""
        if any(client.opt_in is not None for client in self.clients):
            raise InputError("public and opted_out are both given; what is public cannot be opted out")
        if isinstance(given, Public):
            return replace(self, public=given)
        if isinstance(given, float | int):
            if not 0 < given < 1:
                raise InputError(f"public: {given}; give a share of each client's data, above 0 and below 1")

            return self.sharing(given, seed, given_test=given_test)
        template, labelled = self.clients[0].train, True
        raw = hasattr(given, "columns") or isinstance(given, Mapping | str | PathLike)
        if template.model_input.kind in KINDS and raw:
            kind = type(given).__name__
            raise InputError(
                f"public: a {kind}; of tables and texts give a share of each client's rows, such as 0.1"
            )
        like: dict[str, Any] = {name: getattr(template, name) for name in ("classes", "preprocess", "kind")}
        like["name"] = "public"
        if isinstance(given, tuple | list) and len(given) == 2:
            samples = Samples.of(*opened(*given), **like)
        elif hasattr(given, "shape"):
            samples, labelled = Samples.of(given, template.unknown(len(given)), **like), False
        else:
            samples = Samples.given(given, "public", like=template).relabelled(template.classes)
        made = shared_out(samples, [client.id for client in self.clients], seed, labelled)
        made.fits(self.clients[0].id, template)
        return replace(self, public=made)

    def sharing(
        self,
        share: float,
        seed: int,
        *,
        split: Literal["train", "test"] = "train",
        given_test: bool = False,
        labelled: bool = True,
    ) -> Federation:
        """The federation with a share of each client's data made public, taken from `split`.

        It is a share of the test samples alone, or of all samples: with `given_test`, of those that are not test
        samples, since a test set that came with the data is not the client's to give.
        """
        clients, parts = [], {}
        for client in self.clients:
            counted = len(client.test) if split == "test" or not given_test else 0
            counted += len(client.train) + len(client.val) if split == "train" else 0
            kept, given = carve(getattr(client, split), round(share * counted), seed, client.id)
            parts[client.id] = replace(given, preprocess=given.preprocess.declared)  # what is fitted stays
            clients.append(replace(client, train=kept) if split == "train" else replace(client, test=kept))
        return replace(self, clients=tuple(clients), public=Public(parts, labelled))

    @classmethod
    def of(cls, dealt: DealtSamples, models: Any, global_model: Any, aim: Aim = CLASSIFICATION) -> Federation:
        """A federation of dealt data.

        A common test set that came with the data is nobody's, and the observer's; else it is made of the clients'.
        """
        notes = tuple(dealt.notes)
        made = cls.of_clients(dealt.clients, models, global_model, notes, test=dealt.test, aim=aim)
        scaled = dealt.test.preprocess.fitted  # else each client's part is, by what it has fitted
        if scaled and (dealt.given_test or all(client.takes_part for client in made.clients)):
            return made
        return replace(made, test=concatenate([client.opted_in_of("test") for client in made.clients]))

    @classmethod
    def of_clients(
        cls,
        clients: Sequence[ClientData],
        models: Any,
        global_model: Any,
        notes: tuple[str, ...] = (),
        test: Samples | None = None,
        aim: Aim = CLASSIFICATION,
    ) -> Federation:
        """A federation of clients' own data; without `test` the common test set is the union of their opted-in."""
        shared = None if global_model is None else Architecture.of(global_model)
        own = one_each(models if models is not None else global_model, [c.id for c in clients])
        members = tuple(
            Client(data.id, data.train, data.val, data.test, model, data.domain, aim=aim)
            for data, model in zip(clients, own, strict=True)
        )
        made = cls(members, shared, test, notes)
        alike = len({client.train.model_input for client in members}) == 1
        if test is None and not made.partial and alike:
            made = replace(made, test=concatenate([client.opted_in_of("test") for client in made.clients]))
        return made

    def others(self, client_id: str) -> dict[str, Samples] | None:
        """The other domains' val and test samples, where clients have domains: the observer's, for CDP and ACC.

        Since ACC on val selects, what is opted out is not among them.
        """
        own = self[client_id]
        if own.domain is None:
            return None
        others = [c for c in self.clients if c.id != client_id and c.domain is not None and c.takes_part]
        alike = len({(c.train.classes, c.train.model_input) for c in (own, *others)}) == 1
        # Clients with different classes or inputs share no test that one model could take.
        if not others or not alike:
            return None
        return {
            "val": concatenate([c.opted_in_of("val") for c in others]),
            "test": concatenate([c.opted_in_of("test") for c in others]),
        }

    def drawable(self, needs_global: bool) -> list[str]:
        """The clients that a round may draw: who shares a model must have something to train it on."""
        return sorted(c.id for c in self.clients if c.takes_part or not needs_global)

    def pooled(self) -> Federation:
        """One client that holds everybody's data, also what is public: the ceiling of federations."""
        given = {client.train.model_input: tuple(client.train.x.shape[1:]) for client in self.clients}
        if len(given) > 1:
            tables = any(one.kind == "table" for one in given)
            listed = "; ".join(map(str, given)) if tables else ", ".join(map(str, given.values()))
            raise InputError(f"clients: inputs of different shapes ({listed}) cannot be pooled")
        classes = self.classes
        clients = [client.relabelled(classes) for client in self._in_order]
        model = self.global_model or clients[0].model
        model = model.model_copy(update={"share": "all"})
        train, val, test = (
            concatenate([getattr(c, split) for c in clients]) for split in ("train", "val", "test")
        )
        if self.public is not None and self.public.labelled:
            known = replace(self.public, parts={o: p.relabelled(classes) for o, p in self.public.parts.items()})
            known.fits("pooled", train)
            theirs = {c.id: c.train.preprocess for c in clients}
            parts = {o: replace(p, preprocess=theirs.get(o, p.preprocess)) for o, p in known.parts.items()}
            train = concatenate([train, replace(known, parts=parts).whole])
        common = test if self.test is None else self.test.relabelled(classes)
        return Federation((Client("pooled", train, val, common, model, aim=self.aim),), model, common, self.notes)


def _split(given: Split | Mapping[str, Any] | None) -> Split:
    """A split, also as a recipe writes it: {"val": 0.1, "test": 0.2}."""
    if given is None or isinstance(given, Split):
        return given or Split()
    if not isinstance(given, Mapping):
        raise InputError(f"split: {given!r}; give mutua.Split(val=0.1, test=0.2)")
    return checked(Split, given, at="split")
