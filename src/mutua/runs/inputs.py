"""What a run is made of: its recipe, and a checksum of every input. A run continues only with the same inputs.

All of the clients' data and opt-out masks, the common test set, the public set, graphs, starting weights, and the
source of users' own code: of a method, model or censor the module, and the modules beside it that it uses.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import reprlib
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import resolve_name
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict
from torch import Tensor, nn

from mutua.data.mapped_rows import MappedRows, pieces
from mutua.data.samples import Samples
from mutua.errors import InputError, line
from mutua.federation.federation import Federation
from mutua.federation.topology import TOPOLOGIES
from mutua.models import Architecture, registry
from mutua.recipe.recipe import Recipe, models_in
from mutua.support import safe_reading
from mutua.support.configuration import Spec
from mutua.support.importing import import_object
from mutua.support.processes import cores, share_memory_among_threads

HashProgress = Callable[[int, int], None]
"""Called with how many bytes are hashed, and of how many."""

HASHED_AT_ONCE = 2**24
"""How many bytes a thread hashes at once."""
SMALL = 2**17
PIECES = 1024
"""So many pieces are looked at together, because all of them would take memory for nothing."""
VERSIONED = {"mutua", "torch", "pydantic", "pydantic_core", "numpy", "networkx", *sys.stdlib_module_names}
"""Packages that are not the user's own code: a checkpoint records their versions."""
MAX_NAMED = 3
"""This many changes are named in a message."""


class Inputs(Spec):
    """The recipe as it is executed, and the checksums of all else that a run is made of."""

    model_config = ConfigDict(extra="ignore")

    recipe: str
    """In YAML."""
    sums: dict[str, str]
    """SHA-256, by what it is of: "the training data of client c0"."""
    accepted: tuple[str, ...] = ()
    """Changes that the user accepted."""

    def changed(self, now: Inputs) -> list[str]:
        """What has changed, other than the recipe, in words."""
        found = [f"{name} has changed" for name, sum in self.sums.items() if now.sums.get(name, sum) != sum]
        found += [f"{name} is gone" for name in self.sums if name not in now.sums]
        return found + [f"{name} is new" for name in now.sums if name not in self.sums]


def recipe_of(text: str) -> Recipe:
    """The recipe in a run's record."""
    try:
        return Recipe.of(safe_reading.from_yaml(text))
    except (safe_reading.Unreadable, TypeError, ValueError) as error:
        raise InputError(f"RUN: the recipe in its record cannot be read: {error}") from None


def changed_fields(was: str, now: str) -> list[str]:
    """The fields in which two recipes, in YAML, differ: "optimizer.lr was 0.05, is 0.45"."""
    before, after = (dict(_fields(safe_reading.from_yaml(text))) for text in (was, now))

    def told(fields: Mapping[str, Any], name: str) -> str:
        return line(reprlib.repr(fields[name])) if name in fields else "not there"

    names = [name for name in before | after if before.get(name, KeyError) != after.get(name, KeyError)]
    return [f"{name} was {told(before, name)}, is {told(after, name)}" for name in names]


def _fields(tree: object, name: str = "") -> Iterator[tuple[str, Any]]:
    """All values of a tree by their dotted names."""
    inner: Iterable[tuple[object, object]] = ()
    if isinstance(tree, dict):
        inner = tree.items()
    elif isinstance(tree, list):
        inner = enumerate(tree)
    else:
        yield name, tree
    for key, value in inner:
        yield from _fields(value, f"{name}.{key}" if name else str(key))


def first_changes(changes: Sequence[str]) -> str:
    """The first changes in one line, and how many more there are."""
    rest = len(changes) - MAX_NAMED
    return "; ".join(changes[:MAX_NAMED]) + (f"; and {rest} more" if rest > 0 else "")


def hash_inputs(recipe: Recipe, federation: Federation, show: HashProgress | None = None) -> Inputs:
    """What this run is made of, hashed by one thread per core."""
    return Inputs(recipe=recipe.dump(), sums=_sums(partial(_held, recipe, federation), show))


HashedPart = bytes | Tensor | MappedRows | Path
NamedParts = tuple[str, list[HashedPart]]


def _held(recipe: Recipe, federation: Federation) -> Iterator[NamedParts]:
    """Everything that is hashed, by name."""
    for client in federation.clients:
        for split, samples in (("training", client.train), ("val", client.val), ("test", client.test)):
            yield f"the {split} data of client {client.id}", [repr(client.domain).encode(), *_samples(samples)]
        if client.opt_in is not None:
            yield f"the opt-out mask of client {client.id}", [client.opt_in]
    if federation.test is not None:
        yield "the common test set", _samples(federation.test)
    if federation.public is not None:
        owners = sorted(federation.public.parts.items())
        parts = [part for owner, samples in owners for part in (owner.encode(), *_samples(samples))]
        yield "the public set", parts
    if isinstance(recipe.topology, str | Path):
        if recipe.topology not in TOPOLOGIES:
            yield f"the graph {recipe.topology}", [Path(recipe.topology)]
    else:
        yield "the graph of topology", [repr(sorted(map(repr, recipe.topology.edges(data=True)))).encode()]
    architectures = [federation.global_model, *(client.model for client in federation.clients)]
    unique = {id(one): one for one in [*architectures, *models_in(recipe.method)] if one is not None}
    for architecture in unique.values():
        if architecture.init is not None:
            yield f"the file of starting weights {architecture.init}", [architecture.init]
        if isinstance(made := _made_by(architecture), nn.Module):
            state = made.state_dict()
            parts = [part for name, array in state.items() for part in (name.encode(), array)]
            yield f"the starting weights of the model {architecture.label}", parts
    code = [type(recipe.method), *map(_made_by, unique.values())]
    if recipe.opt_out is not None and recipe.opt_out.censor is not None:
        code.append(import_object(recipe.opt_out.censor, "opt_out.censor"))
    yield from _sources(code)


