"""What many tests share: tiny data and models, a small federation, and runs that keep all that crossed."""

from __future__ import annotations

import csv
import io
import math
import shutil
import signal
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, settings
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import mutua
from mutua import Architecture, Client, Federation, Message, Plan, Samples
from mutua.engines.local import LocalEngine
from mutua.engines.work import Briefs, HandIn, Replies, Reply, Staged, Verb, perform
from mutua.engines.work import work as transaction
from mutua.errors import Fault
from mutua.federation.model_checks import check_models
from mutua.federation.module_pool import Modules
from mutua.federation.store import State, Store
from mutua.methods import Method
from mutua.methods.base import Job
from mutua.reports import console
from mutua.reports.document import Report
from mutua.reports.html import html_page
from mutua.reports.report import compose
from mutua.reports.study import read_study
from mutua.rounds.events import Event
from mutua.rounds.loop import Rounds
from mutua.rounds.preparation import Prepared
from mutua.seeds import torch_stream
from mutua.support.tensor_files import Tensors
from reading_reports import METHODS

torch.set_num_threads(1)

# A busy machine is not a fault of the code: no test fails for being slow in drawing its examples.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Who starts the tests in the background, or with nohup, passes on that these are ignored; many tests send them.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

FEATURES = 4
CLASSES = ("ape", "bee", "cat")


# Models


