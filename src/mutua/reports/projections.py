"""Pictures that need the data, loaded by a run's recipe: PCA of a model's features, UMAP of clients' data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from mutua.data.samples import Samples, concatenate
from mutua.errors import InputError
from mutua.federation.federation import Federation
from mutua.learning.evaluation import outputs
from mutua.models import features
from mutua.reports.charts import MOST_POINTS, PANELS, ScatterPanel, scatter_picture
from mutua.reports.figures import Picture
from mutua.reports.study import Run


def pca(x: np.ndarray) -> np.ndarray:
    """The two directions in which rows vary most; the largest weight of each is positive."""
    centred = x - x.mean(0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    two = directions[:2]
    signs = np.sign(two[np.arange(len(two)), np.abs(two).argmax(1)])
    return np.asarray(centred @ (two * signs[:, None]).T)


def feature_picture(runs: Mapping[str, tuple[Run, Federation]]) -> Picture:
    """By label, the features that one client's model makes of all clients' test data (FedH2L, Fig. 1)."""
    panels, first = [], next(iter(runs.values()))[1]
    client = first.clients[0]
    domains = all(c.domain is not None for c in first.clients)
    for label, (run, federation) in runs.items():
        if client.id not in run.overview.folder.clients():
            continue
        model = run.overview.folder.client(client.id).predictor().model
        parts = [c.relabelled(first.classes).test for c in federation.clients]
        held = _some(concatenate(parts), MOST_POINTS)
        panels.append(ScatterPanel(label, pca(_features(model, held)), _coloured(held)))
    if not panels:
        raise InputError(f"no run has a model of {client.id}")
    whose = "domains'" if domains else "clients'"
    title = f"PCA of the features that {client.id}'s model makes of all {whose} test data"
    return scatter_picture("features", title, panels, _names(first))


def _features(model: nn.Module, samples: Samples) -> np.ndarray:
    """What goes into a model's head, one row per sample."""
    return outputs(model, samples, forward=lambda x: features(model, x)[0]).double().numpy()


def data_picture(name: str, title: str, federation: Federation) -> Picture:
    """The clients' training data, projected together by UMAP (FMLU, Fig. 2)."""
    project = _umap()
    classes = federation.classes
    clients = [client.relabelled(classes) for client in federation.clients]
    held = [_some(client.train, max(MOST_POINTS // len(clients), 1)) for client in clients]
    whole = concatenate(held)
    x = whole.preprocess(whole.x).flatten(1).numpy()
    at, y = project(x), _coloured(whole)
    ends = np.cumsum([len(samples) for samples in held])
    panels = [ScatterPanel("all clients", at, y)]
    for client, end, samples in list(zip(clients, ends, held, strict=True))[:PANELS]:
        mine = slice(end - len(samples), end)
        panels.append(ScatterPanel(client.id, at[mine], y[mine]))
    more = f"; the first {PANELS} clients" if len(clients) > PANELS else ""
    return scatter_picture(name, title + more, panels, _names(federation), behind=at)


def _coloured(samples: Samples) -> np.ndarray:
    """By sample, the number of its colour: its class; with other labels all have one."""
    return samples.strata


def _names(federation: Federation) -> Sequence[str]:
    """What the colours stand for."""
    return federation.classes if federation.aim.kind == "classification" else ["samples"]


def _umap() -> Any:
    try:
        from umap import UMAP
    except ImportError:
        raise InputError('UMAP of the data needs the extra: pip install "mutua[umap]"') from None

    def project(x: np.ndarray) -> np.ndarray:
        neighbours = max(2, min(15, len(x) - 1))
        return np.asarray(UMAP(random_state=0, n_jobs=1, n_neighbors=neighbours, init="pca").fit_transform(x))

    return project


def _some(samples: Samples, most: int) -> Samples:
    """At most so many samples, evenly chosen."""
    if len(samples) <= most:
        return samples
    return samples.take(np.linspace(0, len(samples) - 1, most).astype(int))
