"""What a recipe must have for a method to run, read from what the method declares."""

from typing import Any

from mutua import methods


def needs_of(name: str) -> dict[str, Any]:
    """Keys of a recipe: a public set, and models of one design, where this method cannot do without."""
    method = methods.of({"name": name})
    needs: dict[str, Any] = {"public": {"share": 0.3}} if method.needs_public else {}
    if needs_one_design(name):
        needs["models"] = {"global": {"name": "mlp", "width": 0.1}}
    return needs


def needs_one_design(name: str) -> bool:
    """Whether all models must be of the global's design, or must at least give features of one width."""
    method = methods.of({"name": name})
    return method.same_models or method.needs_features
