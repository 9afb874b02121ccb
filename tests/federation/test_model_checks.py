"""Models that do not fit a federation are named before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mutua import Client, Federation, InputError, Samples
from mutua.federation.model_checks import check_models
from mutua.models import shared_names

Federate = Callable[..., Federation]
Blobs = Callable[..., Samples]


def test_models_that_do_not_fit_are_named_before_anything_runs(nets: SimpleNamespace, federate: Federate) -> None:
    with pytest.raises(InputError, match=r"models\.global: missing"):
        check_models(federate(global_model=None), needs_global=True)
    check_models(federate(global_model=None), needs_global=False)
    with pytest.raises(InputError, match=r"client b: model Linear fails on inputs of shape \(2, 4\)"):
        check_models(federate(models=[nets.plain, nn.Linear(5, 3), nets.plain]), needs_global=False)
    with pytest.raises(InputError, match=r"client c: model Linear gives \(2, 7\).*\(2, 3\)"):
        check_models(federate(models=[nets.plain, nets.plain, nn.Linear(4, 7)]), needs_global=True)
    with pytest.raises(InputError, match="client a: global model Linear"):
        check_models(federate(global_model=nn.Linear(4, 2)), needs_global=True)
    check_models(federate(global_model=nn.Linear(4, 2)), needs_global=False)


def test_a_shared_part_must_have_one_shape_for_all(
    nets: SimpleNamespace, federate: Federate, blobs: Blobs
) -> None:
    federation = federate([5, 5], global_model={"name": nets.plain, "share": "body"})
    train, val, test = (blobs(n, features=7) for n in (5, 4, 3))
    broad = Client("b", train, val, test, federation["a"].model)
    with pytest.raises(InputError, match=r"client b: the shared 'body\.weight'.*\(6, 7\).*\(6, 4\)"):
        check_models(replace(federation, clients=(federation["a"], broad)), needs_global=True)


def test_checking_moves_no_random_number(federate: Federate) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    check_models(federate(), needs_global=True)
    assert torch.equal(torch.get_rng_state(), before)


class Tied(torch.nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.middle, self.head = (torch.nn.Linear(4, n) for n in (4, 4, 3))
        self.middle.weight = self.body.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(torch.tanh(self.body(x)))))  # type: ignore[no-any-return]


def test_a_tied_weight_is_not_both_shared_and_private(federate: Federate) -> None:
    """Loading the adaptor would overwrite the shared weight, and the client's own would leave as its meme's."""
    assert len(shared_names(Tied(), "body")) == 4
    with pytest.raises(InputError, match=r"'body\.weight' and 'middle\.weight' are one weight"):
        check_models(federate(global_model={"name": Tied, "share": ["body"]}), needs_global=True)
