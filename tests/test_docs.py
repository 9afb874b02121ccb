"""The documents say what is true: their code runs, their commands parse, their keys, options and links exist."""

from __future__ import annotations

import ast
import importlib
import json
import keyword
import logging
import pydoc
import re
import runpy
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import typer
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from mutua import InputError, Recipe, load_run
from mutua.cli.app import app
from mutua.data import sources
from mutua.errors import LeftOut
from mutua.learning.schedules import Cosine, Linear, Listed
from mutua.methods import FML, base
from mutua.models import registry
from mutua.rounds import loop
from mutua.studies.measures import ABOUT

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *EXAMPLES.rglob("*.md")])
WRITTEN = [*DOCUMENTS, *sorted(EXAMPLES.iterdir()), ROOT / ".pre-commit-config.yaml"]
SMALL = ["--set", "rounds=1", "--set", "epochs=1", "--set", "data={name: mnist5k, samples_per_client: 40}"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language; '' is plain ones."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for found, block in fenced if found == language]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row that begins with code."""
    lines = re.findall(r"^\| (`.*) \|$", text, re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]


def sections(text: str, level: str) -> dict[str, str]:
    """By the code in its heading, the text below each heading of this level that has some."""
    parts = re.split(rf"^{level} (.*)$", text, flags=re.MULTILINE)[1:]
    named = dict(zip(parts[::2], parts[1::2], strict=True))
    return {heading.strip("`"): body for heading, body in named.items() if heading.startswith("`")}


# Code


def test_the_readme_has_twenty_lines_of_python_that_run(capsys: pytest.CaptureFixture[str]) -> None:
    [code] = blocks(read("README.md"), "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    small = code.replace("rounds=10", "rounds=1").replace("samples_per_client=200", "samples_per_client=40")
    assert small.count("rounds=1,") == small.count("samples_per_client=40") == 1
    exec(compile(small, "README.md", "exec"), {})
    assert re.search(
        r"^c0 mlp \S+ \{'weights: meme': 246824, 'count: samples': \d+\}$", capsys.readouterr().out, re.MULTILINE
    )


def test_the_python_page_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("logging.root.handlers", [])
    level = logging.getLogger("mutua").level
    text = read("docs/python.md")
    page = "".join(blocks(text, "python"))
    try:
        with pytest.warns(LeftOut):
            exec(compile(page, "docs/python.md", "exec"), {"__name__": "page"})
    finally:
        logging.getLogger("mutua").setLevel(level)
    out, err = capsys.readouterr()
    assert out.startswith(blocks(text, "text")[0])
    assert "c2: answered 1 of 3 rounds; refused (rounds 1-2): " in out
    assert "FML.alfa: unknown key; did you mean 'alpha'?" in out
    assert (tmp_path / "first.html").is_file() and (tmp_path / "runs/three-methods/report.html").is_file()
    assert "fml: round 5/5" in err and "INFO:mutua:fml: finished" in err
    told = {row[0].strip("`"): row[2] for row in rows(text)}
    events = get_args(loop.Event)
    assert told == {event.__name__: ", ".join(field.name for field in fields(event)) for event in events}


def test_the_page_on_tables_and_texts_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(compile("".join(blocks(read("docs/data.md"), "python")), "docs/data.md", "exec"), found)
    told = load_run("runs/hospitals").predictor("north")(found["rows"])
    assert torch.allclose(found["plain"], told, atol=1e-6)  # plain torch says the same


def test_the_report_in_python_works_as_written(
    finished: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished(rounds=1)[0], "runs/mine")
    [code] = blocks(read("docs/reports.md"), "python")
    exec(compile(code, "docs/reports.md", "exec"), {})
    assert Path("mine.html").is_file() and "| method |" in capsys.readouterr().out


def test_contributing_works_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A method, its test, a model, a dataset and a deprecated name; and the method by its path from a recipe."""
    monkeypatch.setattr(base, "_METHODS", dict(base._METHODS))
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sources.KNOWN, "digits8", sources.KNOWN["mnist5k"])  # so that the new one goes again
    text = read("CONTRIBUTING.md")
    names = []
    for code in blocks(text, "python"):
        names.append(code.splitlines()[0].removeprefix("# ").removesuffix(".py"))
        (tmp_path / f"{names[-1]}.py").write_text(code)
        importlib.import_module(names[-1])
    assert names == ["anchored", "try_anchored", "one_conv", "digits8", "renamed"]
    [method] = re.findall(r"`method: (\{.*anchored.*\})`", text)
    tree = {
        "name": "newly",
        "data": {"name": "digits8", "samples_per_client": 20},
        "partition": {"kind": "iid", "clients": 2},
        "models": {"global": "one-conv"},
        "method": yaml.safe_load(method),
        "rounds": 1,
    }
    Path("recipe.yaml").write_text(json.dumps(tree))
    result = CliRunner().invoke(app, ["run", "recipe.yaml", "--data-dir", ".", "--json"], catch_exceptions=False)
    assert json.loads(result.stdout)["clients"][1]["model"] == "one-conv"
    assert yaml.safe_load(next(tmp_path.glob("runs/*/recipe.yaml")).read_text())["method"]["hold"] == 0.5


def example(name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / name))["main"]


def test_quickstart(capsys: pytest.CaptureFixture[str]) -> None:
    results = example("quickstart.py")(rounds=1, samples_per_client=40)
    assert [bool(result.ledger.bytes("up")) for result in results.values()] == [True, True, True, False]
    assert "test samples of its own, with 95 % intervals:" in capsys.readouterr().out


def test_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    result = example("own_model.py")(rounds=1, samples_per_client=40)
    assert "patches.weight" in result.clients[0].state["personal"]
    assert "c0  Patches" in capsys.readouterr().out


@pytest.mark.parametrize("recipe", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_example_recipes_run(recipe: Path, tmp_path: Path) -> None:
    arguments = ["run", str(recipe), *SMALL, "--out", str(tmp_path / "run"), "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    report = json.loads(result.stdout)
    assert (report["method"], len(report["clients"])) == ({"no-regret": "no-regret"}.get(recipe.stem, "fml"), 5)
    assert Recipe.load(tmp_path / "run" / "recipe.yaml").name == recipe.stem  # and what it leaves is a recipe


def test_every_example_is_tested_and_linked_from_the_readme() -> None:
    tested = set(re.findall(r'example\("(.*?)"\)', Path(__file__).read_text()))
    assert tested == {path.name for path in EXAMPLES.glob("*.py")}
    assert all(f"examples/{path.name}" in read("README.md") for path in EXAMPLES.iterdir() if path.is_file())


def test_the_recipes_in_the_documents_are_valid() -> None:
    recipes = [yaml.safe_load(block) for name in DOCUMENTS for block in blocks(name.read_text(), "yaml")]
    assert len(recipes) >= 2
    for recipe in recipes:
        Recipe.of(recipe)


def test_the_readmes_figures_are_of_the_recipe_it_names() -> None:
    """The text beside the table and the recipe that it tells readers to run say the same settings."""
    recipe = Recipe.load(EXAMPLES / "fml-shards.yaml")
    assert recipe.data is not None and recipe.partition is not None
    assert (recipe.data.name, recipe.data.samples_per_client) == ("fashion-mnist", 300)
    assert recipe.partition.model_dump(exclude_none=True) == {
        "kind": "shards",
        "clients": 5,
        "shards_per_client": 2,
    }
    assert (recipe.rounds, recipe.epochs, recipe.batch_size) == (20, 5, 50)
    assert recipe.optimizer.model_dump(include={"name", "lr", "momentum", "weight_decay"}) == {
        "name": "sgd",
        "lr": 0.01,
        "momentum": 0.9,
        "weight_decay": 0.0,
    }


# Commands


def commands() -> Iterator[str]:
    """Every `mutua ...` of a plain block, running text or a recipe's comments; headings hold placeholders."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for block in blocks(text, ""):
            yield from re.findall(r"^(mutua .*?)(?: +#.*)?$", block, re.MULTILINE)
        prose = re.sub(r"^(#|```.*?^```$).*?$", "", text, flags=re.MULTILINE | re.DOTALL)
        yield from re.findall(r"`(mutua [^`A-Z]*)`", prose)
    for recipe in EXAMPLES.glob("*.yaml"):
        yield from re.findall(r"^# .*?(mutua .*)$", recipe.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_every_command_in_the_documents_parses(command: str) -> None:
    at: Any = typer.main.get_command(app)
    words = shlex.split(command)[1:]
    while hasattr(at, "commands") and words and not words[0].startswith("--"):
        assert words[0] in at.commands, command
        at = at.commands[words.pop(0)]
    if hasattr(at, "commands"):  # a group is only spoken of, or has options of its own
        assert set(words) <= {"--help", *(name for param in at.params for name in param.opts)}, command
    elif words:  # a command named without its arguments is only spoken of
        at.make_context(command, words)  # raises for an unknown option, a missing argument or a wrong choice


def test_there_are_commands_to_parse() -> None:
    assert len(set(commands())) >= 10


def test_the_command_reference_is_what_the_commands_say() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "command_reference.py"))
    assert read("docs/reference/commands.md") == tool["written"](), "run python tools/command_reference.py"
    for word in ("`mutua deploy init`", "`--trust-code NAME`", "`mutua data get NAME`"):
        assert word in tool["written"]()


# Keys of recipes, options of methods


def models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models(part)]


