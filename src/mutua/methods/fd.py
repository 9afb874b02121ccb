"""FD, federated distillation: clients exchange, label by label, what their models say on average.

Jeong et al. 2018, "Communication-efficient on-device machine learning: federated distillation and augmentation
under non-IID private data" (FD, Algorithm 1). Here rows are of the trained model, not means over its training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mutua.errors import Refused
from mutua.federation.federation import Federation
from mutua.federation.message import Kind, Message, Part, Shares
from mutua.federation.model_checks import one_list_of_classes
from mutua.federation.plan import Plan
from mutua.learning.class_rows import class_means, rows_by_class
from mutua.learning.schedules import Schedule, within
from mutua.learning.trainer import Batch, Models, Numbers, Terms
from mutua.methods.base import Method, register
from mutua.methods.participant import Participant
from mutua.methods.server import Server

ROWS = "rows "
"""Before a client's id: the group of the server's state with its last rows."""


@register
class FD(Method):
    """Models of any design learn what the others' say on average of each label."""

    name: ClassVar[str] = "fd"
    any_task: ClassVar[bool] = True
    own_models: ClassVar[bool] = True
    different_data: ClassVar[bool] = True
    honours_opt_out: ClassVar[bool] = True
    server_does: ClassVar[str] = "averages rows by label"
    reply_grows_with: ClassVar[str] = "classes × classes"
    gamma: Annotated[Schedule, within(0, 1e6)] = 1.0

    @property
    def needs_classes(self) -> str:
        """What is averaged by label, and sent."""
        return "exchanges mean class probabilities by label"

    @property
    def shares(self) -> Shares:
        """For each label that a client has, its model's mean probabilities."""
        return {"rows": Kind.PROBABILITIES}

    def arrange(self, federation: Federation) -> Federation:
        """All clients must have one list of classes: a row has a number for each."""
        one_list_of_classes(federation, "fd needs one list for all")
        return super().arrange(federation)

    def reply_bytes(self, federation: Federation, plan: Plan) -> int:
        """A row for each class."""
        classes = federation.clients[0].task.classes
        return Message(rows=Part(Kind.PROBABILITIES, {name: torch.empty(len(classes)) for name in classes})).nbytes

    def objective(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """CE + γ·CE(F̄_y, p), F̄_y being the others' mean row for the label y; 0 where nobody has sent one."""
        scores = models["personal"](batch.x)
        taught = -(hp.rows[batch.y] * F.log_softmax(scores, 1)).sum(1).mean()
        return {"personal": batch.task.loss(scores, batch.y) + hp.gamma * taught}

    def start(self, client: Participant) -> None:
        """A personal model of the client's own seed, as `independent`'s."""
        client.initialise("personal")

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """Fit, then say what the trained model says of each own label. Who has opted out whole sends nothing."""
        client.numbers.rows = self.rows(client, brief)
        samples = client.opted_in if client.takes_part else client.train
        client.fit(self.objective, {"personal": client.model("personal")}, samples=samples)
        if not client.takes_part:
            return None
        said = client.predict(client.model("personal"), samples)
        means = class_means(said, samples.y, client.task.classes)
        return Message(rows=Part(Kind.PROBABILITIES, means))

    def rows(self, client: Participant, brief: Message | None) -> Tensor:
        """The brief's rows by class, matched by name; zeros for a class without one."""
        sent, classes = {} if brief is None else brief.arrays("rows"), client.task.classes
        return rows_by_class(sent, classes, len(classes))[0].to(client.device)

    def brief(self, server: Server, round: int, client_id: str) -> Message | None:
        """By label, the mean of the others' last rows; the client's own are left out."""
        heard = [server.state[ROWS + other] for other in server.clients if ROWS + other in server.state]
        own = server.state.get(ROWS + client_id)
        others = [rows for rows in heard if rows is not own]
        names = dict.fromkeys(name for rows in others for name in rows)
        means = {name: torch.stack([rows[name] for rows in others if name in rows]).mean(0) for name in names}
        return Message(rows=Part(Kind.PROBABILITIES, means)) if means else None

    def check(self, server: Server, client_id: str, reply: Message) -> None:
        """At least one row and at most one for each class, of probabilities of all classes."""
        rows = reply.arrays("rows") if "rows" in reply else {}
        if not 0 < len(rows) <= server.classes:
            raise Refused(f"it holds {len(rows)} rows of probabilities; from 1 to {server.classes} are wanted")
        for name, row in rows.items():
            sound = row.shape == (server.classes,) and row.dtype == torch.get_default_dtype()
            if not (sound and bool((row >= 0).all()) and abs(float(row.sum()) - 1) < 1e-3):
                raise Refused(f"its row '{name}' is not {server.classes} probabilities that sum to 1")

    def merge(self, server: Server, replies: Mapping[str, Message]) -> None:
        """Each client's last rows are kept, so that those of a client that is not drawn still count."""
        for client, reply in replies.items():
            server.state[ROWS + client] = reply.arrays("rows")

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """The personal model."""
        return client.model("personal")
