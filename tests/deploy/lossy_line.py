"""Lines between network namespaces of this machine that can be cut, and that delay and lose packets.

A line is a TUN device at either end; a thread carries the packets. So it works where the kernel has no netem.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

TUNSETIFF, TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
SERVER = "10.77.0.1"


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def tun_within(namespace: str, name: str) -> int:
    """A TUN device in this namespace, by its descriptor, which works everywhere."""
    found: list[int | OSError] = []

    def make() -> None:  # only this thread moves
        try:
            with Path(f"/run/netns/{namespace}").open("rb") as place:
                if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), 0x40000000):
                    raise OSError(ctypes.get_errno(), "setns")
            made = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(made, TUNSETIFF, struct.pack("16sH", name.encode(), TUN_WITHOUT_HEADER))
            found.append(made)
        except OSError as error:
            found.append(error)

    mover = threading.Thread(target=make)
    mover.start()
    mover.join()
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


class Line:
    """What carries packets between two descriptors."""

    def __init__(self, ends: tuple[int, int], seed: int) -> None:
        self.ends, self.draw = ends, random.Random(seed)
        self.delay, self.loss, self.cut = 0.0, 0.0, False
        self.carried = self.dropped = 0
        self._open = True
        self._carrier = threading.Thread(target=self._carry, daemon=True)
        self._carrier.start()

    def _carry(self) -> None:
        due: list[tuple[float, int, int, bytes]] = []
        number = count()
        while self._open:
            wait = max(0.0, due[0][0] - time.monotonic()) if due else 0.2
            for end in select.select(self.ends, (), (), min(wait, 0.2))[0]:
                packet = os.read(end, 2**16)
                if self.cut or self.draw.random() < self.loss:
                    self.dropped += 1
                    continue
                other = self.ends[end == self.ends[0]]
                heapq.heappush(due, (time.monotonic() + self.delay, next(number), other, packet))
            while due and due[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(due)
                self.carried += 1
                with suppress(OSError):
                    os.write(end, packet)

    def close(self) -> None:
        self._open = False
        self._carrier.join()
        for end in self.ends:
            os.close(end)


class Lines:
    """A namespace for the organiser and one for each site, each with a line to the organiser's."""

    def __init__(self, sites: tuple[str, ...]) -> None:
        self.sites, self.of = sites, dict[str, Line]()
        self.made: list[str] = []

    def name(self, who: str) -> str:
        return f"mutua-{os.getpid()}-{who if who in self.sites else 'organiser'}"

    @property
    def within(self) -> Callable[[str], list[str]]:
        """What is typed before the command of a site, or of the organiser."""
        return lambda who: ["ip", "netns", "exec", self.name(who.partition("-")[0])]

    def open(self) -> None:
        for who in ("organiser", *self.sites):
            ip("netns", "add", self.name(who))
            self.made.append(self.name(who))
            ip("-n", self.name(who), "link", "set", "lo", "up")
        ip("-n", self.name("organiser"), "address", "add", f"{SERVER}/32", "dev", "lo")
        for k, site in enumerate(self.sites, 1):
            device, near, far = f"line{k}", f"10.77.{k}.1", f"10.77.{k}.2"
            ends = tun_within(self.name("organiser"), device), tun_within(self.name(site), device)
            for who, own, other in (("organiser", near, far), (site, far, near)):
                ip("-n", self.name(who), "address", "add", own, "peer", other, "dev", device)
                ip("-n", self.name(who), "link", "set", device, "up")
            ip("-n", self.name(site), "route", "add", SERVER, "via", near)
            self.of[site] = Line(ends, k)

    def close(self) -> None:
        for line in self.of.values():
            line.close()
        for name in self.made:
            with suppress(OSError):
                ip("netns", "delete", name)
