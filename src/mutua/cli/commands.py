"""The command line."""

from __future__ import annotations

import shlex
import sys
import time
import traceback
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import mutua
from mutua import errors
from mutua.errors import InputError, MutuaError, RunError, line, short_of_memory
from mutua.support import signals
from mutua.support.output_streams import enduring

# Commands import what they use, so that `mutua --help` need not wait for torch.
if TYPE_CHECKING:
    from mutua.recipe.recipe import Recipe
    from mutua.rounds.loop import Callback
    from mutua.studies.sweep import Outcome, Sweep

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
data_app = typer.Typer(rich_markup_mode=None)
app.add_typer(data_app, name="data")
runs_app = typer.Typer(rich_markup_mode=None)
app.add_typer(runs_app, name="runs")

RecipeFile = Annotated[
    Path,
    typer.Argument(
        help="A recipe: a YAML file. A path in it counts from the folder where you are.", metavar="RECIPE"
    ),
]
OptionalRecipe = Annotated[
    Path | None,
    typer.Argument(
        help="A recipe: a YAML file. A path in it counts from the folder where you are.", metavar="RECIPE"
    ),
]
RunDir = Annotated[Path, typer.Argument(help="The folder that a run has left.", metavar="RUN")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a value: method.alpha=0.3. Repeatable.", metavar="KEY=VALUE"),
]
Seed = Annotated[
    int | None, typer.Option(help="The seed of everything; else as the recipe says.", min=0, metavar="N")
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with the data sets; else $MUTUA_DATA, else the user's cache folder.", metavar="DIR"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | None, typer.Option(help="Where to compute; else as the recipe says.")
]
EngineName = Annotated[str, typer.Option(help="Where clients run: local.", metavar="NAME")]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Clients at work at once; else one a core, one on a GPU. Changes no result on CPUs.", metavar="N"
    ),
]
AtOnce = Annotated[
    int | None, typer.Option(help="Runs at once, each in a process; else one a core.", min=1, metavar="N")
]
TrustCode = Annotated[
    list[str] | None,
    typer.Option(
        help="Import and run this code, package.module:name, where the run's files name it. Repeatable.",
        metavar="NAME",
    ),
]
Minutes = Annotated[
    float | None, typer.Option(help="Stop after so many minutes; the same command goes on.", min=0, metavar="M")
]
Client = Annotated[str, typer.Option(help="Whose model: a client's or newcomer's id.", metavar="ID")]
TRACEBACK = "--traceback"
Images = "an .npz file, or a folder of images, which are resized to the model's input"


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    traceback: Annotated[
        bool,
        typer.Option(TRACEBACK, help="Print whole tracebacks of errors, also of clients'. Anywhere in a command."),
    ] = False,
) -> None:
    """Federated learning for clients that differ in their data, their models and their goals."""
    if version:
        typer.echo(f"mutua {mutua.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@data_app.callback(invoke_without_command=True)
def _data(context: typer.Context) -> None:
    """Data: what there is, how to get it, how it is dealt."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@runs_app.callback(invoke_without_command=True)
def _runs(context: typer.Context) -> None:
    """Runs: what there is, how far each has come, what may go."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the runs.", metavar="DIR")] = Path(
        "mutua-demo"
    ),
) -> None:
    """See it work: five clients, five architectures, about a minute."""
    from mutua.cli.demo import demo as run_demo

    run_demo(out)


