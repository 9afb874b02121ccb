"""What a client does for privacy: it clips what it learned and adds noise before anything leaves.

McMahan et al. 2018, "Learning differentially private recurrent language models" (by client); Abadi et al. 2016,
"Deep learning with differential privacy" (by example). docs/privacy.md says what is promised, and to whom.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator

from mutua.federation.message import Kind, Message, weights
from mutua.federation.store import State
from mutua.seeds import Path, normals, torch_stream
from mutua.support.configuration import Spec

Level = Literal["client", "example"]

LEAST_NOISE = 1e-3
LARGEST_NOISE = 1e30
"""The largest noise times clip: float32 cannot hold noise that is larger."""


class Privacy(Spec):
    """Differential privacy of what leaves a client: for all of its data, or for each of its examples."""

    level: Level = "client"
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    delta: float = Field(1e-5, ge=1e-100, lt=1)
    budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The largest ε of all messages together: rounds that would exceed it are not run."""
    randomness: Literal["system", "seeded"] = "system"
    """Where noise comes from: the system, or the seed. Who knows the seed can repeat the run and remove noise."""

    @field_validator("noise")
    @classmethod
    def _countable(cls, noise: float) -> float:
        if 0 < noise < LEAST_NOISE:
            raise ValueError(
                f"{noise} is too small for any accountant; give at least {LEAST_NOISE:g}, or 0 to clip only"
            )
        return noise

    @model_validator(mode="after")
    def _representable(self) -> Self:
        if self.noise * self.clip > LARGEST_NOISE:
            raise ValueError(
                f"noise × clip is {self.noise * self.clip:.3g}, too much for float32; at most {LARGEST_NOISE:g}"
            )
        if self.budget is not None and not self.noise:
            raise ValueError("budget: without noise there is no ε to keep below it; give noise above 0")
        return self

    def stream(self, root: int, *path: Path) -> torch.Generator | None:
        """The source of noise and secret draws: the stream of this name, or None for the system's."""
        return torch_stream(root, *path) if self.randomness == "seeded" else None

    def leaving(self, message: Message, brief: Message, stream: torch.Generator | None) -> Message:
        """The message with what the client learned clipped and noised: G + Δ·min(1, C/‖Δ‖) + N(0, σ²C²).

        Δ is meme − global, floating parameters and buffers as one vector. Whole numbers go back as they came.
        """
        if self.level == "example":
            return message  # its gradients were noised
        name = next(name for name, part in message.items() if part.kind is Kind.WEIGHTS)
        meme, before = message.arrays(name), brief.arrays("global")
        floating = [n for n, array in meme.items() if array.is_floating_point()]
        update = torch.cat([(meme[n].double() - before[n].double()).reshape(-1) for n in floating])
        norm = float(update.norm())
        # A diverged update is replaced by zeros: NaN would say something about the data.
        update = update * (self.clip / max(norm, self.clip)) if norm < torch.inf else torch.zeros_like(update)
        update += self.noise * self.clip * normals(len(update), stream, update.dtype)
        noised = {n: before[n] for n in meme}
        for n, change in zip(floating, update.split([meme[n].numel() for n in floating]), strict=True):
            noised[n] = (before[n].double() + change.view_as(meme[n])).to(meme[n].dtype)
        return Message(**{**message, name: weights(noised)})

    def merged(self, state: State) -> State:
        """The server's state without negative variances, which noise can cause and which break a model.

        This is done after merging: if single messages were cut off, their sum would not be normally distributed.
        """
        return {
            group: {n: a.clamp_min(0) if n.endswith("running_var") else a for n, a in arrays.items()}
            for group, arrays in state.items()
        }
