"""The table of all that can be asked of the admin port.

The app, the OpenAPI document and the guide's reference are made of it, so none of them can drift from the others.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from sluiceway.admin.errors import ApiError, bad_request
from sluiceway.admin.reach import Reach, Together
from sluiceway.admin.schema import Schema
from sluiceway.admin.tables import LIMIT_DEFAULT, LIMIT_MAX, OFFSET_MAX, PageRequest, Row
from sluiceway.protocols.stomp.authorization import Action

if TYPE_CHECKING:
    from sluiceway.admin.access import Caller
    from sluiceway.admin.services import Services

PREFIX: Final = "/api/v1"
TEXT_LENGTH_MAX: Final = 4096
"""Maximum length of one query parameter, in characters."""


class Door(enum.Enum):
    """Callers that a route admits; a route about one destination checks once more."""

    OPEN = "everyone"
    KNOWN = "logged in"
    ADMIN = "`admin` on the broker"
    BROWSE = "`browse` on the destination"
    ADMIN_OF = "`admin` on the destination"


@attrs.frozen(slots=True)
class Parameter:
    """Parameter of the query."""

    name: str
    doc: str
    kind: str = "text"
    """"text" or "count"."""
    default: str | int | None = None
    """None: it must be there, or (`optional`) need not."""
    optional: bool = False
    least: int = 0
    most: int = OFFSET_MAX

    def read(self, query: Mapping[str, str]) -> Any:
        """Return the value. Raises ApiError."""
        text = query.get(self.name)
        if text is None:
            if self.default is None and not self.optional:
                raise bad_request(f"the request needs the query parameter {self.name}", self.doc)
            return self.default
        if len(text) > TEXT_LENGTH_MAX:
            raise bad_request(f"{self.name} is longer than {TEXT_LENGTH_MAX} characters")
        if self.kind == "text":
            return text
        if not (text.isascii() and text.isdigit() and len(text) < 10 and self.least <= int(text) <= self.most):
            raise bad_request(f"{self.name} must be a whole number from {self.least} to {self.most}")
        return int(text)


@attrs.define(slots=True)
class Reply:
    """Status and headers of an answer, beside its body."""

    status: int = 200
    headers: dict[str, str] = attrs.field(factory=dict)


@attrs.frozen(slots=True)
class Call:
    """One request, on its way to its handler."""

    services: Services
    caller: Caller
    query: Mapping[str, Any]
    body: Mapping[str, Any]
    peer: str
    """HOST:PORT that it comes from."""
    secure: bool
    """Whether the request came over TLS."""
    reply: Reply = attrs.field(factory=Reply)
    together: bool = False
    """Whether the answer will be put together with those of other hubs."""

    def with_query(self, changes: Mapping[str, Any]) -> Call:
        """Return the same request with other parameters."""
        return attrs.evolve(self, query={**self.query, **changes})

    def for_hubs(self) -> Call:
        """Return the same request, to be answered for other hubs."""
        return attrs.evolve(self, together=True)

    @property
    def page(self) -> PageRequest:
        """Requested page of a list."""
        return PageRequest(self.query["offset"], self.query["limit"], self.query["sort"], self.query["q"])

    def may(self, action: Action, destination: str | None = None) -> bool:
        """Whether the caller may do that."""
        return self.services.access.may(self.caller, action, destination)

    def require(self, action: Action, destination: str | None = None) -> None:
        """Raises ApiError if the caller may not."""
        self.services.access.require(self.caller, action, destination)


Handler = Callable[[Call], Awaitable[Row]]


@attrs.frozen(slots=True)
class ApiRoute:
    """One thing to ask."""

    path: str
    summary: str
    door: Door
    handler: Handler
    answer: Schema
    method: str = "GET"
    doc: str = ""
    query: tuple[Parameter, ...] = ()
    body: Schema | None = None
    statuses: tuple[int, ...] = ()
    """Statuses other than 200 that are no errors."""
    reach: Reach | Together = Reach.HERE
    csrf: bool = True
    """An action: it must come with the token. Not for logging in, which has none yet."""

    @property
    def operation_id(self) -> str:
        """Id of the operation, for programs."""
        words = self.path.removeprefix(PREFIX).strip("/").replace("/", "-").replace(".", "-")
        return f"{self.method.lower()}-{words}"


def let_in(call: Call, route: ApiRoute) -> None:
    """Raises ApiError if the caller may not ask this at all."""
    door = route.door
    if door is Door.ADMIN:
        call.require(Action.ADMIN)
    elif door is Door.BROWSE:
        call.require(Action.BROWSE, call.query["name"])
    elif door is Door.KNOWN and not call.caller.is_known:
        call.require(Action.ADMIN)  # names the required permission
    elif door is Door.ADMIN_OF:
        if call.body:
            call.require(Action.ADMIN, str(call.body["name"]))
        elif not call.caller.is_known:
            call.require(Action.ADMIN)  # likewise, before the body is read


PAGING: Final = (
    Parameter("offset", "How many to skip.", "count", 0),
    Parameter("limit", "How many to show at most.", "count", LIMIT_DEFAULT, least=1, most=LIMIT_MAX),
    Parameter("sort", "A field to sort by; with a minus before it the largest come first.", "text", ""),
    Parameter("q", "Only those with this in their name, in whatever case.", "text", ""),
)
NAME: Final = Parameter("name", "The full name of a destination, such as /queue/orders.")


def read_query(route: ApiRoute, query: Mapping[str, str]) -> dict[str, Any]:
    """Parse the parameters of a request; the API refuses a parameter that the route does not know. Raises ApiError."""
    if route.path.startswith(PREFIX):
        known = [parameter.name for parameter in route.query]
        for name in query:
            if name not in known:
                raise bad_request(
                    f"the request has an unknown query parameter {name[:40]!r}",
                    f"Known: {', '.join(known)}." if known else "It takes none.",
                )
    return {parameter.name: parameter.read(query) for parameter in route.query}


def check_body(body: Any, schema: Schema, where: str = "") -> Mapping[str, Any]:
    """Check a request's body against its schema: the part of JSON Schema that the routes use. Raises ApiError."""
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    known = schema["properties"]
    for name in schema["required"]:
        if name not in body:
            raise bad_request(f"the body needs {where}{name!r}", f"Known: {', '.join(known)}.")
    for name, value in body.items():
        if name not in known:
            raise bad_request(f"the body has an unknown {where}{str(name)[:40]!r}", f"Known: {', '.join(known)}.")
        _check_value(value, known[name], name)
    return body


