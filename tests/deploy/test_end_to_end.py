"""Three sites and a server on loopback, as an organiser and sites run them: TLS, keys, real processes."""

from __future__ import annotations

import re

from real_deployment import RECIPE, SITES, RealDeployment, assert_same_as_local

from mutua.federation.site_ledger import entries


def test_three_sites_end_with_the_bytes_of_one_machine(deployed: RealDeployment) -> None:
    """FML, three architectures, three rounds; each site's ledger is verified and has what crossed."""
    deployed.prepare(RECIPE, SITES)
    deployed.settle("c0", lambda told: told.update(policy={"report": ["accuracy"]}))
    deployed.start(*SITES)
    for client in SITES:
        key = deployed.site(client) / "client.key"
        assert key.stat().st_mode & 0o077 == 0
    said = deployed.command("deploy", "check", deployed.site("c1"))
    assert "weights 'meme'" in said
    assert "its certificate is valid for" in said
    said = deployed.begin("run", "deploy", "run", "organiser").done()
    assert "round 3: c0, c1, c2" in said
    assert "accuracy of clients" in said
    assert_same_as_local(deployed)
    for client in SITES:
        assert "all as they were written" in deployed.command("ledger", "verify", deployed.site(client))
        sent = [entry for entry in entries(deployed.site(client) / "ledger.jsonl") if entry.verb == "train"]
        assert [entry.round for entry in sent] == [1, 2, 3]
        there = deployed.processes[client].said
        assert "connected" in there
        assert re.search(rf"round 3: sends .* \(weights: meme .*\n(.*\n)*the run is over here: .*{client}", there)
        rows = (deployed.run_folder / "ledger.csv").read_text().splitlines()
        up = sum(int(row.split(",")[-1]) for row in rows if f",{client},up," in row)
        assert sum(entry.bytes for entry in sent) == up
    assert "newest run" in deployed.command("deploy", "status", "organiser")
    deployed.command("report", deployed.run_folder)
