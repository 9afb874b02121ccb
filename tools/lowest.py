"""Print, as constraints for pip, the lowest version that is allowed of every direct dependency but torch.

`make test-lowest` installs with these constraints and runs the tests.
"""

import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
NOT_LOWERED = ("torch", "mutua")  # one torch is enough to download; mutua[...] only names extras of our own


def lowest(project: dict[str, Any]) -> Iterator[str]:
    """`name==version` for every requirement of the project and of its extras."""
    for requirement in (*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())):
        name, version = re.fullmatch(r"([\w-]+)[^>]*(?:>=([\d.]+))?.*", requirement).groups()
        if name in NOT_LOWERED:
            continue
        if not version:
            raise SystemExit(f"pyproject.toml: '{requirement}' has no lowest version; write name>=version")
        yield f"{name}=={version}"


if __name__ == "__main__":
    print(*lowest(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]), sep="\n")
