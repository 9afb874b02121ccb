"""Random streams that depend on what they are for, and on nothing else.

A stream is named by a root and a path, such as (seed, client id, round, "batches"). Nobody shares a
stream, so the order in which clients work, their number, the engine and the number of workers
cannot change a draw.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

Path = str | int


def derive(root: int, *path: Path) -> int:
    """A 63-bit seed for the stream of this name."""
    text = repr((root, *path)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def numpy_stream(root: int, *path: Path) -> np.random.Generator:
    """The NumPy generator of this name."""
    return np.random.default_rng(derive(root, *path))


def torch_stream(root: int, *path: Path) -> torch.Generator:
    """The torch generator (on the CPU) of this name."""
    return torch.Generator().manual_seed(derive(root, *path))


def public(seed: int) -> int:
    """The root known to all: the global's initialisation, client sampling, public draws."""
    return derive(seed, "public")


def private(seed: int, client_id: str) -> int:
    """A client's own root in a simulation: batch order, dropout, personal initialisation."""
    return derive(seed, "client", client_id)
