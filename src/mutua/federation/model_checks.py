"""Whether models fit their clients' data: what could not run is refused, what may be a mistake is noted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mutua.data.mapped_rows import pieces
from mutua.data.samples import Preprocess
from mutua.data.targets import NAMED
from mutua.errors import InputError, MutuaError, raised_at
from mutua.federation.client import Client, build
from mutua.federation.federation import Federation
from mutua.models import Architecture, features, shared_names
from mutua.models.narrow import fits


class CheckedModels(NamedTuple):
    """What was found: notes of what may be a mistake, and the bytes of all clients' own models together."""

    notes: tuple[str, ...]
    personal_bytes: int


def check_models(federation: Federation, needs_global: bool) -> CheckedModels:
    """Refuse models that cannot be built or do not fit their client's data, before anything runs."""
    notes = [*_empty_classes(federation.clients), *_unscaled(federation.clients)]
    if needs_global and federation.global_model is None:
        raise InputError(
            "models.global: missing; this method shares a global model, so name its architecture "
            "(global_model= in Python)"
        )
    seen: dict[tuple[Any, ...], int] = {}
    personal = 0
    reference: dict[str, torch.Size] | None = None
    for client in federation.clients:
        roles = [("model", client.model)]
        if needs_global and federation.global_model is not None:
            roles.append(("global model", federation.global_model))
        for role, architecture in roles:
            key = (role, id(architecture), client.train.model_input, len(client.train.classes))
            if key in seen:
                personal += seen[key] if role == "model" else 0
                continue
            module, scores = _tried(client, role, architecture)
            seen[key] = sum(array.nbytes for array in module.state_dict().values())
            personal += seen[key] if role == "model" else 0
            if scores.shape[1] > 1 and client.train.kind == "classification" and bool(_probable(scores)):
                notes.append(
                    f"client {client.id}: {role} {architecture.label} gives probabilities; mutua takes scores "
                    "(logits) and makes probabilities of them itself: leave out its last softmax"
                )
            if role == "model":
                continue
            _check_head(federation, module, architecture)
            _check_first(federation, client, module, architecture)
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
    return CheckedModels(tuple(notes), personal)


def whole_global(federation: Federation, why: str) -> None:
    """Refuse a partial global; `why` says what the method does with a whole one."""
    if federation.partial:
        raise InputError(f"models.global.share: a part, but {why}; share 'all'")


def one_list_of_classes(federation: Federation, why: str) -> None:
    """Refuse clients whose classes differ; `why` says what the method does that needs one list."""
    if len({client.task.classes for client in federation.clients}) > 1:
        raise InputError(f"clients have different classes, but {why}")


def parts_of_global(federation: Federation, why: str, most: int) -> None:
    """Refuse a client's model that is no part of the global, by layers and units; and too many designs."""
    shared, designs = federation.global_model, {id(client.model): client for client in federation.clients[::-1]}
    if len(designs) > most:
        raise InputError(f"models.clients: {len(designs)} designs; {why} takes at most {most}")
    for client in designs.values() if shared is not None else ():
        assert shared is not None
        try:
            fits(build(shared, client, 0), build(client.model, client, 0))
        except InputError as error:
            what = f"its {client.model.title} is no part of the global's {shared.title}, as {why} needs it"
            raise InputError(f"client {client.id}: {what}: {error}") from None


def common_features(federation: Federation, why: str) -> int:
    """How many features every client's model gives its head; refused, by name, where they differ."""
    found: dict[int, str] = {}
    tried: set[tuple[Any, ...]] = set()
    for client in federation.clients:
        key = (id(client.model), client.train.model_input, len(client.task.classes))
        if key in tried:
            continue
        tried.add(key)
        width = feature_width(client, "model", client.model, why)
        found.setdefault(width, f"client {client.id}'s {client.model.title} gives {width}")
    if len(found) > 1:
        raise InputError(
            f"models.features: missing; {why} needs features of one width, but {'; '.join(found.values())}: "
            f"give every model features: {min(found)}, or less"
        )
    return next(iter(found))


def global_features(federation: Federation, why: str) -> int:
    """How many features the global gives its head; refused, by name, where it has no head."""
    if federation.global_model is None:
        return 0  # `check_models` says that it is missing
    return feature_width(federation.clients[0], "global model", federation.global_model, why)


def feature_width(client: Client, role: str, architecture: Architecture, why: str) -> int:
    """How many features a model gives its head; refused, by name, where it has no head."""
    module, _ = _tried(client, role, architecture)
    try:
        with torch.no_grad():
            z, _ = features(module, client.train.preprocess(client.train.x[:1]))
    except InputError as error:
        raise InputError(f"{error}: {why} needs features, which are what the head is given") from None
    return z.shape[1]


def _check_head(federation: Federation, module: torch.nn.Module, architecture: Architecture) -> None:
    """Refuse a head shared by different classes: its rows would be merged by position, not by name."""
    if architecture.share == "body" or len({client.train.classes for client in federation.clients}) == 1:
        return
    shared = set(shared_names(module, architecture.share)) & set(shared_names(module, "head"))
    if shared:
        raise InputError(
            f"models.global.share: '{min(shared)}' is of the head, whose rows are classes, and clients have "
            "different classes; share the body or give every client the same classes"
        )


def _check_first(
    federation: Federation, client: Client, module: torch.nn.Module, architecture: Architecture
) -> None:
    """Refuse a first layer shared by different columns or words: its weights would be merged by position."""
    other = next((c for c in federation.clients if c.train.model_input != client.train.model_input), None)
    named = client.train.model_input.features or (other is not None and other.train.model_input.features)
    if other is None or not named:  # images of other sizes share what has the same shape
        return
    names = list(module.state_dict())
    first = names[0].partition(".")[0]
    shared = shared_names(module, architecture.share)
    if any(name.partition(".")[0] == first for name in shared):
        rest = list(dict.fromkeys(name.partition(".")[0] for name in names if name.partition(".")[0] != first))
        raise InputError(
            f"models.global.share: '{first}' is shared, but the inputs of client {client.id} are "
            f"{client.train.model_input} and those of {other.id} {other.train.model_input}; share the rest "
            f"({', '.join(rest)}), or give all clients the same columns"
        )


def _empty_classes(clients: Sequence[Client]) -> list[str]:
    """Classes of which nobody has a sample: a gap in the labels, perhaps, or one name too many."""
    counts: Counter[str] = Counter()
    for client in clients:
        counts.update(dict.fromkeys(client.train.classes, 0))
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
        ends = [(float(part.min()), float(part.max())) for part in pieces(x)]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
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
    expected = (2, len(client.train.classes))
    if not isinstance(out, torch.Tensor) or tuple(out.shape) != expected:
        one = NAMED[client.train.kind][0]
        found = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise InputError(f"{what} gives {found} for two samples; it must give {expected}, one score per {one}")
    return module, out


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}{raised_at(error)}"
