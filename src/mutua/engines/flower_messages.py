"""Requests and answers as Flower's messages. Nothing here knows of torch.

The body goes as one array of bytes, which Flower sends in pieces; the header goes as text.
"""

from __future__ import annotations

from typing import Any

from mutua.engines.site_requests import BadHeader, SiteAnswer, SiteRequest

HEADER, BODY = "mutua.header", "mutua.body"


def content_of(crossing: SiteRequest | SiteAnswer) -> Any:
    """What Flower sends."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    content = RecordDict({HEADER: ConfigRecord({"header": crossing.header})})
    if crossing.body:
        body = Array(dtype="uint8", shape=(len(crossing.body),), stype="bytes", data=crossing.body)
        content[BODY] = ArrayRecord({"body": body})
    return content


def crossing_in(content: Any) -> tuple[str, bytes]:
    """The header and the body in what Flower has brought; `BadHeader` if it is anything else."""
    try:
        header = content[HEADER]["header"]
        body = content[BODY]["body"].data if BODY in content else b""
    except (KeyError, TypeError, AttributeError):
        raise BadHeader("it holds no header of mutua") from None
    if not isinstance(header, str) or not isinstance(body, bytes):
        raise BadHeader("its header or body is of another type")
    return header, body
