"""The organiser's folder: made once, then clients are added and revoked.

DIR/recipe.yaml, deployment.yaml, ca.pem, public.npz    what all sides have
DIR/private/        the authority's and the server's keys, Flower's own state: for the organiser alone
DIR/keys/ID.pub     the public key of each client that may connect
DIR/hand-out/ID/    one folder to give to each client, with its private key; remove it when it is handed over
DIR/runs/           the runs
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mutua.data.table_encoding import TableEncoding, as_columns
from mutua.data.text_encoding import TextEncoding
from mutua.deploy.agreement import (
    CA,
    DEPLOYMENT,
    PUBLIC,
    RECIPE,
    Agreement,
    DeploymentFile,
    InputShape,
    deployed_recipe,
)
from mutua.deploy.agreement import public_bytes as as_public_file
from mutua.deploy.keys import (
    Authority,
    client_keys,
    need_flower,
    new_authority,
    registered_form,
    server_certificate,
)
from mutua.errors import InputError, suggest
from mutua.federation.federation import Federation
from mutua.federation.privacy import Privacy
from mutua.methods.base import Method
from mutua.recipe.public_set import with_public_set
from mutua.recipe.recipe import Recipe
from mutua.seeds import private
from mutua.support.configuration import PathLike, local_path
from mutua.support.files import atomic_files
from mutua.support.folders import new_folder
from mutua.support.text import some

PORT = 9092
CLIENT_SETTINGS = """\
# What this site has, and what it is willing to let leave. `mutua deploy check .` says whether it fits.
# Nothing in this file is sent.

client: {client}

# Your data: {data}
# A part is set aside for validation and testing, unless you give files for them (val: and test:).
data:
  path: {path}
{more}
# Your own model: a name (see `mutua models`), or package.module:factory of your own.
model: {model}

# What may leave, if you want to be stricter than the recipe. For example:
# policy:
#   may_leave: [weights]          # kinds of data; see `mutua deploy check .`
#   bytes_per_round: 10000000
#   bytes_in_all: 1000000000
#   partners: 2                   # so many other sites must take part in a round
#   privacy: {{noise: 1.0, clip: 1.0}}   # at least so much noise, at most such a clip
#   report: [accuracy, loss]      # numbers of evaluations that leave; without this line none do

# Training samples that the federation must not learn from: a share of them (1.0 is all), or the name of an array
# of the data that is true for each.
{opt_out}
{seed}"""


@dataclass(frozen=True)
class Organiser:
    """The folder of a deployment."""

    path: Path

    @classmethod
    def open(cls, path: PathLike) -> Organiser:
        """The folder that `init` has made."""
        found = cls(local_path(path, "DIR"))
        if not (found.path / DEPLOYMENT).is_file() or not found.private.is_dir():
            raise InputError(
                f"DIR: {found.path} is no deployment; to make one: mutua deploy init {found.path} ..."
            )
        need_flower()
        return found

    @cached_property
    def agreed(self) -> Agreement:
        """What all sides have agreed on."""
        return Agreement.read(self.path, trusted=True)

    @property
    def private(self) -> Path:
        """What is for the organiser alone."""
        return self.path / "private"

    @property
    def port(self) -> int:
        """The port at which the server listens."""
        return int(self.agreed.file.server.rpartition(":")[2])

    @property
    def host(self) -> str:
        """The name or address under which sites reach the server."""
        return self.agreed.file.server.rpartition(":")[0].strip("[]")

    def keys(self) -> dict[str, bytes]:
        """By client, its public key in the form that Flower registers; clients that are revoked have none."""
        return {path.stem: registered_form(path.read_bytes()) for path in sorted(self.path.glob("keys/*.pub"))}

    def authority(self) -> Authority:
        """The deployment's authority."""
        return Authority((self.private / "ca.key").read_bytes(), (self.path / CA).read_bytes())

    def run_id(self, folder: Path) -> str:
        """The id of the run in this folder: sites keep what they have of a run under it."""
        named = (self.path / CA).read_bytes() + folder.name.encode()
        return hashlib.sha256(named).hexdigest()[:16]

    def add(self, client: str, settings: str | None = None) -> Path:
        """Make a key pair for a client and the folder to hand to it."""
        hand_out = self.path / "hand-out" / client
        if (self.path / "keys" / f"{client}.pub").exists():
            raise InputError(
                f"CLIENT: '{client}' has a key already; revoke it first: mutua deploy revoke {self.path} {client}"
            )
        if hand_out.exists():
            raise InputError(f"CLIENT: {hand_out} is there already; remove it, so that no old key is handed out")
        pair = client_keys()
        settings = settings or client_settings(client, self.agreed)
        for folder in (hand_out.parent, hand_out):
            folder.mkdir(mode=0o700, exist_ok=True)
        with atomic_files() as files:
            for name in (RECIPE, DEPLOYMENT, CA, PUBLIC):
                if (self.path / name).is_file():
                    files.write(hand_out / name, (self.path / name).read_bytes())
            files.write(hand_out / "client.yaml", settings)
        write_secret(hand_out / "client.key", pair.private)
        (self.path / "keys").mkdir(exist_ok=True)
        with atomic_files() as files:
            files.write(self.path / "keys" / f"{client}.pub", pair.public)
        return hand_out

    def add_client(self, client: str) -> Path:
        """Let a client of this deployment have a new key; a new client also becomes one of the deployment."""
        if client not in self.agreed.file.clients:
            clients = (*self.agreed.file.clients, client)
            file = DeploymentFile.model_validate({**self.agreed.file.model_dump(), "clients": clients})
            agreed = Agreement(deployed_recipe(self.agreed.recipe, clients), file, self.agreed.public)
            agreed.prepared()
            with atomic_files() as files:
                agreed.write(files, self.path, None)
            return Organiser(self.path).add(client)
        return self.add(client)

    def revoke(self, client: str) -> None:
        """Take a client's key out: the server lets it in no more."""
        path = self.path / "keys" / f"{client}.pub"
        if not path.is_file():
            raise InputError(f"CLIENT: '{client}' has no key here; {suggest(client, sorted(self.keys()))}")
        revoked = self.path / "keys" / "revoked"
        revoked.mkdir(exist_ok=True)
        number = len(list(revoked.iterdir()))
        path.rename(revoked / f"{number:04d}-{client}.pub")