def _chain(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def linear(channels: int, classes: int) -> nn.Module:
    return _chain(head=nn.Linear(channels, classes))


def plain(channels: int, classes: int) -> nn.Module:
    return _chain(body=nn.Linear(channels, 6), act=nn.Tanh(), head=nn.Linear(6, classes))


def wide(channels: int, classes: int) -> nn.Module:
    return _chain(body=nn.Linear(channels, 9), act=nn.ReLU(), head=nn.Linear(9, classes))


def dropping(channels: int, classes: int) -> nn.Module:
    return _chain(body=nn.Linear(channels, 8), drop=nn.Dropout(0.5), act=nn.ReLU(), head=nn.Linear(8, classes))


def normed(channels: int, classes: int) -> nn.Module:
    return _chain(
        body=nn.Linear(channels, 6),
        norm=nn.BatchNorm1d(6),
        act=nn.ReLU(),
        drop=nn.Dropout(0.25),
        head=nn.Linear(6, classes),
    )


@pytest.fixture(scope="session")
def nets() -> SimpleNamespace:
    """Factories of tiny models: linear, plain, wide, dropping (dropout), normed (batch-norm and dropout)."""
    return SimpleNamespace(linear=linear, plain=plain, wide=wide, dropping=dropping, normed=normed)


# Data


PLAN: dict[str, Any] = {
    "rounds": 3,
    "batch_size": 4,
    "device": "cpu",
    "workers": 1,
    "progress": False,
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
}
"""What `mutua.run` gets where two methods must give the same bits."""


def make_blobs(
    n: int, *, seed: int = 0, classes: Sequence[str] = CLASSES, features: int = FEATURES, spread: float = 1.0
) -> Samples:
    """Gaussian clouds, one a class *name*: the same name lies in the same place whatever its index."""
    if n == 0:
        return make_blobs(1, classes=classes, features=features).take([])
    stream = torch_stream(seed, "blobs")
    y = torch.randint(len(classes), (n,), generator=stream)
    centres = torch.stack(
        [2 * torch.randn(features, generator=torch_stream(0, "centre", name)) for name in classes]
    )
    x = centres[y] + spread * torch.randn(n, features, generator=stream)
    return Samples.of(x, y, classes=classes)


@pytest.fixture(scope="session")
def blobs() -> Callable[..., Samples]:
    """`blobs(n, seed=, classes=, features=, spread=)`: samples that a linear model can learn."""
    return make_blobs


def make_federation(
    sizes: Sequence[int] = (9, 12, 7),
    *,
    models: Any = plain,
    global_model: Any = plain,
    classes: Sequence[Sequence[str]] | None = None,
    held: int = 8,
    seed: int = 0,
    common: int = 20,
) -> Federation:
    """Clients a, b, c, ... with so many training samples and `held` for val and for test each."""
    own = models if isinstance(models, list) else [models] * len(sizes)
    known: dict[int, Architecture] = {}
    clients = []
    for k, n in enumerate(sizes):
        names = CLASSES if classes is None else classes[k]
        train, val, test = (
            make_blobs(m, seed=100 * seed + 10 * k + i, classes=names) for i, m in enumerate((n, held, held))
        )
        architecture = known.setdefault(id(own[k]), Architecture.of(own[k]))
        clients.append(Client("abcdefghij"[k], train, val, test, architecture))
    shared = None if global_model is None else Architecture.of(global_model)
    partial = shared is not None and shared.share != "all"
    together = None if partial or not common else make_blobs(common, seed=100 * seed + 99, classes=CLASSES)
    return Federation(tuple(clients), shared, together)


@pytest.fixture(scope="session")
def federate() -> Callable[..., Federation]:
    """`federate(sizes, models=, global_model=, classes=, held=, seed=)`: a small federation."""
    return make_federation


# Runs


@dataclass
class Recorder(LocalEngine):
    """The local engine, keeping every message and every store; `tamper` is what a network could do to a reply."""

    tamper: Callable[[int, str, Message], Message] | None = None
    briefs: dict[tuple[int, str], Message] = field(default_factory=dict)
    replies: dict[tuple[int, str], Reply] = field(default_factory=dict)
    kept: dict[tuple[int, str], State] = field(default_factory=dict)

    def _crossed(self, round: int, briefs: Briefs) -> None:
        self.briefs |= {(round, client): brief for client, brief in briefs.items() if brief is not None}

    def _keep(self, round: int) -> None:
        self.kept |= {(round, client): store.state for client, store in self.stores.items()}

    def start(self) -> None:
        super().start()
        self._keep(0)

    def train(self, round: int, briefs: Briefs) -> Replies:
        self._crossed(round, briefs)
        replies = dict(super().train(round, briefs))
        for client, reply in replies.items():
            if isinstance(reply, Fault):
                continue
            if self.tamper is not None and reply.message is not None:
                message = self.tamper(round, client, reply.message)
                reply = replies[client] = Reply(message, reply.terms, reply.seconds)
            self.replies[round, client] = reply
        self._keep(round)
        return replies

    def finish(self, round: int, briefs: Briefs) -> Replies:
        self._crossed(round, briefs)
        done = super().finish(round, briefs)
        self._keep(round)
        return done


@dataclass
class Simulation(Rounds):
    """A run, with all that crossed (`engine.briefs`, `engine.replies`), was kept (`engine.kept`) or said."""

    events: list[Event] = field(default_factory=list)
    engine: Recorder = field(default_factory=Recorder)

    @property
    def globals(self) -> list[Tensors]:
        """The shared model after every round, the first one included."""
        by_round = {round: brief.arrays("global") for (round, _), brief in self.engine.briefs.items()}
        return [by_round[round] for round in sorted(by_round)]


def make_simulation(
    method: Method,
    federation: Federation,
    *,
    tamper: Callable[[int, str, Message], Message] | None = None,
    go: bool = True,
    **settings: Any,
) -> Simulation:
    """Run a method over a federation in this process."""
    settings = {"rounds": 2, "batch_size": 4, "optimizer": {"name": "sgd", "lr": 0.1}, "device": "cpu"} | settings
    federation = method.arrange(federation)
    check_models(federation, method.needs_global)
    job = Job(method, Plan(**settings), federation.global_model, federation.public)
    engine = Recorder(tamper)
    events: list[Event] = []
    prepared = Prepared(federation, job, federation, method.reply_bytes(federation, job.plan))
    simulation = Simulation(prepared, callbacks=[events.append], engine=engine, events=events)
    engine.open(job, federation)
    if go:
        try:
            simulation.run()
        finally:
            engine.close()
    return simulation


@pytest.fixture(scope="session")
def simulate() -> Callable[..., Simulation]:
    """`simulate(method, federation, tamper=, **plan)`: a run that keeps everything; go=False does not start it."""
    return make_simulation


# Comparing


def _raw(arrays: Tensors) -> dict[str, tuple[torch.dtype, torch.Size, bytes]]:
    return {name: (a.dtype, a.shape, a.detach().contiguous().numpy().tobytes()) for name, a in arrays.items()}


@pytest.fixture(scope="session")
def identical() -> Callable[[Tensors, Tensors], bool]:
    """Whether two sets of named arrays are the same to the last bit."""
    return lambda a, b: _raw(a) == _raw(b)


@pytest.fixture
def double() -> Iterator[None]:
    """New arrays are float64, so that a calculation by hand can be compared to the last digits."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def modules() -> Modules:
    """Built models, as one engine has them."""
    return Modules(torch.device("cpu"))


# The command line

TINY: dict[str, Any] = {
    "name": "tiny",
    "data": {"name": "mnist5k", "samples_per_client": 20},
    "partition": {"kind": "iid", "clients": 2},
    "models": {"global": {"name": "mlp", "width": 0.1}},
    "method": "fml",
    "rounds": 1,
    "batch_size": 7,
    "optimizer": {"name": "sgd", "lr": 0.05},
    "device": "cpu",
}


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    """A recipe that runs in a fraction of a second: two clients, 14 training images each, one round."""
    return deepcopy(TINY)


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """`command("run", "tiny.yaml", "--json")`: mutua's own entry point, in this process and an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUTUA_DATA", str(tmp_path / "no-data"))
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))

    def call(*words: object) -> Done:
        from mutua.cli.app import command_line

        monkeypatch.setattr(sys, "argv", ["mutua", *map(str, words)])
        code: Any = 0
        try:
            command_line()
        except SystemExit as stopped:
            code = stopped.code
        out, err = capfd.readouterr()
        return Done(int(code or 0), out, err)

    return call


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """stdout as an 80-column file has it."""
    file = io.StringIO()
    plain = Console(file=file, width=80, markup=False, emoji=False, highlight=False)
    monkeypatch.setattr(console, "out", plain)
    return file.getvalue


