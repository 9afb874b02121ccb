"""`mutua methods` and `mutua models`."""

import re
from collections.abc import Callable
from typing import Any

from mutua.methods import base

Command = Callable[..., Any]


def test_methods_and_models(command: Command) -> None:
    done = command("methods")
    assert done.code == 0 and "…" not in done.out
    for name in base.method_names():
        assert re.search(rf"^{name} ", done.out, re.MULTILINE)
    for column in (
        "options",
        "leaves a client",
        "models",
        "classes",
        "data",
        "the server",
        "weights sent",
        "sent per round",
    ):
        assert re.search(rf"^{column}: .", done.out, re.MULTILINE)
    assert re.search(r"classes only: .*fmlu, .*mixture", " ".join(done.out.split()))
    done = command("models")
    assert re.search(r"^mlp +Two hidden layers.* 199,210$", done.out, re.MULTILINE)
    assert re.search(r"^resnet18 .* 11,172,810$", done.out, re.MULTILINE)
    assert max(map(len, done.out.splitlines())) <= 80
