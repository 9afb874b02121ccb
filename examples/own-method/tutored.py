"""A method of your own: FedAvg, and beside it a personal model that the global tutors."""

from typing import Annotated, ClassVar

from torch import nn

from mutua.methods import Batch, FedAvg, Message, Models, Numbers, Participant, Schedule, Terms, within


class Tutored(FedAvg):
    """The personal model minimises CE + pull · KL(global ‖ personal) and never leaves."""

    name: ClassVar[str] = "tutored"
    own_models: ClassVar[bool] = True
    pull: Annotated[Schedule, within(0, 100)] = 1.0

    def start(self, client: Participant) -> None:
        """Once per client: a personal model in its store."""
        client.initialise("personal")

    def train(self, client: Participant, brief: Message | None) -> Message | None:
        """The personal model learns beside the frozen global; then FedAvg's own work, and its reply."""
        client.fit(self.tutoring, {"personal": client.model("personal"), "global": client.frozen(brief)})
        return super().train(client, brief)

    def tutoring(self, models: Models, batch: Batch, hp: Numbers) -> Terms:
        """No gradient reaches the global."""
        personal = models["personal"](batch.x)
        pull = batch.task.divergence(models["global"](batch.x), personal)
        return {"personal": batch.task.loss(personal, batch.y) + hp.pull * pull}

    def predictor(self, client: Participant, brief: Message | None) -> nn.Module:
        """A client serves with its personal model."""
        return client.model("personal")
