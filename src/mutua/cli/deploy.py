"""`mutua deploy`: a real federation, for its organiser and for its sites."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mutua.cli.grouped_help import GroupedCommands
from mutua.cli.options import AsJson, DataDir, Sets, TrustCode, load_recipe, print_json, trust_names
from mutua.errors import InputError, RunError

if TYPE_CHECKING:
    from mutua.deploy.agreement import InputShape

app = typer.Typer(cls=GroupedCommands, help="A real federation of sites on a network.", no_args_is_help=True)

Deployment = Annotated[Path, typer.Argument(help="The organiser's folder.", metavar="DIR")]
SiteDir = Annotated[Path, typer.Argument(help="The folder that the organiser has handed out.", metavar="FOLDER")]
ClientName = Annotated[str, typer.Argument(help="A client's id.", metavar="CLIENT")]


def _say(text: str) -> None:
    from mutua.support.text import printable

    typer.echo(printable(text))


@app.command("init")
def init_command(
    path: Annotated[Path, typer.Argument(help="A new folder, for the organiser alone.", metavar="DIR")],
    recipe: Annotated[Path, typer.Option("--recipe", help="What is to be run: a YAML file.", metavar="RECIPE")],
    clients: Annotated[
        str, typer.Option(help="The ids of all clients, with commas between them.", metavar="A,B,C")
    ],
    host: Annotated[
        str,
        typer.Option(
            help="How sites reach the server: a name or address, with :PORT if not 9092.", metavar="HOST"
        ),
    ] = "127.0.0.1",
    shape: Annotated[
        str | None,
        typer.Option("--input", help="A sample: CHANNELSxHEIGHTxWIDTH, or a number of features.", metavar="SHAPE"),
    ] = None,
    floats: Annotated[bool, typer.Option("--floats", help="With --input: samples are floats, not bytes.")] = False,
    classes: Annotated[
        str | None, typer.Option(help="All classes, with commas between them.", metavar="A,B,C")
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(help="Seconds to wait for a site that has gone. Default: 180.", min=0),
    ] = None,
    needed: Annotated[int | None, typer.Option(help="Sites that a run needs to begin. Default: 1.", min=1)] = None,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="A trial: each client gets its part of the recipe's data, and its seed."),
    ] = False,
    sets: Sets = None,
    data_dir: DataDir = None,
    trust_code: TrustCode = None,
) -> None:
    """Make keys, certificates, and one folder to hand to each client."""
    from mutua.deploy.agreement import InputShape, data_is_elsewhere, recipe_for_sites
    from mutua.deploy.organiser import init

    trust_names(trust_code)
    names = [name.strip() for name in clients.split(",") if name.strip()]
    loaded = load_recipe(recipe, sets, None) if simulate else recipe_for_sites(recipe, names, sets or [])
    told = None if shape is None else _shape(shape, floats)
    listed = None if classes is None else [name.strip() for name in classes.split(",")]
    if told is None and listed is not None and not simulate:
        told = InputShape.declared(loaded)
    data = None
    shares = loaded.method.needs_public and (loaded.public is None or loaded.public.path is None)
    if (told is None or listed is None or simulate or shares) and not data_is_elsewhere(loaded):
        _say("reading the recipe's data, for its classes and inputs")
        data = loaded.federation(data_dir)
    more = {"wait": wait, "needed": needed}
    made = init(path, loaded, names, host, data=data, shape=told, classes=listed, simulate=simulate, **more)
    _say(f"made {made.path}: recipe.yaml and deployment.yaml say what all sides agree on")
    _say(f"made one folder for each client in {made.path / 'hand-out'}; each holds a private key:")
    _say("hand it over safely, then remove it here. Keep the folder private/ to yourself")
    _say(f"next: mutua deploy server {made.path}")


@app.command("server")
def server_command(
    path: Deployment,
    bind: Annotated[
        str | None,
        typer.Option(help="Address to listen on. Default: all, or 127.0.0.1 if --host was that.", metavar="IP"),
    ] = None,
) -> None:
    """Start the server, and keep it running."""
    from mutua.deploy.organiser import Organiser
    from mutua.deploy.server import serve_forever

    serve_forever(Organiser.open(path), _say, bind)


@app.command("run")
def run_deployment_command(
    path: Deployment,
    new: Annotated[bool, typer.Option("--new", help="Begin a new run, even if one could go on.")] = False,
    trust_code: TrustCode = None,
) -> None:
    """Begin a run, or go on with the one that was stopped; show how far it has come."""
    from mutua.deploy.organiser import Organiser
    from mutua.deploy.server import run_and_watch

    trust_names(trust_code)
    folder = run_and_watch(Organiser.open(path), _say, new=new)
    _say(f"finished: {folder}")
    _say(f"next: mutua report {folder}")


@app.command("join")
def join_deployment_command(
    path: Deployment,
    client: ClientName,
    run: Annotated[
        str | None, typer.Option("--run", help="The name of a finished run. Default: the newest.", metavar="NAME")
    ] = None,
) -> None:
    """Let a client that took no part join a run that is over, as a newcomer.

    It gets the last global and makes a model of its own of it, on its own machine. Nothing comes back.
    """
    from mutua.deploy.organiser import Organiser
    from mutua.deploy.server import join_and_watch

    folder = join_and_watch(Organiser.open(path), client, _say, run)
    _say(f"{client} has joined {folder}; there: mutua deploy benefit FOLDER")


@app.command("status")
def status_command(path: Deployment) -> None:
    """Who is here, and how the newest run stands."""
    from mutua.deploy.agreement import CA
    from mutua.deploy.flower_control import control, listens
    from mutua.deploy.organiser import Organiser
    from mutua.deploy.server import online, standing

    organiser = Organiser.open(path)
    keys = organiser.keys()
    if listens("127.0.0.1", organiser.port):
        with control(organiser.port, organiser.path / CA) as client:
            here = online(organiser, client)
        _say(f"server: running, reached by sites as {organiser.agreed.file.server}")
    else:
        here = set()
        _say(f"server: not running; to start it: mutua deploy server {path}")
    for name in sorted({*organiser.agreed.file.clients, *keys}):
        state = "here" if name in here else "not here" if name in keys else "revoked: it has no key"
        _say(f"{name}: {state}")
    _say(standing(organiser))


@app.command("add")
def add_command(path: Deployment, client: ClientName) -> None:
    """Make a key and a folder for a client: a new one, or one that lost its key."""
    from mutua.deploy.organiser import Organiser

    place = Organiser.open(path).add_client(client)
    _say(f"made {place}: hand it to {client} safely, then remove it here")
    _say("a server that is running lets it in within seconds; it takes part in runs that begin from now on")
    _say(f"to have it join a run that is over: mutua deploy join {path} {client}")


@app.command("revoke")
def revoke_command(path: Deployment, client: ClientName) -> None:
    """Let a client in no more."""
    from mutua.deploy.organiser import Organiser

    Organiser.open(path).revoke(client)
    _say(f"{client} has no key any more; a server that is running turns it away within seconds")
    _say(f"to let it in again, with a new key: mutua deploy add {path} {client}")


@app.command("check")
def check_command(folder: SiteDir, trust_code: TrustCode = None) -> None:
    """Whether everything fits at this site, and what a run would send."""
    from mutua.deploy.site_check import check
    from mutua.deploy.site_folder import SiteFolder

    trust_names(trust_code)
    if not check(SiteFolder.open(folder), _say):
        raise RunError("check: not all is right; mend what is said above, and check again")
    _say(f"next: mutua deploy client {folder}")


@app.command("client")
def client_command(folder: SiteDir, trust_code: TrustCode = None) -> None:
    """Take part: keep this site's worker and its connection running, until you stop it."""
    from mutua.deploy.site_folder import SiteFolder
    from mutua.deploy.supervisor import supervise

    trust_names(trust_code)
    supervise(SiteFolder.open(folder), _say, ",".join(trust_code or []))


