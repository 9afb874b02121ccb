"""The command line."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import mutua
from mutua.errors import InputError, MutuaError, RunError

if TYPE_CHECKING:
    from rich.progress import Progress

    from mutua.recipe import Recipe
    from mutua.result import Result
    from mutua.rounds import Callback

app = typer.Typer(
    help="Federated learning for clients that differ in their data, their models and their goals.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data: what there is, how to get it, how it is dealt.", no_args_is_help=True)
app.add_typer(data_app, name="data")

RecipeFile = Annotated[Path, typer.Argument(help="A recipe: a YAML file.", metavar="RECIPE")]
RunDir = Annotated[Path, typer.Argument(help="The folder that a run has left.", metavar="RUN")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Change a value of the recipe: method.alpha=0.3. Repeatable.")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder with the data sets; else $MUTUA_DATA, else the user's cache folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
Out = Annotated[Path | None, typer.Option(help="Folder for what the run leaves; else runs/NAME-DATE-SEED.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | None, typer.Option(help="Where to compute; else as the recipe says.")
]
EngineName = Annotated[str, typer.Option(help="Where clients run: local.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"mutua {mutua.__version__}")
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the runs.")] = Path("mutua-demo"),
) -> None:
    """Five clients, five architectures, non-IID data: FML, FedAvg and training alone, in about a minute."""
    from mutua.demo import demo as run_demo

    with _interruptible():
        run_demo(out)


@app.command()
def run(
    recipe: RecipeFile,
    sets: Sets = None,
    seed: Annotated[int | None, typer.Option(help="The seed of everything; else as the recipe says.")] = None,
    engine: EngineName = "local",
    out: Out = None,
    data_dir: DataDir = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Run a recipe."""
    from mutua.reports import console

    loaded = _load(recipe, sets, seed, device)
    with _interruptible(), _progress(as_json) as bars:
        result, folder = _run(loaded, loaded.name, engine, out, data_dir, bars, as_json)
    if as_json:
        _print_json({**result.summary(), "folder": str(folder)})
        return
    console.show_result(result)
    console.out.print(f"saved in {folder}", highlight=False)


