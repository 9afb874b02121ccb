"""Who holds which labels, and pictures of the data itself where it may be loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from mutua.errors import InputError, MutuaError
from mutua.federation.federation import Federation
from mutua.reports.figures import Picture, label_count_picture, named_by
from mutua.reports.labels import counts_by_client
from mutua.reports.study import Run, Study
from mutua.support.configuration import PathLike


def load_federations(study: Study, data_dir: PathLike | None, missing: list[str]) -> dict[str, Federation]:
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


def label_pictures(study: Study, data: Mapping[str, Federation]) -> Iterator[Picture]:
    """One picture for all runs that were dealt the same data, with the first seed."""
    for whose, run in _dealt(study):
        counts, what = run.labels(), "Test"
        if (federation := data.get(run.label)) is not None and federation.aim.kind != "regression":
            held = counts_by_client(federation)
            counts, what = (held.train, held.clients, held.classes), "Training"
        if counts is not None:
            name, title = named_by("labels", f"{what} samples by client and class, seed {run.seed}", whose)
            yield label_count_picture(name, title, *counts)


def _dealt(study: Study) -> list[tuple[str, Run]]:
    """One run for each way in which data was dealt, and its name where there are several."""
    found: list[tuple[str, Run]] = []
    for facet, members in study.facets.items():
        for run in (study.of(label)[0] for label in members):
            if run.method != "centralised" and not any(run.dealt == other.dealt for _, other in found):
                found.append((facet or run.label, run))
    return found if len(found) > 1 else [("", run) for _, run in found]


def data_pictures(study: Study, data: Mapping[str, Federation], missing: list[str]) -> Iterator[Picture]:
    """PCA of features and UMAP of the data; what cannot be drawn goes to `missing`."""
    from mutua.reports.projections import data_picture, feature_picture

    if not data:
        return
    runs = {label: (study.of(label)[0], federation) for label, federation in data.items()}
    draws: list[tuple[str, Callable[[], Picture]]] = [("PCA of features", partial(feature_picture, runs))]
    for whose, run in _dealt(study):
        if run.label in data:
            named = named_by("data", f"UMAP of the clients' training data, seed {run.seed}", whose)
            draws.append(("UMAP of the data", partial(data_picture, *named, data[run.label])))
    for what, draw in draws:
        try:
            yield draw()
        except (InputError, ValueError, RuntimeError, AttributeError) as error:
            missing.append(f"{what}: {error}")
