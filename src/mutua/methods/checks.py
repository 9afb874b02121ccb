"""Checks of a reply that methods share, and of what an author's code returns and keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mutua.errors import InputError, MutuaError, Refused, RunError, described, short_of_memory
from mutua.federation.message import Kind, Message, Part
from mutua.federation.store import State
from mutua.learning import merging
from mutua.methods.server import Server
from mutua.support.tensor_files import Tensors

# What a reply holds: `Refused` says what is wrong with it


def check_number(reply: Message, name: str, what: str, low: float, high: float) -> float:
    """The number in the part of this name, which must be there and lie in [low, high]."""
    if name not in reply:
        raise Refused(f"its {what} is missing")
    found = reply.number(name)
    if not low <= found <= high:
        raise Refused(f"its {what} {found} is outside [{low:g}, {high:.4g}]")
    return found


def check_arrays_like(reply: Message, name: str, what: str, like: Tensors) -> None:
    """Arrays of these names, shapes and types, and finite."""
    if name not in reply:
        raise Refused(f"it holds no {what} '{name}'")
    merging.check_weights(reply.arrays(name), like)


def check_rows(reply: Message, name: str, kind: Kind, classes: int, samples: int, where: str) -> Tensor:
    """Scores or probabilities: finite rows of one number per class, one row for each sample of `where`."""
    if name not in reply or list(reply.arrays(name)) != [""]:
        raise Refused(f"it holds no {kind} '{name}'")
    rows, usual = reply.arrays(name)[""], torch.get_default_dtype()
    if rows.dtype != usual:
        raise Refused(f"its {kind} are {rows.dtype}, not {usual}")
    if rows.dim() != 2 or rows.shape[1] != classes or not bool(torch.isfinite(rows).all()):
        raise Refused(f"its {kind} are not finite rows of {classes}")
    if kind is Kind.PROBABILITIES and (bool((rows < 0).any()) or bool(((rows.sum(1) - 1).abs() >= 1e-3).any())):
        raise Refused("its probabilities must be at least 0, and their rows sum to 1")
    if len(rows) != samples:
        raise Refused(f"its {kind} are of {len(rows)} samples; {where} has {samples}")
    return rows


def check_features(reply: Message, name: str, width: int) -> Tensor:
    """Finite rows of this width, at least one."""
    rows, usual = reply.arrays(name).get("") if name in reply else None, torch.get_default_dtype()
    if rows is None or rows.dtype != usual or rows.dim() != 2 or not len(rows) or rows.shape[1] != width:
        raise Refused(f"it holds no features '{name}': rows of {width} numbers ({usual})")
    if not bool(rows.isfinite().all()):
        raise Refused(f"its features '{name}' hold NaN or infinity")
    return rows


def check_class_counts(reply: Message, name: str, named: set[str]) -> None:
    """For each of these classes how many samples it has."""
    counts = reply.arrays(name) if name in reply else {}
    if counts.keys() != named or any(n.dim() or not 1 <= float(n) < torch.inf for n in counts.values()):
        raise Refused(f"its {name} are not one number of samples for each prototype")


def check_labels(reply: Message, name: str, classes: int, samples: int) -> None:
    """The number of a class for each sample."""
    labels = reply.arrays(name)[""] if name in reply else torch.empty(0)
    if len(labels) != samples or bool((labels >= classes).any()):
        raise Refused(f"its labels are not {samples} numbers below {classes}")


def check_prototypes(reply: Message, name: str, classes: int, width: int) -> set[str]:
    """The classes that a reply has a vector of: finite ones of this width, of at most so many classes."""
    if name not in reply:
        raise Refused(f"it holds no prototypes '{name}'")
    vectors, usual = reply.arrays(name), torch.get_default_dtype()
    if not 0 < len(vectors) <= classes:
        raise Refused(f"its prototypes are of {len(vectors)} classes; there are {classes}")
    for which, vector in vectors.items():
        if tuple(vector.shape) != (width,) or vector.dtype != usual or not bool(vector.isfinite().all()):
            raise Refused(f"its prototype of '{which}' is not {width} finite numbers ({usual})")
    return set(vectors)


# What a verb returns and keeps: one line says what is wrong with it


def check_message(verb: str, found: Message | None) -> Message | None:
    """What a verb returned, which must be a message made of parts, or None."""
    given: object = found
    if given is not None and not isinstance(given, Message):
        raise InputError(f"{verb}: it returned a {type(given).__name__}; give a Message of parts, or None")
    parts: Mapping[str, object] = found or {}
    for name, part in parts.items():
        if not isinstance(part, Part):
            kind = type(part).__name__
            raise InputError(f"{verb}: '{name}' is a {kind}; make it a part with weights, count, number or Part")
    return found


def check_predictor(found: nn.Module) -> nn.Module:
    """What `predictor` returned, which must be a model."""
    given: object = found
    if not isinstance(given, nn.Module):
        raise InputError(f"predictor: it returned a {type(given).__name__}; give a model, such as client.model()")
    return found


def check_named_arrays(what: str, state: State) -> None:
    """Refuse a state that holds anything but groups of named arrays: nothing else can be kept and resumed."""
    groups: Mapping[str, object] = state
    for group, arrays in groups.items():
        wrong = arrays
        if isinstance(arrays, Mapping):
            wrong = next((array for array in arrays.values() if not isinstance(array, Tensor)), None)
            if wrong is None:
                continue
        way_out = "give named arrays, such as {'value': torch.tensor(3)}"
        raise InputError(f"{what}[{group!r}] holds a {type(wrong).__name__}; {way_out}")


def check_evaluated(found: Mapping[str, nn.Module]) -> Mapping[str, nn.Module]:
    """What `evaluated` returned, which must be models by name."""
    given: object = found
    if not isinstance(given, Mapping) or not all(isinstance(model, nn.Module) for model in given.values()):
        kind = type(given).__name__
        raise InputError(f"evaluated: it returned a {kind}; give models by name, such as {{'tuned': model}}")
    if "predictor" in given:
        raise InputError("evaluated: 'predictor' is evaluated anyhow; leave it out")
    return found


@contextmanager
def on_server(verb: str, server: Server | None = None) -> Iterator[None]:
    """Around a verb that runs on the server: its mistakes are said in one line, with their place."""
    try:
        yield
        if server is not None:
            check_named_arrays("server.state", server.state)
    except Exception as error:
        if isinstance(error, MutuaError) or short_of_memory(error):
            raise
        raise RunError(f"{verb}: {described(error)}") from error
