"""The federation that a recipe describes: data loaded, split and dealt, the public set, and what is opted out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mutua.data.partitions import IID, ByColumn, Partition, dealing_seed
from mutua.data.sources import Source, as_source, load, load_raw
from mutua.data.splits import ClientData, DealtSamples, split_and_deal
from mutua.data.tabular_sources import KINDS, RawSource, encode
from mutua.data.targets import TaskKind
from mutua.errors import InputError
from mutua.federation.federation import Federation
from mutua.learning.tasks import CLASSIFICATION, Aim
from mutua.recipe.clients import ClientEntry, Data, ModelsSection
from mutua.recipe.opt_out import OptOut, mark_opted_out
from mutua.recipe.public_set import PublicSet, with_public_set
from mutua.seeds import derive
from mutua.support.configuration import PathLike
from mutua.support.text import some


def make_federation(
    seed: int,
    data_dir: PathLike | None,
    *,
    data: Data | None,
    partition: Partition | None,
    clients: Sequence[ClientEntry] | None,
    models: ModelsSection,
    public: PublicSet | None,
    opt_out: OptOut | None,
    task: Aim | None = None,
) -> Federation:
    """The federation of these sections of a recipe: of `clients`, or of `data` that a `partition` deals."""
    aim = task or CLASSIFICATION
    if clients is not None:
        federation, sources = _of_clients(clients, models, opt_out, seed, data_dir, aim)
    else:
        assert data is not None and partition is not None
        federation, source = _of_data(data, partition, models, opt_out, seed, data_dir, aim)
        sources = [source]
    if public is None:
        return federation
    seed = dealing_seed(partition, seed)
    if all(source.lists for source in sources):
        # FedH2L's PACS: a share of the listed test images, and all listed training images stay private.
        return with_public_set(federation, public, seed, split="test")
    given_test = any(source.test is not None for source in sources)
    return with_public_set(federation, public, seed, given_test=given_test)


def _of_data(
    data: Data,
    partition: Partition,
    models: ModelsSection,
    opt_out: OptOut | None,
    seed: int,
    data_dir: PathLike | None,
    aim: Aim,
) -> tuple[Federation, Source]:
    """One source, dealt to clients by the partition."""
    seed = dealing_seed(partition, seed)
    by = partition.column if isinstance(partition, ByColumn) else None
    source = _load(data, data_dir, opt_out, aim.kind, by=by)
    dealt = _deal(source, data, partition, seed)
    if opt_out is not None:
        dealt = replace(dealt, clients=mark_opted_out(dealt.clients, opt_out, seed))
    return Federation.of(dealt, models.clients, models.global_model, aim), source


def _of_clients(
    clients: Sequence[ClientEntry],
    models: ModelsSection,
    opt_out: OptOut | None,
    seed: int,
    data_dir: PathLike | None,
    aim: Aim,
) -> tuple[Federation, list[Source]]:
    """Clients with data of their own; those that name the same data share it."""
    groups: dict[str, tuple[Data, list[str]]] = {}  # by what is said: declared columns cannot be hashed
    for entry in clients:
        said = json.dumps(entry.data.model_dump(mode="json"), sort_keys=True)
        groups.setdefault(said, (entry.data, []))[1].append(entry.id)
    sources = _together(
        [(data, f"clients.{min(ids)}.data") for data, ids in groups.values()], data_dir, opt_out, aim.kind
    )
    parts: dict[str, ClientData] = {}
    notes: list[str] = []
    drawn: set[tuple[str, Path | None]] = set()
    for data, members in groups.values():
        ids = sorted(members)
        key = _key(data)
        at, who = f"clients.{ids[0]}.data", ", ".join(ids)
        if (place := (data.name, data.path)) in drawn:
            notes.append(f"{who}: the same data as others, differently drawn: they may have samples in common")
        drawn.add(place)
        source = sources.get(key) or sources.setdefault(key, _load(data, data_dir, opt_out, aim.kind, at))
        # No sample goes to two clients.
        dealt = _deal(source, data, IID(clients=len(ids)), derive(seed, *ids), at, alone=True)
        parts |= {name: replace(part, id=name) for name, part in zip(ids, dealt.clients, strict=False)}
        notes += [f"{who}: {note}" for note in dealt.notes]
    ordered = [parts[entry.id] for entry in clients]
    if opt_out is not None:
        ordered = mark_opted_out(ordered, opt_out, seed)
    own = [entry.model for entry in clients]
    federation = Federation.of_clients(ordered, own, models.global_model, tuple(notes), aim=aim)
    return federation, list(sources.values())


def _key(data: Data) -> tuple[Any, ...]:
    """What says that two clients name the same data."""
    key = data.name, data.path, data.image_size, data.classes, data.layout, data.channels, data.mapped
    return (*key, data.tabular.model_dump_json())


def _together(
    named: Sequence[tuple[Data, str]], data_dir: PathLike | None, opt_out: OptOut | None, kind: TaskKind
) -> dict[tuple[Any, ...], Source]:
    """The tables and texts of all clients, where columns are matched by name unless a client keeps its own."""
    mask = None if opt_out is None else opt_out.mask
    matched: dict[tuple[Any, ...], RawSource] = {}
    for data, at in named:
        if data.name in KINDS and not data.own_columns and _key(data) not in matched:
            with _saying(at):
                given: Any = {"path": data.path, "classes": data.classes, "mask": mask, "kind": kind}
                matched[_key(data)] = load_raw(data.name, data.tabular, data_dir=data_dir, **given)
    with _saying("clients"):
        made = zip(matched, encode([*matched.values()]), strict=True) if matched else ()
        found = {key: as_source(key[0], source) for key, source in made}
    for source in found.values():
        _check_declared(source, opt_out, "clients")
    return found


def _check_declared(source: Source, opt_out: OptOut | None, at: str) -> None:
    """Refuse columns that nobody has declared where rows are opted out: they would tell of those rows too."""
    if opt_out is not None and source.inferred:
        raise InputError(
            f"{at}.columns: {some(source.inferred)} must be declared where samples are opted out, so that "
            "opted-out rows need not tell what the columns hold; `mutua data columns` writes the declaration"
        )


@contextmanager
def _saying(at: str) -> Iterator[None]:
    """Say in complaints where in the recipe the data is named."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{at}: {str(error).removeprefix('data: ')}") from None