def keys(model: type[BaseModel], prefix: str, seen: set[type]) -> Iterator[tuple[str, FieldInfo]]:
    """Every key below a model, dotted; what stands in two places is told once."""
    seen.add(model)
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        yield key, field
        for inner in models(field.annotation):
            if inner not in seen and not issubclass(inner, base.Method):
                yield from keys(inner, "*." if inner in (Linear, Cosine, Listed) else f"{key}.", seen)


def agrees(cell: str, field: FieldInfo) -> bool:
    """Whether the cell 'default' tells the field's default."""
    if field.is_required():
        return cell == "required"
    if field.default is None or field.default_factory is not None:
        return "`" not in cell.replace("`clients`", "").replace("`steps`", "")
    told = [yaml.safe_load(text) for text in re.findall(r"`(.*?)`", cell)]
    plain = list(field.default) if isinstance(field.default, tuple) else field.default
    return plain in told or str(plain) in told


def test_every_key_of_a_recipe_is_described_and_no_other() -> None:
    found = list(keys(Recipe, "", set()))
    text = read("docs/recipes.md")
    told = {row[0].strip("`"): row[2] for row in rows(text) if len(row) == 4}
    assert set(told) == {key for key, _ in found}
    kinds = {"partition.kind", "optimizer.name", "*.schedule"}  # defaults of one model, choices of the union
    wrong = [key for key, field in found if key not in kinds and not agrees(told[key], field)]
    assert not wrong


