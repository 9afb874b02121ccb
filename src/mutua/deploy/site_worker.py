"""A site's worker: it holds data and models in memory, and answers requests that come over its socket."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from mutua.deploy.flower_processes import end_with_parent
from mutua.deploy.site_folder import SiteFolder
from mutua.engines.site import Site
from mutua.engines.site_requests import SiteAnswer, SiteRequest
from mutua.engines.site_socket import serve_worker
from mutua.errors import MutuaError
from mutua.support import importing
from mutua.support.processes import use_one_thread

READY, SITE_WRONG = "ready", "wrong: "
NOT_READY = "its data, model or settings are wrong; its own terminal says what"
"""All that leaves of a mistake in a site's folder."""


class LoadedSite:
    """A site that answers once its folder is right; until then it refuses, and looks again when it is asked."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._site: Site | None = None

    def load(self) -> str:
        """Load the site, if it is not; what is wrong with its folder, or nothing."""
        if self._site is None:
            try:
                self._site = SiteFolder.open(self.folder).site()
            except MutuaError as error:
                return str(error)
        return ""

    def answer(self, request: SiteRequest) -> SiteAnswer:
        """The site's answer."""
        if wrong := self.load():
            logging.getLogger("mutua.site").warning("%s", wrong)
        return SiteAnswer("refused", NOT_READY) if self._site is None else self._site.answer(request)


def work_at_site(folder: str, place: str, trusted: str) -> None:
    """Load the site, say `ready` or what is wrong, and answer until the process ends."""
    end_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    importing.trust(*filter(None, trusted.split(",")))
    site = LoadedSite(folder)
    wrong = site.load()
    use_one_thread()
    print(f"{SITE_WRONG}{wrong}" if wrong else READY, flush=True)
    serve_worker(Path(place), site.answer)


if __name__ == "__main__":
    work_at_site(*sys.argv[1:])