def init(
    path: PathLike,
    recipe: Recipe,
    clients: Sequence[str],
    host: str,
    *,
    data: Federation | None = None,
    shape: InputShape | None = None,
    classes: Sequence[str] | None = None,
    simulate: bool = False,
    **more: object,
) -> Organiser:
    """Make the organiser's folder, and one to hand to each client.

    `data` is the federation of the recipe, if its data is here: classes, inputs and the public set are taken from
    it. With `simulate`, each client's folder also gets its part of that data and the seed of a simulation: then
    the deployment ends with the bytes of `mutua run`.
    """
    need_flower()
    _check_method(recipe.method)
    _check_privacy(recipe.privacy, simulate)
    if shape is None or classes is None:
        if data is None:
            raise InputError("--input, --classes: missing; the recipe has no data to take them from")
        shape = shape or InputShape.of(data.clients[0].train)
        classes = classes or data.classes
    if simulate and (data is None or {client.id for client in data.clients} != set(clients)):
        there = "none" if data is None else ", ".join(client.id for client in data.clients)
        raise InputError(f"--clients: {', '.join(clients)}, but with --simulate they are the recipe's: {there}")
    server = host if host.rpartition(":")[2].isdigit() and host.count(":") == 1 else f"{host}:{PORT}"
    agreed = Agreement(
        deployed_recipe(recipe, clients),
        DeploymentFile.model_validate(
            {
                "server": server,
                "clients": tuple(clients),
                "classes": tuple(classes),
                "input": shape,
                **{name: value for name, value in more.items() if value is not None},
            }
        ),
    )
    agreed, held = _with_public(agreed, recipe, data)
    agreed.prepared()  # what cannot run is refused before anything is made
    folder = new_folder(path, field="DIR")
    (folder / "private").mkdir(mode=0o700)
    authority = new_authority(recipe.name)
    with atomic_files() as files:
        agreed.write(files, folder, held)
        files.write(folder / CA, authority.certificate)
    write_secret(folder / "private" / "ca.key", authority.key)
    certify(folder, authority, server.rpartition(":")[0].strip("[]"))
    made = Organiser(folder)
    for client in clients:
        settings = None if not simulate or data is None else _simulated(client, data, agreed)
        place = made.add(client, settings)
        if simulate and data is not None:
            _write_data(place, data, client)
    return made


def _with_public(agreed: Agreement, recipe: Recipe, data: Federation | None) -> tuple[Agreement, bytes | None]:
    """With the public set, if the method needs one: of the recipe's data, or of a file alone."""
    if not recipe.method.needs_public:
        return agreed, None
    public = None if data is None else data.public
    if public is None and recipe.public is not None and recipe.public.path is not None:
        public = with_public_set(agreed.roster(), recipe.public, recipe.seed).public
    if public is None:
        raise InputError(f"public: missing; method {recipe.method.name} needs one, such as public: {{path: FILE}}")
    held = as_public_file(public)
    told = {"public_sha256": hashlib.sha256(held).hexdigest(), "public_labelled": public.labelled}
    return replace(agreed, file=agreed.file.model_copy(update=told), public=public), held


