"""How to repeat the runs and the report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mutua.reports.document import Code
from mutua.reports.study import Study


def repetition_blocks(study: Study, load_data: bool) -> Iterator[str | Code]:
    """Commands, versions and recipes."""
    typed = list(dict.fromkeys(run.command for run in study.runs if run.command))
    if typed:
        yield "It was run by:"
        yield Code("\n".join(typed))
    by_recipe = [run for run in study.runs if not run.made_in_python]
    if len(by_recipe) < len(study.runs):
        yield "It was run in Python, on data that its folder does not hold: the program that did so repeats it."
    if by_recipe:
        yield "Each run's folder holds its full recipe, by which mutua run repeats it to the same bytes."
        each = "\n".join(f"mutua run {shlex.quote(str(run.path / 'recipe.yaml'))}" for run in by_recipe)
        yield Code(each, folded=f"{len(by_recipe)} runs, each by itself" if typed and len(by_recipe) > 1 else "")
    yield "This report was made by:"
    yield Code(f"mutua report {shlex.quote(str(study.path))}{' --load-data' * load_data}")
    for versions in {tuple(sorted(run.versions.items())): None for run in study.runs}:
        yield "Versions: " + ", ".join(f"{package} {number}" for package, number in versions) + "."
    for label in study.labels:
        run = study.of(label)[0]
        yield Code(run.overview.text, folded=f"The recipe of {label}, seed {run.seed}")
