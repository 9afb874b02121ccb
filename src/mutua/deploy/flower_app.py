"""mutua in a federation that people who run Flower have already: a ServerApp and a ClientApp for `flwr run`.

Who may connect is Flower's business there. A SuperNode is told with `--node-config 'site="FOLDER"'` which site it
is, and the organiser's folder is `deployment` in the run's settings. Every message loads the site anew; a
SuperNode of `mutua deploy client` keeps it in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from mutua.engines.flower_line import FlowerLine
from mutua.engines.flower_messages import content_of, crossing_in
from mutua.engines.site_requests import BadHeader, SiteAnswer, SiteRequest
from mutua.errors import InputError, MutuaError

WHO, CLIENT = "who", "mutua.client"

client = ClientApp()
server = ServerApp()


@client.query(WHO)  # type: ignore[untyped-decorator]
def say_who(message: Message, context: Context) -> Message:
    """Which client of the deployment this node is."""
    name = _site_folder(context).settings.client
    return Message(RecordDict({CLIENT: ConfigRecord({"client": name})}), reply_to=message)


@client.query()  # type: ignore[untyped-decorator]
def answer_as_site(message: Message, context: Context) -> Message:
    """The site's answer to a request."""
    from mutua.support.processes import use_one_thread

    use_one_thread()
    try:
        request = SiteRequest.of(*crossing_in(message.content))
        made = _site_folder(context).site().answer(request)
    except (BadHeader, MutuaError) as error:
        made = SiteAnswer("refused", str(error) if isinstance(error, BadHeader) else "its folder has a mistake")
        print(f"mutua: {error}", flush=True)  # in the SuperNode's own log
    return Message(content_of(made), reply_to=message)


@server.main()  # type: ignore[untyped-decorator]
def conduct_in_federation(grid: Grid, context: Context) -> None:
    """Conduct a run, or go on with one: `run` in the settings, by default a new folder in the deployment's."""
    from mutua.deploy.conduct import serve
    from mutua.deploy.organiser import Organiser

    place = Path(str(context.run_config["deployment"])).expanduser()
    name = Organiser.open(place).agreed.recipe.name
    given = str(context.run_config.get("run", "")) or f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder = place / "runs" / given
    folder.parent.mkdir(exist_ok=True)
    print(f"mutua: the run is in {folder}", flush=True)
    serve(lambda keys, note: AskedLine(grid, keys, note), place, folder)


def _site_folder(context: Context) -> Any:
    from mutua.deploy.site_folder import SiteFolder

    if "site" not in context.node_config:
        raise InputError("node-config: site is missing; start the SuperNode with --node-config 'site=\"FOLDER\"'")
    return SiteFolder.open(str(context.node_config["site"]))


@dataclass
class AskedLine(FlowerLine):
    """A line to nodes that are asked once which client they are."""

    named: dict[int, str] = field(default_factory=dict)

    def owners(self, nodes: Mapping[int, Any]) -> dict[str, int]:
        """By client, its node."""
        new = [node for node in nodes if node not in self.named]
        if new:
            asked = [Message(RecordDict({}), node, f"query.{WHO}") for node in new]
            for reply in self.grid.send_and_receive(asked, timeout=60):
                if not reply.has_error():
                    self.named[reply.metadata.src_node_id] = str(reply.content[CLIENT]["client"])
        return {self.named[node]: node for node in nodes if self.named.get(node) in self.keys}
