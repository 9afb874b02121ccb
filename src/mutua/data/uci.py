"""Two sets of the UCI archive as tables: heart disease at four hospitals, and sentences of three sites."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mutua.data.formats import reading
from mutua.data.table_columns import RawTable, column_of
from mutua.errors import InputError
from mutua.support import safe_reading

HOSPITALS = tuple(f"processed.{name}.data" for name in ("cleveland", "hungarian", "switzerland", "va"))
_COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "disease"),
)
CATEGORIES = {"cp": ("1", "2", "3", "4"), "restecg": ("0", "1", "2")}
"""Kind of chest pain, and the electrocardiogram at rest."""
UNUSED = ("slope", "ca", "thal")
"""Hardly measured outside Cleveland."""
NUMBER_COLUMNS = tuple(name for name in _COLUMNS[:-1] if name not in (*CATEGORIES, *UNUSED))
SITES = ("amazon_cells_labelled.txt", "imdb_labelled.txt", "yelp_labelled.txt")


def heart_disease(folder: Path) -> RawTable:
    """The rows without missing values in what is used, as the FLamby benchmark takes them."""
    rows, hospital = [], []
    for name in HOSPITALS:
        with reading(folder / name, "a file of 14 columns"):
            text = safe_reading.read_text(folder / name)
            held = [line.split(",") for line in text.splitlines() if line.strip()]
            values = np.array([[np.nan if cell.strip() == "?" else float(cell) for cell in row] for row in held])
            if values.ndim != 2 or values.shape[1] != len(_COLUMNS):
                raise ValueError(f"it has rows of {values.shape[-1]} values, not {len(_COLUMNS)}")
        used = [k for k, column in enumerate(_COLUMNS) if column not in UNUSED]
        whole = values[~np.isnan(values[:, used]).any(1)]
        rows.append(whole)
        hospital += [name.split(".")[1]] * len(whole)
    table = np.concatenate(rows)
    columns = {name: table[:, k] for k, name in enumerate(_COLUMNS) if name not in UNUSED}
    ill = np.where(columns.pop("disease") > 0, "diseased", "healthy")
    held_as = {**columns, "disease": ill, "hospital": np.array(hospital)}
    return RawTable(
        {name: column_of(one, f"heart-disease: '{name}'") for name, one in held_as.items()}, "heart-disease"
    )


def sentiment_sentences(folder: Path) -> RawTable:
    """Sentences with what they say: positive or negative."""
    rows = []
    for name in SITES:
        with reading(folder / name, "a file of sentences and labels"):
            text = safe_reading.read_text(folder / name)
        for number, line in enumerate(text.split("\n"), 1):
            sentence, _, label = line.rpartition("\t")
            if line.strip() and label.strip() not in ("0", "1"):
                raise InputError(f"{folder / name}: line {number} does not end in a tab and 0 or 1; get it again")
            if line.strip():
                opinion = "positive" if label.strip() == "1" else "negative"
                rows.append((name.partition("_")[0], sentence.strip(), opinion))
    names = ("site", "text", "opinion")
    columns = {name: column_of([row[k] for row in rows], name) for k, name in enumerate(names)}
    return RawTable(columns, "sentiment-sentences")
