"""The ASGI app: the checks before every request, and the translation of the table of routes to Starlette's.

In this order: the client's name for the host, its identity, its permission for the route; of an action, its origin and
its token; then query and body, which are checked against the table before a handler sees them. Every answer gets the
headers that keep browsers from interpreting anything in it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import aclosing, contextmanager
from typing import Any, Final

import attrs
import trio
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router

from sluiceway import metrics
from sluiceway.admin.access import Caller
from sluiceway.admin.action_routes import ACTING
from sluiceway.admin.errors import ApiError, bad_request
from sluiceway.admin.openapi import document
from sluiceway.admin.pages import ConsoleFiles, File
from sluiceway.admin.read_routes import LOOKING
from sluiceway.admin.routes import PREFIX, ApiRoute, Call, Door, check_body, let_in, read_query, refuse_stopped
from sluiceway.admin.services import Services
from sluiceway.admin.tables import Row
from sluiceway.config.admin import AdminConfig
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.authorization import Action, Identity
from sluiceway.steps import json_in_steps, read_json

log = get_logger("sluiceway.admin")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

ROUTES: Final[tuple[ApiRoute, ...]] = (*LOOKING, *ACTING)
"""Routes of all JSON requests."""

SECURITY_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
CONSOLE_HEADER: Final = b"x-requested-with"
"""The console sends it: it has a form to log in with. To a challenge the browser would show a window of its own, and
the page would wait for that.
"""
HEALTH_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Paths for probes, which may use any name of the host."""


def make_app(services: Services, config: AdminConfig) -> AdminApp:
    """The whole app."""
    return AdminApp(services, config)


