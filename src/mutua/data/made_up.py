"""Small tables and texts inside mutua, made up: the same on every machine, for tests, documents and the demo."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mutua.data.table_columns import RawTable, column_of

_HOSPITALS: dict[str, tuple[int, float, tuple[str, ...]]] = {
    "north": (200, 0.0, ()),
    "south": (150, 0.5, ("troponin",)),
    "east": (100, -0.5, ("cholesterol", "smoker")),
}
"""Rows, how much older and more often ill its patients are, and what it does not measure."""

_SITES: dict[str, tuple[str, ...]] = {
    "restaurants": ("soup", "waiter", "table", "dessert", "menu"),
    "films": ("plot", "actor", "music", "ending", "camera"),
    "phones": ("battery", "screen", "charger", "sound", "price"),
}
GOOD = ("good", "great", "lovely", "excellent", "a joy", "worth it")
BAD = ("bad", "awful", "poor", "a waste", "broken", "dull")
FRAMES = ("the {0} was {1}", "I found the {0} {1}", "{1} {0}, really", "what a {0}: {1}!", "the {0} is {1}.")


def _uniform(seed: int, number: int) -> np.ndarray:
    """Numbers in (0, 1): of the generator's own integers, which no version of NumPy changes."""
    raw = np.random.PCG64(seed).random_raw(number)
    return np.asarray((raw >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53


def _normal(seed: int, number: int) -> np.ndarray:
    """Sums of twelve uniform numbers, less six: nearly normal, and without functions that differ by machine."""
    return np.asarray(_uniform(seed, 12 * number).reshape(12, number).sum(0) - 6)


def hospitals(path: Path) -> RawTable:
    """Patients of three hospitals: who is ill depends on all columns, and each hospital lacks some."""
    total = sum(rows for rows, _, _ in _HOSPITALS.values())
    hospital = np.repeat([*_HOSPITALS], [rows for rows, _, _ in _HOSPITALS.values()])
    shift = np.repeat([older for _, older, _ in _HOSPITALS.values()], [rows for rows, _, _ in _HOSPITALS.values()])
    age, pressure, cholesterol, troponin = (_normal(seed, total) for seed in range(4))
    age = age + shift
    reads = np.where(hospital == "south", 0.0, 1.0)  # where patients with a treated rhythm come
    sex, smoker, ecg, luck, blank = (_uniform(seed, total) for seed in range(4, 9))
    risk = 0.8 * age + 0.7 * pressure + 0.5 * cholesterol + 1.2 * troponin * (age > 0)
    risk = risk + 0.8 * (sex < 0.5) * pressure + 0.9 * (smoker > 0.7) + 1.6 * (ecg > 0.6) * reads - 0.7
    columns: dict[str, Any] = {
        "hospital": hospital,
        "patient": [f"p{i * 2 // 3:03d}" for i in range(total)],  # every other patient came twice
        "age": np.round(60 + 10 * age),
        "sex": np.where(sex < 0.5, "f", "m"),
        "pressure": np.where(blank < 0.1, np.nan, np.round(135 + 15 * pressure)),
        "cholesterol": np.round(220 + 35 * cholesterol),
        "smoker": np.where(smoker < 0.4, "never", np.where(smoker < 0.7, "former", "current")),
        "ecg": np.where(ecg < 0.6, "normal", np.where(ecg < 0.95, "abnormal", "unclear")),
        "troponin": np.round(20 + 8 * troponin, 1),
        "diagnosis": np.where(risk + 1.5 * (luck - 0.5) > 0, "ill", "healthy"),
    }
    for name, (_, _, lacking) in _HOSPITALS.items():
        for column in lacking:
            held = columns[column]
            held = held.astype(object) if held.dtype.kind == "U" else held
            held[hospital == name] = None if held.dtype == object else np.nan
            columns[column] = held
    return RawTable({name: column_of(held, f"hospitals: '{name}'") for name, held in columns.items()}, "hospitals")


def phrases(path: Path) -> RawTable:
    """Sentences about the things of three sites, in one of a few forms."""
    rows = [*_phrases()]
    names = ("site", "text", "opinion")
    return RawTable({name: column_of([row[k] for row in rows], name) for k, name in enumerate(names)}, "phrases")


def _phrases() -> Iterator[tuple[str, str, str]]:
    for site, things in _SITES.items():
        for thing in things:
            for frame in FRAMES:
                for good, bad in zip(GOOD, BAD, strict=True):
                    if (len(thing) + len(frame) + len(good)) % 2:
                        yield site, frame.format(thing, good), "positive"
                    else:
                        yield site, frame.format(thing, bad), "negative"
