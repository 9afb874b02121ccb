"""Every model of the zoo, at every width, in every role: it trains, in whatever company.

Each in a process of its own, since what went wrong here ended the process: torch's convolutions wrote beyond their
memory. They do so on AVX2 alone, which newer processors are asked to stand in for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutua.models import registry

WIDTHS = (0.1, 0.25, 0.5, 1.0)
ROLES = ("personal", "meme and expert", "gate")
COMPANION = {"name": "cnn1", "width": 0.5}
"""A model that takes its channels last, and would make the others in a mixture do so."""

SCRIPT = f"""
import sys, torch, mutua
torch.manual_seed(0)
x, y = torch.randint(256, (36, 3, 32, 32), dtype=torch.uint8), torch.arange(36) % 3
name, width, role = sys.argv[1], float(sys.argv[2]), sys.argv[3]
tried, other = dict(name=name, width=width), {COMPANION}
models = {{place: tried if place == role else other for place in {ROLES}}}
federation = mutua.Federation.from_arrays(
    x, y, partition=mutua.partitions.IID(clients=1), models=models["personal"],
    global_model=models["meme and expert"], split=mutua.Split(val=0.06, test=0.06),
)
method = mutua.methods.MixtureOfExperts(mixture_epochs=1, gate=models["gate"])
result = mutua.run(method, federation, rounds=1, steps=2, batch_size=16, device="cpu")
state = result.clients[0].state
assert len(federation.clients[0].train) == 32 and {{"expert", "personal", "gate"}} <= set(state)
assert all(bool(torch.isfinite(array).all()) for part in state.values() for array in part.values())
print("trained", flush=True)
"""


def trains(name: str, width: float, role: str) -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    checker = Path("/lib/x86_64-linux-gnu/libc_malloc_debug.so.0")
    if checker.exists():  # a write beyond memory then ends the process for sure, not by chance
        environment |= {"LD_PRELOAD": str(checker), "MALLOC_CHECK_": "3"}
    command = [sys.executable, "-c", SCRIPT, name, str(width), role]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "trained"), f"{name} {width} {role}: {done.stderr[-500:]}"


@pytest.mark.parametrize("role", ROLES)
def test_a_narrow_resnet_trains_in_every_role(role: str) -> None:
    trains("resnet18", 0.1, role)


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", registry.model_names())
def test_every_model_trains_at_every_width_in_every_role(name: str, width: float, role: str) -> None:
    trains(name, width, role)