def test_every_kind_of_partition_is_described_and_no_other() -> None:
    kinds = {
        kind
        for model in models(Recipe.model_fields["partition"].annotation)
        for kind in get_args(model.model_fields["kind"].annotation)
    }
    told = {row[0].strip("`") for row in rows(read("docs/recipes.md").partition("## Models")[0]) if len(row) == 2}
    assert told == kinds


def test_every_method_has_a_page_with_its_options_and_no_other() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "methods").glob("*.md")}
    assert set(pages) == set(base.method_names())
    for name, page in pages.items():
        assert page.startswith(f"# `{name}`\n")
        fields = base._METHODS[name].model_fields
        told = {row[0].strip("`"): row[2] for row in rows(page)}
        assert set(told) == set(fields), name
        assert not [key for key in fields if not agrees(told[key], fields[key])], name


def test_ranges_of_temperatures_are_those_of_the_code() -> None:
    for low, high in re.findall(r"`temperature` \| number in \[([\d.]+), (\d+)\]", read("docs/methods/fml.md")):
        for edge in (float(low), float(high)):
            assert FML(temperature=edge).temperature == edge
        for beyond in (float(low) / 2, float(high) * 2):
            with pytest.raises(InputError, match="temperature"):
                FML(temperature=beyond)


def test_the_readme_names_what_newcomers_look_for() -> None:
    assert "pip install" in read("README.md")
    linked = re.findall(r"\]\(docs/([\w-]+\.md)\)", read("README.md"))
    assert set(linked) == {path.name for path in (ROOT / "docs").glob("*.md")}


