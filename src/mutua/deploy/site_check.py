"""Whether everything fits at a site, in plain words: data, model, policy, server; and what would leave."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from mutua.deploy.agreement import CA
from mutua.deploy.flower_signatures import NEWEST, OLDEST
from mutua.deploy.keys import NEEDS_FLOWER
from mutua.deploy.site_folder import SETTINGS, SiteFolder
from mutua.errors import MutuaError, Refused
from mutua.federation.message import Kind
from mutua.federation.privacy_accounting import epsilon, largest
from mutua.rounds.privacy_guarantee import seen_in_messages
from mutua.support.text import several, size, some

IN_WORDS = {
    Kind.WEIGHTS: "the weights of the copy of the shared model that was trained here",
    Kind.COUNT: "how many training samples the federation may learn from here",
    Kind.ENTROPY: "how uncertain the model is on your training data, as one number",
    Kind.PROBABILITIES: "what your model predicts for a batch of the public set",
    Kind.SCORES: "your model's scores for a part of the public set",
    Kind.ACCURACY: "how many of those predictions are right",
    Kind.METRIC: "a number, or one for each class, that the method declares",
    Kind.LOSS: "the loss on your training data, as one number",
    Kind.CHOICE: "which of several shared models suits your data best",
    Kind.PROTOTYPES: "the mean features of your training samples, class by class",
    Kind.CONTROL: "by how much your model drifts from the others', weight by weight",
    Kind.FACTORS: "how that copy has changed, of larger weights only the main part",
    Kind.FEATURES: "features of your training samples",
    Kind.LABELS: "labels of your training samples",
}
OF_OWN_SAMPLES = {
    Kind.PROBABILITIES: "what your model predicts on average for your training samples of each class",
    Kind.SCORES: "your model's scores for each of your training samples",
}
"""The same of a method without a public set."""
SOON_DAYS = 30


def check(folder: SiteFolder, say: Callable[[str], None]) -> bool:
    """Say of each step whether it is good; whether all are."""
    good = True
    for step in (_data, _policy, _what_leaves, _server):
        try:
            for line in step(folder):
                say(line)
        except MutuaError as error:
            good = False
            say(f"wrong: {error}")
            if step is _data:  # all else needs it
                break
    return good


def _data(folder: SiteFolder) -> Iterator[str]:
    client = folder.client
    numbers = ", ".join(f"{len(getattr(client, split))} {split}" for split in ("train", "val", "test"))
    yield f"data: {numbers} samples of {some(client.held_classes)}"
    if client.opted_out:
        yield f"  {client.opted_out} training samples are opted out: the federation learns nothing from them"
    if not len(client.val) or not len(client.test):
        yield "  note: without val and test samples nobody can say how good your model is"
    for note in folder.notes:
        yield f"  note: {note}"
    yield f"model: {client.model.label}; it fits your data and stays here"


def _policy(folder: SiteFolder) -> Iterator[str]:
    agreed, policy = folder.agreed, folder.settings.policy
    try:
        policy.check_run(agreed.recipe.method.shares, agreed.job.plan)
    except Refused as refused:
        raise Refused(f"{refused} ({folder.path / SETTINGS}); this site would refuse every round") from None
    told = some([*policy.report], 10) if policy.report else "none"
    yield f"policy: fits the recipe; numbers of evaluations that leave: {told}"


def _what_leaves(folder: SiteFolder) -> Iterator[str]:
    """What a run would send, how often and how much."""
    job, recipe = folder.agreed.job, folder.agreed.recipe
    rounds, shares = job.plan.rounds, recipe.method.shares
    if not shares:
        yield f"what leaves: nothing; method {recipe.method.name} trains alone"
        return
    every = "in each" if job.plan.client_fraction == 1 else f"in about {100 * job.plan.client_fraction:.0f} % of"
    yield f"what leaves {every} of {several(rounds, 'round')} of {recipe.method.name}:"
    said = IN_WORDS if recipe.method.needs_public else {**IN_WORDS, **OF_OWN_SAMPLES}
    for name, kind in shares.items():
        yield f"  {kind} '{name}': {said[kind]}"
    most = folder.agreed.prepared().reply_bytes
    if most:
        yield f"  at most {size(most)} a round, {size(most * rounds)} in all".replace(" a round", " per round")
    else:
        yield "  how many bytes the method does not say; policy.bytes_per_round sets a limit"
    privacy = job.plan.privacy
    told = "none" if privacy is None else f"noise {privacy.noise:g}, clip {privacy.clip:g}, by {privacy.level}"
    yield f"  differential privacy: {told}"
    if privacy is not None and privacy.noise:
        times = {folder.client.id: rounds}
        uses = seen_in_messages(job.plan, privacy, [folder.client], times)
        found = largest(uses, privacy.delta, epsilon)
        whose = "your data" if privacy.level == "client" else "each of your samples"
        yield f"  for {whose} that is ε = {found:.3g} at δ = {privacy.delta:g}, if you send in every round"
    yield "what stays: your data, your own model, its optimizer, your seed"


def _server(folder: SiteFolder) -> Iterator[str]:
    """Whether the server is there, and is the one that the organiser's certificate names."""
    host, _, port = folder.agreed.file.server.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=str(folder.path / CA))
    try:
        with (
            socket.create_connection((host, int(port)), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname=host) as line,
        ):
            ends = ssl.cert_time_to_seconds(str((line.getpeercert() or {}).get("notAfter")))
            there = _time_there(line, host)
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or error.reason or str(error)
        raise Refused(
            f"server {host}:{port}: its certificate is not of this deployment ({why}); ask the organiser"
        ) from None
    except OSError as error:
        why = error.strerror or str(error)
        raise Refused(
            f"server {host}:{port} cannot be reached ({why}); is it running, is the port open?"
        ) from None
    behind = 0.0 if there is None else there - time.time()
    if not -NEWEST - 1 < behind < OLDEST:
        side = "behind" if behind > 0 else "ahead of"
        raise Refused(
            f"server {host}:{port}: this machine's clock is {abs(behind):.0f} s {side} the server's, which lets "
            "nobody in whose clock is wrong; set it right"
        )
    days = (datetime.fromtimestamp(ends, UTC) - datetime.now(UTC)).days
    yield f"server: {host}:{port} is there, and its certificate is valid for {several(days, 'day')}"
    if days < SOON_DAYS:
        yield "  note: ask the organiser for a new certificate before that"
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise Refused(NEEDS_FLOWER) from None


def _time_there(line: ssl.SSLSocket, host: str) -> float | None:
    """The server's clock, by the date of an answer; None if it does not say."""
    line.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    answer = b""
    while len(answer) < 2**14 and (piece := line.recv(2**12)):
        answer += piece
    for name, _, value in (row.partition(":") for row in answer.decode("latin-1").splitlines()):
        if name.strip().lower() == "date":
            try:
                return parsedate_to_datetime(value.strip()).timestamp()
            except ValueError:
                return None
    return None