@app.command()
def run(
    recipe: OptionalRecipe = None,
    sets: Sets = None,
    seed: Seed = None,
    engine: EngineName = "local",
    faults: Annotated[
        Path | None,
        typer.Option(
            help="Make clients fail on purpose: a YAML file of dropout, stragglers and corruption.", metavar="FILE"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for what the run leaves; else runs/NAME-DATE-SEED.", metavar="DIR"),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the run in this folder, to the same bytes. No RECIPE.", metavar="DIR"),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="With --resume: make the run so many rounds long, also where it is finished.", min=0, metavar="N"
        ),
    ] = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="With --resume: go on although the recipe or an input has changed. It is noted in the run.",
        ),
    ] = False,
    data_dir: DataDir = None,
    device: Device = None,
    workers: Workers = None,
    log: Annotated[
        str | None,
        typer.Option(
            help="Log the run's numbers: tensorboard, or package.module:Class of your own.", metavar="NAME"
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print where the time went; write a trace into the run's folder.")
    ] = False,
    trust_code: TrustCode = None,
    as_json: AsJson = False,
) -> None:
    """Run a recipe, or go on with a run that was stopped."""
    from mutua.engines.workers import cores
    from mutua.reports import console
    from mutua.support.profiling import Profile

    _trust(trust_code)
    with Profile(workers or cores()).active() if profile else nullcontext() as times:
        place = _run(
            recipe,
            sets,
            seed,
            engine,
            faults,
            out,
            resume,
            rounds,
            accept,
            data_dir,
            device,
            workers,
            log,
            as_json,
        )
    if times is not None and place is not None:
        times.write(place / "trace.json")
        console.show_profile(times, console.err if as_json else console.out)


def _run(
    recipe: Path | None,
    sets: list[str] | None,
    seed: int | None,
    engine: str,
    faults: Path | None,
    out: Path | None,
    resume: Path | None,
    rounds: int | None,
    accept: bool,
    data_dir: Path | None,
    device: str | None,
    workers: int | None,
    log: str | None,
    as_json: bool,
) -> Path | None:
    """The run's folder; None if there was nothing to do."""
    from mutua.engines.faults import Faults
    from mutua.reports import console
    from mutua.reports.console import ProgressBar
    from mutua.reports.loggers import known_logger
    from mutua.runs.execute import execute
    from mutua.runs.folder import RunFolder
    from mutua.runs.preparation import prepared
    from mutua.support.profiling import timed

    logger = None if log is None else known_logger(log)
    if resume is not None:
        given = {"RECIPE": recipe, "--set": sets, "--seed": seed, "--out": out, "--device": device}
        given["--faults"] = faults
        for name, value in given.items():
            if value is not None:
                raise InputError(f"{name}: a run goes on with its own recipe; leave it out beside --resume")
        if RunFolder(resume).finished and rounds in (None, RunFolder.open(resume).plan.rounds):
            over = RunFolder.open(resume)
            over.restore_recipe()
            console.show_notes(over.notes)
            if as_json:
                _print_json(over.report())
            console.say(f"{resume} is finished; to make it longer: --rounds N", console.err)
            return None
        folder = RunFolder.resume(resume, accept, rounds)
        console.show_notes(folder.notes)
        loaded = folder.recipe
        with timed("data"):
            federation = loaded.federation(data_dir)
    elif accept or rounds is not None:
        given_too = "--accept-changes" if accept else f"--rounds: {rounds}"
        raise InputError(f"{given_too}: it is for --resume; a new run is as its recipe says (--set rounds=N)")
    elif recipe is None:
        raise InputError("RECIPE: missing; give a YAML file, or --resume with the folder of a run")
    else:
        loaded = _load(recipe, sets, seed, device)
        if loaded.grid is not None:
            raise InputError("grid: a grid is many runs; use 'mutua compare', or leave it out by --set grid=null")
        if faults is not None:
            loaded = loaded.with_(faults=Faults.load(faults))
        with timed("data"):
            federation = loaded.federation(data_dir)
        console.show_notes(prepared(loaded.method, federation, loaded).notes)
        if loaded.faults is not None:
            console.show_notes(["clients fail on purpose in this run (faults)"])
        folder = RunFolder.create(loaded.name, loaded.seed, out)
    with console.bars(not as_json) as bars:
        callbacks: list[Callback] = [] if as_json else [ProgressBar(loaded.name, bars)]
        callbacks += [] if logger is None else [logger(folder.path)]
        result = execute(
            loaded,
            federation,
            folder,
            engine=engine,
            workers=workers,
            callbacks=callbacks,
            show=console.Hashing(bars),
        )
    if as_json:
        _print_json(result.report())
    else:
        console.show_result(result)
    console.say(_saved(folder.path), console.err if as_json else console.out)
    return folder.path


