"""Where clients' stores are: the setting, and the place that is chosen by it: memory, a folder or a URL."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import weakref
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from mutua.federation.commit_files import CommitFiles, commit_files
from mutua.support.configuration import Spec
from mutua.support.processes import memory

SHARE_OF_MEMORY = 4
"""Stores go to disk if all of them together would take more than one part in so many of the memory."""


def _known_place(place: str) -> str:
    if place not in ("auto", "memory", "disk") and "://" not in place:
        raise ValueError(f"'{place}'; give auto, memory, disk or a URL such as s3://bucket/folder")
    return place


class StoreSettings(Spec):
    """Where clients' private stores are, and how many of them a worker keeps open."""

    place: Annotated[str, AfterValidator(_known_place)] = "auto"
    cache: int = Field(4, ge=0)


def _named_place(given: object) -> object:
    return {"place": given} if isinstance(given, str) else given


StoresSection = Annotated[StoreSettings, BeforeValidator(_named_place)]
"""In a recipe, `stores: disk` is short for {place: disk}."""


def chosen_place(settings: StoreSettings, store_bytes: int) -> str | None:
    """Where the stores go, which take about so many bytes: None is memory, "disk", or a URL of this run's own."""
    if settings.place == "auto":
        return "disk" if store_bytes > memory() / SHARE_OF_MEMORY else None
    if "://" in settings.place:
        return f"{settings.place.rstrip('/')}/{uuid.uuid4().hex[:12]}"
    return None if settings.place == "memory" else settings.place


def temporary_files(settings: StoreSettings, store_bytes: int) -> CommitFiles | None:
    """The files of a run without a folder; they are removed when nothing refers to them, at the latest on exit."""
    place = chosen_place(settings, store_bytes)
    if place is None:
        return None
    if place != "disk":
        return commit_files(place, settings.cache)
    folder = tempfile.mkdtemp(prefix="mutua-stores-")
    made = commit_files(folder, settings.cache)
    weakref.finalize(made, _remove_folder, folder, os.getpid())
    return made


def _remove_folder(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker inherits this too
        shutil.rmtree(folder, ignore_errors=True)
