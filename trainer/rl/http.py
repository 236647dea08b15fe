"""JSON over HTTP, by the standard library."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import Any

MOST = 64 << 20  # bytes of an answer


class HTTPError(Exception):
    """``status`` is 0 where no answer came. ``retry_after``: seconds that the server asks for, 0
    where it does not. ``infrastructure``: the answer says that the machinery failed.
    """

    def __init__(
        self, said: str, status: int = 0, retry_after: float = 0.0, infrastructure: bool = False
    ) -> None:
        super().__init__(said)
        self.status = status
        self.retry_after = retry_after
        self.infrastructure = infrastructure


class Client:
    """A server's address, and the token that it wants, if any. The token is in no error."""

    def __init__(self, url: str, token: str = "", timeout: float = 3600.0) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._token = token
        self.timeout = timeout
        here = urllib.parse.urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")
        # A proxy of the machine's reaches others, not this machine.
        handlers = [urllib.request.ProxyHandler({})] if here else []
        self._opener = urllib.request.build_opener(*handlers)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Returns the answer to a POST. It raises HTTPError."""
        return self._ask("POST", path, json.dumps(body).encode(), self.timeout)

    def delete(self, path: str, timeout: float) -> None:
        """Sends a DELETE. It raises HTTPError."""
        self._ask("DELETE", path, None, timeout)

    def _ask(self, method: str, path: str, body: bytes | None, timeout: float) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        try:
            with self._opener.open(request, timeout=timeout) as answer:
                content = answer.read(MOST)
        except urllib.error.HTTPError as error:
            raise _refused(path, error) from error
        except (OSError, HTTPException) as error:
            why = getattr(error, "reason", error)
            raise HTTPError(f"{path} gave no answer: {why}") from error
        try:
            return json.loads(content) if content.strip() else None
        except ValueError as error:
            raise HTTPError(f"{path} answered something other than JSON", 200) from error


def _refused(path: str, error: urllib.error.HTTPError) -> HTTPError:
    try:
        said = error.read(64 << 10).decode(errors="replace").strip()
    except (OSError, HTTPException):  # the way broke after the status line
        said = ""
    try:
        found = json.loads(said)
    except ValueError:
        found = None
    failed = isinstance(found, dict) and found.get("infrastructure") is True
    try:  # a date is not heeded
        after = max(0.0, float(error.headers.get("Retry-After") or 0))
    except ValueError:
        after = 0.0
    return HTTPError(f"{path} answered {error.code}: {said[:2000]}", error.code, after, failed)
