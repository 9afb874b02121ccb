"""A report: what was run and what came of it, as sections of text, tables and pictures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mutua.errors import InputError, MutuaError
from mutua.reports import attendance, pictures, quality, verdicts
from mutua.reports.figures import COLOURS, Picture, colours, labels, slug
from mutua.reports.labels import counts_by_client
from mutua.reports.reading import Run, Study, believing, common
from mutua.reports.tables import Bytes, Cell, Points, Table
from mutua.reports.words import compared, listed, serves_global, what_was_run
from mutua.studies.measures import ABOUT
from mutua.studies.statistics import Difference, Spread
from mutua.support.configuration import PathLike
from mutua.support.text import some

if TYPE_CHECKING:
    from mutua.federation.federation import Federation

MEASURES = {
    "global": "global",
    "predictor": "predictor",
    "wdp": "wdp",
    "cdp": "cdp",
    "acc": "acc",
    "worst": "worst",
    "spread_clients": "spread",
    "better_off": "better off",
}
"""The measures of the table of results, and how its columns are called."""


@dataclass(frozen=True)
class Code:
    """Text to be shown as it is; `folded` away where that is possible."""

    text: str
    folded: str = ""


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[str | Table | Picture | Code, ...]


@dataclass(frozen=True)
class Report:
    """A title and sections."""

    title: str
    sections: tuple[Section, ...]

    @property
    def tables(self) -> Iterator[Table]:
        """Every table."""
        return (block for section in self.sections for block in section.blocks if isinstance(block, Table))

    @property
    def pictures(self) -> Iterator[Picture]:
        """Every picture."""
        return (block for section in self.sections for block in section.blocks if isinstance(block, Picture))


def compose(study: Study, load_data: bool = False, data_dir: PathLike | None = None) -> Report:
    """All that a folder tells; with `load_data` also what its data do."""
    with believing(study.path):
        return _compose(study, load_data, data_dir)


def _compose(study: Study, load_data: bool, data_dir: PathLike | None) -> Report:
    colour = _colours(study)
    missing = list(study.missing)
    data = _data(study, data_dir, missing) if load_data else {}
    sections = [
        Section("Is each client better off than alone?", tuple(verdicts.section(study))),
        Section("What was run", (what_was_run(study), *_notes(study), *_settings(study))),
        Section("Results", (*_results(study), *_differences(study), *quality.metrics(study))),
        Section("Learning curves", tuple(_curves(study, colour))),
        Section("Clients", tuple(_clients(study, colour))),
        Section("Who took part", tuple(attendance.section(study))),
        Section("Which classes are taken for which", tuple(quality.confusions(study, missing))),
        Section("Newcomers", tuple(_newcomers(study))),
        Section("Who holds which labels", tuple(_labels(study, data))),
        Section("Accuracy against bytes sent", tuple(_trade_off(study, colour))),
        Section("What left each client", tuple(_left(study))),
    ]
    if load_data:
        sections.append(Section("The data", tuple(_samples(study, data, missing))))
    else:
        missing.append(
            "training labels, PCA of features and UMAP of the data: they need the data; give --load-data"
        )
    if not any(run.alone for run in study.runs):
        missing.append("who is better off than alone: there is no run of method independent on the same data")
    sections += [
        Section("What this report lacks", tuple(dict.fromkeys(missing))),
        Section("To repeat it", tuple(_repeat(study, load_data))),
    ]
    name = str(study.runs[0].section("name") or study.path.name)
    return Report(f"{name}: {compared(study)}", tuple(section for section in sections if section.blocks))


def _colours(study: Study) -> dict[str, str]:
    """By label: a method's own colour for the first contender that is of it; other contenders take free ones."""
    names: dict[str, str] = {}
    for label in study.labels:
        method = study.method(label)
        names.setdefault(contender := study.contender(label), contender if method in names.values() else method)
    found = colours(names.values())
    return {label: found[names[study.contender(label)]] for label in study.labels}


# What was run


def _notes(study: Study) -> Iterator[str]:
    """Who has opted out, and what the runs have said about their data."""
    first = study.runs[0]
    out = [one for one in (first.summary or {}).get("clients", ()) if one.get("opted_out")]
    if out:
        whom = some([f"{one['id']} {one['opted_out']} of {one['samples']}" for one in out], verdicts.MOST)
        yield f"Training samples that are opted out, with seed {first.seed}: {whom}."
    for note in dict.fromkeys(note for run in study.runs for note in run.notes):
        yield f"Note: {note}."


