"""Access to the API server of Kubernetes through kubernetes_asyncio: credentials, lists and watches.

Its models refuse an EndpointSlice without endpoints, and the errors of its `Watch` repeat what the server sent, so that
answers are read here.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from cachelb.sources.http import MAX_PAGE_BYTES, PageError
from cachelb_gateway.discovery.addresses import DiscoveryError

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
VERSION: Final = re.compile(r".{1,256}")
_HOST: Final = "KUBERNETES_SERVICE_HOST"


class GoneError(Exception):
    """The version to continue from is too old: 410."""


@dataclass(frozen=True)
class ClusterAccess:
    """Lists and watches the EndpointSlices or the pods of a selector.

    Token and certificates are read again for each request, as they are replaced while it runs. Without `api_url` they
    are those of the pod that this process runs in, or else of a kubeconfig.
    """

    kind: str
    """Of objects: "pod" or "endpoint_slice"."""
    namespace: str | None
    selector: str
    api_url: str | None
    token_file: str | None
    ca_file: str | None

    def check(self) -> None:
        """Raise `ValueError` where there is no address."""
        there = any(Path(each).expanduser().exists() for each in _kubeconfig().split(os.pathsep))
        if self.api_url is None and not os.environ.get(_HOST) and not there:
            raise ValueError(f"not in a pod, as {_HOST} is not set: give api_url, or a kubeconfig")

    async def list(self) -> tuple[list[Any], str]:
        """Return all objects, and the version of the list."""
        items: list[Any] = []
        more = None
        for _ in range(MOST_PAGES):
            answer = self._parts(b"\0", MAX_PAGE_BYTES, limit=_PAGE_ITEMS, _continue=more)  # JSON has no such byte
            async with asyncio.timeout(_LIST_S), aclosing(answer) as parts:
                page = _object(await anext(parts, b""))
            found, meta = page.get("items"), page.get("metadata")
            if not isinstance(found, list | None) or not isinstance(meta, dict):
                raise DiscoveryError("not a list of Kubernetes")
            items += found or ()
            more = meta.get("continue")
            if not more:
                return items, of_metadata(page, "resourceVersion", VERSION)
        raise DiscoveryError(f"a list of more than {MOST_PAGES} pages")

    async def watch(self, version: str) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        """Return changes after a version: their types and objects. It ends when the server ends it."""
        asked = {"watch": True, "allow_watch_bookmarks": True, "timeout_seconds": _WATCH_S}
        async with aclosing(self._parts(b"\n", MOST_OBJECT_BYTES, resource_version=version, **asked)) as lines:
            async for line in lines:
                yield _event(line)

    async def _parts(self, end: bytes, most_bytes: int, **query: Any) -> AsyncGenerator[bytes]:  # noqa: ANN401 - theirs
        """Return the parts of an answer that end with a byte."""
        from aiohttp.http_exceptions import LineTooLong
        from kubernetes_asyncio import client

        from cachelb.sources.pages import plain_errors

        namespace = own_namespace() if self.namespace is None else self.namespace
        configuration = await self._configuration()
        try:
            with plain_errors():
                async with client.ApiClient(configuration) as api:
                    group = client.CoreV1Api(api) if self.kind == "pod" else client.DiscoveryV1Api(api)
                    ask = getattr(group, f"list_namespaced_{self.kind}")
                    answer = await ask(namespace, label_selector=self.selector, _preload_content=False, **query)
                    try:
                        if answer.status != _OK:
                            raise GoneError if answer.status == _GONE else PageError(f"HTTP {answer.status}")
                        while part := await answer.content.readuntil(end, max_size=most_bytes):
                            yield part
                    finally:
                        await api.close()  # aborts; closing the answer first would wait for the server, over TLS
                        answer.close()
        except LineTooLong:  # it would come again
            raise DiscoveryError("line too long") from None

    async def _configuration(self) -> Any:  # noqa: ANN401 - theirs
        from kubernetes_asyncio import client, config

        made = client.Configuration(host=self.api_url and self.api_url.rstrip("/"))
        if self.api_url is not None:
            made.ssl_ca_cert = self.ca_file
            if self.token_file is not None:
                made.api_key["BearerToken"] = f"Bearer {_read(self.token_file)}"
            return made
        is_inside = bool(os.environ.get(_HOST))
        try:
            if is_inside:
                token, certificates = self.token_file or ACCOUNT / "token", self.ca_file or ACCOUNT / "ca.crt"
                config.load_incluster_config(made, token_filename=str(token), cert_filename=str(certificates))
            else:
                await config.load_kube_config(_kubeconfig(), client_configuration=made)
        except Exception as error:  # noqa: BLE001 - of a kubeconfig, the text may hold a secret
            reason = str(error) if is_inside else f"unusable kubeconfig: {type(error).__name__}"
            raise DiscoveryError(reason) from None
        return made


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


def _kubeconfig() -> str:
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


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


def of_metadata(item: dict[str, Any], key: str, form: re.Pattern[str]) -> str:
    """Return the name or the version of an object or a list."""
    meta = item.get("metadata")
    value = meta.get(key) if isinstance(meta, dict) else None
    if not isinstance(value, str) or not form.fullmatch(value):
        raise DiscoveryError(f"an object without a {key}")
    return value


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