async def answer_apart(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
    """Answer a request with this status, and with the headers that every answer has."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
    elif scope["type"] == "http":  # the app starts and stops without other ASGI events
        await response(scope, receive, _guarded(send))


def _guarded(send: Send) -> Send:
    async def send_guarded(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
        await send(message)

    return send_guarded


class AdminApp:
    """Frame around all routes: an ASGI app."""

    def __init__(self, services: Services, config: AdminConfig) -> None:
        self._services = services
        self.config = config
        """A reload changes it."""
        self._routes = {(route.method, route.path): route for route in ROUTES}
        self._pages = ConsoleFiles()
        self._document = json.dumps(document(ROUTES), separators=(",", ":")).encode()
        router = Router(
            [
                *(Route(route.path, self._endpoint(route), methods=[route.method]) for route in ROUTES),
                Route(f"{PREFIX}/openapi.json", self._openapi),
                Route("/metrics", self._metrics),
                Route("/", self._index),
                Route("/static/{name:path}", self._static),
            ],
            redirect_slashes=False,
        )
        # Not the whole of Starlette: its last resort would answer before this one does.
        self._app = ExceptionMiddleware(router, handlers={HTTPException: _not_served})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            return  # the app starts and stops without it
        has_begun = False

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
            await send(message)

        scope["app"] = self  # so that an unknown path is told by an exception
        try:
            if scope["path"] not in HEALTH_PATHS and not (scope["path"] == "/metrics" and self.config.metrics_open):
                self._services.access.check_host(_header(scope, b"host"))
            await self._app(scope, receive, send_guarded)
        except ApiError as error:
            if _header(scope, CONSOLE_HEADER) is not None:
                error.headers = {name: value for name, value in error.headers.items() if name != "WWW-Authenticate"}
            await _answer_error(error)(scope, receive, send_guarded)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # no client is left to be answered
        except Exception as error:  # noqa: BLE001 - the outermost shell of one request
            fault_id = secrets.token_hex(4)
            log.error("internal error", fault=fault_id, method=scope["method"], path=scope["path"][:200])
            error.add_note(f"raised by the HTTP request with the fault {fault_id}")
            self._services.broker.faults.contain(error)
            if has_begun:
                raise ConnectionError(f"the answer was cut: fault {fault_id}") from None
            said = ApiError(
                500,
                "internal-error",
                f"the broker made a mistake with this request (fault {fault_id})",
                "This is a bug of the broker; its log has the details under that id. Please report it.",
            )
            await _answer_error(said)(scope, receive, send_guarded)

    # ------------------------------------------------------------------ the routes of the table

    def _endpoint(self, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            refuse_stopped(self._services.broker.is_closed and route.path not in HEALTH_PATHS)
            peer = _peer_of(request)
            scheme: str = request.scope["scheme"]
            caller = await self._services.access.caller(request.headers, request.cookies, peer)
            query = read_query(route, request.query_params)
            call = Call(
                services=self._services,
                caller=caller,
                query=query,
                body={},
                peer=peer,
                secure=scheme == "https" or self._services.access.is_proxied(request.headers),
            )
            let_in(call, route)
            if route.method == "POST":
                access = self._services.access
                access.check_origin(request.headers, scheme)
                if route.csrf:
                    access.check_csrf(caller, request.headers)
                assert route.body is not None, "every action says what it needs"
                call = attrs.evolve(call, body=check_body(await self._body(request), route.body))
                if route.door is Door.ADMIN_OF:
                    let_in(call, route)
            with self._time_limit():
                together = self._services.together
                answer = await (route.handler(call) if together is None else together.answer(route, call))
                data = await self._services.pace.run(json_in_steps(answer))
            headers = {"Cache-Control": "no-store", **call.reply.headers}
            return Response(data, call.reply.status, headers, "application/json")

        return endpoint

    async def answer_hub(self, facts: Mapping[str, Any], body: Mapping[str, Any]) -> tuple[int, Row]:
        """Answer a request that has come to another hub, which knows the caller. Raises ApiError."""
        route = self._routes.get((facts["method"], facts["path"]))
        if route is None:
            raise ApiError(404, "not-found", f"{facts['path']} is not known", "Run the same version on all hubs.")
        identity = Identity(facts["user"], frozenset(facts["groups"]))
        call = Call(
            services=self._services,
            caller=Caller(identity, facts["way"]),
            query=facts["query"],
            body=body,
            peer=facts["peer"],
            secure=facts["secure"],
            together=facts["together"],
        )
        let_in(call, route)
        with self._time_limit():
            row = await route.handler(call)
        return call.reply.status, row

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        """Limit the time of an answer. Raises ApiError."""
        try:
            with trio.fail_after(self.config.request_seconds):
                yield
        except trio.TooSlowError:
            raise ApiError(
                503,
                "too-slow",
                f"it took longer than {self.config.request_seconds:g} seconds (request_seconds)",
                "Ask for less at a time; what an action has done by now stays done.",
            ) from None

    async def _body(self, request: Request) -> Any:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise ApiError(
                415, "not-json", "the body must be JSON", "Send Content-Type: application/json and a JSON object."
            )
        bytes_max = self.config.body_bytes_max
        too_large = ApiError(
            413,
            "too-large",
            f"the body is larger than {bytes_max} bytes",
            "Send less at a time, or raise body_bytes_max.",
            headers={"Connection": "close"},
        )
        length = request.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length[:19]) > bytes_max:
            raise too_large
        body = bytearray()
        keep = self._services.broker.manager.keep
        try:
            with trio.fail_after(self.config.client_seconds):
                async with aclosing(request.stream()) as chunks:
                    async for chunk in chunks:
                        body += chunk
                        keep(len(chunk))
                        if len(body) > bytes_max:
                            raise too_large
        except ClientDisconnect:
            raise ApiError(400, "cut-off", "the body did not come whole", "Send all of it.") from None
        except trio.TooSlowError:
            raise ApiError(
                408, "too-slow", "the body did not come in time", "Send it faster.", headers={"Connection": "close"}
            ) from None
        finally:
            keep(-len(body))
        try:
            return read_json(body)
        except ValueError as error:
            raise bad_request(f"the body is no JSON: {error}", "Send a JSON object.") from None

    # ------------------------------------------------------------------ others

    async def _openapi(self, _request: Request) -> Response:
        return Response(self._document, media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        access, broker = self._services.access, self._services.broker
        refuse_stopped(broker.is_closed)
        if not self.config.metrics_open:
            access.require(await access.caller(request.headers, request.cookies, _peer_of(request)), Action.ADMIN)
        openmetrics = metrics.wants_openmetrics(request.headers.get("accept", ""))
        with self._time_limit():
            together = self._services.together
            data = await (broker.metrics_page if together is None else together.metrics_page)(openmetrics=openmetrics)
        kind = metrics.OPENMETRICS if openmetrics else metrics.TEXT
        return Response(data, headers={"Cache-Control": "no-store", "Content-Type": kind})

    async def _index(self, request: Request) -> Response:
        return _sent(self._pages.index, request)

    async def _static(self, request: Request) -> Response:
        found = self._pages.get(request.path_params["name"])
        if found is None:
            raise ApiError(404, "not-found", "the console has no such file", "Load the page again.")
        return _sent(found, request)


def _sent(file: File, request: Request) -> Response:
    """A file, or that it has not changed."""
    headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.data, headers={**headers, "Content-Type": file.content_type})


def _answer_error(error: ApiError) -> Response:
    return Response(
        json.dumps(error.to_dict()).encode(),
        error.status,
        {"Cache-Control": "no-store", **error.headers},
        "application/json",
    )


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is for those"
    if error.status_code == 405:
        said = ApiError(
            405, "wrong-method", f"{request.method[:20]} is not for this", "Look at /api/v1/openapi.json.",
            headers=dict(error.headers or {}),
        )  # fmt: skip
    else:
        said = ApiError(error.status_code, "not-found", "there is nothing here", "Look at /api/v1/openapi.json.")
    return _answer_error(said)


def _peer_of(request: Request) -> str:
    client = request.client
    if client is None:
        return "unknown:0"
    return f"[{client.host}]:{client.port}" if ":" in client.host else f"{client.host}:{client.port}"


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key.lower() == name:
            return str(value, "latin-1")
    return None
