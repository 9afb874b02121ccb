"""The layout shows the architecture: a package imports only from those above it, and nothing in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import mutua

SOURCES = Path(mutua.__file__).parent
ORDER = (
    "support",
    "data",
    "models",
    "learning",
    "federation",
    "methods",
    "engines",
    "rounds",
    "recipe",
    "runs",
    "studies",
    "reports",
    "watch",
    "deploy",
    "cli",
)
"""Lowest first: docs/architecture.md says what each is for."""
ANYWHERE = ("errors", "seeds")
LONGEST = 400


def modules(root: Path = SOURCES) -> dict[str, Path]:
    """Every module of the package by its name, "" being `__init__` itself."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """The modules of the package that one imports, and in which line: in functions and for type checkers too."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = ["mutua", *package][: len(package) + 2 - node.level] if node.level else []
            base = ".".join([*inside, *([node.module] if node.module else [])])
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            parts = target.split(".")
            if parts[0] != "mutua" or target == "mutua.__version__":
                continue
            while (found := ".".join(parts[1:])) not in known:
                parts.pop()
            yield found, node.lineno


def edges(root: Path = SOURCES) -> list[tuple[str, str, int]]:
    """Who imports whom, and in which line."""
    known = modules(root)
    return [(name, other, line) for name, path in known.items() for other, line in imports(name, path, known)]


def offences(root: Path = SOURCES) -> list[str]:
    """The imports that the rule forbids."""
    found = []
    for name, other, line in edges(root):
        home, there = name.partition(".")[0], other.partition(".")[0]
        if name in ("", "__main__") or there in ANYWHERE:
            continue  # the public surface is of everything
        where = f"{name.replace('.', '/')}.py:{line} imports mutua.{other}".rstrip(".")
        if home in ANYWHERE or not there or ORDER.index(there) > ORDER.index(home):
            found.append(where)
        if (home, there) == ("deploy", "watch"):  # nothing that a site runs brings the page's server along
            found.append(where)
    return found


def test_nothing_lies_loose() -> None:
    assert {path.stem for path in SOURCES.glob("*.py")} == {"__init__", "__main__", *ANYWHERE}
    assert {path.parent.name for path in SOURCES.glob("*/__init__.py")} == set(ORDER)


def test_a_package_imports_only_from_those_above_it() -> None:
    assert offences() == []


def test_nothing_imports_in_a_circle() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for name, other, _ in edges():
        if name not in ("", "__main__") and name != other:
            graph[name].add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize(
    "line",
    [
        "from mutua.cli import demo",
        "def late():\n    import mutua.runs.result\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mutua.rounds.loop import Rounds\n",
        "from ..reports import page",
        "import mutua",
    ],
)
def test_a_broken_rule_is_seen(line: str, tmp_path: Path) -> None:
    """The same check on a copy in which one edge points the wrong way."""
    for name, path in modules().items():
        copy = tmp_path / path.relative_to(SOURCES)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text(encoding="utf-8") + (f"\n{line}\n" if name == "learning.losses" else ""))
    [found] = offences(tmp_path)
    assert found.startswith("learning/losses.py:")


def test_files_hold_one_idea() -> None:
    """A file over 400 lines says why in its first lines: "Over 400 lines: ..."."""
    long = {name: path for name, path in modules().items() if len(path.read_text().splitlines()) > LONGEST}
    assert [name for name, path in long.items() if "Over 400 lines: " not in path.read_text()[:2000]] == []


def public_names() -> dict[str, list[str]]:
    """By name, the modules that define a public class, function, type or constant of that name."""
    found: dict[str, list[str]] = {}
    for name, path in modules().items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            defined = [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
            if isinstance(
                node, ast.Assign | ast.AnnAssign
            ):  # of a type, as `Tensors = ...`, or a constant, as `KNOWN`
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                words = [
                    target for target in targets for target in ast.walk(target) if isinstance(target, ast.Name)
                ]
                defined = [target.id for target in words if target.id[0].isupper() and len(target.id) > 1]
            for word in defined:
                if not word.startswith("_"):
                    found.setdefault(word, []).append(name)
    return found


def test_one_word_for_one_thing() -> None:
    """No two public classes, functions, types or constants share a name."""
    twice = {name: homes for name, homes in public_names().items() if len(set(homes)) > 1}
    assert twice == {}
