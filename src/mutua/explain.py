"""Pydantic's complaints in one line: the field, the value and what is allowed."""

from __future__ import annotations

import reprlib
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mutua.errors import suggest


def explain(error: ValidationError, model: type[BaseModel], at: str = "") -> str:
    """Every complaint about a `model`; `at` is where in the recipe it stands."""
    lines = [_line(detail, model, at) for detail in error.errors()]
    return "; ".join(dict.fromkeys(lines))


def _line(detail: ErrorDetails, model: type[BaseModel], at: str) -> str:
    path, known = _walk(detail["loc"], model)
    field = ".".join([at, *path] if at else path) or "recipe"
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{field}: unknown key; {suggest(path[-1], known)}"
    if kind == "missing":
        return f"{field}: missing; it must be given"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        key = str(context.get("discriminator", "")).strip("'")
        allowed = str(context.get("expected_tags", "")).replace("'", "").split(", ")
        if kind == "union_tag_not_found":
            return f"{field}.{key}: missing; known: {', '.join(filter(None, allowed)) or 'see the docs'}"
        return f"{field}.{key}: {str(context.get('tag'))!r}; {suggest(str(context.get('tag')), allowed)}"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if isinstance(given, dict) or message.startswith(("'", repr(given))):
        return f"{field}: {message}"
    return (
        f"{field}: {reprlib.repr(given)}; it must be {message}" if kind != "value_error" else f"{field}: {message}"
    )


def _walk(loc: tuple[str | int, ...], model: type[BaseModel]) -> tuple[list[str], list[str]]:
    """The path as it stands in the recipe, without pydantic's union tags, and the keys known at its end."""
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
    return path, known


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _keys(models: list[type[BaseModel]]) -> list[str]:
    return [key for model in models for key in _fields(model)]


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The pydantic models inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _tags(model: type[BaseModel]) -> list[str]:
    """The values by which a discriminated union knows this model."""
    return [
        str(value)
        for key in ("kind", "name", "schedule")
        if key in model.model_fields
        for value in get_args(model.model_fields[key].annotation)
    ]