@app.command()
def compare(
    recipe: RecipeFile,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods with options: fml,fedprox:mu=0.1,independent. Else the recipe has a grid.",
            metavar="LIST",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds.", metavar="LIST")] = "0,1,2",
    sets: Sets = None,
    engine: EngineName = "local",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for all runs; else runs/NAME-compare-DATE. What is finished there is not run again.",
            metavar="DIR",
        ),
    ] = None,
    data_dir: DataDir = None,
    device: Device = None,
    workers: AtOnce = None,
    minutes: Minutes = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods, or a grid's cells, over the same seeds."""
    from mutua.engines.workers import cores
    from mutua.reports import console
    from mutua.runs.folder import dated
    from mutua.runs.guarantee import Guarantee
    from mutua.runs.result import reported
    from mutua.studies import comparing
    from mutua.studies.sweep import Sweep

    chosen = comparing.seeds(seeds)
    cells = comparing.cells(recipe, [*(sets or []), *([f"device={device}"] if device else [])], methods)
    sweep = Sweep(out or dated(f"{cells[0][1].name}-compare"), cells, chosen)
    with sweep.kept():
        sweep.check(data_dir, "--methods" if methods else "grid")
        with console.bars(not as_json) as bars:
            watch = console.SweepBars(len(sweep.runs), len(sweep.finished), bars, notes_only=as_json)
            outcome = sweep.run(
                watch, workers=workers or cores(), data_dir=data_dir, engine=engine, minutes=minutes
            )
    runs = sweep.summaries()
    summary = comparing.summarise(runs)
    if as_json and not outcome.interrupted:
        _print_json({"runs": [{**reported(run), "method": label} for label, run in runs], "summary": summary})
    elif runs and not outcome.interrupted:
        done = {run.cell.name: run for run in sweep.finished}
        shared = [name for name, run in done.items() if comparing.uses_global_alone(run.path)]
        notes = [f"{', '.join(shared)}: every client uses models.global, not a model of its own"] if shared else []
        notes += [f"{name}: {told}" for name, run in done.items() if (told := console.options(run.recipe.method))]
        for label, run in {label: run for label, run in runs if run["privacy"] is not None}.items():
            notes.append(f"{label}, seed {run['seed']}: differential privacy {Guarantee.of(run['privacy'])}")
        notes += [*sweep.not_compared(), *sweep.unfair(), *comparing.never_trained(runs)]
        console.show_comparison(summary, cells[0][1].selection, notes)
        console.show_clients(summary)
        console.show_differences(summary)
    if not outcome.interrupted:
        console.say(_saved(sweep.place), console.err if as_json else console.out)
    if outcome.stopped:
        raise RunError(f"{_stopped(sweep, outcome)} with --out {sweep.place}")
    if outcome.failed:
        told = "; ".join(f"{label}: {why}" for label, why in outcome.failed.items())
        raise RunError(f"{len(outcome.failed)} of {len(sweep.runs)} runs failed: {told}")


def _saved(place: Path) -> str:
    return f"saved in {place}\na page of it: mutua report {shlex.quote(str(place))}"


def _stopped(sweep: Sweep, outcome: Outcome) -> str:
    done = f"{len(sweep.finished)} of {len(sweep.runs)} runs are finished"
    return f"{outcome.stopped}; {done}; to go on: the same command"


