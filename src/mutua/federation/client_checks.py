"""What a federation asks of its clients: that each has an id and a model of its own, and all have one task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mutua.errors import InputError
from mutua.federation.client import Client
from mutua.models import Architecture


def check_aims(clients: Sequence[Client]) -> None:
    """Refuse clients that learn different things: their models could not teach each other, nor be compared."""
    first = clients[0]
    for client in clients:
        if client.aim is not first.aim and client.aim != first.aim:
            one, other = (aim.model_dump(exclude_defaults=True) for aim in (first.aim, client.aim))
            raise InputError(
                f"clients: {first.id} learns {first.aim.kind} {one or ''}, {client.id} {client.aim.kind} "
                f"{other or ''}; all clients of a federation have one task, with the same options"
            )


def check_ids(ids: Sequence[str]) -> None:
    """Refuse an id that is there twice, or twice but for its case: on many disks their folders would be one."""
    known: dict[str, str] = {}
    for name in ids:
        other = known.setdefault(name.casefold(), name)
        if other != name:
            raise InputError(f"clients: the ids '{other}' and '{name}' differ only in case; give others")
    if len(known) != len(ids):
        raise InputError(f"clients: the id '{Counter(ids).most_common(1)[0][0]}' is used twice; ids must differ")


def each_a_client(clients: Any) -> tuple[Client, ...]:
    """What was given, if it is a list of clients."""
    if not isinstance(clients, Sequence):
        raise InputError(f"clients: a {type(clients).__name__}; give a list of Client")
    strange = next((one for one in clients if not isinstance(one, Client)), None)
    if strange is not None:
        raise InputError(f"clients: a {type(strange).__name__} among them; give Client(...) objects")
    return tuple(clients)


def one_each(models: Any, ids: Sequence[str]) -> list[Architecture]:
    """One architecture per client; equal ones are one object."""
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
