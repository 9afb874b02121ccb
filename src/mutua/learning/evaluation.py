"""Evaluation: what a model says of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from mutua.data.mapped_rows import equal, in_memory
from mutua.data.samples import Samples
from mutua.learning.memory_layout import channels_last, laid_out
from mutua.learning.task_behaviour import Task

BATCH = 500  # large enough to fill a core, small enough to stay in its cache


def predictions(model: nn.Module, samples: Samples, task: Task, device: torch.device | str = "cpu") -> Tensor:
    """Class probabilities (N, classes), or what the task has, in evaluation mode; the model's mode is kept."""
    if not len(samples):
        return torch.empty(0, len(task.classes))
    return task.predictions(outputs(model, samples, device))


def outputs(
    model: nn.Module,
    samples: Samples,
    device: torch.device | str = "cpu",
    forward: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The model's scores (N, classes), or what `forward` makes of it, in evaluation mode; its mode is kept."""
    modes, last = {part: part.training for part in model.modules()}, channels_last(model)
    model.eval()
    with torch.inference_mode():
        given = (samples.preprocess(in_memory(x).to(device)) for x in samples.x.split(BATCH))
        parts = [(forward or model)(laid_out(x) if last else x) for x in given]
    for part, mode in modes.items():  # where a part is frozen, they differ
        part.training = mode
    # Cloned: a tensor of inference mode could not be learned from.
    return torch.cat(parts).cpu().clone()


def evaluation_batches(samples: Samples) -> list[Samples]:
    """The parts that pass through a model at once: the same for any number of workers."""
    return [evaluation_batch(samples, number) for number in range(number_of_batches(samples))]


def number_of_batches(samples: Samples) -> int:
    """How many parts there are; one, without samples, if there are none."""
    return max(1, math.ceil(len(samples) / BATCH))


def evaluation_batch(samples: Samples, number: int) -> Samples:
    """One of the parts, without a look at the others."""
    start = number * BATCH
    size = min(BATCH, len(samples) - start)
    cuts = [start, size, len(samples) - start - size]
    return replace(samples, x=samples.x.split(cuts)[1], y=samples.y.split(cuts)[1])


def is_union(whole: Samples | None, parts: Sequence[Samples]) -> bool:
    """Whether these samples are those of the parts, one after the other."""
    if whole is None or len(whole) != sum(map(len, parts)):
        return False
    like = whole.x.shape[1:], whole.preprocess, whole.classes
    if any((part.x.shape[1:], part.preprocess, part.classes) != like for part in parts):
        return False
    cut = [len(part) for part in parts]
    if not torch.equal(torch.cat([part.y for part in parts]), whole.y):
        return False
    return all(equal(part.x, x) for part, x in zip(parts, whole.x.split(cut), strict=True))


def measure(
    model: nn.Module, samples: Samples, task: Task, device: torch.device | str = "cpu"
) -> dict[str, float | None]:
    """Every metric of the model on these samples; None for each where there are none."""
    return task.metrics(predictions(model, samples, task, device), samples.y)