@app.command()
def reproduce(
    items: Annotated[
        list[str] | None,
        typer.Argument(help="PAPER/ITEM, such as fedh2l/table-2, or PAPER for all of its items.", metavar="ITEM"),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the items of all papers.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All items.")] = False,
    scale: Annotated[
        Literal["laptop", "paper"], typer.Option(help="Minutes on two cores, or the paper's own settings.")
    ] = "laptop",
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.", min=1, metavar="N")] = 3,
    minutes: Minutes = None,
    workers: AtOnce = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path, typer.Option(help="Folder for all runs; what is finished there is not run again.", metavar="DIR")
    ] = Path("runs/reproduction"),
    page: Annotated[
        Path | None,
        typer.Option("--write", help="Write a page of all results in --out, and run nothing.", metavar="FILE"),
    ] = None,
) -> None:
    """Run a paper's table or figure; print it beside the paper's."""
    from mutua.reports import console, reproducing
    from mutua.studies import papers

    if listed:
        reproducing.show_items(papers.names())
        return
    if page is not None:
        try:
            page.write_text(reproducing.page(out), encoding="utf-8")
        except OSError as error:
            raise InputError(f"--write: cannot write to {page}: {error.strerror}; name another file") from None
        console.say(f"written to {page}", console.err)
        return
    names = papers.names() if everything else papers.chosen(items or [])
    if not names:
        raise InputError("ITEM: none given; name some, such as fedh2l/table-2, or give --all; --list shows them")
    wrong = _reproduce(names, scale, seeds, minutes, workers, data_dir, out)
    if wrong:
        raise RunError(f"{len(wrong)} of {len(names)} items are not whole: {'; '.join(wrong)}")


def _reproduce(
    names: list[str],
    scale: Literal["laptop", "paper"],
    seeds: int,
    minutes: float | None,
    workers: int | None,
    data_dir: Path | None,
    out: Path,
) -> list[str]:
    """Run and show the items; what keeps some of them from being whole."""
    from mutua.engines.workers import cores
    from mutua.reports import console, reproducing
    from mutua.studies.reproduce import Reproduction, read

    until = None if minutes is None else time.monotonic() + 60 * minutes
    wrong = []
    for name in names:
        left = None if until is None else max(0.0, (until - time.monotonic()) / 60)
        one = Reproduction(name, scale, range(seeds), out)
        try:
            with console.bars() as bars:
                watch = console.SweepBars(len(one.sweep.runs), len(one.sweep.finished), bars)
                outcome = one.run(watch, minutes=left, workers=workers or cores(), data_dir=data_dir)
        except InputError as error:  # its data is not there, say: the others go on
            console.say(f"{name}: {error}", console.err)
            wrong.append(f"{name}: {error}")
            continue
        if outcome.interrupted:
            raise RunError(f"{name}: {_stopped(one.sweep, outcome)}")
        reproducing.show(one, (read(one.sweep.place) or {})["minutes"])
        if outcome.stopped or outcome.failed:
            wrong.append(f"{name}: {outcome.stopped or '; '.join(outcome.failed.values())}")
    return wrong


@app.command()
def report(
    place: Annotated[
        Path, typer.Argument(help="The folder of a run or of a comparison.", metavar="RUN|COMPARISON")
    ],
    html: Annotated[
        Path | None,
        typer.Option(help="One page that needs nothing else; else report.html in the folder.", metavar="FILE"),
    ] = None,
    pdf: Annotated[Path | None, typer.Option(help="The same as a PDF.", metavar="FILE")] = None,
    tables: Annotated[
        Path | None, typer.Option(help="Folder for every table as LaTeX, Markdown and CSV.", metavar="DIR")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for every figure as SVG and PDF.", metavar="DIR")
    ] = None,
    load_data: Annotated[
        bool,
        typer.Option("--load-data", help="Load the data too: training labels, PCA of features, UMAP of the data."),
    ] = False,
    data_dir: DataDir = None,
    trust_code: TrustCode = None,
) -> None:
    """Write a report on a run or a comparison, from its files alone.

    Without --html, --pdf, --tables and --figures, the page is report.html in the folder.
    """
    from mutua.reports import console
    from mutua.reports.reading import read
    from mutua.reports.report import compose
    from mutua.reports.writing import write

    _trust(trust_code)
    if html is None and pdf is None and tables is None and figures is None:
        html = place / "report.html"
    study = read(place)
    if load_data:
        for one in study.runs:
            with suppress(MutuaError):  # the report says so; here whoever must be asked is, before anything spins
                _ = one.overview.folder.recipe
    with console.err.status("reading and drawing"):
        for path in write(compose(study, load_data, data_dir), html, pdf, tables, figures):
            console.say(str(path))