def certify(folder: Path, authority: Authority, host: str, days: float | None = None) -> None:
    """Make the server's key and certificate."""
    made = server_certificate(authority, host) if days is None else server_certificate(authority, host, days)
    write_secret(folder / "private" / "server.key", made.key)
    write_secret(folder / "private" / "server.pem", made.certificate + authority.certificate)


def client_settings(client: str, agreed: Agreement, **given: str) -> str:
    """The text of client.yaml."""
    shared = agreed.recipe.models.global_model
    told = {
        "data": _data_in_words(agreed),
        "path": "data.csv" if agreed.file.input.tabular else "data.npz",
        "model": "lenet5" if shared is None else str(shared.label),
        "more": "",
        "seed": "",
        "opt_out": "# opt_out: 0.0",
    }
    return CLIENT_SETTINGS.format(client=client, **{**told, **given})


def _data_in_words(agreed: Agreement) -> str:
    """What a site's data must be like, as a comment of its settings."""
    told, classes = agreed.file.input, some(agreed.file.classes, 10)
    wanted = f"classes: {classes}" if agreed.aim.kind == "classification" else f"{agreed.aim.kind} of {classes}"
    target = getattr(told.preprocess, "target", "") or classes
    match told.preprocess:
        case TableEncoding(columns=columns):
            names = some([column.name for column in columns], 10)
            what = f"a table (.csv, .jsonl, .parquet, .npz) with the columns {names}; its target is '{target}'"
        case TextEncoding(column=column):
            what = f"texts (.csv, .jsonl, .parquet) in a column '{column}', and what they mean in '{target}'"
        case _:
            what = (
                "a file of arrays (.npz with x, y, classes and perhaps x_test, y_test), or a folder with one\n# "
            )
            what += f"folder of images for each class; samples are {told.dtype} {'x'.join(map(str, told.shape))}"
    return f"{what};\n# {wanted}."


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read: it is never there with other rights."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _check_method(method: Method) -> None:
    if method.pools_data:
        raise InputError(f"method.name: {method.name} brings all data to one place; nothing of it can be deployed")


def _check_privacy(privacy: Privacy | None, simulate: bool) -> None:
    if privacy is None:
        return
    if privacy.level == "example" and privacy.budget is not None:
        raise InputError(
            "privacy.budget: the ε of an example depends on how many samples a site has, which is not known here; "
            "leave it out: `mutua deploy check` tells each site its own"
        )
    if privacy.randomness == "seeded" and not simulate:
        raise InputError(
            "privacy.randomness: seeded, but in a deployment noise is of each site's system; leave it out"
        )


def _simulated(client: str, data: Federation, agreed: Agreement) -> str:
    """The settings of a client of a simulation: its own model, its part of the data, its seed."""
    own = data[client].model.spec()
    seed = private(agreed.recipe.seed, client)
    said = f"\n# The seed of a simulation; without this line the site draws one of its own.\nseed: {seed}\n"
    more = "".join(
        f"  {part}: {f'{part}.npz' if len(getattr(data[client], part)) else 'false'}\n" for part in ("val", "test")
    )
    names = list(data[client].train.classes)
    if data[client].train.model_input.kind == "table" and data.partial:  # a table's own classes have no order
        more += f"  classes: {json.dumps(names)}\n"
    given = {"path": "train.npz", "more": more, "model": json.dumps(own), "seed": said}
    if data[client].opt_in is not None:
        given["opt_out"] = "opt_out: opted_out"
    return client_settings(client, agreed, **given)


def _write_data(place: Path, data: Federation, client: str) -> None:
    import numpy as np

    held = data[client]
    for name in ("train", "val", "test"):
        samples = getattr(held, name)
        if not len(samples):
            continue
        if isinstance(samples.preprocess, TableEncoding):
            arrays: dict[str, Any] = as_columns(samples.inputs, samples.preprocess)
            if samples.kind == "classification":
                arrays[samples.preprocess.target] = np.array(samples.classes)[samples.y.numpy()]
            else:
                arrays |= {column: samples.y[:, k].numpy() for k, column in enumerate(samples.classes)}
        else:
            arrays = {"x": samples.inputs.numpy(), "y": samples.y.numpy(), "classes": np.array(samples.classes)}
        if name == "train" and held.opt_in is not None:
            arrays["opted_out"] = (~held.opt_in).numpy()
        np.savez(place / f"{name}.npz", **arrays)
