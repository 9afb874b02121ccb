"""Parts that models of the zoo share."""

import pytest
import torch
from torch import nn

from mutua.models.parts import ConvPool


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("outputs", "groups"), [(1, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (13, 1), (6, 2)])
def test_conv_pool_is_what_a_tutorial_writes(outputs, groups, layout):
    """Whatever the number of channels, outputs and gradients are those of torch's layers one after the other."""
    torch.manual_seed(outputs)
    ours = ConvPool(4, outputs, 3, padding=1, groups=groups).to(memory_format=layout)
    plain = nn.Sequential(nn.Conv2d(4, outputs, 3, padding=1, groups=groups), nn.ReLU(), nn.MaxPool2d(2))
    plain[0].load_state_dict(ours.state_dict())
    given = [torch.randn(5, 4, 30, 24).to(memory_format=layout).requires_grad_() for _ in range(2)]
    given[1].data.copy_(given[0].data)
    told = [model(x) for model, x in zip((ours, plain), given, strict=True)]
    by = torch.randn_like(told[1])
    for output in told:
        output.backward(by)
    torch.testing.assert_close(*told)
    assert told[0].is_contiguous(memory_format=layout)
    torch.testing.assert_close(given[0].grad, given[1].grad)
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