@app.command()
def join(
    run_dir: RunDir,
    data: Annotated[Path, typer.Option(help=f"The newcomer's data: {Images}.", metavar="PATH")],
    model: Annotated[
        str | None,
        typer.Option(help="The newcomer's own model, with --how mutual; else the global's.", metavar="NAME"),
    ] = None,
    how: Annotated[
        Literal["global", "finetune", "mutual"], typer.Option(help="Use, fine-tune or mutually adapt the global.")
    ] = "mutual",
    name: Annotated[str, typer.Option(help="The newcomer's id.", metavar="ID")] = "newcomer",
    seed: Annotated[int, typer.Option(help="The newcomer's seed.", min=0, metavar="N")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for its model; else RUN/newcomers/ID.", metavar="DIR")
    ] = None,
    trust_code: TrustCode = None,
    as_json: AsJson = False,
) -> None:
    """Let a newcomer make a model of its own of what a run shares."""
    from mutua.reports import console
    from mutua.runs.folder import RunFolder
    from mutua.runs.newcomer import join as join_run

    _trust(trust_code)
    run = RunFolder.open(run_dir)
    _ = run.shared().architecture, run.method  # whoever must be asked is, before anything spins
    with console.err.status(f"{name} joins ({how}) and, to compare, learns alone"):
        joined = join_run(run, data, how=how, model=model, name=name, seed=seed, out=out)
    if as_json:
        _print_json(joined.summary())
        return
    labels = {"global": "the global as it is", "predictor": f"joined ({how})", "alone": "trained alone"}
    table = console.table(["model"], ["accuracy"])
    for key, value in joined.accuracy.items():
        table.add_row(labels[key], console.percent(value))
    title = f"{name}: accuracy (%) on its own {len(joined.client.test)} test samples"
    console.show(title, table, f"saved in {joined.folder}; nothing else in the run has changed")


@app.command()
def predict(
    run_dir: RunDir,
    client: Client,
    data: Annotated[Path, typer.Option(help=f"What to predict: {Images}.", metavar="PATH")],
    out: Annotated[
        Path | None, typer.Option(help="CSV file for the predictions; else stdout.", metavar="FILE")
    ] = None,
    trust_code: TrustCode = None,
    as_json: AsJson = False,
) -> None:
    """Predict with a client's model.

    One row per sample: the predicted class and the probability of each class.
    """
    from mutua.reports import console
    from mutua.runs.folder import RunFolder
    from mutua.runs.inference import predict as predict_run

    _trust(trust_code)
    predictions = predict_run(RunFolder.open(run_dir).client(client), data)
    if out is not None:
        try:
            with out.open("w", newline="", encoding="utf-8") as file:
                predictions.write(file)
        except OSError as error:
            raise InputError(f"--out: cannot write to {out}: {error.strerror}; name another file") from None
        console.say(f"{len(predictions.labels)} predictions in {out}", console.err)
    if as_json:
        _print_json(predictions.summary(), indent=None)
    elif out is None:
        predictions.write(sys.stdout)
    if predictions.accuracy is not None:
        right = f"accuracy {console.percent(predictions.accuracy)} % on {len(predictions.labels)} samples"
        console.say(right, console.err)