@app.command("benefit")
def benefit_command(
    folder: SiteDir,
    run: Annotated[
        str | None,
        typer.Option("--run", help="Which run, by its id in state/. Default: the newest.", metavar="ID"),
    ] = None,
    noun: Annotated[
        str, typer.Option(help="What your samples are, for the sentence: patients.", metavar="WORD")
    ] = "samples",
    trust_code: TrustCode = None,
    as_json: AsJson = False,
) -> None:
    """Whether joining has helped this site: its models on its own test data, and which to serve.

    The site's own model is trained alone, here, on its own data. Nothing of all this leaves.
    """
    from mutua.deploy.site_benefit import benefit_of, words_of
    from mutua.deploy.site_folder import SiteFolder

    trust_names(trust_code)
    made = benefit_of(SiteFolder.open(folder), _progress, run, noun)
    if as_json:
        print_json(made.summary())
        return
    for line in words_of(made, folder):
        _say(line)


def _progress(text: str) -> None:
    from mutua.support.text import printable

    typer.echo(printable(text), err=True)


def _shape(given: str, floats: bool) -> InputShape:
    from mutua.deploy.agreement import InputShape

    try:
        sides = tuple(int(side) for side in given.lower().split("x"))
    except ValueError:
        raise InputError(
            f"--input: '{given}'; give such as 1x28x28 (channels, height, width) or 30 (features)"
        ) from None
    return InputShape(shape=sides, dtype="float32" if floats or len(sides) == 1 else "uint8")
