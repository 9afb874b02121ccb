"""Parts of the mobile models."""

import torch
from torch import nn

from mutua.models.mobile import _interleave


def test_interleaving_is_concatenation_and_channel_shuffle():
    a, b = torch.arange(3.0).reshape(1, 3, 1, 1), torch.arange(10.0, 13.0).reshape(1, 3, 1, 1)
    expected = nn.ChannelShuffle(2)(torch.cat((a, b), 1))
    assert torch.equal(_interleave(a, b), expected)
    assert expected.flatten().tolist() == [0, 10, 1, 11, 2, 12]