@app.command()
def export(
    run_dir: RunDir,
    client: Client,
    out: Annotated[Path | None, typer.Option(help="Folder for the model; else ID-export.", metavar="DIR")] = None,
) -> None:
    """Copy a client's model out of a run, for plain torch.

    Safetensors, and a JSON card with architecture, class names and preprocessing.
    """
    from mutua.runs.folder import RunFolder
    from mutua.runs.inference import export as export_model

    model = RunFolder.open(run_dir).client(client)
    for file in export_model(model, out or Path(f"{client}-export")):
        typer.echo(file)


@app.command()
def methods() -> None:
    """List the methods: what they send and what they can do."""
    from mutua.federation.message import Kind
    from mutua.methods import base
    from mutua.reports import console

    table = console.table(["name", "what", "options", "leaves a client"])
    for name in base.method_names():
        method = base.method_of({"name": name})
        shares = ", ".join(f"{kind} ({what})" for kind, what in method.shares.items()) or "nothing"
        about = (type(method).__doc__ or "").splitlines()[0]
        table.add_row(name, about, ", ".join(type(method).model_fields) or "none", shares)
    console.show(
        "methods",
        table,
        "options: --set method.NAME=VALUE; docs/methods.md explains each",
        "leaves a client: what a client may send, by kind (and name); anything else is refused",
        "your own: package.module:Class, a subclass of mutua.Method (docs/own-method.md)\n",
    )
    facts = console.table(
        ["name", "different models", "different data", "opt-out", "the server", "weights sent", "sent a round"]
    )
    for name in base.method_names():
        method = base.method_of({"name": name})
        sent = [base.BANDWIDTH[kind] for kind in method.shares if kind in base.BANDWIDTH] or ["nothing"]
        weights = "yes" if Kind.WEIGHTS in method.shares else "no"
        can = method.own_models, method.different_data, method.honours_opt_out
        yes = ["yes" if fact else "no" for fact in can]
        facts.add_row(name, *yes, method.server_does, weights, ", ".join(sent))
    console.show(
        "what they can do and what they cost",
        facts,
        "different models: each client may have a model of its own design",
        "different data: made for clients whose data differ",
        "opt-out: samples that are opted out of the federation (opt_out) change nothing that leaves a client",
        "the server: what it does with what clients send",
        "weights sent: whether a model's weights leave a client",
        "sent a round: what a client's reply grows with",
    )


@app.command()
def models() -> None:
    """List the models."""
    import torch

    from mutua import models as zoo
    from mutua.reports import console

    table = console.table(["name", "what"], ["parameters"])
    for name in zoo.names():
        with torch.device("meta"):  # counted without being made
            built = zoo.Architecture.of(name).build(channels=1, size=28, classes=10, seed=0)
        table.add_row(name, zoo.describe(name), f"{sum(p.numel() for p in built.parameters()):,}")
    console.show(
        "models, with parameters for 28×28×1 images and 10 classes", table, "your own: package.module:factory"
    )


