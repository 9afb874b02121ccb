"""Flower's ClientApp at a site: it hands every message to the site's worker, and does nothing else.

Flower starts a process for every message. Here torch is not imported, so that it is up quickly.
"""

from __future__ import annotations

import os
import time

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from mutua.engines.flower_messages import content_of, crossing_in
from mutua.engines.site_requests import BadHeader, SiteAnswer, SiteRequest
from mutua.engines.site_socket import SOCKET_VARIABLE, NoWorker, ask_worker

_PATIENCE = 60.0
"""Seconds for a worker that is being started again."""

app = ClientApp()


@app.query()  # type: ignore[untyped-decorator]
def answer(message: Message, context: Context) -> Message:
    """The worker's answer to a request."""
    try:
        made = _answered(SiteRequest.of(*crossing_in(message.content)))
    except BadHeader as error:
        made = SiteAnswer("refused", str(error))
    return Message(content_of(made), reply_to=message)


def _answered(request: SiteRequest) -> SiteAnswer:
    """Asked again, the worker answers from its commit: nothing is lost if it dies in between."""
    place, until = os.environ.get(SOCKET_VARIABLE, ""), time.monotonic() + _PATIENCE
    while True:
        try:
            return ask_worker(place, request)
        except NoWorker as error:
            if time.monotonic() > until:
                return SiteAnswer("failed", f"the site's worker does not answer ({error})"[:200])
            time.sleep(0.5)
