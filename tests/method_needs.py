"""What a recipe must have for a method to run, read from what the method declares."""

from typing import Any

from mutua import methods

AGREED: dict[str, dict[str, Any]] = {"fedgkt": {"labels_leave": True}}
"""Options without which a method refuses every federation."""


def method_named(name: str) -> methods.Method:
    """The method, with the options that it cannot do without."""
    return methods.of({"name": name, **AGREED.get(name, {})})


def needs_of(name: str) -> dict[str, Any]:
    """Keys of a recipe: a public set, and models of one design, where this method cannot do without."""
    method = method_named(name)
    needs: dict[str, Any] = {"public": {"share": 0.3}} if method.needs_public else {}
    if needs_one_design(name):
        needs["models"] = {"global": {"name": "mlp", "width": 0.1}}
    if name in AGREED:
        needs["method"] = {"name": name, **AGREED[name]}
    return needs


def needs_one_design(name: str) -> bool:
    """Whether models must be of the global's design, or parts of it, or at least give features of one width."""
    method = method_named(name)
    return method.same_models or method.needs_features or name == "fedrolex"
