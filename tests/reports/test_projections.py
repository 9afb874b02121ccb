"""Projections of data onto a plane."""

from __future__ import annotations

import numpy as np
import pytest

from mutua.reports import projections


def test_pca_is_scikit_learns() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    x = np.random.default_rng(0).normal(size=(50, 8)) * np.arange(1, 9)
    ours, theirs = projections.pca(x), decomposition.PCA(2).fit_transform(x)
    assert np.allclose(ours * np.sign(ours[0]), theirs * np.sign(theirs[0]))
