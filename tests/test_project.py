"""What lies around the code says the same as the code: the site, the citation, the bounds of dependencies."""

from __future__ import annotations

import pydoc
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import mutua

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


class Site(yaml.SafeLoader):
    """Reads mkdocs.yml without what its tags name, which only mkdocs has."""


Site.add_multi_constructor("", lambda loader, suffix, node: None)


def leaves(nav: Any) -> list[str]:
    """The files that a nav lists, in order."""
    if isinstance(nav, str):
        return [nav]
    return [leaf for part in (nav.values() if isinstance(nav, dict) else nav) for leaf in leaves(part)]


def test_the_site_lists_every_document_once_and_no_other() -> None:
    listed = leaves(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=Site)["nav"])
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    assert sorted(listed) == sorted(path.relative_to(ROOT).as_posix() for path in documents)


def test_the_reference_has_every_public_name_once() -> None:
    page = (ROOT / "docs" / "reference" / "mutua.md").read_text(encoding="utf-8")
    told = re.findall(r"^::: mutua\.(\w+)$", page, re.MULTILINE)
    pages = {name for name in ("methods", "models") if f"]({name}.md)" in page}
    assert sorted([*told, *pages]) == mutua.__all__


def test_what_the_reference_asks_for_is_there() -> None:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    asked = [name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]
    assert len(asked) > 40
    assert not [name for name in asked if pydoc.locate(name) is None]


def test_no_two_files_of_tests_share_a_name() -> None:
    """pytest imports them by their names alone."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py")]
    assert not {name for name in names if names.count(name) > 1}


def test_the_citation_is_of_this_version_and_names_no_person() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == mutua.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == [{"name": "The mutua authors"}]


def test_the_workflow_tests_every_python_that_the_project_names() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["make"]["strategy"]["matrix"]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert matrix["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_the_lowest_versions_are_those_of_the_project() -> None:
    lowest = runpy.run_path(str(ROOT / "tools" / "lowest.py"))["lowest"]
    extras = {"dev": ["mutua[dp]", "b-c[d]>=3", "e>=1,<2"]}
    small = {"dependencies": ["torch>=2.6,<2.14", "a>=1.2.3"], "optional-dependencies": extras}
    assert list(lowest(small)) == ["a==1.2.3", "b-c==3", "e==1"]
    with pytest.raises(SystemExit, match=r"'f<2' has no lowest version; write name>=version"):
        list(lowest({"dependencies": ["f<2"], "optional-dependencies": {}}))
    assert len(list(lowest(PROJECT))) > 20  # every one of ours has a lowest version


def test_every_method_has_fingerprints() -> None:
    """A refactoring that changes a method's result is seen only if `tools/fingerprints.py` runs it."""
    assert sorted(runpy.run_path(str(ROOT / "tools" / "fingerprints.py"))["METHODS"]) == mutua.methods.names()