def test_every_combiner_and_its_options_are_described_and_no_other() -> None:
    text = read("docs/methods.md").partition("## Merging")[2].partition("\n## ")[0]
    told = {row[0].strip("`"): dict(re.findall(r"`(\w+)` \((\w[\w.]*)", row[1])) for row in rows(text)}
    known = {
        model.model_fields["name"].default: {
            key: "none" if field.default is None else str(field.default)
            for key, field in model.model_fields.items()
            if key != "name"
        }
        for model in models(base.Hub.model_fields["combine"].annotation)
    }
    assert told == known
    sharing = [name for name, method in base._METHODS.items() if issubclass(method, base.Hub)]
    assert set(re.findall(r"`([\w-]+)`", text.partition("(")[2].partition(")")[0])) == set(sharing)


def test_what_leaves_is_said_as_the_methods_declare_it() -> None:
    text = read("docs/methods.md").partition("## ")[0]
    leaves = {
        re.sub(r"\[`(.*)`\].*", r"\1", line[2:]): line for line in re.findall(r"^\| \[.*$", text, re.MULTILINE)
    }
    words = {
        "weights": "meme",
        "count": "n_k",
        "entropy": "H_k",
        "probabilities": "probabilities",
        "accuracy": "accuracy",
        "scores": "scores",
    }
    for name, line in leaves.items():
        cell = line.split("|")[2]
        shares = base.method_of({"name": name}).shares.values()
        if name != "centralised":
            assert all(word in cell for kind, word in words.items() if kind in shares), name
            assert all(word not in cell for kind, word in words.items() if kind not in shares), name


def test_every_measure_is_described_and_no_other() -> None:
    table = read("docs/comparing.md").partition("| measure | what |")[2].partition("\n\n")[0]
    told = dict(re.findall(r"^\| (\w+) \| (.*) \|$", table, re.MULTILINE))
    assert told == ABOUT


# Links and paths


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(path: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"https?:", target):
            continue
        file, _, anchor = target.partition("#")
        there = path if not file else path.parent / file
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_and_names_in_the_documents_exist(path: Path) -> None:
    """Paths of the repository, and names that begin with `mutua.`, wherever they stand in backticks."""
    prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    files = re.findall(r"`((?:src|tests|benchmarks|docs|tools|examples)/[a-z0-9_./-]+)`", prose)
    to_write = ("src/mutua/methods/anchored.py", "docs/methods/anchored.md")  # the example of CONTRIBUTING.md
    assert not [file for file in files if not (ROOT / file).exists() and file not in to_write]
    names = re.findall(r"`(mutua(?:\.[A-Za-z_]\w*)+)(?:\([^`]*)?`", prose)
    gone = {"mutua.save_run"} if path.name == "CHANGELOG.md" else set()
    assert not [name for name in names if pydoc.locate(name) is None and name not in gone]


PACKAGE = ROOT / "src" / "mutua"
SOURCES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def defined(nodes: list[ast.stmt]) -> dict[str, ast.stmt]:
    """What a module or a class defines, by name."""
    found: dict[str, ast.stmt] = {}
    for node in nodes:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        found |= dict.fromkeys([getattr(node, "name", "")] if hasattr(node, "name") else names, node)
    return found


def is_defined(name: str, file: str) -> bool:
    """Whether a module defines this name, or this attribute of a class."""
    outer, _, inner = name.partition(".")
    node = defined(SOURCES[file].body).get(outer) if file in SOURCES else None
    return node is not None and (not inner or inner in defined(getattr(node, "body", [])))


def words_of_the_code() -> set[str]:
    """All identifiers of the sources, and words that are text in them; comments and docstrings do not count."""
    found = {*keyword.kwlist} | {part for path in PACKAGE.rglob("*") for part in (path.name, path.stem)}
    for node in (node for tree in SOURCES.values() for node in ast.walk(tree)):
        spoken = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if spoken and re.fullmatch(r"[\w-]+", node.value):
            found.add(node.value)
        found |= {getattr(node, field) for field in ("id", "attr", "arg", "name") if hasattr(node, field)}
    return found


