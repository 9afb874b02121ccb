"""Progress bars in a notebook: HTML that is replaced as a run goes on; no widgets, no script."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from rich.progress import TaskID

from mutua.support.text import markup

_PAUSE = 0.2
"""Seconds between two updates: each is a message to the browser, and is kept in the notebook's file."""


@dataclass
class _Bar:
    description: str
    total: float | None
    completed: float = 0
    visible: bool = True
    fields: dict[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """One row: what is done, how far, and the newest numbers."""
        label = markup(self.description)
        known = f' max="{self.total:g}" value="{self.completed:g}"' if self.total else ""
        said = " · ".join(markup(text) for text in self.fields.values() if text)
        return f'<div>{label} <progress{known} aria-label="{label}"></progress> {said}</div>'


class NotebookBars:
    """What `ProgressBar` needs of rich's bars, shown below the cell that runs."""

    def __init__(self) -> None:
        self.bars: dict[TaskID, _Bar] = {}
        self._display = import_module("IPython.display")
        self._handle: Any = None
        self._shown_at = 0.0

    def add_task(self, description: str, total: float | None = 100.0, **fields: Any) -> TaskID:
        """Begin a bar; without a total it says only that something is done."""
        task = TaskID(max(self.bars, default=-1) + 1)
        self.bars[task] = _Bar(description, total, fields=fields)
        self._show()
        return task

    def update(
        self,
        task_id: TaskID,
        *,
        total: float | None = None,
        completed: float | None = None,
        visible: bool | None = None,
        **fields: Any,
    ) -> None:
        """Change what is given."""
        bar = self.bars[task_id]
        bar.total = bar.total if total is None else total
        bar.completed = bar.completed if completed is None else completed
        bar.visible = bar.visible if visible is None else visible
        bar.fields |= fields
        if bar.completed == bar.total or time.monotonic() - self._shown_at >= _PAUSE:
            self._show()

    def remove_task(self, task_id: TaskID) -> None:
        """Take a bar away."""
        del self.bars[task_id]
        self._show()

    def stop(self) -> None:
        """Show how far it came."""
        self._show()

    def _show(self) -> None:
        page = self._display.HTML("".join(bar.html() for bar in self.bars.values() if bar.visible))
        self._shown_at = time.monotonic()
        if self._handle is None:
            self._handle = self._display.display(page, display_id=True)
        else:
            self._handle.update(page)
