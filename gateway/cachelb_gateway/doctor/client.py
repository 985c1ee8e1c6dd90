"""Asking one worker over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from cachelb.sources.http import PageError, metrics_address

OK: Final = 200
NOT_FOUND: Final = 404
_DENIED: Final = (401, 403)


class AskError(Exception):
    """A worker did not answer as it should; the text describes how, without anything that was sent.

    Args:
        seen: The failure.
        status: Status of the answer, 0 if there was none.
    """

    def __init__(self, seen: str, status: int = 0) -> None:
        super().__init__(seen)
        self.status = status


class WorkerClient:
    """Sends requests to a worker, each over a connection of its own.

    Args:
        url: URL of the worker, with or without the path of the API.
        api_key: Key to send along.
        timeout_s: Seconds an answer may take.

    Raises:
        ModuleNotFoundError: aiohttp is not installed.
        ValueError: The URL is none.
    """

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float) -> None:
        self._url = url if "://" in url else f"http://{url}"
        self._headers = {"Accept": "*/*"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        self._timeout_s = timeout_s
        metrics_address(self._url, self._headers, page="/health")

    async def text(self, page: str) -> str:
        """Fetch a page.

        Args:
            page: Its path.

        Returns:
            The body.

        Raises:
            AskError: There is no such page, or no answer.
        """
        return (await self._ask(page, None, {})).decode(errors="replace")

    async def json(self, page: str) -> Any:  # noqa: ANN401 - checked by its readers
        """Fetch a page of JSON.

        Args:
            page: Its path.

        Returns:
            The parsed JSON.

        Raises:
            AskError: There is no such page, it is no JSON, or there is no answer.
        """
        return _parsed(await self._ask(page, None, {}))

    async def post(self, page: str, body: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401 - as above
        """Send JSON.

        Args:
            page: Path of the page.
            body: The body to send.
            headers: Headers to send along.

        Returns:
            The JSON it answers.

        Raises:
            AskError: The answer is an error or no JSON, or there is none.
        """
        return _parsed(await self._ask(page, json.dumps(body).encode(), headers or {}))

    async def _ask(self, page: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        from cachelb.sources.pages import PageClient

        address = metrics_address(self._url, {**self._headers, **headers}, page=page, body=body)
        try:
            async with PageClient(address, None) as client, asyncio.timeout(self._timeout_s):
                status, answer = await client.ask()
        except TimeoutError:
            raise AskError(f"{page} gives no answer within {self._timeout_s:g} s") from None
        except PageError as error:
            raise AskError(f"{page}: {error}") from None
        except OSError as error:
            raise AskError(f"no connection: {_reason(error)}") from None
        if status in _DENIED:
            raise AskError(f"{page} answers {status}: the key is missing or wrong", status)
        if status != OK:
            raise AskError(f"{page} answers {status}", status)
        return answer


def _reason(error: OSError) -> str:
    return "refused" if isinstance(error, ConnectionRefusedError) else error.strerror or type(error).__name__


def _parsed(body: bytes) -> Any:  # noqa: ANN401 - as above
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise AskError("the answer is not JSON, or nested too deeply", OK) from None
