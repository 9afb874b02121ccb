"""The base of everything that users write in a recipe or give in Python."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from mutua import untrusted
from mutua.errors import InputError


class Spec(BaseModel):
    """Fields that cannot be changed or misspelt. Built when first used, so that `import mutua` stays quick."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """The keys and values of a YAML file; `what` it is, for complaints."""
    try:
        text = untrusted.text(path, untrusted.RECIPE)
    except OSError as error:
        raise InputError(f"{what}: {path}: {error.strerror}; give a YAML file") from None
    except untrusted.Unreadable as error:
        raise InputError(f"{what}: {path}: {error}; give a YAML file") from None
    try:
        tree = untrusted.from_yaml(text)
    except untrusted.Unreadable as error:
        raise InputError(f"{what}: {path}: not YAML: {error}") from None
    if not isinstance(tree, dict):
        held = "nothing" if tree is None else f"a {type(tree).__name__}"
        raise InputError(f"{what}: {path} holds {held}; it must hold keys and values, such as 'seed: 0'")
    return tree