@data_app.command("list")
def data_list(data_dir: DataDir = None) -> None:
    """List the data sets known by name and where they are."""
    from mutua.data.sources import EMBEDDED, catalogue, data_folder
    from mutua.reports import console

    folder = data_folder(data_dir)
    table = console.table(["name", "what", "images", "where"])
    for entry in catalogue(data_dir):
        if entry.found is None:
            by_hand = f"by hand: mutua data get {entry.name} says how"
            where = f"not here: {entry.how if entry.how.startswith('mutua ') else by_hand}"
        else:
            where = "in mutua" if entry.found == EMBEDDED else str(entry.found).removeprefix(f"{folder}/")
        table.add_row(entry.name, f"{entry.about}, {entry.classes} classes", entry.images, where)
    own = "your own: {name: arrays, path: FILE.npz} or {name: folder, path: DIR, image_size: N}"
    console.show(f"data sets; the data folder is {folder}", table, own)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="The data set's name.", metavar="NAME")], data_dir: DataDir = None
) -> None:
    """Download a data set into the data folder, checked and resumable."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from mutua.data.download import get
    from mutua.reports import console

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=console.err)
    task = bar.add_task(name, total=None)

    def show(done: int, total: int | None) -> None:
        bar.start()  # only now, so that a mistake in the name is one line
        bar.update(task, completed=done, total=total)

    try:
        paths = get(name, data_dir, progress=show)
    finally:
        if bar.live.is_started:
            bar.stop()
    for path in paths:
        typer.echo(path)


@data_app.command("show")
def data_show(
    recipe: RecipeFile,
    sets: Sets = None,
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option(help="PNG file for the picture; else NAME-labels.png.", metavar="FILE")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Draw and print who has how many samples of which class."""
    from mutua.reports import console
    from mutua.reports.labels import counts_by_client, show_counts

    loaded = _load(recipe, sets, seed, None)
    federation = loaded.federation(data_dir)
    counts = counts_by_client(federation)
    if as_json:
        _print_json(counts.summary(), indent=None)
        return
    target = out or Path(f"{loaded.name}-labels.png")
    counts.draw(target, f"{loaded.name}: training samples by client and class")
    show_counts(counts, federation.notes)
    console.say(f"picture in {target}")