def _load(
    data: Data,
    data_dir: PathLike | None,
    opt_out: OptOut | None,
    kind: TaskKind,
    at: str = "data",
    by: str | None = None,
) -> Source:
    """The samples; `at` is where in the recipe they are named. A relative path starts at the current folder."""
    given: dict[str, Any] = {name: getattr(data, name) for name in ("path", "image_size", "classes")}
    given |= {name: getattr(data, name) for name in ("layout", "channels", "mapped")}
    given["kind"] = kind
    given["mask"] = None if opt_out is None else opt_out.mask
    with _saying(at):
        source = load(data.name, data_dir=data_dir, by=by, **given, **data.tabular.as_given())
    _check_declared(source, opt_out, at)
    return source


def _deal(
    source: Source, data: Data, partition: Partition, seed: int, at: str = "data", *, alone: bool = False
) -> DealtSamples:
    """The samples, split and dealt; `alone`: others have data too, so that all of this may be opted out."""
    train, val, test = source.train, None, source.test
    if source.lists is not None:
        if data.split.val_from == "test":
            raise InputError(f"{at}.split.val_from: test, but list files say what is val; leave it out")
        train, val, test = (source.train.take(source.lists[part]) for part in ("train", "val", "test"))
    whole = alone and train.opted_out is not None and bool(train.opted_out.all())
    if whole:  # so there is nothing else to keep it from
        train = replace(train, opted_out=None)
        val, test = (None if part is None else replace(part, opted_out=None) for part in (val, test))
    try:
        dealt = split_and_deal(
            train,
            test,
            partition,
            data.split,
            val=val,
            samples_per_client=data.samples_per_client,
            test_samples=data.test_samples,
            seed=seed,
        )
    except InputError as error:
        raise InputError(str(error) if str(error).startswith("partition") else f"{at}.{error}") from None
    if whole:
        dealt = replace(dealt, clients=[part.opted_out() for part in dealt.clients])
    return replace(dealt, notes=[*dealt.notes, source.note]) if source.note else dealt