def _samples(samples: Samples) -> list[HashedPart]:
    arrays: list[Tensor | MappedRows | None] = [samples.x, samples.y, samples.domain, samples.opted_out]
    return [
        repr((samples.classes, samples.preprocess.declared, samples.domains)).encode(),
        *([] if samples.kind == "classification" else [samples.kind.encode()]),
        *(a for a in arrays if a is not None),
    ]


def _made_by(architecture: Architecture) -> Any:
    """The factory, class or module behind an architecture."""
    name = architecture.name
    if not isinstance(name, str):
        return name
    return registry.find_model(name) if architecture.registered else import_object(name, "models")


def _sources(objects: Iterable[Any]) -> Iterator[NamedParts]:
    """The user's own modules that these come from, and those beside them that they use."""
    waiting: list[str] = []
    for one in objects:
        owner = one if inspect.isclass(one) or inspect.isroutine(one) else type(one)
        for part in inspect.getmro(owner) if inspect.isclass(owner) else (owner,):
            name = str(part.__module__)
            if _file(name) is not None:
                waiting.append(name)
            elif _top(name) not in VERSIONED:
                try:  # perhaps it is in a notebook
                    yield f"the code of {part.__qualname__}", [inspect.getsource(part).encode()]
                except (OSError, TypeError):
                    continue  # it cannot be read
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        file = _file(name)
        if name in seen or file is None:
            continue
        seen.add(name)
        yield f"the code of {name}", [file]
        waiting += (other for other in _imported(name, file) if _beside(other, name))


def _imported(module: str, file: Path) -> Iterator[str]:
    """What a module imports: names that may be modules."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # perhaps it is compiled
        return
    package = getattr(sys.modules[module], "__package__", None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            with suppress(ImportError):  # more dots than there are packages
                base = resolve_name("." * node.level + base, package or module) if node.level else base
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _top(module: str) -> str:
    return module.partition(".")[0]


def _file(module: str) -> Path | None:
    """The file of a module, if it is the user's own and has one."""
    path = getattr(sys.modules.get(module), "__file__", None)
    return None if path is None or _top(module) in VERSIONED else Path(path)


def _beside(other: str, module: str) -> bool:
    """Whether two modules are in one package, or in one folder that holds no installed packages."""
    if _top(other) == _top(module):
        return True
    roots = [_root(name) for name in (other, module)]
    installed = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return roots[0] is not None and roots[0] == roots[1] and str(roots[0]) not in installed


def _root(module: str) -> Path | None:
    """The folder from which a module or its package is imported."""
    file = _file(_top(module))
    if file is None:
        return None
    return file.parent.parent if hasattr(sys.modules[_top(module)], "__path__") else file.parent


def _sums(held: Callable[[], Iterator[NamedParts]], show: HashProgress | None) -> dict[str, str]:
    """The checksum of each: of the checksums of its parts, chunk by chunk. `held` begins with the first again."""
    total = done = 0
    if show is not None:
        total = sum(_size(piece) for _, parts in held() for part in parts for piece in _pieces(part))
    made: dict[str, str] = {}
    for name, found in groupby(_digests(held()), key=itemgetter(0)):
        sum_of = hashlib.sha256()
        for _, size, digest in found:
            sum_of.update(digest)
            done += size
            if show is not None:
                show(done, total)
        made[name] = sum_of.hexdigest()
    return made


def _digests(held: Iterator[NamedParts]) -> Iterator[tuple[str, int, bytes]]:
    """Of every piece the name, the length and the checksum, in order; of what has no piece one that is empty."""
    pieces = ((name, piece) for name, parts in held for part in parts or [b""] for piece in _pieces(part))
    share_memory_among_threads()
    with ThreadPoolExecutor(cores()) as pool:
        while some := list(islice(pieces, PIECES)):
            # Handing a small piece to a thread takes longer than hashing it.
            large = pool.map(_digest, [piece for _, piece in some if _size(piece) >= SMALL])
            for name, piece in some:
                size = _size(piece)
                yield name, size, next(large) if size >= SMALL else _digest(piece)


def _pieces(part: HashedPart) -> Iterator[HashedPart]:
    """Parts that many threads can hash at once."""
    if not isinstance(part, Tensor | MappedRows):
        yield part
        return
    yield repr((tuple(part.shape), part.dtype)).encode()
    if isinstance(part, MappedRows):  # the pieces that a tensor has, each read where it is hashed
        yield from part.split(max(1, HASHED_AT_ONCE // (part.shape[1:].numel() * part.dtype.itemsize)))
        return
    flat = part.detach().reshape(len(part), -1) if part.dim() and len(part) else part.detach().reshape(1, -1)
    rows = max(1, HASHED_AT_ONCE // max(1, flat[0].nbytes))
    yield from flat.split(rows)


def _size(piece: HashedPart) -> int:
    if isinstance(piece, Path):
        return piece.stat().st_size if piece.is_file() else 0
    return piece.nbytes if isinstance(piece, Tensor | MappedRows) else len(piece)


def _digest(piece: HashedPart) -> bytes:
    if isinstance(piece, Tensor | MappedRows):
        sum_of = hashlib.sha256()
        for x in pieces(piece):
            sum_of.update(x.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return sum_of.digest()
    if isinstance(piece, bytes):
        return hashlib.sha256(piece).digest()
    if not piece.is_file():  # whatever needs it will say so
        return b""
    with piece.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
