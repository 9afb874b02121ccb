"""`mutua join`, `mutua predict` and `mutua export`: what a finished run's models are good for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from mutua.cli.options import (
    SAMPLES_HELP,
    AsJson,
    ClientId,
    RunDir,
    TrustCode,
    clients_of_run,
    print_json,
    trust_names,
)
from mutua.errors import InputError


def join_command(
    run_dir: RunDir,
    data: Annotated[Path, typer.Option(help=f"The newcomer's data: {SAMPLES_HELP}.", metavar="PATH")],
    model: Annotated[
        str | None,
        typer.Option(help="The newcomer's own model, with --how mutual. Default: the global's.", metavar="NAME"),
    ] = None,
    how: Annotated[
        Literal["global", "finetune", "mutual"], typer.Option(help="Use, fine-tune or mutually adapt the global.")
    ] = "mutual",
    name: Annotated[str, typer.Option(help="The newcomer's id.", metavar="ID")] = "newcomer",
    seed: Annotated[int, typer.Option(help="The newcomer's seed.", min=0, metavar="N")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for its model. Default: RUN/newcomers/ID.", metavar="DIR")
    ] = None,
    trust_code: TrustCode = None,
    as_json: AsJson = False,
) -> None:
    """Give a newcomer its own model, made from what a run shares."""
    from mutua.reports import console, listings
    from mutua.runs.folder import RunFolder
    from mutua.runs.newcomer import join

    trust_names(trust_code)
    run = RunFolder.open(run_dir)
    _ = run.shared().architecture, run.method  # questions about code to trust come before the spinner
    with console.err.status(f"{name} joins ({how}) and, to compare, learns alone"):
        joined = join(run, data, how=how, model=model, name=name, seed=seed, out=out)
    if as_json:
        print_json(joined.summary())
    else:
        listings.show_joined(joined)


def predict_command(
    run_dir: RunDir,
    client: ClientId,
    data: Annotated[Path, typer.Option(help=f"What to predict: {SAMPLES_HELP}.", metavar="PATH")],
    out: Annotated[
        Path | None, typer.Option(help="CSV file for the predictions. Default: stdout.", metavar="FILE")
    ] = None,
    trust_code: TrustCode = None,
    as_json: AsJson = False,
) -> None:
    """Predict with a client's model.

    One row per sample: the predicted class and the probability of each class; of a regression the values.
    """
    from mutua.reports import console
    from mutua.runs.folder import RunFolder
    from mutua.runs.inference import predict
    from mutua.support.files import cannot_write
    from mutua.support.text import percent

    trust_names(trust_code)
    predictions = predict(RunFolder.open(run_dir).client(client), data)
    if out is not None:
        try:
            with out.open("w", newline="", encoding="utf-8") as file:
                predictions.write(file)
        except OSError as error:
            raise InputError(f"--out: {cannot_write(out, error)}; name another file") from None
        console.say(f"{len(predictions.labels)} predictions in {out}", console.err)
    if as_json:
        print_json(predictions.summary(), indent=None)
    elif out is None:
        predictions.write(sys.stdout)
    if predictions.score is not None:
        of = predictions.headline
        right = f"{of.name} {of.shown(predictions.score)}{of.unit} on {len(predictions.labels)} samples"
        console.say(right, console.err)
    if predictions.accuracy is not None:
        right = f"accuracy {percent(predictions.accuracy)} % on {len(predictions.labels)} samples"
        console.say(right, console.err)


def export_command(
    run_dir: RunDir,
    client: Annotated[
        str | None,
        typer.Option(
            help="Whose model: a client's or newcomer's id. Of a site's folder: which.",
            metavar="ID",
            autocompletion=clients_of_run,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the model. Default: ID-export.", metavar="DIR")
    ] = None,
) -> None:
    """Copy a client's model out of a run, for plain torch.

    Safetensors, and a JSON card with architecture, class names and preprocessing. A site of a deployment gives its
    own folder: the model that `mutua deploy benefit` has chosen, or by --client alone, global or personal.
    """
    from mutua.runs.folder import RunFolder
    from mutua.runs.inference import export

    if (run_dir / "client.yaml").is_file():
        from mutua.deploy.site_benefit import model_to_export

        model = model_to_export(run_dir, client)
        name = model.card.client or "site"
    elif client is None:
        raise InputError("--client: missing; name the client whose model you want")
    else:
        model, name = RunFolder.open(run_dir).client(client), client
    for file in export(model, out or Path(f"{name}-export")):
        typer.echo(file)