def _check_value(value: Any, schema: Schema, name: str) -> None:
    kind = schema.get("type")
    fits = {
        "string": isinstance(value, str),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "boolean": isinstance(value, bool),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
        "null": value is None,
    }
    kinds = [kind] if isinstance(kind, str) else kind or []
    if kinds and not any(fits[each] for each in kinds):
        raise bad_request(f"{name} must be a {' or '.join(kinds)}")
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        raise bad_request(f"{name} is longer than {schema['maxLength']} characters")
    if kind == "number" and not schema.get("minimum", 0) <= value <= schema.get("maximum", float("inf")):
        raise bad_request(f"{name} must be from {schema.get('minimum', 0)} to {schema.get('maximum')}")
    if kind == "array":
        if len(value) > schema.get("maxItems", TEXT_LENGTH_MAX):
            raise bad_request(f"{name} has more than {schema.get('maxItems')} items")
        for item in value:
            _check_value(item, schema["items"], f"an item of {name}")
    if kind == "object":
        if len(value) > schema.get("maxProperties", TEXT_LENGTH_MAX):
            raise bad_request(f"{name} has more than {schema.get('maxProperties')} entries")
        for item in value.values():
            _check_value(item, schema.get("additionalProperties", {}), f"an entry of {name}")


def refuse_stopped(stopping: bool) -> None:
    """A broker that has stopped has nothing to tell. Raises ApiError."""
    if stopping:
        raise ApiError(503, "stopping", "the broker is stopping", "Ask again when it is back.")