@app.command()
def compare(
    recipe: RecipeFile,
    methods: Annotated[str, typer.Option(help="Methods with options: fml,fedprox:mu=0.1,independent.")],
    seeds: Annotated[str, typer.Option(help="Seeds: 0,1,2.")] = "0,1,2",
    sets: Sets = None,
    engine: EngineName = "local",
    out: Annotated[Path | None, typer.Option(help="Folder for all runs; else runs/NAME-compare-DATE.")] = None,
    data_dir: DataDir = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods over the same data, splits and seeds."""
    from mutua import compare as comparing
    from mutua.reports import console
    from mutua.runs.folder import RunFolder

    loaded = _load(recipe, sets, None, device)
    contenders = comparing.contenders(methods, loaded)
    chosen = comparing.seeds(seeds)
    folder = RunFolder.create(f"{loaded.name}-compare", chosen[0], out).path
    runs: list[tuple[str, dict[str, Any]]] = []
    with _interruptible(), _progress(as_json) as bars:

        def runner(one: Recipe, label: str) -> Result:
            name = "".join(c if c.isalnum() or c in "._-=" else "-" for c in label)
            place = folder / f"{name}-{one.seed}"
            return _run(one, f"{label}, seed {one.seed}", engine, place, data_dir, bars, as_json)[0]

        for label, result in comparing.compare(loaded, contenders, chosen, runner):
            runs.append((label, result.summary()))
    summary = comparing.summarise(runs)
    comparing.write(folder / "comparison.csv", runs)
    report = {"runs": [{**one, "label": label} for label, one in runs], "summary": summary}
    (folder / "comparison.json").write_text(json.dumps(report, indent=2) + "\n")
    if as_json:
        _print_json(report)
        return
    shared = [c.label for c in contenders if c.method.needs_global and c.method.name != "fml"]
    notes = [f"{', '.join(shared)}: every client uses models.global, not a model of its own"] if shared else []
    console.show_comparison(summary, notes)
    console.out.print(f"saved in {folder}", highlight=False)


@app.command()
def join(
    run_dir: RunDir,
    data: Annotated[Path, typer.Option(help="The newcomer's data: an .npz file or a folder of images.")],
    model: Annotated[str | None, typer.Option(help="The newcomer's own model; else the global's.")] = None,
    how: Annotated[
        Literal["global", "finetune", "mutual"], typer.Option(help="Use, fine-tune or mutually adapt the global.")
    ] = "mutual",
    name: Annotated[str, typer.Option(help="The newcomer's id.")] = "newcomer",
    image_size: Annotated[int | None, typer.Option(help="For a folder: side to resize images to.")] = None,
    seed: Annotated[int, typer.Option(help="The newcomer's seed.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for its model; else RUN/newcomers/NAME.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let a newcomer make a model of its own of what a run shares."""
    from mutua.reports import console
    from mutua.runs.folder import RunFolder
    from mutua.runs.newcomer import join as join_run

    with _interruptible():
        joined = join_run(
            RunFolder.open(run_dir),
            _source(data, image_size),
            how=how,
            model=model,
            name=name,
            seed=seed,
            out=out,
        )
    if as_json:
        _print_json(joined.summary())
        return
    labels = {"global": "the global as it is", "predictor": f"joined ({how})", "alone": "trained alone"}
    console.out.print(f"{name}: accuracy (%) on its own {len(joined.client.test)} test samples", highlight=False)
    for key, value in joined.accuracy.items():
        console.out.print(f"  {labels[key]:20} {console.percent(value)}", highlight=False)
    console.out.print(f"saved in {joined.folder}; the run is as it was", highlight=False)


@app.command()
def predict(
    run_dir: RunDir,
    client: Annotated[str, typer.Option(help="Whose model.")],
    data: Annotated[Path, typer.Option(help="An .npz file with x, or a folder of images.")],
    image_size: Annotated[int | None, typer.Option(help="For a folder: side to resize images to.")] = None,
    out: Annotated[Path | None, typer.Option(help="CSV file for the predictions; else stdout.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict with a client's model: one row a sample, with the probability of each class."""
    from mutua.runs.folder import RunFolder
    from mutua.runs.using import predict as predict_run
    from mutua.runs.using import write_predictions

    model = RunFolder.open(run_dir).client(client)
    predictions = predict_run(model, data, image_size)
    if as_json:
        _print_json(predictions.summary())
    elif out is None:
        write_predictions(predictions, sys.stdout)
    else:
        with _writing(out), out.open("w", newline="") as file:
            write_predictions(predictions, file)
        typer.echo(f"{len(predictions.labels)} predictions in {out}")


@app.command()
def export(
    run_dir: RunDir,
    client: Annotated[str, typer.Option(help="Whose model.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the model; else CLIENT-export.")] = None,
) -> None:
    """Copy a client's model out of a run: safetensors and a JSON card, loadable in plain torch."""
    from mutua.runs.folder import RunFolder

    model = RunFolder.open(run_dir).client(client)
    target = out or Path(f"{client}-export")
    with _writing(target):
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model.path / model.card["weights"], target / "model.safetensors")
        card = {**model.card, "weights": "model.safetensors"}
        (target / "card.json").write_text(json.dumps(card, indent=2) + "\n")
    typer.echo(f"{target / 'model.safetensors'} and {target / 'card.json'}")


@app.command()
def methods() -> None:
    """List the methods and what leaves a client with each."""
    from rich.table import Table

    from mutua.methods import base
    from mutua.reports import console

    table = Table(title="methods")
    for column in ("name", "what", "leaves a client"):
        table.add_column(column)
    for name in base.names():
        method = base.of({"name": name})
        shares = ", ".join(f"{kind} ({what})" for kind, what in method.shares.items()) or "nothing"
        table.add_row(name, (type(method).__doc__ or "").splitlines()[0], shares)
    console.out.print(table)


@app.command()
def models() -> None:
    """List the models."""
    from rich.table import Table

    from mutua import models as zoo
    from mutua.reports import console

    table = Table(title="models (and any nn.Module of yours, as package.module:factory)")
    for column in ("name", "what", "parameters, 28x28x1, 10 classes"):
        table.add_column(column, justify="right" if column.startswith("par") else "left")
    for name in zoo.names():
        built = zoo.Architecture.of(name).build(channels=1, size=28, classes=10, seed=0)
        table.add_row(name, zoo.describe(name), f"{sum(p.numel() for p in built.parameters()):,}")
    console.out.print(table)


@data_app.command("list")
def data_list(data_dir: DataDir = None) -> None:
    """List the data sets known by name and where they are."""
    from rich.table import Table

    from mutua.data.sources import catalogue
    from mutua.reports import console

    table = Table(title="data sets")
    for column in ("name", "what", "images", "classes", "where"):
        table.add_column(column)
    for entry in catalogue(data_dir):
        where = str(entry.found) if entry.found else f"not here: {entry.how}"
        table.add_row(entry.name, entry.about, entry.images, str(entry.classes), where)
    console.out.print(table)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="The data set's name.", metavar="NAME")], data_dir: DataDir = None
) -> None:
    """Download a data set into the data folder, checked and resumable."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from mutua.data.download import get
    from mutua.reports import console

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with _interruptible(), Progress(*columns, console=console.err) as bars:
        task = bars.add_task(name, total=None)
        paths = get(name, data_dir, progress=lambda done, total: bars.update(task, completed=done, total=total))
    for path in paths:
        typer.echo(path)


@data_app.command("show")
def data_show(
    recipe: RecipeFile,
    sets: Sets = None,
    seed: Annotated[int | None, typer.Option(help="The seed; else as the recipe says.")] = None,
    out: Annotated[Path | None, typer.Option(help="PNG file for the picture; else NAME-labels.png.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Draw which client has how many samples of which class, and print the table."""
    from mutua.reports.labels import counts_by_client, show_counts

    loaded = _load(recipe, sets, seed, None)
    federation = loaded.federation(data_dir)
    counts = counts_by_client(federation)
    if as_json:
        _print_json(counts.summary())
        return
    target = out or Path(f"{loaded.name}-labels.png")
    counts.draw(target, f"{loaded.name}: training samples by client and class")
    show_counts(counts, federation.notes)
    typer.echo(f"picture in {target}")


