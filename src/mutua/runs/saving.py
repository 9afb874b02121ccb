"""What a finished run leaves for use: every model with its card, and a description of a run made in Python."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from mutua.data.mapped_rows import pieces
from mutua.data.sources import PYTHON
from mutua.errors import InputError
from mutua.federation.federation import Federation
from mutua.federation.module_pool import Modules
from mutua.learning.benefit import Benefit
from mutua.learning.tasks import plain, settings
from mutua.methods import base
from mutua.methods.base import Job
from mutua.models import Architecture
from mutua.models.composite import Composite
from mutua.runs.client_result import ClientResult
from mutua.runs.saved_models import ModelCard, put_model, put_weights, scored
from mutua.support import safe_reading
from mutua.support.files import AtomicFiles, as_file_name, atomic_files, reason, to_json
from mutua.support.processes import one_thread
from mutua.support.tensor_files import Tensors

BENEFIT = "benefit.json"
"""In a client's folder: whether it is better off for having joined, if its store has what it would have alone."""
_HEAD = "# Saved from Python, where the data were objects: this file describes the run and cannot repeat it.\n"


def write_models(
    path: Path, job: Job, federation: Federation, weights: Mapping[str, Tensors], clients: Sequence[ClientResult]
) -> None:
    """Write what is shared, by the names of its files, and every client's model, each with its card."""
    shared = job.global_model
    with atomic_files() as files:
        if weights and shared is not None:
            first = min(federation.clients, key=lambda client: client.id).train
            first = replace(first, preprocess=first.preprocess.declared)  # what a client has fitted is its own
            given: Any = {"share": shared.share, "weights": "weights.safetensors"}
            card = ModelCard.of(shared.spec(), first, **scored(federation.aim), **given)
            if shared.share != "all":  # every client ends it in classes of its own
                card = card.model_copy(update={"classes": ()})
            put_model(files, path / "global", weights, card)
        modules = Modules(torch.device("cpu"))  # shared by the clients in turn: building one takes long
        with one_thread():
            for client in clients:
                _put_client(files, path / "clients" / client.id, client, modules)


def _put_client(files: AtomicFiles, place: Path, client: ClientResult, modules: Modules) -> None:
    # What a method keeps beside models has a dot or a space in its name, or nothing in it.
    groups = {name: arrays for name, arrays in client.state.items() if name.isidentifier() and arrays}
    if not client.evaluated:
        put_weights(files, place, groups)
        return
    model = client.serving(modules)
    predictor = model.state_dict()
    serving = next((name for name, arrays in groups.items() if _equal(arrays, predictor)), None)
    if serving is None:
        serving, groups = "predictor", {**groups, "predictor": predictor}
    card = ModelCard.of(
        model.spec if isinstance(model, Composite) else client.made_of,
        client.client.train,
        client=client.id,
        weights=f"{serving}.safetensors",
        **scored(client.client.aim, client.score()),
    )
    put_model(files, place, groups, card)
    if client.keeps_alone and len(client.client.test):
        files.write(place / BENEFIT, to_json(client.benefit().summary()) + "\n")
        model = client.serving(modules)
    if client.client.aim.kind != "classification":
        return  # there are no classes to be taken for each other
    # Without its zeros: a matrix of thousands of classes would be larger than what may be read again.
    classes, cells = list(client.client.train.classes), client.confusion_cells(model)
    table = {"classes": classes, "cells": cells, "right": client.right(model)}
    if domains := client.by_domain(str(table["right"])):
        table["domains"] = domains
    text = to_json(table, indent=None) + "\n"
    if len(text) <= safe_reading.MAX_TEXT_BYTES:  # otherwise there is none, as docs/runs.md says
        files.write(place / "confusion.json", text)


def benefits(run: Path) -> dict[str, Benefit]:
    """By client, whether it is better off for having joined, as far as a run's folder says."""
    found = {}
    for file in sorted(run.glob(f"clients/*/{BENEFIT}")):
        try:
            found[file.parent.name] = Benefit.read(safe_reading.from_json(safe_reading.read_text(file)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"RUN: {file} cannot be read ({reason(error)}); it is damaged") from None
    return found


def _equal(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def describe(job: Job, federation: Federation, name: str) -> str:
    """A run whose data was objects in Python, as YAML in the form of a recipe."""
    data = {"name": PYTHON + _digest(federation)}
    tree = {
        "name": as_file_name(name)[:80] or "run",
        "clients": [{"id": c.id, "data": dict(data), "model": _model(c.model)} for c in federation.clients],
        "models": {} if job.global_model is None else {"global": _model(job.global_model)},
        "method": base.section_of(job.method),
        **({} if plain(federation.aim) else {"task": settings(federation.aim)}),
        **job.plan.model_dump(mode="json", exclude_none=True),
    }
    return _HEAD + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def _model(architecture: Architecture) -> dict[str, Any]:
    more = {"share": architecture.share, "init": architecture.init and str(architecture.init)}
    return {**architecture.spec(), **{key: value for key, value in more.items() if value not in (None, "all")}}


def _digest(federation: Federation) -> str:
    """A checksum of all clients' data: two runs have the same only if their data is the same."""
    found = hashlib.sha256()
    for client in sorted(federation.clients, key=lambda client: client.id):
        for samples in (client.train, client.val, client.test):
            found.update(repr((client.id, samples.classes, tuple(samples.x.shape), samples.x.dtype)).encode())
            for part in pieces(samples.x):
                found.update(part.contiguous().numpy().data)
            found.update(samples.y.contiguous().numpy().data)
    return found.hexdigest()[:16]
