"""A check that keeps a machine without network from waiting for the hub.

Hugging Face's libraries fall back on their cache, or fail, only after half a minute and more of retries, unless
HF_HUB_OFFLINE was set before they were imported. One connection attempt answers the question within two seconds.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from urllib.parse import urlsplit
from urllib.request import getproxies

TIMEOUT_S = 2.0


@contextmanager
def offline_unless_reachable(*settings: ModuleType) -> Iterator[None]:
    """Set HF_HUB_OFFLINE of each module, within the context, if the hub does not answer: then the cache or an error."""
    before = [module.HF_HUB_OFFLINE for module in settings]
    offline = any(before) or not _reachable()
    try:
        for module in settings:
            module.__dict__["HF_HUB_OFFLINE"] = offline
        yield
    finally:
        for module, value in zip(settings, before, strict=True):
            module.__dict__["HF_HUB_OFFLINE"] = value


def _reachable() -> bool:
    if getproxies():  # only the proxy can tell
        return True
    url = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        socket.create_connection((url.hostname, url.port or (80 if url.scheme == "http" else 443)), TIMEOUT_S).close()
    except OSError:
        return False
    return True
