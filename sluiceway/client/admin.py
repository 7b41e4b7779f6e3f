"""Requests to the admin port of a broker over HTTP, with calls that block: enough for the command line."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

from sluiceway.client.errors import CannotConnectError, ClientError, NotSluicewayError

ASK_SECONDS: Final = 15.0
ACT_SECONDS: Final = 75.0
"""Longer than `request_seconds` of [admin] lets an action take."""


class AdminError(ClientError):
    """The broker refused what was asked of its admin port."""

    def __init__(self, status: int, code: str, message: str, remedy: str) -> None:
        super().__init__(f"{message}\n{remedy}" if remedy else message)
        self.status = status
        self.code = code


class AdminLink:
    """The admin port of one broker. Each request is a connection of its own."""

    def __init__(
        self, url: str, *, login: str | None = None, passcode: str | None = None, ca: str | None = None
    ) -> None:
        """`url`: http://[LOGIN:PASSCODE@]HOST[:PORT]. Raises ValueError."""
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError(f"{url!r}: write http://HOST:PORT or https://HOST:PORT, the address of the admin port")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        login = login or (parts.username and urllib.parse.unquote(parts.username))
        passcode = passcode or (parts.password and urllib.parse.unquote(parts.password))
        self._headers = {"Accept": "application/json"}
        if login:
            pair = base64.b64encode(f"{login}:{passcode or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"
        elif passcode:  # a token of [[security.oauth]]
            self._headers["Authorization"] = f"Bearer {passcode}"
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if parts.scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca)))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, path: str, **query: str | int) -> dict[str, Any]:
        """GET of the API. Raises AdminError, CannotConnectError, NotSluicewayError."""
        return self._request("GET", f"{path}?{urllib.parse.urlencode(query)}" if query else path, None, ASK_SECONDS)

    def act(self, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Do something. Raises as `ask`."""
        token = self.ask("session").get("csrf") or ""
        return self._request("POST", f"actions/{name}", {"X-Sluiceway-CSRF": str(token)}, ACT_SECONDS, body)

    def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None,
        timeout_seconds: float,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", data, method=method)
        for name, value in {**self._headers, **(headers or {})}.items():
            request.add_header(name, value)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with self._opener.open(request, timeout=timeout_seconds) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(error.code, error.read()) from None
        except http.client.HTTPException:
            raise NotSluicewayError(f"{self.url} does not answer in HTTP") from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise CannotConnectError(f"no answer from the admin port at {self.url}: {reason}") from None
        found = _read(text)
        if found is None:
            raise NotSluicewayError(f"{self.url} does not answer as the admin port of Sluiceway")
        return found


def _read(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _refused(status: int, text: bytes) -> AdminError | NotSluicewayError:
    said = (_read(text) or {}).get("error")
    if not isinstance(said, dict):
        return NotSluicewayError(f"the answer had status {status}: is it the admin port of Sluiceway?")
    return AdminError(status, *(str(said.get(key, "")) for key in ("code", "message", "remedy")))
