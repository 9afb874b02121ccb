"""Arguments and options that several commands share, and what they do with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mutua.errors import line

# Commands import what they use when they run, so that `mutua --help` need not wait for torch.
if TYPE_CHECKING:
    from mutua.engines.choice import EngineChoice
    from mutua.recipe.recipe import Recipe

_RECIPE = "A recipe: a YAML file. Paths in it are relative to the current folder."
RecipeFile = Annotated[Path, typer.Argument(help=_RECIPE, metavar="RECIPE")]
OptionalRecipe = Annotated[Path | None, typer.Argument(help=_RECIPE, metavar="RECIPE")]
RunDir = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a value: method.alpha=0.3. Repeatable.", metavar="KEY=VALUE"),
]
Seed = Annotated[
    int | None, typer.Option(help="The seed of everything. Default: the recipe's.", min=0, metavar="N")
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the data sets. Default: $MUTUA_DATA, else the user's cache folder.", metavar="DIR"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | None, typer.Option(help="Where to compute. Default: the recipe's.")
]
EngineName = Annotated[str, typer.Option(help="Where the work is done: local or ray.", metavar="NAME")]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="With --engine ray: HOST:PORT of a cluster. Default: $RAY_ADDRESS, else Ray on this machine alone.",
        metavar="HOST:PORT",
    ),
]
GpusPerWorker = Annotated[
    float | None,
    typer.Option(help="With --engine ray: a worker's share of a GPU, such as 0.25. Default: none.", metavar="X"),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        help="How many clients work at once. Default: one per core, one on a GPU. Changes no result on CPUs.",
        metavar="N",
    ),
]
ParallelRuns = Annotated[
    int | None,
    typer.Option(
        help="How many runs work at once, each in its own process. Default: one per core.", min=1, metavar="N"
    ),
]
TrustCode = Annotated[
    list[str] | None,
    typer.Option(
        help="Import and run this code, package.module:name, where the run's files name it. Repeatable.",
        metavar="NAME",
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(help="Stop after this many minutes; the same command continues.", min=0, metavar="M"),
]


def clients_of_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell: the ids of those that have a folder in the run that is named before."""
    run = Path(next(iter(ctx.args), "."))  # while a line is completed, arguments are not taken yet
    there = (card.parent.name for kind in ("clients", "newcomers") for card in run.glob(f"{kind}/*/card.json"))
    return sorted(name for name in there if name.startswith(incomplete))


ClientId = Annotated[
    str,
    typer.Option(
        "--client",
        help="Whose model: a client's or newcomer's id.",
        metavar="ID",
        autocompletion=clients_of_run,
    ),
]
SAMPLES_HELP = "an .npz file, or a folder of images, which are resized to the model's input"


def trust_names(names: list[str] | None) -> None:
    """Trust the code of these names; in a terminal, ask about any other."""
    from mutua.support import importing

    for name in ",".join(names or []).split(","):
        if name.strip():
            importing.trust(name.strip())
    if sys.stdin.isatty() and sys.stderr.isatty():
        importing.ask = lambda question: typer.confirm(line(question), err=True)


def chosen_engine(name: str, address: str | None, gpus_per_worker: float | None) -> EngineChoice:
    """The engine of --engine, --ray-address and --gpus-per-worker."""
    from mutua.engines.choice import EngineChoice

    return EngineChoice(name, address, gpus_per_worker)


def load_recipe(path: Path, sets: list[str] | None, seed: int | None, device: str | None = None) -> Recipe:
    """The recipe in a file, with the changes of --set, --seed and --device."""
    from mutua.recipe.recipe import Recipe

    extra = [f"seed={seed}"] if seed is not None else []
    extra += [f"device={device}"] if device is not None else []
    return Recipe.load(path, [*(sets or []), *extra])


def print_json(report: dict[str, Any], indent: int | None = 2) -> None:
    """Print one JSON object on stdout."""
    from mutua.support.files import to_json

    typer.echo(to_json(report, indent))
