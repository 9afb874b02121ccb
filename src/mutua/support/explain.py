"""Pydantic's complaints in one line: the field, the value and what is allowed."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mutua.errors import InputError, suggest

MOST = 10
"""So many complaints are said."""


TRUTH = "truth_for_a_number"
"""The kind of a complaint, ours and not pydantic's: true or false where a number is meant."""

M = TypeVar("M", bound=BaseModel)


def checked(kind: type[M], tree: Mapping[str, Any], path: object = None, at: str = "") -> M:
    """What a mapping such as YAML gives says; `path` and `at` are where it stands, for complaints."""
    where = f"{path}: " if path else ""
    if not isinstance(tree, Mapping):
        what = at or kind.__name__.lower()
        raise InputError(
            f"{where}{what}: {reprlib.repr(tree)}; it must be keys and values, such as {{key: value}}"
        )
    try:
        return kind.model_validate(dict(tree))
    except ValidationError as error:
        raise InputError(where + explain(error, kind, at)) from None
    except InputError as error:  # of a method or model, which explain themselves
        raise InputError(f"{where}{error}") from None


def explain(error: ValidationError, model: type[BaseModel], at: str = "") -> str:
    """Every complaint about a `model`; `at` is where in the recipe it stands."""
    found = error.errors()
    inner = {detail["loc"][:-1] for detail in found}
    # Pydantic does not count what it has refused: a list of one bad number would also be too short.
    found = [detail for detail in found if detail["type"] != "too_short" or detail["loc"] not in inner]
    lines = [_line(detail, model, at) for detail in found[:MOST]]
    more = [f"and {len(found) - MOST} more"] if len(found) > MOST else []
    return "; ".join([*dict.fromkeys(lines), *more])


def _line(detail: ErrorDetails, model: type[BaseModel], at: str) -> str:
    path, known, inside = _walk(detail["loc"], model)
    field = ".".join([at, *path] if at else path)
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    value = "nothing" if given is None else reprlib.repr(given)
    if kind == "extra_forbidden":
        return f"{field}: unknown key; {suggest(path[-1], known)}"
    if kind == "missing":
        return f"{field}: missing; it must be given"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        key = str(context.get("discriminator", "")).strip("'")
        allowed = [tag for m in inside for tag in _tags(m, [key])]
        if kind == "union_tag_not_found":
            return f"{field}.{key}: missing; known: {', '.join(allowed)}"
        return f"{field}.{key}: {str(context.get('tag'))!r}; {suggest(str(context.get('tag')), allowed)}"
    if kind == "literal_error":
        allowed = re.findall("'([^']*)'", context["expected"])
        return f"{field}: {value}; {suggest(str(given), allowed)}"
    if kind == TRUTH:
        return ".".join(filter(None, [field, detail["msg"]]))
    if kind == "value_error":
        message = detail["msg"].removeprefix("Value error, ")
        return f"{field}: {message}" if field else message
    wanted = WORDS[kind].format(**context) if kind in WORDS else detail["msg"].removeprefix("Input should be ")
    return f"{field or 'recipe'}: {value}; it must be {wanted}"


# Pydantic's complaints that people meet, in plain words.
WHOLE, NUMBER, _TREE = "a whole number", "a number", "keys and values, such as {{key: value}}"
WORDS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), WHOLE),
    **dict.fromkeys(("float_parsing", "float_type"), NUMBER),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type", "dataclass_type"), _TREE),
    **dict.fromkeys(("list_type", "tuple_type"), "a list, such as [a, b]"),
    **dict.fromkeys(("string_type", "path_type"), "text"),
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "string_pattern_mismatch": "letters, digits, '.', '_', '+' or '-', with a letter or digit first",
    "string_too_long": "at most {max_length} characters long",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}


def _walk(
    loc: tuple[str | int, ...], model: type[BaseModel]
) -> tuple[list[str], list[str], list[type[BaseModel]]]:
    """The path as it stands in the recipe, without pydantic's union tags; the keys known and the models there."""
    path: list[str] = []
    models: list[type[BaseModel]] = [model]
    known = _keys(models)
    for step in loc:
        fields = {key: field for m in models for key, field in _fields(m).items()}
        if isinstance(step, int):
            path.append(str(step))
        elif step in fields:
            path.append(step)
            known, models = list(fields), _models(fields[step].annotation) or models
        elif step == loc[-1] and not step.startswith(("function-", "tagged-union", "list[", "tuple[")):
            if any(step == tag for m in models for tag in _tags(m)):
                continue
            path.append(step)
            known = list(fields)
        else:
            models = [m for m in models if step in _tags(m) or step == m.__name__] or models
    return path, known, models


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _keys(models: list[type[BaseModel]]) -> list[str]:
    return [key for model in models for key in _fields(model)]


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The pydantic models inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _tags(model: type[BaseModel], keys: Sequence[str] = ("kind", "name", "schedule")) -> list[str]:
    """The values by which a discriminated union knows this model."""
    return [
        str(value)
        for key in keys
        if key in model.model_fields
        for value in get_args(model.model_fields[key].annotation)
    ]