def _load(path: Path, sets: list[str] | None, seed: int | None, device: str | None) -> Recipe:
    from mutua.recipe import Recipe

    extra = [f"seed={seed}"] if seed is not None else []
    extra += [f"device={device}"] if device is not None else []
    return Recipe.load(path, [*(sets or []), *extra])


def _run(
    recipe: Recipe,
    label: str,
    engine: str,
    out: Path | None,
    data_dir: Path | None,
    bars: Progress | None,
    quiet: bool,
) -> tuple[Result, Path]:
    """Run a recipe with progress and leave its folder."""
    from mutua.reports.console import ProgressBar
    from mutua.runner import run as run_method
    from mutua.runs.folder import RunFolder

    federation = recipe.federation(data_dir)
    recipe.method.arrange(federation).check(recipe.method.needs_global)
    folder = RunFolder.create(recipe.name, recipe.seed, out)
    folder.write_recipe(recipe)
    callbacks: list[Callback] = [folder] if quiet else [folder, ProgressBar(label, bars)]
    try:
        result = run_method(recipe.method, federation, plan=recipe.plan(), engine=engine, callbacks=callbacks)
        folder.write(result)
    except KeyboardInterrupt:
        raise RunError(f"stopped by Ctrl-C; history and ledger so far are in {folder.path}") from None
    except OSError as error:
        raise RunError(f"cannot write to {folder.path}: {error.strerror or error}") from None
    return result, folder.path


def _source(path: Path, image_size: int | None) -> Any:
    from mutua.data.sources import load

    kind = "folder" if path.is_dir() else "arrays"
    return load(kind, path=path, image_size=image_size)


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress | None]:
    from mutua.reports import console

    if quiet or not console.err.is_terminal:
        yield None
        return
    with console.progress() as bars:
        yield bars


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise RunError("stopped by Ctrl-C") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"--out: cannot write to {path}: {error.strerror or error}") from None


def _print_json(report: dict[str, Any]) -> None:
    typer.echo(json.dumps(report, indent=2))


def main() -> None:
    """The entry point: a user's mistake is one line on stderr, never a traceback."""
    try:
        app()
    except MutuaError as error:
        print(f"mutua: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
