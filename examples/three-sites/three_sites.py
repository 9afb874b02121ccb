"""A federation of three sites on this machine: the commands of an organiser and of three sites, as processes."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SITES = ("c0", "c1", "c2")
HERE = Path(__file__).parent


def mutua(*words: object) -> list[str]:
    """A command line of mutua, with this Python."""
    return [sys.executable, "-m", "mutua", *map(str, words)]


def wait_for(host: str, seconds: float = 120) -> None:
    """Until the server answers at its port."""
    name, _, port = host.rpartition(":")
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((name, int(port)), timeout=5).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def main(place: str = "three-sites-trial", host: str = "127.0.0.1:9092") -> None:
    """Set up in a new folder, run, and ask every site what it has sent."""
    folder = Path(place)
    folder.mkdir()
    organiser, sites = folder / "organiser", [folder / f"site-{client}" for client in SITES]
    recipe = HERE / "trial.yaml"
    making = ["--recipe", recipe, "--clients", ",".join(SITES), "--host", host, "--simulate"]
    subprocess.run(mutua("deploy", "init", organiser, *making), check=True)
    for client, site in zip(SITES, sites, strict=True):  # in earnest this is a safe way to another machine
        shutil.move(organiser / "hand-out" / client, site)
    working = [subprocess.Popen(mutua("deploy", "server", organiser))]
    try:
        wait_for(host)
        for site in sites:
            subprocess.run(mutua("deploy", "check", site), check=True)
            working.append(subprocess.Popen(mutua("deploy", "client", site)))
        subprocess.run(mutua("deploy", "run", organiser), check=True)
        for site in sites:
            subprocess.run(mutua("ledger", "show", site), check=True)
            subprocess.run(mutua("ledger", "verify", site), check=True)
    finally:
        for process in reversed(working):
            process.send_signal(signal.SIGTERM)
        for process in working:
            process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
