"""Sites behind lines that are cut, slow and lossy, in network namespaces of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from lossy_line import SERVER, Lines
from real_deployment import RECIPE, SITES, RealDeployment, assert_same_as_local, wait_for_round

pytestmark = pytest.mark.deploy


@pytest.fixture
def lines(deployed: RealDeployment) -> Iterator[Lines]:
    made = Lines(SITES)
    try:
        made.open()
    except OSError as error:
        made.close()
        pytest.skip(f"no network namespaces can be made here: {error}")
    deployed.within, deployed.host = made.within, SERVER
    yield made
    deployed.close()
    made.close()


def test_a_line_that_is_cut_for_half_a_minute_changes_no_byte(deployed: RealDeployment, lines: Lines) -> None:
    deployed.prepare({**RECIPE, "rounds": 5, "evaluate_every": 5}, SITES, "--wait", "400")
    deployed.start(*SITES)
    run = deployed.begin("run", "deploy", "run", "organiser")
    wait_for_round(deployed, "c1", 2)
    lines.of["c1"].cut = True
    time.sleep(30)
    lines.of["c1"].cut = False
    assert lines.of["c1"].dropped > 0
    run.done(900)
    assert_same_as_local(deployed)


def test_a_slow_line_that_loses_packets_is_enough(deployed: RealDeployment, lines: Lines) -> None:
    """200 ms on the way, 1 % lost, in both directions."""
    for line in lines.of.values():
        line.delay, line.loss = 0.2, 0.01
    deployed.prepare(RECIPE, SITES, "--wait", "400")
    deployed.start(*SITES)
    deployed.begin("run", "deploy", "run", "organiser").done(900)
    assert sum(line.dropped for line in lines.of.values()) > 0
    assert_same_as_local(deployed)
