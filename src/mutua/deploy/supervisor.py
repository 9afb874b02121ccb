"""What a site runs: its worker and its SuperNode, started again whenever one of them ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from mutua.deploy.agreement import CA
from mutua.deploy.flower_control import free_port
from mutua.deploy.flower_processes import LAUNCHER_VARIABLE, flower_environment, install_clientapp, program
from mutua.deploy.flower_signatures import LINE
from mutua.deploy.site_folder import KEY, SiteFolder
from mutua.deploy.site_worker import READY, SITE_WRONG
from mutua.engines.site import LEDGER
from mutua.engines.site_socket import SOCKET_VARIABLE
from mutua.errors import RunError
from mutua.federation.site_ledger import SentEntry, entry_in
from mutua.support.folders import FolderLock
from mutua.support.text import size

LONGEST_SOCKET_PATH = 85
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
STAYS = "the server is told that this site is not ready; mend it, and it is ready when the server asks again"
LASTED = 60.0
"""Seconds after which a process counts as having started well."""


@dataclass
class Kept:
    """A process that is kept running."""

    name: str
    words: Sequence[str]
    environment: dict[str, str]
    log: Path
    say: Callable[[str], None]
    ready: str = ""
    """What it prints when it is ready; instead, it may print what is wrong."""
    fatal: tuple[int, ...] = ()
    """Exit codes that trying again would not change."""
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    _began: float = 0.0
    _again: float = 0.0
    _pause: float = FIRST_PAUSE
    _log: IO[bytes] | None = field(default=None, repr=False)

    def watch(self) -> None:
        """Start it if it is not there; after a quick end only when some seconds have passed."""
        now = time.monotonic()
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return
            self.process = None
            if code in self.fatal:
                raise RunError(f"{self.name} cannot start: {self.last_words()}")
            self._pause = FIRST_PAUSE if now - self._began > LASTED else min(2 * self._pause, LONGEST_PAUSE)
            self._again = now + self._pause
            self.say(
                f"{self.name} has ended (exit {code}); it is started again in {self._pause:.0f} s; see {self.log}"
            )
        if now >= self._again:
            self._start()

    def _start(self) -> None:
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            out = subprocess.PIPE if self.ready else log
            self.process = subprocess.Popen(
                self.words, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=self.environment
            )
        self._began, self.starts = time.monotonic(), self.starts + 1
        if self.ready:
            assert self.process.stdout is not None
            with self.process.stdout as lines:
                first = lines.readline().decode().strip()
                if first.startswith(SITE_WRONG):
                    self.say(first)
                    self.say(STAYS)
                elif first != self.ready:
                    code = self.process.wait()
                    raise RunError(f"{self.name} cannot start (exit {code}): {self.last_words()}")

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.log.read_bytes()[-4000:].decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("mutua: ") if lines else "it said nothing"

    def end(self) -> None:
        """End it; at once if it does not within a few seconds."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


class NewLines:
    """The whole lines that a file has got since one looked last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = path.stat().st_size if path.is_file() else 0

    def take(self) -> list[bytes]:
        """Those that are new."""
        if not self.path.is_file() or self.path.stat().st_size <= self._read:
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.splitlines()


class Stop(Exception):
    """A signal has asked to stop."""


def supervise(folder: SiteFolder, say: Callable[[str], None], trusted: str = "") -> None:
    """Keep the site's worker and its SuperNode running until a signal comes."""
    lock = FolderLock(folder.private, "FOLDER")
    with tempfile.TemporaryDirectory(prefix="mutua-site-") as short:
        sockets = folder.private
        if len(str(sockets)) > LONGEST_SOCKET_PATH:  # a socket's path may not be longer
            sockets = Path(short)
        kept = _processes(folder, sockets, say, trusted)
        sent, line = NewLines(folder.path / LEDGER), NewLines(kept[-1].log)
        before = {
            number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            say("loading your data and model")
            for one in kept[:2]:
                one.watch()
            say(f"connecting to {folder.agreed.file.server}; leave this running, and stop it with Ctrl-C")
            while True:
                for one in kept:
                    one.watch()
                for text in _news(line, sent, folder):
                    say(text)
                time.sleep(0.2)
        except Stop:
            say("stopping; the same command goes on where this site is now")
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for one in reversed(kept):
                one.end()
            lock.release()


def _news(line: NewLines, sent: NewLines, folder: SiteFolder) -> Iterator[str]:
    """Whether the server answers, what it has asked, and what leaves."""
    for found in line.take():
        if found.startswith(LINE.encode()):
            yield found.decode(errors="replace").removeprefix(LINE)
    for found in sent.take():
        if (entry := entry_in(found)) is not None:
            yield words_of_entry(entry, folder.path)


def words_of_entry(entry: SentEntry, folder: Path) -> str:
    """What the site has just been asked and what it sends, as its ledger has it."""
    told, at = json.loads(entry.told), f"round {entry.round}"
    if told["ending"] != "done":
        where = "" if entry.verb == "hello" else f"{at}: "
        return f"{where}{told['ending']}: {told['reason']}; nothing is sent"
    parts = ", ".join(f"{what} {size(number)}" for what, number in entry.parts.items())
    sends = f"sends {size(entry.bytes)} ({parts})" if entry.bytes else "sends no data"
    match entry.verb:
        case "hello":
            return "the organiser begins a run, or goes on with it: this site is ready"
        case "evaluate":
            return f"evaluation: {sends}"
        case "finish" | "join":
            return f"the run is over here: {sends}; next: mutua deploy benefit {folder}"
    return f"{at}: {sends}"


def _processes(folder: SiteFolder, sockets: Path, say: Callable[[str], None], trusted: str) -> list[Kept]:
    logs, flower, place = folder.private / "logs", folder.private / "flower", sockets / "worker.sock"
    install_clientapp(folder.private / "bin")
    environment = flower_environment(flower, folder.private / "bin")
    environment |= {SOCKET_VARIABLE: str(place), LAUNCHER_VARIABLE: str(sockets / "launcher.sock")}
    launcher = Kept("the launcher", program("launcher"), environment, logs / "connection.log", say, ready="ready")
    worker = Kept(
        "the worker",
        [sys.executable, "-m", "mutua.deploy.site_worker", str(folder.path), str(place), trusted],
        dict(os.environ),
        logs / "worker.log",
        say,
        ready=READY,
    )
    node = Kept(
        "the connection",
        program(
            "supernode",
            "--superlink",
            folder.agreed.file.server,
            "--root-certificates",
            str(folder.path / CA),
            "--auth-supernode-private-key",
            str(folder.path / KEY),
            "--host",
            "127.0.0.1",
            "--port",
            str(free_port()),
        ),
        environment,
        logs / "connection.log",
        say,
    )
    return [worker, launcher, node]


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stop
