"""Configuration: the base class of all that users write in a recipe or give in Python, and complaints in one line.

A complaint names the field as the recipe spells it, the value, and what is allowed.
"""

from __future__ import annotations

import operator
import os
import re
import reprlib
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from mutua.errors import InputError, suggest
from mutua.support import safe_reading

PathLike = str | os.PathLike[str]
"""A path as people give one."""

BOOL_FOR_NUMBER = "bool_for_number"
"""The type of a complaint that is ours and not pydantic's: true or false where a number is meant."""

_MAX_COMPLAINTS = 10
_WHOLE, _NUMBER, _TREE = "a whole number", "a number", "keys and values, such as {{key: value}}"

M = TypeVar("M", bound=BaseModel)


class Spec(BaseModel):
    """Fields that cannot be changed or misspelt. Built when first used, so that `import mutua` stays quick."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, values: Any) -> Any:
        """Python takes true for 1: `clients: true` would be a federation of one."""
        for name, field in cls.model_fields.items() if isinstance(values, dict) else ():
            key = name if name in values else field.alias
            value = values.get(key)
            held = value if isinstance(value, list | tuple) else [value]
            if any(type(one).__name__ in ("bool", "bool_") for one in held):  # Python's or NumPy's
                parts = _parts(field.annotation)
                if parts & {int, float} and bool not in parts:
                    told = {"field": key, "value": str(value), "wanted": _NUMBER if float in parts else _WHOLE}
                    raise PydanticCustomError(BOOL_FOR_NUMBER, "{field}: {value}; it must be {wanted}", told)
        return values

    def __init__(self, /, *values: Any, **fields: Any) -> None:
        name = type(self).__name__
        if values:
            known = ", ".join(type(self).model_fields) or "it has none"
            raise InputError(f"{name}: {values[0]!r} has no name; give fields as name=value: {known}")
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise InputError(explain(error, type(self), name)) from None

    # So that pydantic makes nested specs itself, and a complaint names the whole path to a field.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]
    __init__.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter("self", Parameter.POSITIONAL_ONLY), Parameter("fields", Parameter.VAR_KEYWORD, annotation=Any)]
    )

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except ValidationError:
            kind = type(self).__name__
            raise InputError(f"{kind}.{name}: a {kind} is frozen; make another, with {name}=...") from None


def _parts(annotation: Any) -> set[Any]:
    """Every type in an annotation, also inside unions and lists."""
    return {annotation}.union(*map(_parts, get_args(annotation))) if get_args(annotation) else {annotation}


def checked(kind: type[M], tree: Mapping[str, Any], path: object = None, at: str = "") -> M:
    """The model that a mapping (of YAML, say) describes; complaints name `path` and `at`, where it stands."""
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
    except InputError as error:  # from a method or model, whose complaints are in one line already
        raise InputError(f"{where}{error}") from None


def explain(error: ValidationError, model: type[BaseModel], at: str = "") -> str:
    """All complaints about a `model` in one line; `at` is where in the recipe it stands."""
    found = error.errors()
    inner = {detail["loc"][:-1] for detail in found}
    # Pydantic does not count what it has refused: a list of one bad number would also be too short.
    found = [detail for detail in found if detail["type"] != "too_short" or detail["loc"] not in inner]
    lines = [_line(detail, model, at) for detail in found[:_MAX_COMPLAINTS]]
    more = [f"and {len(found) - _MAX_COMPLAINTS} more"] if len(found) > _MAX_COMPLAINTS else []
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
    if kind == BOOL_FOR_NUMBER:
        return ".".join(filter(None, [field, detail["msg"]]))
    if kind == "value_error":
        message = detail["msg"].removeprefix("Value error, ")
        return f"{field}: {message}" if field else message
    wanted = _WORDS[kind].format(**context) if kind in _WORDS else detail["msg"].removeprefix("Input should be ")
    return f"{field or 'recipe'}: {value}; it must be {wanted}"


# Pydantic's complaints that people meet, in plain words.
_WORDS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), _WHOLE),
    **dict.fromkeys(("float_parsing", "float_type"), _NUMBER),
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
    """The path as the recipe spells it, without pydantic's union tags; the keys and the models known there."""
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
    """The values by which a discriminated union recognises this model."""
    return [
        str(value)
        for key in keys
        if key in model.model_fields
        for value in get_args(model.model_fields[key].annotation)
    ]


def local_path(given: PathLike, field: str) -> Path:
    """A path that a user gave, with `~` for the home folder; a complaint names `field`."""
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"{field}: a {type(given).__name__}; give a path, such as 'runs/first'")
    try:
        return Path(given).expanduser()
    except (RuntimeError, TypeError) as error:  # no such user; a path of bytes
        raise InputError(f"{field}: {given!r} is not a path ({error})") from None


def whole_number(given: Any, field: str, least: int = 1) -> int:
    """A whole number that a user gave; a complaint names `field`."""
    try:
        number = operator.index(given)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InputError(f"{field}: {given!r}; give a whole number, at least {least}")
    return number


def similar_path(path: Path) -> str:
    """`did you mean 'runs/first'? `, if there is nothing at a path and something with a similar name beside it."""
    try:
        stems = [beside.stem for beside in path.parent.iterdir() if beside.suffix == path.suffix]
        hint = "" if path.exists() else suggest(path.stem, stems, "")
    except OSError:
        return ""
    return hint and hint.replace("'?", f"{path.suffix}'? ")


def read_yaml(path: PathLike, what: str) -> dict[str, Any]:
    """The keys and values of a YAML file; a complaint calls it `what`."""
    path = local_path(path, what)
    try:
        text = safe_reading.read_text(path, safe_reading.MAX_YAML_CHARACTERS)
    except OSError as error:
        raise InputError(f"{what}: {path}: {error.strerror}; {similar_path(path)}give a YAML file") from None
    except safe_reading.Unreadable as error:
        raise InputError(f"{what}: {path}: {error}; give a YAML file") from None
    try:
        tree = safe_reading.from_yaml(text)
    except safe_reading.Unreadable as error:
        raise InputError(f"{what}: {path}: not YAML: {error}") from None
    if not isinstance(tree, dict):
        held = "nothing" if tree is None else f"a {type(tree).__name__}"
        raise InputError(f"{what}: {path} holds {held}; it must hold keys and values, such as 'seed: 0'")
    return tree
