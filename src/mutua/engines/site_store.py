"""A site's store: commits in files that outlive its process, and a list that says which of them count.

FOLDER/commits.json                               the last two commits: names, lengths, checksums
FOLDER/clients/ID/ROUND-CHECKSUM.safetensors      what was kept after that round's work, and the reply to it
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutua.errors import RunError
from mutua.federation.commit_files import CommitFiles, FiledCommit, FileFacts, sha256_of
from mutua.federation.message import Message
from mutua.federation.store import State, Store
from mutua.support import files, safe_reading


@dataclass
class SiteStore(Store):
    """A client's last two commits, safe on the disk before a reply is given out."""

    folder: Path = field(default_factory=Path)
    client: str = ""

    def __post_init__(self) -> None:
        held = CommitFiles(str(self.folder), cache=2)
        self.files = held.of(self.client)
        self.commits = [self._found(told, held) for told in self._listed()]

    def commit(
        self, round: int, state: State, reply: Message | None, terms: dict[str, float] | None = None
    ) -> None:
        """Keep state and reply together; when this returns, both are on the disk."""
        super().commit(round, state, reply, terms)
        self._save()

    def back_to(self, round: int) -> None:
        """Forget the work of later rounds."""
        super().back_to(round)
        self._save()

    def _save(self) -> None:
        told = []
        for commit in self.commits:
            assert isinstance(commit, FiledCommit)
            name, size, checksum = commit.facts
            path = commit.files.path(self.client, name)
            for made in (path, path.parent, path.parent.parent):
                files.sync(made)
            terms = {term: repr(value) for term, value in commit.terms.items()}
            told.append(
                {
                    "round": commit.round,
                    "file": name,
                    "bytes": size,
                    "sha256": checksum,
                    "terms": terms,
                    "keeps": commit.keeps,
                    "replied": commit.replied,
                }
            )
        files.write_file(self._list, json.dumps(told, indent=1) + "\n")
        named = {commit["file"] for commit in told}
        for path in self._list.parent.glob(f"clients/{self.client}/*"):
            if path.stem not in named:
                path.unlink(missing_ok=True)

    def _listed(self) -> list[dict[str, Any]]:
        if not self._list.is_file():
            return []
        try:
            found = safe_reading.from_json(safe_reading.read_text(self._list))
        except (OSError, ValueError) as error:
            raise RunError(f"{self._list} cannot be read ({files.reason(error)}); {_WAY_OUT}") from None
        return found if isinstance(found, list) else []

    def _found(self, told: dict[str, Any], held: CommitFiles) -> FiledCommit:
        try:
            facts = FileFacts(str(told["file"]), int(told["bytes"]), str(told["sha256"]))
            terms = {str(term): float(value) for term, value in told["terms"].items()}
            given = int(told["round"]), terms, bool(told["keeps"]), bool(told["replied"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RunError(f"{self._list} is damaged; {_WAY_OUT}") from None
        path = held.path(self.client, facts.name)
        if not path.is_file() or sha256_of([path.read_bytes()]) != facts.sha256:
            raise RunError(f"{path} is damaged or missing; {_WAY_OUT}")
        return FiledCommit(*given, self.client, facts, held)

    @property
    def _list(self) -> Path:
        return self.folder / "commits.json"


_WAY_OUT = "put it back from a backup, or remove the run's folder to begin this run again"
