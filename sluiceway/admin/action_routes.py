"""Routes of actions: each checks a permission, destructive ones ask for a confirmation, and each is logged with its
caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from sluiceway.admin import merging, schema
from sluiceway.admin.done import Done
from sluiceway.admin.errors import bad_request, conflict, not_found
from sluiceway.admin.limits import change_limits, configured_limits
from sluiceway.admin.reach import Reach, Together
from sluiceway.admin.read_routes import log_home
from sluiceway.admin.routes import PREFIX, ApiRoute, Call, Door
from sluiceway.admin.schema import Schema
from sluiceway.admin.tables import Row
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.authorization import Action
from sluiceway.protocols.stomp.head import FORGEABLE_HEADERS
from sluiceway.queues.durables import DurableNameError
from sluiceway.queues.policy import LIMITS

IDS_MAX: Final = 5_000
NAME_LENGTH_MAX: Final = 4_096
DRAIN_SECONDS_MAX: Final = 24 * 3600
PUBLISHED_LENGTH_MAX: Final = 262_144
"""Characters of a published body."""
PUBLISHED_HEADERS_MAX: Final = 50
OWN_HEADERS: Final = FORGEABLE_HEADERS | {"destination", "content-length"}
"""Headers that the broker writes, or that belong to a frame of a client."""

log = get_logger("sluiceway.admin")


def _confirmed(call: Call, expected: str, what: str) -> None:
    """Raises ApiError if `confirm` is not that."""
    if call.body["confirm"] != expected:
        raise bad_request(f"confirm must repeat {what}: {expected[:200]!r}", "Guards against slips.")


def _numbers(call: Call) -> frozenset[int] | None:
    """Return the numbers of the messages that the request names; None: all. Raises ApiError."""
    ids = call.body.get("message_ids")
    if (ids is None) == (call.body.get("all") is not True):
        raise bad_request('give "message_ids", or "all": true')
    return None if ids is None else frozenset(call.services.messages.number_of(message_id) for message_id in ids)


async def _pause(call: Call) -> Done:
    return call.services.operations.pause(call.services.state.destination_named(call.body["name"]))


async def _resume(call: Call) -> Done:
    return call.services.operations.resume(call.services.state.destination_named(call.body["name"]))


async def _limit(call: Call) -> Done:
    name, broker = call.body["name"], call.services.broker
    if name.startswith("/log/"):
        raise conflict(
            "not-limited",
            f"{name[:200]} is a log: it is limited by the age and the size of its records",
            "Set log_retention_seconds and log_retention_bytes in [[destinations]], and restart.",
        )
    destination = call.services.state.destination_named(name)
    _confirmed(call, destination.name, "the name")
    limits, is_reset = call.body.get("limits"), call.body.get("configured") is True
    if (limits is None) is not is_reset:
        raise bad_request('give "limits", or "configured": true')
    if limits is None:
        limits = configured_limits(broker.registry, destination)
    return change_limits(broker.registry, broker.memory.budget, destination, limits)


async def _purge(call: Call) -> Done:
    destination = call.services.state.destination_named(call.body["name"])
    _confirmed(call, destination.name, "the name")
    ids = call.body.get("message_ids")
    numbers = None if ids is None else frozenset(map(call.services.messages.number_of, ids))
    return await call.services.operations.purge(destination, numbers)


async def _publish(call: Call) -> Done:
    name = call.services.operations.place(call.body["to"])
    call.require(Action.SEND, name)
    headers = call.body.get("headers", {})
    own = sorted(set(headers) & OWN_HEADERS)
    if own:
        raise bad_request(f"the header {own[0]} is not for a published message", "Leave it out.")
    if (user := call.services.access.stamp(call.caller)) is not None:
        headers = {**headers, "user": user}
    return call.services.operations.publish(name, headers, call.body["body"].encode())


async def _move(call: Call) -> Done:
    call.require(Action.ADMIN, call.body["from"])
    call.require(Action.ADMIN, call.services.operations.place(call.body["to"]))
    destination = call.services.state.destination_named(call.body["from"])
    _confirmed(call, destination.name, "from where")
    return await call.services.operations.move(destination, call.body["to"], _numbers(call))


async def _retry(call: Call) -> Done:
    destination = call.services.state.destination_named(call.body["name"])
    _confirmed(call, destination.name, "the name")

    def may_send(name: str) -> bool:
        return call.may(Action.SEND, name) or call.may(Action.ADMIN, name)

    republish = call.body.get("republish", False)
    return await call.services.operations.retry(destination, _numbers(call), republish=republish, may_send=may_send)


async def _close_connection(call: Call) -> Done:
    _confirmed(call, call.body["session"], "the session")
    return call.services.operations.close_connection(call.body["session"])


async def _seek_group(call: Call) -> Done:
    name = "/log/" + call.body["log"].removeprefix("/log/")
    call.require(Action.ADMIN, name)
    _confirmed(call, call.body["group"], "the group")
    return await call.services.operations.seek_group(name, call.body["group"], call.body["to"], call.caller.identity)


async def _remove_durable(call: Call) -> Done:
    client_id, name = call.body["client_id"], call.body["name"]
    try:
        durable = call.services.broker.registry.durables.find(client_id, name, call.body.get("destination"))
    except DurableNameError as error:
        call.require(Action.ADMIN)
        raise conflict("many-of-this-name", str(error), "Ask for /api/v1/durables.") from None
    if durable is None:
        call.require(Action.ADMIN)  # missing destinations are told only to callers who may see all
        raise not_found(
            f"there is no durable subscription {name[:200]!r} of client {client_id[:200]!r}",
            "Ask for /api/v1/durables.",
        )
    call.require(Action.ADMIN, durable.destination)
    _confirmed(call, durable.name, "the name")
    return await call.services.operations.remove_durable(durable)


async def _drain(call: Call) -> Done:
    _confirmed(call, call.services.broker.config.broker.name, "the broker's name")
    return call.services.operations.drain(call.body.get("seconds"))


async def _move_shard(call: Call) -> Done:
    return await call.services.operations.move_shard(call.body["shard"], call.body["hub"])


async def _drain_hub(call: Call) -> Done:
    return call.services.operations.drain_hub()


async def _resume_hub(call: Call) -> Done:
    return call.services.operations.resume_hub()


async def _reload(call: Call) -> Done:
    return await call.services.operations.reload()


_TEXT: Final[Schema] = {"type": "string", "maxLength": NAME_LENGTH_MAX}
_NAME: Final[dict[str, Schema]] = {"name": _TEXT}
_CONFIRM: Final[dict[str, Schema]] = {"confirm": _TEXT}
_IDS: Final[Schema] = {"type": "array", "items": _TEXT, "maxItems": IDS_MAX}
_WHICH: Final[dict[str, Schema]] = {
    "message_ids": _IDS,
    "all": schema.TRUTH,
}


_NOT_IN_THE_LOG: Final = ("confirm", "message_ids", "body", "headers")


def _told(name: str, action: Callable[[Call], Awaitable[Done]]) -> Callable[[Call], Awaitable[Row]]:
    """The action, with its line in the log."""

    async def handler(call: Call) -> Row:
        about = {key: value for key, value in call.body.items() if key not in _NOT_IN_THE_LOG}
        ids = call.body.get("message_ids")
        if ids is not None:
            about["message_ids_count"] = len(ids)
        who: dict[str, Any] = {"user": call.caller.identity.user, "peer": call.peer}
        try:
            result = await action(call)
        except BaseException:
            log.warning("admin action was not done, or only in part", action=name, about=about, **who)
            raise
        log.info("admin action", action=name, about=about, did=result.done, **who)
        return result.to_dict()

    return handler


def _action(
    name: str,
    summary: str,
    action: Callable[[Call], Awaitable[Done]],
    needs: dict[str, Schema],
    *,
    may: dict[str, Schema] | None = None,
    door: Door = Door.ADMIN,
    doc: str = "",
    reach: Reach | Together,
) -> ApiRoute:
    return ApiRoute(
        f"{PREFIX}/actions/{name}",
        summary,
        door,
        _told(name, action),
        schema.DONE,
        method="POST",
        doc=doc,
        body=schema.strict(needs, optional=may),
        reach=reach,
    )


_AT_HOME: Final = Together(home=lambda call: str(call.body["name"]))
_AT_TARGET: Final = Together(home=lambda call: call.services.operations.place(call.body["to"]))
_AT_SOURCE: Final = Together(home=lambda call: str(call.body["from"]))
_AT_LOG: Final = Together(home=lambda call: log_home(call.body["log"]))


ACTING: Final[tuple[ApiRoute, ...]] = (
    _action(
        "pause",
        "Deliver nothing from a queue or a topic.",
        _pause,
        _NAME,
        door=Door.ADMIN_OF,
        doc="The destination takes messages until it is full; consumers may still acknowledge. A restart ends it.",
        reach=_AT_HOME,
    ),
    _action("resume", "Deliver again.", _resume, _NAME, door=Door.ADMIN_OF, reach=_AT_HOME),
    _action(
        "limit",
        "Change limits of a queue or a topic at run time.",
        _limit,
        {**_NAME, **_CONFIRM},
        may={
            "limits": {
                "type": "object",
                "additionalProperties": {"type": ["integer", "string", "null"]},
                "maxProperties": len(LIMITS),
            },
            "configured": schema.TRUTH,
        },
        door=Door.ADMIN_OF,
        doc="`limits`: `memory_bytes`, `count_max`, `bytes_max` and, of a topic, `lead_bytes`; null: no limit; bytes "
        "may be a text such as `64 MiB`. In force at once, until the broker restarts, or a reload changes the same "
        "limit. `configured`: as the configuration says. Lowering a limit loses nothing. `confirm` repeats the name.",
        reach=_AT_HOME,
    ),
    _action(
        "purge",
        "Drop the present messages of a queue, in memory and on disk.",
        _purge,
        {**_NAME, **_CONFIRM},
        may={"message_ids": _IDS},
        door=Door.ADMIN_OF,
        doc="Messages held by consumers stay with them. `confirm` repeats the name. `message_ids`: only these.",
        reach=_AT_HOME,
    ),
    _action(
        "publish",
        "Put a message with a text into a queue or a topic.",
        _publish,
        {"to": _TEXT, "body": {"type": "string", "maxLength": PUBLISHED_LENGTH_MAX}},
        may={"headers": {"type": "object", "additionalProperties": _TEXT, "maxProperties": PUBLISHED_HEADERS_MAX}},
        door=Door.KNOWN,
        doc="Needs `send` there. A destination without room, or a topic without subscribers, refuses it.",
        reach=_AT_TARGET,
    ),
    _action(
        "move",
        "Move messages of a queue to another destination.",
        _move,
        {"from": _TEXT, "to": _TEXT, **_CONFIRM},
        may=_WHICH,
        door=Door.KNOWN,
        doc="Needs `admin` on both. A message is added there before it is removed here. `confirm` repeats `from`.",
        reach=_AT_SOURCE,
    ),
    _action(
        "retry",
        "Return dead letters to their origins.",
        _retry,
        {**_NAME, **_CONFIRM},
        may={**_WHICH, "republish": schema.TRUTH},
        door=Door.ADMIN_OF,
        doc="`confirm` repeats the name. A message that a subscription of a topic rejected goes to the topic, and "
        "so to all of its subscribers, only with `republish`. Messages are left out if you may "
        "neither `send` to nor `admin` their origin.",
        reach=_AT_HOME,
    ),
    _action(
        "close-connection",
        "Close a connection, with an ERROR.",
        _close_connection,
        {"session": _TEXT, **_CONFIRM},
        doc="Its unacknowledged messages are requeued. `confirm` repeats the session.",
        reach=Reach.SESSION,
    ),
    _action(
        "seek-group",
        "Move a group of a log to another place.",
        _seek_group,
        {"log": _TEXT, "group": _TEXT, "to": _TEXT, **_CONFIRM},
        door=Door.KNOWN,
        doc="`to`: earliest, latest, next, an index, or time:MS. `confirm` repeats the group. Needs `admin` on the "
        "log.",
        reach=_AT_LOG,
    ),
    _action(
        "remove-durable",
        "End a durable subscription, with the messages that only it still needs.",
        _remove_durable,
        {"client_id": _TEXT, **_NAME, **_CONFIRM},
        may={"destination": _TEXT},
        door=Door.KNOWN,
        doc="No consumer may be connected to it. `confirm` repeats the name. `destination`: its topic, where several "
        "have one of this name without a client id. Needs `admin` on its topic.",
        reach=Reach.FIRST,
    ),
    _action(
        "drain",
        "Refuse new connections, let consumers finish, then stop the broker.",
        _drain,
        _CONFIRM,
        may={"seconds": {"type": "number", "minimum": 0, "maximum": DRAIN_SECONDS_MAX}, "hub": _TEXT},
        doc="`confirm` is the broker's name. After `seconds` (60 by default) it stops in any case. "
        "`hub`: which one, where there are several.",
        reach=Reach.NAMED,
    ),
    _action(
        "move-shard",
        "Have a shard move to a hub, and stay there.",
        _move_shard,
        {"shard": {"type": "integer", "minimum": 0}, "hub": _TEXT},
        doc="An empty `hub` leaves the choice to the cluster. The answer comes when the move is agreed; "
        "`/api/v1/cluster` shows when it is done.",
        reach=Reach.HERE,
    ),
    _action(
        "drain-hub",
        "Hand the shards of a hub over to the others; its clients stay.",
        _drain_hub,
        {"hub": _TEXT},
        doc="It takes none until `resume-hub`, or its next start.",
        reach=Reach.NAMED,
    ),
    _action(
        "resume-hub", "Have a hub take shards again, after drain-hub.", _resume_hub, {"hub": _TEXT}, reach=Reach.NAMED
    ),
    _action("reload", "Read the configuration again.", _reload, {}, reach=Together(merging.done)),
)