def test_all_that_the_architecture_names_exists() -> None:
    """Files, packages, classes, functions, options: whatever is in backticks."""
    text = re.sub(r"^```.*?^```$", "", read("docs/architecture.md"), flags=re.MULTILINE | re.DOTALL)
    known = words_of_the_code()
    missing = []
    for code in re.findall(r"`([^`]+)`", text):
        if re.fullmatch(r"[\w/-]+/|[\w/-]+\.(?:py|md|svg)", code):
            homes = [PACKAGE, ROOT, *(PACKAGE / row for row in ("methods", "engines", "recipe"))]
            missing += [] if any((home / code).exists() for home in homes) else [code]
        else:
            missing += [f"{word} in {code}" for word in re.findall(r"[A-Za-z_]\w*", code) if word not in known]
    assert missing == []
    dotted = re.findall(r"`([A-Z]\w+\.\w+)`", text)
    assert len(dotted) > 5
    assert not [code for code in dotted if not any(is_defined(code, file) for file in SOURCES)]
    placed = re.findall(r"`([\w.]+)`(?: and `([\w.]+)`)? (?:in|of) `([\w/]+\.py)`", text)
    assert len(placed) > 3
    assert not [(name, file) for *names, file in placed for name in names if name and not is_defined(name, file)]


def test_newcomers_are_sent_to_the_right_files() -> None:
    table = read("docs/architecture.md").partition("## Where is ...?")[2].partition("\n## ")[0]
    answers = re.findall(r"^\| .*\? \| `(.*?)` \| (.*) \|$", table, re.MULTILINE)
    assert len(answers) >= 20
    wrong = [
        (file, name)
        for file, names in answers
        for name in re.findall(r"`(.*?)`", names)
        if not is_defined(name, file)
    ]
    assert not wrong


def test_the_architecture_has_every_package_and_verb() -> None:
    text = read("docs/architecture.md")
    table = text.partition("| place |")[2].partition("\n\n")[0]
    places = [row[0].strip("`/") for row in rows(table)]
    assert sorted(places) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    drawn = re.findall(r'font-weight="600" fill="#1a202c">(\w+)<', read("docs/images/packages.svg"))
    assert drawn == places[::-1]  # the lowest is at the bottom of the picture and at the top of the table
    verbs = {row[0].strip("`").partition("(")[0] for row in rows(text) if row[0].endswith(")`")}
    assert verbs == {name for name in vars(base.Method) if callable(getattr(base.Method, name))} & verbs
    assert {"open", "start", "brief", "train", "check", "merge", "finish", "personalise", "predictor"} <= verbs


def test_the_drawing_of_a_round_names_what_exists() -> None:
    text = read("docs/images/round.svg")
    steps = re.findall(r'fill="#1a202c">(\w+)<', text)
    assert steps == sorted(set(steps), key=steps.index) and len(steps) > 10
    named = {name for tree in SOURCES.values() for node in ast.walk(tree) if (name := getattr(node, "name", None))}
    assert not set(steps) - named
    assert not [path for path in re.findall(r">(\w+/\w+\.py)<", text) if path not in SOURCES]


def test_the_page_of_reproductions_says_what_mutua_would_write_now() -> None:
    """Its numbers are of runs that take hours; its words are of the code."""
    page = read("docs/reproduction.md")
    made = [node for node in ast.walk(SOURCES["reports/reproduction_tables.py"]) if isinstance(node, ast.Constant)]
    texts = [node.value for node in made if isinstance(node.value, str) and node.value.count("\n") > 1]
    opening, over_clients = sorted((text for text in texts if text[0] in "#O"), key=len, reverse=True)
    assert page.startswith(opening)
    for paper in page.split("\n## ")[1:]:  # an item with measures of its own has a table of these instead
        assert (over_clients in paper) != (", mean and deviation over " in paper), paper[:20]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_no_document_names_a_machine(path: Path) -> None:
    if path.is_file():
        found = re.findall(
            r"(?<![\w.>])/(?:work|root|home|tmp|usr|Users|mnt|opt|srv|var|etc)\b\S*|[A-Z]:\\\S*|localhost",
            path.read_text(encoding="utf-8"),
        )
        assert not found


def test_the_picture_is_a_picture() -> None:
    from PIL import Image

    with Image.open(ROOT / "docs" / "images" / "demo.png") as image:
        image.verify()
        assert image.format == "PNG" and image.width >= 600


def test_documents_and_examples_import_from_public_places() -> None:
    """From `mutua` and from those of its packages that say what is public, never from the modules inside."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")]
    found = {
        (page.name, name)
        for page in pages
        for name in re.findall(
            r"^\s*(?:from|import) (mutua\.[\w.]+)", page.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert found
    assert not {(page, name) for page, name in found if not hasattr(importlib.import_module(name), "__all__")}
