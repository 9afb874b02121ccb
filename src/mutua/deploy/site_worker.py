"""A site's worker: it holds data and models in memory, and answers requests that come over its socket."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from mutua.deploy.flower_processes import end_with_parent
from mutua.deploy.site_folder import SiteFolder
from mutua.engines.site_socket import serve_worker
from mutua.errors import MutuaError
from mutua.support import importing
from mutua.support.processes import use_one_thread

READY = "ready"


def work_at_site(folder: str, place: str, trusted: str) -> None:
    """Load the site, say `ready`, and answer until the process ends. A mistake in the folder is one line."""
    end_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    importing.trust(*filter(None, trusted.split(",")))
    try:
        site = SiteFolder.open(folder).site()
    except MutuaError as error:
        print(f"mutua: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    use_one_thread()
    print(READY, flush=True)
    serve_worker(Path(place), site.answer)


if __name__ == "__main__":
    work_at_site(*sys.argv[1:])
