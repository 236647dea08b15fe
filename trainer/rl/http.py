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
    """``status`` is 0 where no answer came."""

    def __init__(self, said: str, status: int = 0) -> None:
        super().__init__(said)
        self.status = status


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
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), headers, method="POST"
        )
        try:
            with self._opener.open(request, timeout=self.timeout) as answer:
                content = answer.read(MOST)
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode(errors="replace").strip()
            raise HTTPError(f"{path} answered {error.code}: {said}", error.code) from error
        except (OSError, HTTPException) as error:
            why = getattr(error, "reason", error)
            raise HTTPError(f"{path} gave no answer: {why}") from error
        try:
            return json.loads(content) if content.strip() else None
        except ValueError as error:
            raise HTTPError(f"{path} answered something other than JSON", 200) from error
