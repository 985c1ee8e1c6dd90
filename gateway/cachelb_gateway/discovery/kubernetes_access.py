"""Access to the API server of Kubernetes: address, credentials, lists and watches over plain HTTP.

Libraries that were evaluated in its place: lightkube 1.0.1 bounds no line of a watch and requests no bookmarks; kr8s
0.20.15 begins a watch that is too old again at the same version; kubernetes_asyncio 36.1.0 sets no time limit for a
list, and lists and watches through it took ten lines more. Selection, the new list after 410 and the backoff stay with
each.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from cachelb.sources.http import PageError, metrics_address
from cachelb_gateway.discovery.addresses import DiscoveryError

if TYPE_CHECKING:
    from cachelb.sources.pages import PageClient

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MOST_OBJECT_BYTES: Final = 4 * 1024 * 1024
"""More than etcd stores of one object."""

MOST_PAGES: Final = 64
_OK: Final = 200
_GONE: Final = 410
_PAGE_ITEMS: Final = 250
_LIST_S: Final = 30.0
_WATCH_S: Final = 290
_LONGEST_FILE: Final = 1 << 16
_LONGEST_VERSION: Final = 256


class GoneError(Exception):
    """The version to continue from is too old: 410."""


class ClusterAccess:
    """Reads lists and watches. Token and certificates are read again for each, as they are replaced while it runs.

    Without `api_url` it is that of the cluster that this process runs in.
    """

    def __init__(self, api_url: str | None, token_file: str | None, ca_file: str | None) -> None:
        self._api_url = api_url
        inside = api_url is None
        self._token_file = str(ACCOUNT / "token") if inside and token_file is None else token_file
        self._ca_file = str(ACCOUNT / "ca.crt") if inside and ca_file is None else ca_file

    def check(self) -> None:
        """Raise `ValueError` where there is no address."""
        self._server()

    async def list(self, path: str, query: dict[str, str]) -> tuple[list[Any], str]:
        """Return all objects, and the version of the list."""
        items: list[Any] = []
        more = ""
        for _ in range(MOST_PAGES):
            asked = {**query, "limit": str(_PAGE_ITEMS), **({"continue": more} if more else {})}
            async with asyncio.timeout(_LIST_S), self._client(path, asked) as client:
                status, body = await client.ask()
            if status == _GONE:
                raise GoneError
            if status != _OK:
                raise DiscoveryError(f"HTTP {status}")
            page = _object(body)
            found, meta = page.get("items"), page.get("metadata")
            if not isinstance(found, list | None) or not isinstance(meta, dict):
                raise DiscoveryError("not a list of Kubernetes")
            items += found or ()
            more = str(meta.get("continue") or "")
            if not more:
                return items, version_of(page)
        raise DiscoveryError(f"a list of more than {MOST_PAGES} pages")

    async def watch(self, path: str, query: dict[str, str], version: str) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        """Return changes after a version: their types and objects. It ends when the server ends it."""
        asked = {
            **query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        }
        try:
            async with self._client(path, asked) as client, aclosing(client.lines(MOST_OBJECT_BYTES)) as lines:
                async for line in lines:
                    if line.strip():
                        yield _event(line)
        except PageError as error:
            if str(error) == "HTTP 410":
                raise GoneError from None
            if str(error) == "line too long":  # it would come again
                raise DiscoveryError(str(error)) from None
            raise

    def _server(self) -> str:
        if self._api_url is not None:
            return self._api_url.rstrip("/")
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host or not port:
            raise ValueError("not in a pod, as KUBERNETES_SERVICE_HOST is not set: give api_url")
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    def _client(self, path: str, query: dict[str, str]) -> PageClient:
        from cachelb.sources.pages import PageClient

        server = self._server()
        headers = {"Accept": "application/json"}
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {_read(self._token_file)}"
        tls = None
        if server.startswith("https:") and self._ca_file is not None:
            try:
                tls = ssl.create_default_context(cafile=self._ca_file)
            except (OSError, ssl.SSLError) as error:
                raise DiscoveryError(f"no certificates in {self._ca_file}: {type(error).__name__}") from error
        return PageClient(metrics_address(f"{server}{path}?{urlencode(query)}", headers), tls)


def _event(line: bytes) -> tuple[str, dict[str, Any]]:
    """Read a change."""
    event = _object(line)
    kind, changed = event.get("type"), event.get("object")
    if not isinstance(kind, str) or not isinstance(changed, dict):
        raise DiscoveryError("not an event of a watch")
    if kind == "ERROR":
        code = changed.get("code")
        if code == _GONE:
            raise GoneError
        raise DiscoveryError(f"the watch ends with error {code}" if isinstance(code, int) else "the watch ends")
    return kind, changed


def check_url(url: str, *, has_token: bool) -> None:
    """Refuse what is no URL of an API server; a token is sent over TLS only."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username is not None:
        raise ValueError("api_url must be http://host:port or https://host:port, without credentials")
    if has_token and parts.scheme == "http":
        raise ValueError("token_file needs an api_url of https://, which keeps the token from others")


def own_namespace() -> str:
    """Return the namespace of this pod."""
    return _read(str(ACCOUNT / "namespace"))


def version_of(item: dict[str, Any]) -> str:
    """Return the version of an object or a list."""
    meta = item.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, dict) else None
    if not isinstance(version, str) or not 0 < len(version) <= _LONGEST_VERSION:
        raise DiscoveryError("an object without a resourceVersion")
    return version


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise DiscoveryError("not JSON") from None
    if not isinstance(found, dict):
        raise DiscoveryError("not a JSON object")
    return found


def _read(path: str) -> str:
    """Read a small file of one line; its content may be secret."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LONGEST_FILE + 1)
        text = content.decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DiscoveryError(f"cannot read {path}: {type(error).__name__}") from error
    if not text or len(content) > _LONGEST_FILE or not text.isprintable():
        raise DiscoveryError(f"cannot use {path}: it must hold one line")
    return text
