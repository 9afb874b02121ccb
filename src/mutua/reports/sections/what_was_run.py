"""What was run, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mutua.federation.plan import SELECTIONS
from mutua.learning.headline import ACCURACY
from mutua.reports import console
from mutua.reports.study import Run, Study, common_value
from mutua.reports.tables import MOST_CLIENTS, CellValue, Table
from mutua.support.text import of_width, some


def what_was_run(study: Study) -> str:
    """Method, data, clients, models, rounds and seeds in a paragraph."""
    first, several = study.runs[0], len(study.runs) > 1
    seeds = f"seed{'s' * (len(study.seeds) > 1)} {enumerated(map(str, study.seeds))}"
    said = [f"{compared_text(study)} {'were compared over' if several else 'was run with'} {seeds}."]
    if len(study.labels) == 1 and (own := _method_words(first)):
        said.append(f"Its options: {own}.")
    clients = common_value(list(run.clients) for run in study.runs if run.method != "centralised") or list(
        first.clients
    )
    whose = f"The {len(clients)} clients" + (f" ({enumerated(clients)})" if len(clients) <= 12 else "")
    said.append(f"{whose if clients else 'The clients'} learned from {_same(study, _data_words)}.")
    said.append(f"Their own models: {_same(study, _model_words)}.")
    shared = {
        study.contender(label): None for label in study.labels if all(run.serves_global for run in study.of(label))
    }
    if shared:
        said.append(f"With {enumerated(shared)} every client serves with the global.")
    said.append(f"{_same(study, _plan_words)}.")
    if (selection := common_value(run.section("selection") for run in study.runs)) in SELECTIONS:
        numbers = "Accuracies are" if study.headline == ACCURACY else f"Numbers ({study.headline.title}) are"
        said.append(f"{numbers} of test data {SELECTIONS[selection]}; nothing was selected on test data.")
    if several and len(study.seeds) > 1:
        said.append("A number ± another is the mean ± the standard deviation over seeds.")
    if faults := first.section("faults"):
        said.append(f"Clients failed on purpose (faults): {_words(faults)}.")
    seconds = [run.summary["seconds"] for run in study.runs if run.summary is not None]
    if seconds:
        said.append(f"{'The runs' if several else 'It'} took {_time(sum(seconds))} of computing.")
    return " ".join(said)


def compared_text(study: Study) -> str:
    """What is compared: methods or other labels and, where a grid has more axes, these."""
    said = enumerated(dict.fromkeys(map(study.contender, study.labels)))
    axes: dict[str, dict[str, None]] = {}
    for run in study.runs:
        for axis, label in run.position.items() if "method" in run.position else ():
            axes.setdefault(axis, {})[label] = None
    return said + "".join(f" by {axis} ({enumerated(of)})" for axis, of in axes.items() if axis != "method")


def _same(study: Study, words: Callable[[Run], str]) -> str:
    """What holds for all runs, or for the first with a note that others differ."""
    return common_value(map(words, study.runs)) or f"{words(study.runs[0])} ({study.runs[0].label}; others differ)"


def _data_words(run: Run) -> str:
    if run.made_in_python:
        return "data given as objects in Python"
    if (entries := run.section("clients")) is not None:
        said = enumerated(dict.fromkeys(_source(entry["data"]) for entry in entries)) + ", each client its own"
    else:
        data, partition = dict(run.section("data") or {}), dict(run.section("partition") or {})
        said = _source(data)
        if (many := data.get("samples_per_client")) is not None:
            said += f" ({many} samples per client)"
        kind = partition.pop("kind", "unknown")
        partition.pop("clients", None)
        said += f", dealt by {kind}" + (f" ({_words(partition)})" if partition else "")
    if public := run.section("public"):
        said += f", with a public set ({_words(public)})"
    if opt_out := run.section("opt_out"):
        said += f", some opted out ({_words(opt_out)})"
    return said


def _source(data: Mapping[str, Any]) -> str:
    """The name of the data and, where it was read from the user's files, their path."""
    return f"{data.get('name')} {data['path']}" if data.get("path") else str(data.get("name"))


def _model_words(run: Run) -> str:
    models = run.section("models") or {}
    shared, own = models.get("global"), models.get("clients")
    if (entries := run.section("clients")) is not None:
        own = [entry["model"] for entry in entries]
    counts = Counter(_model(model or {}) for model in (own if isinstance(own, list) else [own or shared]))
    said = enumerated(f"{name} ({many})" if many > 1 else name for name, many in counts.items())
    return f"{said}; the global: {_model(shared) if shared else 'none'}"


def _model(given: Mapping[str, Any]) -> str:
    return of_width(str(given.get("name")), given.get("width") or 1)


def _method_words(run: Run) -> str:
    given = run.section("method")
    if not isinstance(given, Mapping):
        return ""
    return _words({key: value for key, value in given.items() if key != "name" and value is not None})


def _plan_words(run: Run) -> str:
    epochs, steps = run.section("epochs"), run.section("steps")
    work = f"{epochs} epoch{'s' * (epochs != 1)}" if epochs else f"{steps} step{'s' * (steps != 1)}"
    said = f"{run.section('rounds')} rounds of {work}, batches of {run.section('batch_size')}"
    said += f", optimizer {console.option_text({k: v or None for k, v in run.section('optimizer').items()})}"
    if (fraction := run.section("client_fraction")) not in (None, 1, 1.0):
        said += f", {fraction:g} of the clients per round"
    return said


def _words(section: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {console.option_text(value)}" for key, value in section.items())


def enumerated(words: Iterable[str]) -> str:
    """a, b and c."""
    *most, last = list(words) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def run_notes(study: Study) -> Iterator[str]:
    """Who has opted out, and what the runs have said about their data."""
    first = study.runs[0]
    out = [one for one in (first.summary or {}).get("clients", ()) if one.get("opted_out")]
    if out:
        whom = some([f"{one['id']} {one['opted_out']} of {one['samples']}" for one in out], MOST_CLIENTS)
        yield f"Training samples that are opted out, with seed {first.seed}: {whom}."
    for note in dict.fromkeys(note for run in study.runs for note in run.notes):
        yield f"Note: {note}."


def settings_tables(study: Study) -> Iterator[Table]:
    """By label, the settings in which the recipes differ."""
    flat = {label: dict(_flat(study.of(label)[0].overview.recipe)) for label in study.labels}
    keys = dict.fromkeys(key for tree in flat.values() for key in tree if key != "seed")
    differ = [key for key in keys if common_value(tree.get(key) for tree in flat.values()) is None]
    if len(flat) < 2 or not differ:
        return
    rows: list[tuple[CellValue, ...]] = []
    for label, tree in flat.items():
        rows.append((label, ", ".join(f"{key} {tree[key]}" for key in differ if tree.get(key) is not None)))
    yield Table("settings", "What differs between them", ("label", "its own settings"), (), tuple(rows))


def _flat(tree: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value
