"""A client: the ids that it may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mutua import Federation, InputError

Federate = Callable[..., Federation]


@pytest.mark.parametrize("wrong", ["", ".hidden", "a/b", "../up", "a b", "x" * 65, "é", "a\n"])
def test_ids_that_could_not_be_a_folder_are_refused(wrong: str, federate: Federate) -> None:
    with pytest.raises(InputError, match="client id"):
        replace(federate()["a"], id=wrong)


def test_no_client_is_called_global(federate: Federate) -> None:
    """Its rows of the history would pass for those of the shared model."""
    with pytest.raises(InputError, match="client id 'global'"):
        replace(federate().clients[0], id="global")