@contextmanager
def interrupted_in_round_2(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As by Ctrl-C, after the first client's commit of round 2."""
    commit = Store.commit

    def stop(store: Store, round: int, *rest: Any) -> None:
        commit(store, round, *rest)
        if round == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "commit", stop)
        yield


@pytest.fixture
def broken_off(command: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder x of a run that was stopped by Ctrl-C in its second round of three."""
    with interrupted_in_round_2(monkeypatch):
        done = command("run", "tiny.yaml", "--set", "rounds=3", "--set", "checkpoints.seconds=0", "--out", "x")
    assert done.code == 1 and done.err.endswith("mutua: stopped by Ctrl-C; to go on: mutua run --resume x\n")
    return tmp_path / "x"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """`finished("fml", rounds=2)`: folder and result of such a tiny run, made once.

    Tests share it: one that writes into the folder copies it first. What is handed out again is as it was made.
    """
    known: dict[str, tuple[Path, Any]] = {}
    files: dict[str, set[Path]] = {}

    def _files(folder: Path) -> set[Path]:
        return {path for path in folder.rglob("*") if path.is_file()}

    def make(method: Any = "fml", **changes: Any) -> tuple[Path, Any]:
        from mutua import Recipe
        from mutua.runs.execute import execute
        from mutua.runs.recording import Recorder

        recipe = Recipe.of({**TINY, "method": method, **changes})
        key = recipe.dump()
        if key not in known:
            folder = Recorder.create("tiny", 0, tmp_path_factory.mktemp("run") / "run")
            known[key] = folder.path, execute(recipe, recipe.federation(), folder)
            files[key] = _files(folder.path)
        more = _files(known[key][0]) - files[key]
        assert not more, f"an earlier test wrote into a shared run instead of a copy: {sorted(more)}"
        return known[key]

    return make


# A comparison, and its report


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison of four methods over two seeds. Tests that change it use `compared_copy`."""
    from mutua.cli.app import app

    place = tmp_path_factory.mktemp("compared")
    # Three digits each, so that clients differ; enough learning for accuracies to differ too.
    harder = {"partition": {"kind": "shards", "clients": 3, "shards_per_client": 3}, "rounds": 3}
    data = {"name": "mnist5k", "samples_per_client": 60}
    optimizer = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
    recipe = {**TINY, **harder, "data": data, "models": {"global": "mlp"}, "optimizer": optimizer}
    (place / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    words = ["compare", place / "recipe.yaml", "--methods", ",".join(METHODS), "--seeds", "0,1", "--workers", 1]
    CliRunner().invoke(app, [*map(str, words), "--out", str(place / "out"), "--json"], catch_exceptions=False)
    return place / "out"


@pytest.fixture(scope="session")
def compared_report(compared: Path) -> Report:
    """The report on that comparison."""
    return compose(read_study(compared))


@pytest.fixture(scope="session")
def compared_page(compared_report: Report) -> str:
    """The HTML page of that report."""
    return html_page(compared_report)


@pytest.fixture
def compared_copy(compared: Path, tmp_path: Path) -> Path:
    """A copy of that folder, for tests that change it."""
    return Path(shutil.copytree(compared, tmp_path / "copy"))


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# Figures of the attack (tests/attack), which are told at the end


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, int, str], None]:
    """`figure("kills", 6, "fml: ...")`: so many were done, which the end of the tests tells."""

    def tell(what: str, number: int, text: str) -> None:
        request.node.user_properties.append((f"figure {what}", (number, text)))

    return tell


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What the attack did, also where workers of pytest did it."""
    sums: Counter[str] = Counter()
    reports = [
        one for found in terminalreporter.stats.values() for one in found if hasattr(one, "user_properties")
    ]
    for report in reports:
        for name, told in report.user_properties if getattr(report, "when", "") == "call" else ():
            if name.startswith("figure "):
                sums[name.removeprefix("figure ")] += told[0]
                terminalreporter.write_line(f"attack: {told[0]} {name.removeprefix('figure ')}: {told[1]}")
    if sums:
        terminalreporter.write_line("attack, in all: " + ", ".join(f"{n} {what}" for what, n in sums.items()))


def work(
    job: Job, client: Client, store: Store, verb: Verb, round: int, brief: Message | None, modules: Modules
) -> Reply:
    """One client's work through the engines' transaction, in this process; its fault is raised."""

    def performer(staged: Mapping[str, Staged], hand_in: HandIn) -> None:
        for name, given in staged.items():
            hand_in(name, perform(job, client, verb, round, given, modules))

    found = transaction({client.id: store}, round, {client.id: brief}, performer)[client.id]
    assert isinstance(found, Reply)
    return found


def assert_repeatable(run: Simulation, identical: Callable[[Tensors, Tensors], bool], modules: Modules) -> None:
    """Client b alone, with its store and the briefs of a run: the same replies, also where a brief comes twice."""
    store, b, last = Store(), run.federation["b"], run.job.plan.rounds + 1
    for round in range(last + 1):
        verb: Verb = "start" if round == 0 else "finish" if round == last else "train"
        brief = run.engine.briefs.get((round, "b"))
        first = work(run.job, b, store, verb, round, brief, modules)
        state = store.state
        again = work(run.job, b, store, verb, round, brief, modules)
        assert store.state is state
        assert again.terms == first.terms and again.seconds == 0
        assert state.keys() == run.engine.kept[round, "b"].keys()
        assert all(identical(state[group], run.engine.kept[round, "b"][group]) for group in state)
        if verb == "train":
            assert first.message is not None and again.message is not None
            sent = run.engine.replies[round, "b"].message
            assert sent is not None
            assert first.message.encode() == again.message.encode() == sent.encode()


def kept_numbers(run: Simulation) -> list[torch.Tensor]:
    """All that the clients of a run keep in their stores and that nobody else could know."""
    kept = [array for state in run.engine.kept.values() for arrays in state.values() for array in arrays.values()]
    return [array for array in kept if array.dtype.is_floating_point and array.unique().numel() >= 2]


def exact_epsilon(sigma: float, times: int, delta: float) -> float:
    """ε of so many Gaussian mechanisms, which are one of noise σ/√times: Balle and Wang 2018, Theorem 8."""
    from scipy import optimize, stats

    mu = math.sqrt(times) / sigma

    def spent(eps: float) -> float:
        return stats.norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu) - delta

    return float(optimize.brentq(spent, 0, 500))


# A small federation of arrays, as users of Python have them

X = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
Y = np.arange(60) % 3
SMALL = {"name": "mlp", "width": 0.05}


def federation(seed: int = 0, **more: Any) -> Federation:
    given = {"partition": mutua.partitions.IID(clients=3), "models": SMALL, "global_model": SMALL, "seed": seed}
    return Federation.from_arrays(X, Y, **{**given, **more})


def quick(method: Any, made: Federation, **more: Any) -> mutua.Result:
    return mutua.run(method, made, progress=False, workers=1, **{"rounds": 1, "batch_size": 8, **more})


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Any]:
    """A folder for a real deployment, whose processes are ended after the test."""
    from real_deployment import RealDeployment

    made = RealDeployment(tmp_path)
    yield made
    made.close()


@pytest.fixture
def deploy(command: Callable[..., Done], tmp_path: Path) -> Callable[..., tuple[Any, Any]]:
    """Run a recipe here into `local`, and make a deployment of it with three sites, reached by hand."""
    from by_hand import RECIPES, ByHand, write_own_labels, write_tables

    from mutua.deploy.organiser import Organiser
    from mutua.deploy.site_folder import SiteFolder

    def make(name: str = "fml", **more: Any) -> tuple[Organiser, ByHand]:
        recipe = {
            "data": {"name": "mnist5k", "samples_per_client": 30},
            "partition": {"kind": "iid", "clients": 3},
            "models": {"clients": "linear"},
            "rounds": 2,
            "batch_size": 10,
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
            **RECIPES[name],
            **more,
        }
        if "clients" in recipe:
            del recipe["data"], recipe["partition"]
            write_own_labels(tmp_path)
        write_tables(tmp_path)
        (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
        assert (done := command("run", "r.yaml", "--out", "local", "--workers", "1", "--json")).code == 0, done.err
        clients = "c0,c1,c2"
        given = ("--recipe", "r.yaml", "--clients", clients, "--simulate", "--wait", "0")
        assert (done := command("deploy", "init", "d", *given)).code == 0, done.err
        organiser = Organiser.open(tmp_path / "d")
        folders = {client: organiser.path / "hand-out" / client for client in clients.split(",")}
        return organiser, ByHand({client: SiteFolder.open(place).site() for client, place in folders.items()})

    return make
