"""The base of everything that users write in a recipe or give in Python."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from mutua.errors import InputError


class Spec(BaseModel):
    """Fields that cannot be changed or misspelt. Built when first used, so that `import mutua` stays quick."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """The keys and values of a YAML file; `what` it is, for complaints."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{what}: {path}: {error.strerror}; give a YAML file") from None
    except UnicodeDecodeError:
        raise InputError(f"{what}: {path} is not a text file; give a YAML file") from None
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{what}: {path}: not YAML: {_where(error)}") from None
    if not isinstance(tree, dict):
        held = "nothing" if tree is None else f"a {type(tree).__name__}"
        raise InputError(f"{what}: {path} holds {held}; it must hold keys and values, such as 'seed: 0'")
    return tree


def _where(error: yaml.YAMLError) -> str:
    """Where a YAML file is wrong, and what is wrong there."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"
