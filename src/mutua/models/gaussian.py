"""A model whose weights are distributions: each has a mean and a deviation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F


class Gaussian(nn.Module):
    """A model whose weights are drawn from N(μ, softplus(ρ)²) at every forward in training, else they are μ."""

    def __init__(self, model: nn.Module, rho: float) -> None:
        super().__init__()
        self.mean, self.rho, self.noise = model, nn.Module(), 1.0
        for name, mean in model.named_parameters():
            *path, last = name.split(".")
            owner = self.rho
            for part in path:
                if part not in dict(owner.named_children()):
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            owner.register_parameter(last, nn.Parameter(torch.full_like(mean, rho)))

    def deviations(self) -> dict[str, Tensor]:
        """σ = softplus(ρ) of every weight."""
        return {name: F.softplus(rho) for name, rho in self.rho.named_parameters()}

    def forward(self, x: Tensor) -> Tensor:
        """Scores. `noise` is how many deviations a draw is from μ, in units of a standard normal number."""
        if not (self.training and self.noise):
            scores: Tensor = self.mean(x)
            return scores
        means, deviations = dict(self.mean.named_parameters()), self.deviations()
        drawn = {n: mu + self.noise * deviations[n] * torch.randn_like(mu) for n, mu in means.items()}
        scores = functional_call(self.mean, drawn, (x,))
        return scores


def gaussian_kl(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q ‖ p) of all weights: Σ log(σ_p/σ_q) + (σ_q² + (μ_q − μ_p)²) / 2σ_p² − ½."""
    mine, theirs = dict(q.mean.named_parameters()), dict(p.mean.named_parameters())
    own, prior = q.deviations(), p.deviations()
    each = []
    for name, mu in mine.items():
        squares = own[name].square() + (mu - theirs[name]).square()
        each.append(((prior[name] / own[name]).log() + squares / (2 * prior[name].square()) - 0.5).sum())
    return torch.stack(each).sum()