@runs_app.command("list")
def runs_list(
    under: Annotated[Path, typer.Argument(help="The folder that holds runs.", metavar="DIR")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs: their methods, how far they have come, what they take."""
    from mutua.reports import console
    from mutua.runs.listing import listed

    runs, wrong = listed(under)
    console.show_notes(wrong)
    if as_json:
        _print_json({"runs": runs})
        return
    table = console.table(["run", "method", "state"], ["seed", "round", "accuracy", "size"])
    for run in runs:
        at = f"{'–' if run['round'] is None else run['round']}/{run['rounds']}"
        scores = console.percent(run["accuracy"]), console.size(run["bytes"])
        table.add_row(run["run"], run["method"], run["state"], str(run["seed"]), at, *scores)
    stopped = "a stopped run goes on: mutua run --resume DIR"
    remarks = [stopped] if any(run["state"] == "stopped" for run in runs) else []
    console.show(
        f"{len(runs)} run{'s' * (len(runs) != 1)} in {under}; round: the last that is saved", table, *remarks
    )


@runs_app.command("show")
def runs_show(run_dir: RunDir, as_json: AsJson = False) -> None:
    """Show a run: how far it has come, its checkpoints, what happened last."""
    from mutua.reports import console
    from mutua.runs.listing import Overview

    run = Overview.of(run_dir)
    about, held, events = run.summary(), run.checkpoints(), run.folder.events.read()
    if as_json:
        _print_json({**about, "edited": run.edited, "checkpoints": held, "events": events[-10:]})
        return
    table = console.table(["checkpoint", "state"], ["validation", "size"])
    for one in held:
        if not one["whole"]:
            table.add_row(one["file"], f"damaged: {one['reason']}", "–", "–")
            continue
        name = "before round 0" if one["round"] < 0 else f"after round {one['round']}"
        name += ", the last work" if one["round"] > (run.rounds or 0) else ""
        state = "whole, best on validation data" if one["best"] else "whole"
        table.add_row(name, state, console.percent(one["validation"]), console.size(one["bytes"]))
    remarks = [f"recipe.yaml has been edited since: {change}" for change in run.edited]
    remarks += [console.told(event) for event in events[-5:]]
    if about["state"] == "stopped":
        remarks.append(f"to go on: mutua run --resume {run_dir}")
    at = "–" if about["round"] is None else about["round"]
    title = (
        f"{run_dir}: {about['method']}, seed {about['seed']}, {about['state']}, round {at} of {about['rounds']}"
    )
    console.show(title, table, *remarks)


@runs_app.command("prune")
def runs_prune(
    run_dir: RunDir,
    keep: Annotated[
        int | None,
        typer.Option(
            help="The last N checkpoints stay, and the best; else as the recipe says.", min=0, metavar="N"
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove old and damaged checkpoints of a run.

    A finished run needs none: --keep 0 removes them all. Its models stay.
    """
    from mutua.reports import console
    from mutua.runs.listing import Overview
    from mutua.support.files import Lock

    Overview.of(run_dir)  # refuses what is no run's folder before a lock is left in it
    lock = Lock(run_dir, "RUN")
    try:
        run = Overview.of(run_dir)  # again: a run may have been at work there until now
        settings = run.settings
        if keep == 0 and not run.folder.finished:
            raise InputError(f"--keep: 0, but {run_dir} is not finished: it goes on from a checkpoint; keep 1")
        gone, freed = run.folder.checkpoints.sweep(settings.keep if keep is None else keep, settings.best, dry_run)
    except OSError as error:
        raise InputError(f"RUN: cannot write to {run_dir}: {error.strerror}") from None
    finally:
        lock.free()
    did = "would go" if dry_run else "removed"
    rounds = ", ".join(map(str, gone)) or "none"
    console.say(f"{run_dir}: checkpoints {did}: {rounds}; {console.size(freed)} freed")


def _trust(names: list[str] | None) -> None:
    """Trust the code of these names; where there is a terminal, ask about others."""
    from mutua.support import importing

    for name in ",".join(names or []).split(","):
        if name.strip():
            importing.trust(name.strip())
    if sys.stdin.isatty() and sys.stderr.isatty():
        importing.ask = lambda question: typer.confirm(line(question), err=True)


def _load(path: Path, sets: list[str] | None, seed: int | None, device: str | None) -> Recipe:
    from mutua.recipe.recipe import Recipe

    extra = [f"seed={seed}"] if seed is not None else []
    extra += [f"device={device}"] if device is not None else []
    return Recipe.load(path, [*(sets or []), *extra])


def _print_json(report: dict[str, Any], indent: int | None = 2) -> None:
    from mutua.support.files import to_json

    typer.echo(to_json(report, indent))


def main() -> None:
    """The command line: a user's mistake is one line on stderr, never a traceback."""
    signals.reset()
    with enduring() as lost:
        code = _carry_out()
        sys.stdout.flush()
        if lost and not code:
            code = _complain(f"output: cannot be written: {lost[0].strerror}; all else is done", 1)
    if code:
        sys.exit(code)


def _carry_out() -> int:
    """Do what the command line says; the exit code."""
    errors.tracebacks = TRACEBACK in sys.argv[1:]
    words = [word for word in sys.argv[1:] if word != TRACEBACK]
    try:
        stopped = app(words, prog_name="mutua", standalone_mode=False) == 130  # how typer reports Ctrl-C
    except MutuaError as error:
        if errors.tracebacks:
            traceback.print_exception(error)
        return _complain(str(error), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        stopped = True
    except Exception as error:
        if signals.interrupted():  # some packages, broken off while they are loaded, raise what they like
            return _complain("stopped by Ctrl-C", 1)
        if short_of_memory(error):
            return _complain("there was no memory left; free some, raise its limit (ulimit), or use less data", 1)
        if not hasattr(error, "format_message"):  # a bug of ours, which a traceback helps to find
            raise
        said = (
            error.format_message()
            .rstrip(".")
            .replace("Value error, ", "")
            .replace("Input should be", "it must be")
        )
        command = context.command_path if (context := getattr(error, "ctx", None)) else "mutua"
        return _complain(f"{said}{'' if said.endswith('?') else ';'} see '{command} --help'", 2)
    return _complain("stopped by Ctrl-C", 1) if stopped else 0


def _complain(message: str, code: int) -> int:
    print(f"mutua: {' '.join(message.split())}", file=sys.stderr)
    return code
