"""The base of everything that users write in a recipe or give in Python."""

import operator
import os
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from mutua.errors import InputError
from mutua.support import safe_reading
from mutua.support.explain import NUMBER, TRUTH, WHOLE, explain

PathLike = str | os.PathLike[str]
"""A path as people give one."""


class Spec(BaseModel):
    """Fields that cannot be changed or misspelt. Built when first used, so that `import mutua` stays quick."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, values: Any) -> Any:
        """Python takes true for 1: `clients: true` would be a federation of one."""
        for name, field in cls.model_fields.items() if isinstance(values, dict) else ():
            key = name if name in values else field.alias
            value = values.get(key)
            held = value if isinstance(value, list | tuple) else [value]
            if any(type(one).__name__ in ("bool", "bool_") for one in held):  # Python's or NumPy's
                parts = _parts(field.annotation)
                if parts & {int, float} and bool not in parts:
                    told = {"field": key, "value": str(value), "wanted": NUMBER if float in parts else WHOLE}
                    raise PydanticCustomError(TRUTH, "{field}: {value}; it must be {wanted}", told)
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

    # Pydantic then goes on to make nested specs itself, so that a complaint names the whole path to a field.
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
    """Every type that an annotation names, within unions and lists too."""
    return {annotation}.union(*map(_parts, get_args(annotation))) if get_args(annotation) else {annotation}


def local_path(given: PathLike, field: str) -> Path:
    """A path that somebody gave, `~` being the home folder; `field` is what a complaint names."""
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"{field}: a {type(given).__name__}; give a path, such as 'runs/first'")
    try:
        return Path(given).expanduser()
    except (RuntimeError, TypeError) as error:  # no such user; a path of bytes
        raise InputError(f"{field}: {given!r} is not a path ({error})") from None


def whole_number(given: Any, field: str, least: int = 1) -> int:
    """A whole number that somebody gave; `field` is what a complaint names."""
    try:
        number = operator.index(given)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InputError(f"{field}: {given!r}; give a whole number, at least {least}")
    return number


def read_yaml(path: PathLike, what: str) -> dict[str, Any]:
    """The keys and values of a YAML file; `what` it is, for complaints."""
    path = local_path(path, what)
    try:
        text = safe_reading.text(path, safe_reading.RECIPE)
    except OSError as error:
        raise InputError(f"{what}: {path}: {error.strerror}; give a YAML file") from None
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
