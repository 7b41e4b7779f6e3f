"""The routes that look and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sluiceway.admin import merging, schema
from sluiceway.admin.access import COOKIE
from sluiceway.admin.errors import ApiError, bad_request
from sluiceway.admin.reach import Reach, Together
from sluiceway.admin.records import RECORDS_MAX, records_of
from sluiceway.admin.routes import NAME, PAGING, PREFIX, ApiRoute, Call, Door, Parameter
from sluiceway.admin.tables import LIMIT_MAX, Row
from sluiceway.cluster.division import division_of, own_part_in_steps
from sluiceway.protocols.stomp.authorization import Action
from sluiceway.trails.answering import TooManySearchesError, TrailRequestError
from sluiceway.views.stores import worst_of

if TYPE_CHECKING:
    from sluiceway.broker import Broker

NODES_DEFAULT: Final = 60
NODES_MAX: Final = 500
TRAILS_MAX: Final = 100
STARTING: Final = "it is starting"
"""Reason why the broker is not ready."""

# ---------------------------------------------------------------------- who one is


async def _log_in(call: Call) -> Row:
    cookie, caller = await call.services.access.log_in(call.body["login"], call.body["passcode"], call.peer)
    secure = "; Secure" if call.secure else ""
    call.reply.headers["Set-Cookie"] = f"{COOKIE}={cookie}; Path=/; HttpOnly; SameSite=Strict{secure}"
    identity = caller.identity
    return {"user": identity.user, "groups": sorted(identity.groups), "csrf": caller.csrf}


async def _log_out(call: Call) -> Row:
    await call.services.access.log_out_anywhere(call.caller)
    call.reply.headers["Set-Cookie"] = f"{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"
    return {"ok": True}


async def _session(call: Call) -> Row:
    identity = call.caller.identity
    return {
        "user": identity.user,
        "groups": sorted(identity.groups),
        "may": {"admin": call.may(Action.ADMIN)},
        "csrf": call.caller.csrf,
        "users_configured": call.services.access.users_configured,
    }


# ---------------------------------------------------------------------- health


async def _alive(_call: Call) -> Row:
    return {"ok": True}


def not_ready_because(broker: Broker) -> list[str]:
    """Return why no clients should be sent to the broker now, in words; empty: it is ready."""
    reasons = [] if broker.is_ready else [STARTING]
    if broker.is_stopping:
        reasons.append("it is stopping")
    elif broker.is_draining:
        reasons.append("it is being drained")
    if broker.shards.stores:
        store = worst_of(broker.shards.stores)
        if store.state == "failing":
            reasons.append(f"its store fails: {store.trouble}")
        elif store.state == "disk low":
            reasons.append("its store has reached bytes_max" if store.is_at_bytes_max else "its disk is nearly full")
    return reasons


async def _ready(call: Call) -> Row:
    reasons = not_ready_because(call.services.broker)
    if reasons:
        call.reply.status = 503
    if not call.may(Action.ADMIN):  # errors of the disk name folders
        reasons = [reason.partition(":")[0] for reason in reasons]
    return {"ready": not reasons, "reasons": reasons}


# ---------------------------------------------------------------------- state


async def _overview(call: Call) -> Row:
    return await call.services.state.overview(together=call.together)


async def _cluster(call: Call) -> Row:
    division = division_of(call.services.operations.member())
    broker = call.services.broker
    assert broker.links is not None, "it is a hub"
    own = own_part_in_steps(broker.links, broker.shards.open_shards, broker.registry)
    return {**division, "own": await call.services.pace.run(own)}


async def _map(call: Call) -> Row:
    return await call.services.maps.map(call.query["limit"])


async def _history(call: Call) -> Row:
    name = call.query["name"]
    if not name:
        call.require(Action.ADMIN)
    elif not _sees(call)(name):
        call.require(Action.BROWSE, name)
    services = call.services
    return await services.pace.run(services.history.read_in_steps(name))


async def _chains(call: Call) -> Row:
    return await call.services.maps.chain(call.query["id"])


async def _destinations(call: Call) -> Row:
    return await call.services.state.destinations(call.page, _sees(call), _acts_on(call), reveal=call.may(Action.ADMIN))


def _acts_on(call: Call) -> Callable[[str], bool]:
    """Whether the caller may act on a destination of that name: a page shows no buttons that would be refused."""
    return lambda name: call.may(Action.ADMIN, name)


def _sees(call: Call) -> Callable[[str], bool]:
    """Whether the caller sees a destination of that name."""
    if call.may(Action.ADMIN):
        return lambda _name: True
    return lambda name: call.may(Action.BROWSE, name) or call.may(Action.ADMIN, name)


async def _destination(call: Call) -> Row:
    name = call.query["name"]
    if not _sees(call)(name):
        call.require(Action.BROWSE, name)
    return await call.services.state.destination(name, _acts_on(call), reveal=call.may(Action.ADMIN))


async def _subscriptions(call: Call) -> Row:
    return await call.services.state.subscriptions(call.page, call.query["destination"])


async def _connections(call: Call) -> Row:
    return await call.services.state.connections(call.page, together=call.together)


async def _durables(call: Call) -> Row:
    return await call.services.state.durables(call.page)


async def _logs(call: Call) -> Row:
    return await call.services.state.logs(call.page)


async def _log(call: Call) -> Row:
    return await call.services.state.log(call.query["name"])


async def _records(call: Call) -> Row:
    log = call.services.state.log_named(call.query["name"])
    return await records_of(log, call.query["from"], call.query["limit"])


async def _groups(call: Call) -> Row:
    return await call.services.state.groups(call.page)


async def _store(call: Call) -> Row:
    return await call.services.state.store()


async def _config(call: Call) -> Row:
    return call.services.state.config()


async def _messages(call: Call) -> Row:
    destination = call.services.state.destination_named(call.query["name"])
    found = await call.services.messages.messages(destination, call.query["from"], call.query["limit"], call.query["q"])
    return {**found, "may_admin": call.may(Action.ADMIN, destination.name)}


async def _message(call: Call) -> Row:
    destination = call.services.state.destination_named(call.query["name"])
    return await call.services.messages.message(destination, call.query["message_id"], call.query["place"])


async def _dead_letters(call: Call) -> Row:
    found = await call.services.messages.dead_letters(_sees(call))
    for queue in found["items"]:
        queue["may_admin"] = call.may(Action.ADMIN, queue["name"])
    return found


async def _trails(call: Call) -> Row:
    message_id, correlation_id = call.query["message_id"], call.query["correlation_id"]
    if (message_id is None) == (correlation_id is None):
        raise bad_request("give message_id or correlation_id, one of them")
    trails = call.services.broker.trails
    if trails is None:
        raise ApiError(404, "no-trails", "this broker keeps no trails", "Switch them on in [trails].")
    try:
        found = await trails.asked(message_id=message_id, correlation_id=correlation_id, limit=call.query["limit"])
    except TrailRequestError as error:
        raise bad_request(str(error)) from None
    except TooManySearchesError as error:
        raise ApiError(503, "too-many-searches", str(error), "Ask again in a moment.") from None
    return {"items": found}


def log_home(name: str) -> str:
    """Return the canonical name of a log that is named with or without `/log/`."""
    return name if name.startswith("/log/") else f"/log/{name}"


def _history_home(call: Call) -> str:
    return str(call.query["name"])


_AT_HOME: Final = Together(home=lambda call: str(call.query["name"]))
_AT_LOG: Final = Together(home=lambda call: log_home(call.query["name"]))


def _get(
    name: str, summary: str, handler: Any, answer: schema.Schema, door: Door = Door.ADMIN, **more: Any
) -> ApiRoute:
    return ApiRoute(f"{PREFIX}/{name}", summary, door, handler, answer, **more)


LOOKING: Final[tuple[ApiRoute, ...]] = (
    ApiRoute(
        "/healthz",
        "Whether the broker is alive: it answers.",
        Door.OPEN,
        _alive,
        schema.HEALTH,
    ),
    ApiRoute(
        "/readyz",
        "Whether clients should be sent here: 503 with the reasons while it starts, drains or stops, or if its disk is "
        "full.",
        Door.OPEN,
        _ready,
        schema.READINESS,
        statuses=(503,),
    ),
    _get("session", "Your identity, and the token that actions need.", _session, schema.SESSION, Door.OPEN),
    ApiRoute(
        f"{PREFIX}/login",
        "Log in: sets the session's cookie.",
        Door.OPEN,
        _log_in,
        schema.LOGGED_IN,
        method="POST",
        body=schema.strict({"login": schema.TEXT, "passcode": schema.TEXT}),
        csrf=False,
    ),
    ApiRoute(
        f"{PREFIX}/logout",
        "Log out: ends the session.",
        Door.OPEN,
        _log_out,
        schema.HEALTH,
        method="POST",
        body=schema.strict({}),
    ),
    _get(
        "overview",
        "The broker in some numbers, and what blocks it.",
        _overview,
        schema.OVERVIEW,
        reach=Together(merging.overview),
    ),
    _get(
        "cluster",
        "Hubs, and which of them has which shard. 404 if this broker is no hub.",
        _cluster,
        schema.CLUSTER,
        statuses=(404,),
        doc="As the asked hub knows it; sizes and links are told by each hub itself.",
        reach=Together(merging.cluster),
    ),
    _get(
        "history",
        "The last hour, a point every ten seconds: of the broker and its store, or of one destination or log.",
        _history,
        schema.HISTORY,
        Door.KNOWN,
        query=(Parameter("name", "A destination or a log; left out: the broker.", default=""),),
        doc="The oldest point comes first; null: not known. The 250 destinations that did something last "
        "have a history.",
        reach=Together(merging.history, _history_home),
    ),
    _get(
        "map",
        "The flow map: connections, destinations, consumers; flows and waits.",
        _map,
        schema.MAP,
        query=(Parameter("limit", "Nodes at most.", "count", NODES_DEFAULT, least=1, most=NODES_MAX),),
        doc="Nodes that others wait for come first, then those that wait, then the busiest.",
        reach=Together(merging.flow_map),
    ),
    _get(
        "chains",
        "The chain of waits of one node of the map, step by step.",
        _chains,
        schema.CHAIN_OF_NODE,
        query=(Parameter("id", "The id of a node."),),
        reach=Reach.NODE,
    ),
    _get(
        "destinations",
        "Queues and topics with their contents, rates and forecasts.",
        _destinations,
        schema.table(schema.DESTINATION),
        Door.KNOWN,
        query=PAGING,
        doc="Users without `admin` on the broker see those that they may `browse` or `admin`.",
        reach=Together(merging.page_of("-depth_count")),
    ),
    _get(
        "destination",
        "One queue or topic: its parts, the policy in force, its consumers.",
        _destination,
        schema.ONE_DESTINATION,
        Door.KNOWN,
        query=(NAME,),
        reach=_AT_HOME,
    ),
    _get(
        "subscriptions",
        "Subscriptions.",
        _subscriptions,
        schema.table(schema.SUBSCRIPTION),
        query=(*PAGING, Parameter("destination", "Only those that asked for just this.", default="")),
        reach=Together(merging.page_of("-unsettled_count")),
    ),
    _get(
        "connections",
        "Connections.",
        _connections,
        schema.table(schema.CONNECTION),
        query=PAGING,
        reach=Together(merging.page_of("-blocked_seconds")),
    ),
    _get(
        "durables",
        "Durable subscriptions.",
        _durables,
        schema.table(schema.DURABLE),
        query=PAGING,
        reach=Together(merging.page_of("-backlog_count")),
    ),
    _get(
        "logs",
        "Logs with their groups.",
        _logs,
        schema.table(schema.LOG),
        query=PAGING,
        reach=Together(merging.page_of("name")),
    ),
    _get(
        "log",
        "One log with its groups.",
        _log,
        schema.LOG,
        query=(Parameter("name", "/log/NAME, or NAME."),),
        reach=_AT_LOG,
    ),
    _get(
        "records",
        "Records of a log by index or time. Nothing is consumed.",
        _records,
        schema.RECORDS,
        query=(
            Parameter("name", "/log/NAME, or NAME."),
            Parameter("from", "earliest, latest, an index, or time:MS.", default="latest"),
            Parameter("limit", "How many at most.", "count", 50, least=1, most=RECORDS_MAX),
        ),
        doc="`from` of the answer is where the next page begins, null at the end. A row with `missing` stands for "
        "records up to before `end` that are lost or damaged.",
        reach=_AT_LOG,
    ),
    _get(
        "groups",
        "The groups of all logs, and how far they are behind.",
        _groups,
        schema.table(schema.GROUP),
        query=PAGING,
        reach=Together(merging.page_of("-lag")),
    ),
    _get(
        "store",
        "The store; null without one.",
        _store,
        schema.record({"store": schema.STORE}),
        reach=Together(merging.store),
    ),
    _get("config", "The configuration in force; secrets are not shown.", _config, schema.CONFIG),
    _get(
        "messages",
        "The messages of a queue, in the order of delivery. Nothing is taken or marked.",
        _messages,
        schema.MESSAGES,
        Door.BROWSE,
        query=(
            NAME,
            Parameter("from", "A place: the `next` of the answer before.", default="0"),
            Parameter("limit", "How many at most.", "count", 50, least=1, most=LIMIT_MAX),
            Parameter("q", "Only those with this text in their first 8 KiB, headers or body.", default=""),
        ),
        reach=_AT_HOME,
    ),
    _get(
        "message",
        "One message with its headers and its body, of which the first 256 KiB are shown.",
        _message,
        schema.WHOLE_MESSAGE,
        Door.BROWSE,
        query=(
            NAME,
            Parameter("message_id", "Its message-id."),
            Parameter("place", "Where it was seen: then it is found at once.", default=""),
        ),
        reach=_AT_HOME,
    ),
    _get(
        "dead-letters",
        "The queues of dead letters, with reasons and origins of the first two thousand of each.",
        _dead_letters,
        schema.DEAD_LETTERS,
        Door.KNOWN,
        reach=Together(merging.joined_items),
    ),
    _get(
        "trails",
        "Where a message is, or where it went.",
        _trails,
        schema.TRAILS,
        query=(
            Parameter("message_id", "Its message-id; or", optional=True),
            Parameter("correlation_id", "its correlation-id.", optional=True),
            Parameter("limit", "Messages at most.", "count", 20, least=1, most=TRAILS_MAX),
        ),
        reach=Together(merging.trails),
    ),
)