def _settings(study: Study) -> Iterator[Table]:
    """By label, what its recipe says otherwise than the others' do."""
    flat = {label: dict(_flat(study.of(label)[0].overview.recipe)) for label in study.labels}
    keys = dict.fromkeys(key for tree in flat.values() for key in tree if key != "seed")
    differ = [key for key in keys if common(tree.get(key) for tree in flat.values()) is None]
    if len(flat) < 2 or not differ:
        return
    rows: list[tuple[Cell, ...]] = []
    for label, tree in flat.items():
        rows.append((label, ", ".join(f"{key} {tree[key]}" for key in differ if tree.get(key) is not None)))
    yield Table("settings", "What differs between them", ("label", "its own settings"), (), tuple(rows))


def _flat(tree: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


# What came of it


def _results(study: Study) -> Iterator[Table]:
    if all(run.summary is None for run in study.runs):
        return

    found = {
        name: [study.over_seeds(label, partial(_measured, study, name)) for label in study.labels]
        for name in MEASURES
    }
    known = {name: column for name, column in found.items() if any(value.mean is not None for value in column)}
    rows: list[tuple[Cell, ...]] = []
    for i, label in enumerate(study.labels):
        runs = study.of(label)
        sent = sum(run.ledger.bytes("up") for run in runs) / len(runs)
        rows.append((label, len(runs), *(column[i] for column in known.values()), Bytes(sent)))
    remarks = [f"{MEASURES[name]}: {ABOUT[name]}" for name in known]
    remarks.append("sent: bytes that left all clients together")
    title = "Accuracy in %" + (": mean ± standard deviation over seeds" if len(study.seeds) > 1 else "")
    heads = ("seeds", *(MEASURES[name] for name in known), "sent")
    yield Table("accuracies", title, ("method",), heads, tuple(rows), tuple(remarks))


def _measured(study: Study, name: str, run: Run) -> float | None:
    return run.measure(name, study.alone(run))


def _differences(study: Study) -> Iterator[Table]:
    """Each label's numbers minus those of the first that it is drawn beside, in the seeds that both have."""
    rows: list[tuple[Cell, ...]] = []
    for first, label in ((members[0], label) for members in study.facets.values() for label in members[1:]):
        pairs = [(a, b) for a in study.of(label) for b in study.of(first) if a.seed == b.seed]
        for name in ("global", "predictor", "acc"):
            both = [a.measure(name) for a, _ in pairs], [b.measure(name) for _, b in pairs]
            found = Difference.of_pairs(*both).within(1)
            if found.low is not None:
                tells = {"holds": "better", "does not hold": "worse"}.get(found.verdict, found.verdict)
                points = (Points(value) for value in (found.mean, found.low, found.high))
                rows.append((label, first, name, tells, found.n, *points))
    if rows:
        title = "Differences in the same seeds, in percentage points, with 95 % intervals"
        heads = ("seeds", "difference", "from", "to")
        remark = "the interval is Student's t over seeds; better or worse: all of it is above or below 0"
        yield Table("differences", title, ("method", "minus", "measure", "is"), heads, tuple(rows), (remark,))


CURVES = {
    "predictor": "Mean accuracy of the clients' predictors on their own test data",
    "global": "Accuracy of the global on the common test set",
    "acc": "Mean accuracy of the clients' predictors over all domains",
}


def _curves(study: Study, colour: Mapping[str, str]) -> Iterator[str | Picture]:
    drawn = [
        pictures.curves(name, title, lines)
        for measure in CURVES
        for name, title, lines in _lines(study, measure, colour)
        if any(len(line.x) > 1 for line in lines.values())
    ]
    yield from drawn
    if drawn and len(study.seeds) > 1:
        yield "A band is one standard deviation over seeds to each side."


def _lines(
    study: Study, measure: str, colour: Mapping[str, str], sent: bool = False
) -> Iterator[tuple[str, str, dict[str, pictures.Line]]]:
    """Name, title and lines of each picture: several where a grid has axes beside the method's."""
    for facet, members in study.facets.items():
        found = {}
        for label in members:
            runs = study.of(label)
            at = [run.sent() for run in runs] if sent else None
            line = pictures.Line.of([run.curve(measure) for run in runs], colour[label], at)
            if line is not None:
                found[study.contender(label) if facet else label] = line
        kind, against = ("trade-off", ", against bytes sent") if sent else ("curve", "")
        yield *_named(f"{kind}-{measure}", CURVES[measure] + against, facet), found


def _trade_off(study: Study, colour: Mapping[str, str]) -> Iterator[str | Picture]:
    drawn = [
        pictures.trade_off(name, title, lines)
        for measure in ("predictor", "global")
        for name, title, lines in _lines(study, measure, colour, sent=True)
        if any(not line.flat for line in lines.values())
    ]
    yield from drawn
    if drawn and any(not run.ledger.bytes("up") for run in study.runs):
        yield "Who sends no message is a dashed line: its accuracy after the last round."


def _clients(study: Study, colour: Mapping[str, str]) -> Iterator[Table | Picture]:
    several = len(study.labels) > 1
    for label in study.labels:
        if study.clients(label) and not (several and study.method(label) in ("independent", "centralised")):
            yield _bars(study, label, colour[label])
    ids = list(dict.fromkeys(client for label in study.labels for client in study.clients(label)))
    columns = {}
    for label in study.labels:
        columns[label if several else "predictor"] = [study.client(label, c, "predictor") for c in ids]
        shared = [study.client(label, c, "global") for c in ids]
        if any(value.mean is not None for value in shared) and not all(map(serves_global, study.of(label))):
            columns[f"{label}, global" if several else "global"] = shared
    if not ids:
        return
    rows: list[tuple[Cell, ...]] = [(c, *(column[k] for column in columns.values())) for k, c in enumerate(ids)]
    title = "Accuracy in % of each client on its own test data"
    remark = "by the model that it serves with, or by the global where that is said"
    yield Table("clients", title, ("client",), tuple(columns), tuple(rows), (remark,))


def _newcomers(study: Study) -> Iterator[Table]:
    rows: list[tuple[Cell, ...]] = []
    for label in study.labels:
        runs = study.of(label)
        for name in dict.fromkeys(name for run in runs for name in run.newcomers):
            joined = [run.newcomers[name] for run in runs if name in run.newcomers]
            numbers = (
                Spread.of([one.accuracy.get(of) for one in joined]) for of in ("global", "predictor", "alone")
            )
            rows.append((label, name, common(one.how for one in joined) or "–", *numbers))
    if rows:
        title = "Accuracy in % of newcomers on their own test data"
        remark = "joined: by what they made of the global, as it is, fine-tuned or adapted by mutual learning"
        heads = ("method", "newcomer", "how"), ("global", "joined", "alone")
        yield Table("newcomers", title, *heads, tuple(rows), (remark,))


def _bars(study: Study, label: str, colour: str) -> Picture:
    """Alone, with the global and with the own model, as far as they are known."""
    ids, runs = study.clients(label), study.of(label)

    def means(of: Sequence[Run], model: str) -> list[float | None]:
        return [Spread.of([run.clients.get(c, {}).get(model) for run in of]).mean for c in ids]

    alone = [rival for run in runs if (rival := study.alone(run)) is not None]
    bars = {}
    if alone and len(alone) == len(runs):
        bars["alone"] = pictures.Bars(means(alone, "predictor"), COLOURS["alone"])
    own = not all(map(serves_global, runs))
    if any(value is not None for value in means(runs, "global")):
        bars["global"] = pictures.Bars(means(runs, "global"), colour, hatched=own)
    if own:
        bars[_served(runs[0])] = pictures.Bars(means(runs, "predictor"), colour)
    over = ", mean over seeds" if len(runs) > 1 else ""
    title = f"{label}: accuracy of each client on its own test data{over}"
    return pictures.clients(f"clients-{slug(label)}", title, ids, bars)


def _served(run: Run) -> str:
    if run.method == "independent":
        return "alone"
    return "personal" if any(run.path.glob("clients/*/personal.safetensors")) else "predictor"


def _labels(study: Study, data: Mapping[str, Federation]) -> Iterator[Picture]:
    """A picture for all that were dealt the same data, with the first seed."""
    for whose, run in _dealt(study):
        counts, what = run.labels(), "Test"
        if (federation := data.get(run.label)) is not None:
            held = counts_by_client(federation)
            counts, what = (held.train, held.clients, held.classes), "Training"
        if counts is not None:
            name, title = _named("labels", f"{what} samples by client and class, seed {run.seed}", whose)
            yield labels(name, title, *counts)


def _dealt(study: Study) -> list[tuple[str, Run]]:
    """A run for each data that was dealt, and what tells it from the others, where there are others."""
    found: list[tuple[str, Run]] = []
    for facet, members in study.facets.items():
        for run in (study.of(label)[0] for label in members):
            if run.method != "centralised" and not any(run.dealt == other.dealt for _, other in found):
                found.append((facet or run.label, run))
    return found if len(found) > 1 else [("", run) for _, run in found]


def _named(name: str, title: str, of: str) -> tuple[str, str]:
    """Name and title of one of several pictures alike; of the only one where there is nothing to tell."""
    return (f"{name}-{slug(of)}", f"{title}: {of}") if of else (name, title)


def _left(study: Study) -> Iterator[str | Table]:
    rows: list[tuple[Cell, ...]] = []
    for label in study.labels:
        runs = study.of(label)
        sent: dict[str, dict[tuple[str, str], tuple[float, float]]] = {}
        for run in runs:
            for entry in run.ledger:
                if entry.direction == "up":
                    mine = sent.setdefault(entry.client, {})
                    times, size = mine.get((entry.kind, entry.name), (0, 0))
                    mine[entry.kind, entry.name] = times + 1 / len(runs), size + entry.bytes / len(runs)
        alike: dict[tuple[Any, ...], list[str]] = {}
        for client, mine in sent.items():
            alike.setdefault(tuple(mine.items()), []).append(client)
        for parts, clients in alike.items():
            for (kind, name), (times, size) in parts:
                rows.append(
                    (label, ", ".join(clients), kind, name, f"{times:.4g}", Bytes(size / times), Bytes(size))
                )
        if not sent:
            # The one method whose clients give up their data does not do it by messages.
            what = "all data" if study.method(label) == "centralised" else "nothing"
            rows.append((label, "all", what, "", "0", Bytes(0), Bytes(0)))
    title = "What left each client, from the ledger" + (", mean over seeds" if len(study.seeds) > 1 else "")
    remarks = (
        "messages and bytes are of each client named, over the whole run",
        "envelope: a message's own names and shapes",
        *(("all data: brought to one place, not sent in messages",) if _pooled(study) else ()),
    )
    heads = ("messages", "bytes a message", "bytes")
    yield Table("left", title, ("method", "clients", "kind", "name"), heads, tuple(rows), remarks)
    yield from _public(study)
    promised = {label: list(dict.fromkeys(run.privacy for run in study.of(label))) for label in study.labels}
    if (same := common(promised.values())) is not None:
        promised = {"Differential privacy": same}
    for label, told in promised.items():
        prefix = "" if same is not None else "differential privacy "
        yield f"{label}: {prefix}{'; '.join(told)}."


def _public(study: Study) -> Iterator[str]:
    """What everybody knew of the clients' data beforehand, which no message tells of."""
    known: dict[str, list[str]] = {}
    for label in study.labels:
        public = study.of(label)[0].section("public")
        if isinstance(public, Mapping) and public.get("share") is not None:
            labelled = "with" if public.get("labelled") else "without"
            told = f"{public['share']} of each client's data, {labelled} labels, was known to all beforehand"
            known.setdefault(told, []).append(label)
    for told, of in known.items():
        yield f"Not in the ledger: in {listed(of)} a public set, {told}."


def _pooled(study: Study) -> bool:
    return any(run.method == "centralised" for run in study.runs)


# What needs the data


def _data(study: Study, data_dir: PathLike | None, missing: list[str]) -> dict[str, Federation]:
    """By label, the federation of its first run, loaded by the run's recipe."""
    found: dict[str, Federation] = {}
    known: list[tuple[Run, Federation]] = []
    for label in study.labels:
        run = study.of(label)[0]
        federation = next((held for other, held in known if other.dealt == run.dealt), None)
        try:
            federation = federation or run.overview.folder.recipe.federation(data_dir)
        except MutuaError as error:
            missing.append(f"the data of {label}: {error}")
            continue
        known.append((run, federation))
        found[label] = federation
    return found


def _samples(study: Study, data: Mapping[str, Federation], missing: list[str]) -> Iterator[Picture]:
    from mutua.reports.samples import data_picture, feature_picture

    if not data:
        return
    runs = {label: (study.of(label)[0], federation) for label, federation in data.items()}
    draws: list[tuple[str, Callable[[], Picture]]] = [("PCA of features", partial(feature_picture, runs))]
    for whose, run in _dealt(study):
        if run.label in data:
            named = _named("data", f"UMAP of the clients' training data, seed {run.seed}", whose)
            draws.append(("UMAP of the data", partial(data_picture, *named, data[run.label])))
    for what, draw in draws:
        try:
            yield draw()
        except (InputError, ValueError, RuntimeError, AttributeError) as error:
            missing.append(f"{what}: {error}")


# To repeat it


def _repeat(study: Study, load_data: bool) -> Iterator[str | Code]:
    typed = list(dict.fromkeys(run.command for run in study.runs if run.command))
    if typed:
        yield "It was run by:"
        yield Code("\n".join(typed))
    by_recipe = [run for run in study.runs if not run.made_in_python]
    if len(by_recipe) < len(study.runs):
        yield "It was run in Python, on data that its folder does not hold: the program that did so repeats it."
    if by_recipe:
        yield "Each run's folder holds its full recipe, by which mutua run repeats it to the same bytes."
        each = "\n".join(f"mutua run {shlex.quote(str(run.path / 'recipe.yaml'))}" for run in by_recipe)
        yield Code(each, folded=f"{len(by_recipe)} runs, each by itself" if typed and len(by_recipe) > 1 else "")
    yield "This report was made by:"
    yield Code(f"mutua report {shlex.quote(str(study.path))}{' --load-data' * load_data}")
    for versions in {tuple(sorted(run.versions.items())): None for run in study.runs}:
        yield "Versions: " + ", ".join(f"{package} {number}" for package, number in versions) + "."
    for label in study.labels:
        run = study.of(label)[0]
        yield Code(run.overview.text, folded=f"The recipe of {label}, seed {run.seed}")
