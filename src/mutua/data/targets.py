"""What the labels of samples are: one class of several, several labels at once, or values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from mutua.errors import InputError, suggest

TaskKind = Literal["classification", "multi-label", "regression"]
NAMED: dict[TaskKind, tuple[str, str]] = {
    "classification": ("class", "classes"),
    "multi-label": ("label", "labels"),
    "regression": ("value", "values"),
}
"""What a model's outputs stand for: one, and several."""
TASK_KINDS: tuple[TaskKind, ...] = get_args(TaskKind)


def task_kind(given: object, field: str) -> TaskKind:
    """The kind of this name."""
    for kind in TASK_KINDS:
        if given == kind:
            return kind
    if given == "binary":
        raise InputError(f"{field}: 'binary'; it is classification of two classes: give 'classification'")
    raise InputError(f"{field}: {given!r} is not a kind of task; {suggest(str(given), list(TASK_KINDS))}")


def class_names(names: Any, field: str) -> tuple[str, ...]:
    """Names of classes, labels or values as text; no two may be alike."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(f"{field}: {names!r}; give a list of names, such as ['cat', 'dog']")
    found = tuple(str(name) for name in names)
    if len(set(found)) != len(found):
        twice = Counter(found).most_common(1)[0][0]
        raise InputError(f"{field}: '{twice}' is named twice; class names must differ")
    return found


def target_matrix(
    y: Any, kind: TaskKind, names: Sequence[str] | None, samples: int, name: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels of 0 and 1, or values, as floating numbers (N, columns), and the names of the columns."""
    values = np.asarray(y)
    if values.dtype.kind not in "iufb":
        raise InputError(f"{name}.y: values of type {values.dtype}; {kind} needs numbers")
    matrix = torch.as_tensor(values).to(torch.get_default_dtype())
    if matrix.dim() == 1 and kind == "regression":
        matrix = matrix[:, None]
    if matrix.dim() != 2 or len(matrix) != samples or not matrix.shape[1]:
        wanted = "a 0 or 1 for each label" if kind == "multi-label" else "one value, or a row of values,"
        raise InputError(f"{name}.y: shape {tuple(matrix.shape)} for {samples} inputs; give {wanted} per sample")
    if bad := int((~torch.isfinite(matrix)).any(1).sum()):
        raise InputError(f"{name}.y: NaN or infinity in {bad} of {samples} samples; clean or drop them")
    if kind == "multi-label" and not bool(((matrix == 0) | (matrix == 1)).all()):
        strange = float(matrix[(matrix != 0) & (matrix != 1)][0])
        raise InputError(f"{name}.y: {strange:g}; multi-label needs 0 or 1 for each label of a sample")
    columns = matrix.shape[1]
    if names is None:
        names = ["value"] if kind == "regression" and columns == 1 else [str(i) for i in range(columns)]
    found = class_names(names, f"{name}.classes")
    if len(found) != columns:
        raise InputError(f"{name}.classes: {len(found)} names for {columns} columns of y; give one for each")
    return matrix.contiguous(), found


def reordered(y: Tensor, own: Sequence[str], names: Sequence[str], kind: TaskKind) -> Tensor:
    """The columns of labels or values in the order of `names`, which must be the same names."""
    if {*own} != {*names}:
        what = "labels" if kind == "multi-label" else "values"
        odd = sorted({*own} ^ {*names})[0]
        raise InputError(
            f"classes: {what} {', '.join(own)} here, {', '.join(names)} elsewhere, '{odd}' in one only; with "
            f"{kind} all must have the same (or share a body only: models.global.share: body)"
        )
    return y[:, [list(own).index(name) for name in names]]
