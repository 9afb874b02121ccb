"""Lists in a terminal: methods, models, data sets, runs, one run, and how a newcomer joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mutua import models
from mutua.data.known_sets import EMBEDDED, MADE_UP
from mutua.data.model_input import ModelInput
from mutua.data.sources import catalogue, data_folder
from mutua.federation.message import Kind
from mutua.learning.headline import ACCURACY, METRICS, Headline
from mutua.methods import base
from mutua.methods.promises import promised
from mutua.models.registry import taken_by
from mutua.reports import console
from mutua.runs.listing import RunOverview
from mutua.runs.newcomer import Joined
from mutua.studies.systems import PUBLISHED, TRAITS, systems
from mutua.support.text import percent, several, size

EXAMPLES = (
    ModelInput("images", 1, 28),
    ModelInput("table", 20),
    ModelInput("text", 100, vocabulary=10_000),
)
"""What the sizes of models are told for."""


def show_methods() -> None:
    """Two tables of the methods: what each is, and what it can do and costs."""
    known = {name: base.method_of({"name": name}) for name in base.method_names()}
    table = console.table(["name", "what", "options", "leaves a client"])
    for name, method in known.items():
        shares = ", ".join(f"{kind} ({what})" for what, kind in method.shares.items()) or "nothing"
        about = (type(method).__doc__ or "").splitlines()[0]
        table.add_row(name, about, ", ".join(type(method).model_fields) or "none", shares)
    console.show_table(
        "methods",
        table,
        "options: --set method.NAME=VALUE; docs/methods.md explains each",
        "leaves a client: what a client may send, by kind (and name); anything else is refused",
        "your own: package.module:Class, a subclass of mutua.Method (docs/own-method.md)\n",
    )
    facts = console.table(
        ["name", "models", "classes", "data", "opt-out", "the server", "weights sent", "sent per round"]
    )
    only = [n for n, m in known.items() if m.needs_classes or not promised(type(m), "any_task")]
    for name, method in known.items():
        usual = [base.BANDWIDTH[kind] for kind in method.shares.values() if kind in base.BANDWIDTH]
        sent = [method.reply_grows_with] if method.reply_grows_with else usual or ["nothing"]
        can = [method.own_models, method.own_classes, method.different_data]
        can.append(promised(type(method), "honours_opt_out"))
        weights = Kind.WEIGHTS in method.shares.values()
        facts.add_row(name, *map(_yes, can), method.server_does, _yes(weights), ", ".join(sent))
    console.show_table(
        "what they can do and what they cost",
        facts,
        "models: each client may have a model of its own design",
        "classes: each client may have a list of classes of its own (models.global.share: body, or no global)",
        "data: made for clients whose data differ",
        "opt-out: samples that are opted out of the federation (opt_out) change nothing that leaves a client",
        "the server: what it does with what clients send",
        "weights sent: whether a model's weights leave a client",
        "sent per round: what the size of a client's reply depends on",
        f"tasks: all learn classes, several labels at once and values (task); classes only: {', '.join(only)}",
    )


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def show_systems() -> None:
    """FedH2L's Table I over all methods: marks by what they declare and send, beside the paper's."""
    found = systems()
    table = console.table(["system", *TRAITS], ["sent"])
    for one in found:
        told = one.published or {}
        marks = [f"{mark} ({told[of]})" if of in told else mark for of, mark in one.marks.items()]
        table.add_row(one.method, *marks, "–" if one.bytes_up is None else size(one.bytes_up))
    differences = [
        f"  {one.method}, {of}: {ours} here, {theirs} in the paper"
        for one in found
        for of, (ours, theirs) in one.differences.items()
    ]
    refused = [f"{one.method}: by what it declares alone; {one.refused}" for one in found if one.refused]
    missing = [name for name in PUBLISHED if name not in {one.method for one in found}]
    console.show_table(
        "systems, as in Table I of FedH2L; in brackets the paper's marks",
        table,
        *(f"{of}: {what}" for of, what in TRAITS.items()),
        "sent: bytes that a client sends per round, by the ledger of a small run (two clients, an mlp)",
        *refused,
        *([f"in the paper and not here: {', '.join(missing)}"] if missing else []),
        "\ndifferences:" if differences else "\nno differences",
        *differences,
    )


def show_models() -> None:
    """The models of the zoo and their sizes."""
    table = console.table(["name", "what"], ["parameters"])
    for name in models.names():
        with torch.device("meta"):  # counts the parameters without making them
            given = next(one for one in EXAMPLES if one.kind in taken_by(name))
            size: Any = {"channels": given.channels, "size": given.size, "input": given}
            built = models.Architecture.of(name).build(classes=10, seed=0, **size)
        table.add_row(name, models.describe(name), f"{sum(p.numel() for p in built.parameters()):,}")
    title = "models; parameters for 28×28×1 images (20 columns, 10,000 words), 10 classes"
    console.show_table(title, table, "your own: package.module:factory")


def show_data_sets(data_dir: Path | None) -> None:
    """The data sets known by name, and where they are."""
    folder = data_folder(data_dir)
    table = console.table(["name", "what", "samples", "where"])
    for entry in catalogue(data_dir):
        if entry.found is None:
            by_hand = f"by hand: mutua data get {entry.name} says how"
            where = f"not here: {entry.how if entry.how.startswith('mutua ') else by_hand}"
        else:
            where = (
                "in mutua" if entry.found in (EMBEDDED, MADE_UP) else str(entry.found).removeprefix(f"{folder}/")
            )
        table.add_row(entry.name, f"{entry.about}, {entry.classes} classes", entry.images, where)
    own = "your own: {name: arrays, path: FILE.npz} or {name: folder, path: DIR, image_size: N}"
    console.show_table(f"data sets; the data folder is {folder}", table, own)


def show_runs(runs: Sequence[Mapping[str, Any]], under: Path) -> None:
    """The runs in a folder, by their summaries."""
    table = console.table(["run", "method", "state"], ["seed", "round", "accuracy", "size"])
    for run in runs:
        at = f"{'–' if run['round'] is None else run['round']}/{run['rounds']}"
        of = next((Headline(metric) for metric in METRICS[1:] if metric in run), ACCURACY)
        said = percent(run["accuracy"]) if of == ACCURACY else f"{of.name} {of.shown(run[of.metric])}{of.unit}"
        scores = said, size(run["bytes"])
        table.add_row(run["run"], run["method"], run["state"], str(run["seed"]), at, *scores)
    stopped = any(run["state"] == "stopped" for run in runs)
    remarks = ["to continue a stopped run: mutua run --resume DIR"] if stopped else []
    title = f"{several(len(runs), 'run')} in {under}; round: the last one that is saved"
    console.show_table(title, table, *remarks)


def show_run(run: RunOverview) -> None:
    """A run's state, its checkpoints and its last events."""
    about, path = run.summary(), run.folder.path
    table = console.table(["checkpoint", "state"], ["validation", "size"])
    for one in run.checkpoints():
        if not one["whole"]:
            table.add_row(one["file"], f"damaged: {one['reason']}", "–", "–")
            continue
        name = "before round 0" if one["round"] < 0 else f"after round {one['round']}"
        name += ", the last work" if one["round"] > (run.rounds or 0) else ""
        state = "whole, best on validation data" if one["best"] else "whole"
        table.add_row(name, state, run.folder.headline.shown(one["validation"]), size(one["bytes"]))
    remarks = [f"recipe.yaml has been edited since: {change}" for change in run.edited]
    remarks += [console.event_line(event) for event in run.folder.events.read()[-5:]]
    if about["state"] == "stopped":
        remarks.append(f"to go on: mutua run --resume {path}")
    at = "–" if about["round"] is None else about["round"]
    title = f"{path}: {about['method']}, seed {about['seed']}, {about['state']}, round {at} of {about['rounds']}"
    console.show_table(title, table, *remarks)


def show_joined(joined: Joined) -> None:
    """A newcomer's accuracies: with the global, joined, and alone."""
    labels = {"global": "the global as it is", "predictor": f"joined ({joined.how})", "alone": "trained alone"}
    of = joined.client.task.headline
    table = console.table(["model"], [of.name])
    for key, value in joined.accuracy.items():
        table.add_row(labels[key], of.shown(value))
    what = f"{of.name} (%)" if of.in_percent else of.title
    title = f"{joined.client.id}: {what} on its own {len(joined.client.test)} test samples"
    console.show_table(title, table, f"saved in {joined.folder}; nothing else in the run has changed")
