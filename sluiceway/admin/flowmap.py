"""The flow map as a picture: connections, destinations and consumers as nodes, flows and waits as edges.

Several resources of the broker are one node: a destination's queues by priority, a connection's two sides. A node's id
is made of the id of the first of them, so it stays while the thing lives.

Shown are the nodes that others wait for, then those that wait (longest first), then the busiest; `limit` nodes in all,
and the edges between them. The waits come from a survey that is made in steps and shared by requests for a moment: at
least KEPT_SECONDS, and for so long that surveys take SURVEY_SHARE of the time at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from sluiceway.admin.errors import not_found
from sluiceway.admin.nodes import Candidate, node_id
from sluiceway.admin.standings import Standing, Standings
from sluiceway.flow import FlowManager
from sluiceway.flow.graph import Steps, best_in_steps
from sluiceway.flow.kinds import Role
from sluiceway.flow.resource import ResourceId
from sluiceway.flow.snapshot import BlockEdge, FlowSnapshot, LimiterSnapshot
from sluiceway.flow.survey import picture_in_steps
from sluiceway.flow.words import age_in_words, count_in_words, facts_in_words
from sluiceway.remedies import remedy_for
from sluiceway.views.connections import id_of
from sluiceway.views.subscriptions import live_subscriptions, takers_of
from sluiceway.views.waits import bottleneck_in_words, is_lasting

if TYPE_CHECKING:
    from sluiceway.admin.sampling import Sampler
    from sluiceway.connections import Connections
    from sluiceway.shards import Shards
    from sluiceway.steps import StepPace

KEPT_SECONDS: Final = 0.4
SURVEY_SHARE: Final = 0.05
_CLIENTS_AND_DESTINATIONS: Final = (Role.CONNECTION, Role.DESTINATION, Role.SUBSCRIPTION)
LIMITERS_MAX: Final = 12
"""Maximum of limiters that one node shows: those closest to their capacity."""
CHAINS_MAX: Final = 50
TOGETHER_MAX: Final = 1_000
"""Chains that are told to another hub."""
BOTTLENECKS_MAX: Final = 20


class FlowMaps:
    """Makes maps of one broker."""

    def __init__(
        self, manager: FlowManager, shards: Shards, connections: Connections, sampler: Sampler, pace: StepPace
    ) -> None:
        self._manager = manager
        self._shards = shards
        self._connections = connections
        self._sampler = sampler
        self._pace = pace
        self._clock = manager.clock
        self._lock = trio.Lock()
        self._drawing: _Drawing | None = None
        self._due_seconds = 0.0

    async def _current(self) -> _Drawing:
        """Return the current drawing, at most some moments old."""
        async with self._lock:
            if self._drawing is None or self._clock() >= self._due_seconds:
                worked_seconds = self._pace.worked_seconds
                survey = await self._pace.run(self._manager.survey().snapshot_in_steps(with_idle=False))
                drawing = _Drawing(self._manager, self._shards, self._connections, self._sampler, survey)
                await self._pace.run(drawing.gather())
                self._drawing = drawing
                cost_seconds = self._pace.worked_seconds - worked_seconds
                self._due_seconds = self._clock() + max(KEPT_SECONDS, cost_seconds / SURVEY_SHARE)
            return self._drawing

    async def map(self, limit: int) -> dict[str, Any]:
        """Return the map, of at most `limit` nodes."""
        await self._sampler.ready()
        drawing = await self._current()
        return await self._pace.run(drawing.draw(limit))

    async def chain(self, wanted: str) -> dict[str, Any]:
        """Return the chain of waits that begins at this node. Raises ApiError if there is no such node."""
        drawing = await self._current()
        return await self._pace.run(drawing.chain(wanted))

    async def summary(self, *, together: bool = False) -> tuple[FlowSnapshot, dict[str, list[dict[str, Any]]]]:
        """Return the survey (its `resources` are those that wait or block), and its worst bottlenecks, its
        longest waits and the stalled subscriptions. `together`: waits with the fields by which they are joined with
        those of other hubs.
        """
        drawing = await self._current()
        return drawing.survey, await self._pace.run(drawing.summary(together=together))

    async def rows(self) -> RowStates:
        """Return the states of destinations, connections and subscriptions."""
        drawing = await self._current()
        return RowStates(drawing.standings, drawing)


class _Drawing:
    """State of one moment; maps are drawn from it."""

    def __init__(
        self,
        manager: FlowManager,
        shards: Shards,
        connections: Connections,
        sampler: Sampler,
        survey: FlowSnapshot,
    ) -> None:
        self._manager = manager
        self._shards = shards
        self._connections = connections
        self._sampler = sampler
        self.survey = survey
        self._first: dict[int, int] = {}
        """Resource to the first of its node, where that is another one."""
        self._candidates: dict[int, Candidate] = {}
        """Candidates by their first resource."""
        self._waits: dict[int, float] = {}
        """Nodes that wait, by first resource: for how long."""
        self._waited_for: dict[int, float] = {}
        self._held_up: set[int] = set()
        """Nodes that wait for another node."""
        self.standings = Standings(survey, self._candidates, self._first_of, self.name_of)

    # ------------------------------------------------------------------ which resources are one node

    def gather(self) -> Steps[None]:
        """Find out what there is. Before anything else."""
        rates_in, rates_out = self._sampler.taken_in.rates, self._sampler.put_out.rates
        for destination in list(self._shards.registry.destinations.values()):
            yield
            queues = destination.queues
            first = queues[0].resource_id
            for queue in queues[1:]:
                self._first[queue.resource_id] = first
            rate = max(rates_in.get(destination.name, 0.0), rates_out.get(destination.name, 0.0))
            self._candidates[first] = Candidate(
                list(queues), Role.DESTINATION, destination.name, rate, destination=destination
            )
        for log in () if self._shards.logs is None else list(self._shards.logs):
            yield
            rate = max(rates_in.get(log.name, 0.0), rates_out.get(log.name, 0.0))
            self._candidates[log.resource_id] = Candidate([log], Role.DESTINATION, log.name, rate)
        came, went = self._sampler.connection_in.rates, self._sampler.connection_out.rates
        for connection in list(self._connections):
            yield
            session = connection.session
            first = id_of(connection)
            self._first[session.outbound.resource_id] = first
            rate = came.get(first, 0.0) + went.get(first, 0.0)
            self._candidates[first] = Candidate(
                [session.lanes, session.outbound],
                Role.CONNECTION,
                session.peer,
                rate,
                connection=connection,
                session=session,
            )
        by_consumer: dict[int, float] = {}
        for (_name, consumer), rate in list(self._sampler.delivered.rates.items()):
            yield
            by_consumer[consumer] = by_consumer.get(consumer, 0.0) + rate
        subscriptions = yield from live_subscriptions(self._connections)
        for connection, subscription in subscriptions:
            yield
            key = subscription.resource_id
            self._candidates[key] = Candidate(
                [subscription],
                Role.SUBSCRIPTION,
                subscription.name,
                by_consumer.get(key, 0.0),
                session=connection.session,
            )
        for edge in self.survey.edges:
            yield
            source, sink = self._first_of(edge.source.resource_id), self._first_of(edge.sink.resource_id)
            self._waits[source] = max(self._waits.get(source, 0.0), edge.age_seconds)
            if source != sink:
                self._held_up.add(source)
            self._waited_for[sink] = max(self._waited_for.get(sink, 0.0), edge.age_seconds)
        for end in (*self._waits, *self._waited_for):
            yield
            resource = None if end in self._candidates else self._manager.resource(ResourceId(end))
            if resource is not None:
                self._candidates[end] = Candidate(
                    [resource], resource.kind.role, resource.name, by_consumer.get(end, 0.0)
                )
        yield from self.standings.read_in_steps()

    def _first_of(self, resource_id: int) -> int:
        return self._first.get(resource_id, resource_id)

    def name_of(self, first: int) -> str:
        """Return what people call a node: a destination by its name, others with their kind."""
        candidate = self._candidates.get(first)
        if candidate is None:
            return "something that has gone"
        label, kind = _label_of(candidate), candidate.resources[0].kind
        return label if candidate.role is Role.DESTINATION or label == kind else f"{kind} {label}"

    def cause(self, first: int) -> dict[str, Any] | None:
        """Return the root cause of a wait as data; None: it has gone."""
        candidate = self._candidates.get(first)
        if candidate is None:
            return None
        session = candidate.session
        return {
            "id": node_id(first),
            "kind": candidate.role,
            "name": candidate.name,
            "title": self.name_of(first),
            "session": session and session.session_id,
            "peer": session and session.peer,
            "client": session and (session.subscriptions.client_id or session.user or session.peer),
            "unsettled_count": 0 if session is None else session.unsettled_count,
            "paused": candidate.destination is not None and candidate.destination.is_paused,
        }

    def _rank(self, first: int) -> tuple[int, float, int]:
        if self._is_busy(first) and not self.standings.concerns_senders(first):
            return 0, self._candidates[first].rate_per_second, -first
        if first in self._waited_for:
            return 2, self._waited_for[first], -first
        if first in self._waits:
            return 1, self._waits[first], -first
        return 0, self._candidates[first].rate_per_second, -first

    def _is_busy(self, first: int) -> bool:
        """Return whether what a client or a destination waits for is no more than it has enough to do."""
        return self._candidates[first].role in _CLIENTS_AND_DESTINATIONS and not self.standings.is_lasting(first)

    # ------------------------------------------------------------------ the picture

    def draw(self, limit: int) -> Steps[dict[str, Any]]:
        """Nodes and edges."""
        chosen, _total = yield from best_in_steps(self._candidates, self._rank, limit)
        shown = set(chosen)
        words = yield from self._words_of_waits(shown)
        nodes = []
        for first in chosen:
            node = yield from self._node(first, words.get(first, ""))
            nodes.append(node)
        edges: list[dict[str, Any]] = []
        hidden_count = yield from self._wait_edges(shown, edges)
        waits_count = len(edges)
        yield from self._flow_edges(shown, edges)
        flows_count = len(edges) - waits_count
        return {
            "at_seconds": self.survey.taken_at,
            "nodes": nodes,
            "edges": edges,
            "omitted": {
                "nodes_count": len(self._candidates) - len(nodes),
                "edges_count": hidden_count + max(0, self._sampler.totals.flows_count - flows_count),
            },
        }

    def _words_of_waits(self, shown: set[int]) -> Steps[dict[int, str]]:
        """Return the reason of each node that waits."""
        words: dict[int, str] = {}
        for chain in self.survey.chains:  # the longest wait first
            yield
            first = self._first_of(chain.source.resource_id)
            if first in shown and first not in words:
                words[first] = chain.words
        return words

    def _node(self, first: int, words: str) -> Steps[dict[str, Any]]:
        candidate = self._candidates[first]
        limiters: list[dict[str, Any]] = []
        facts: dict[str, object] = {}
        held_bytes = 0
        for resource in candidate.resources:
            if not resource.is_open:
                continue
            picture = yield from picture_in_steps(resource)
            held_bytes += picture.used_bytes
            facts = {**picture.facts, **facts}
            for limiter in picture.limiters:
                yield
                limiters += flat_limiters(limiter)
        limiters.sort(key=lambda one: (not one["throttled"], -(one["share"] or 0.0)))
        throttled = any(limiter["throttled"] for limiter in limiters)
        paused = candidate.destination is not None and candidate.destination.is_paused
        if paused:
            state = "paused"
        elif self._is_busy(first):
            state = "open"
        elif first in self._held_up:
            state = "blocked"
        elif throttled:
            state = "throttled"
        else:
            state = "blocked" if first in self._waits else "open"
        facts_words = facts_in_words(facts)
        if not words:
            full = [limiter["words"] for limiter in limiters if limiter["throttled"]]
            words = " and ".join(full) or facts_words
        kind = candidate.resources[0].kind
        waiting = self.standings.senders_of(first)
        return {
            "id": node_id(first),
            "kind": candidate.role,
            "name": candidate.name,
            "title": candidate.name if kind == candidate.name else f"{kind} {candidate.name}",
            "label": _label_of(candidate),
            "state": state,
            "words": words,
            "facts_words": facts_words,
            "limiters": limiters[:LIMITERS_MAX],
            "rate_per_second": candidate.rate_per_second,
            "held_bytes": held_bytes,
            "age_seconds": max(self._waits.get(first, 0.0), self._waited_for.get(first, 0.0)),
            "senders_count": waiting.flows_count,
            "senders_seconds": waiting.seconds,
        }

    def _wait_edges(self, shown: set[int], edges: list[dict[str, Any]]) -> Steps[int]:
        """The waits between nodes, the longest of each pair; returns how many pairs are not shown."""
        longest: dict[tuple[int, int, str], tuple[BlockEdge, int]] = {}
        for edge in self.survey.edges:
            yield
            key = (self._first_of(edge.source.resource_id), self._first_of(edge.sink.resource_id), edge.kind)
            if key[0] in self._candidates and self._is_busy(key[0]):
                continue
            known = longest.get(key)
            if known is None:
                longest[key] = edge, 1
            else:
                longest[key] = (edge if edge.age_seconds > known[0].age_seconds else known[0]), known[1] + 1
        hidden_count = 0
        for (source, sink, kind), (edge, count) in longest.items():
            yield
            if source not in shown or sink not in shown:
                hidden_count += 1
                continue
            words = f"waits on {edge.sink.title} ({edge.details})"
            if count > 1:
                words += f", and {count_in_words(count - 1, 'other wait')}"
            edges.append(
                {
                    "from": node_id(source),
                    "to": node_id(sink),
                    "kind": kind,
                    "rate_per_second": 0.0,
                    "age_seconds": edge.age_seconds,
                    "words": words,
                }
            )
        return hidden_count

    def _flow_edges(self, shown: set[int], edges: list[dict[str, Any]]) -> Steps[None]:
        names = {candidate.name: first for first, candidate in self._shown(shown) if candidate.role is Role.DESTINATION}
        for first, candidate in self._shown(shown):
            yield
            if candidate.connection is not None:
                for lane in list(candidate.connection.session.lanes.lanes):
                    yield
                    to = names.get(lane.target.name)
                    if to is not None:
                        rate = self._sampler.sent.rates.get((first, lane.target.name), 0.0)
                        edges.append(_flow(first, to, rate))
            elif candidate.role is Role.DESTINATION:
                ways: dict[int, None] = {}
                for resource in candidate.resources:
                    for consumer, _subscription in takers_of(resource):
                        yield
                        if consumer in shown:
                            ways[consumer] = None
                for consumer in ways:
                    rate = self._sampler.delivered.rates.get((candidate.name, consumer), 0.0)
                    edges.append(_flow(first, consumer, rate))

    def _shown(self, shown: set[int]) -> Iterator[tuple[int, Candidate]]:
        return ((first, self._candidates[first]) for first in shown)

    # ------------------------------------------------------------------ chains

    def chain(self, wanted: str) -> Steps[dict[str, Any]]:
        """The longest wait that begins at this node."""
        for chain in self.survey.chains:
            yield
            if node_id(self._first_of(chain.source.resource_id)) == wanted:
                first_step = {
                    "id": wanted,
                    "title": chain.source.title,
                    "words": facts_in_words(chain.source.facts),
                    "age_seconds": chain.edges[0].age_seconds,
                }
                steps = [first_step, *(self._step(edge) for edge in chain.edges)]
                last = chain.edges[-1].sink
                remedy = remedy_for(last.kind, last.circumstances)
                if chain.cyclic:
                    remedy = "A ring never resolves by itself: close one of its connections."
                return {
                    "id": wanted,
                    "words": chain.words,
                    "steps": steps,
                    "cycle": chain.cyclic,
                    "remedy": remedy,
                    "cause": self.cause(self._first_of(last.resource_id)),
                }
        for first, candidate in self._candidates.items():
            yield
            if node_id(first) == wanted:
                node = yield from self._node(first, "")
                step = {"id": wanted, "title": node["title"], "words": node["words"], "age_seconds": 0.0}
                resource = candidate.resources[0]
                held_up = first in self._waited_for
                remedy = remedy_for(resource.kind, resource.circumstances()) if held_up else ""
                return {
                    "id": wanted,
                    "words": f"{node['title']} waits on nothing: {node['words'] or 'nothing is in it'}",
                    "steps": [step],
                    "cycle": False,
                    "remedy": remedy,
                    "cause": self.cause(first),
                }
        raise not_found(f"the map has no node {wanted[:40]!r} any more", "Ask for the map again.")

    def _step(self, edge: BlockEdge) -> dict[str, Any]:
        facts = facts_in_words(edge.sink.facts)
        return {
            "id": node_id(self._first_of(edge.sink.resource_id)),
            "title": edge.sink.title,
            "words": f"{edge.details}: {facts}" if facts else edge.details,
            "age_seconds": edge.age_seconds,
        }

    def summary(self, *, together: bool = False) -> Steps[dict[str, list[dict[str, Any]]]]:
        """Return the worst bottlenecks, the longest waits in words, and the stalled subscriptions. `together`: as
        `FlowMaps.summary`.
        """
        bottlenecks: list[dict[str, Any]] = []
        for bottleneck in self.survey.bottlenecks:
            yield
            if len(bottlenecks) == BOTTLENECKS_MAX:
                break
            first = self._first_of(bottleneck.sink.resource_id)
            waiting = self.standings.senders_of(first)
            if not is_lasting(waiting.seconds):
                continue
            bottlenecks.append(
                {
                    **({"sink": bottleneck.sink.title} if together else {}),
                    "id": node_id(first),
                    "title": bottleneck.sink.title,
                    "words": bottleneck_in_words(bottleneck.sink, waiting),
                    "flows_count": waiting.flows_count,
                    "waits_itself": first in self._held_up,
                    "age_seconds": waiting.seconds,
                    "cause": self.cause(first),
                }
            )
        chains: dict[str, dict[str, Any]] = {}
        for chain in self.survey.chains:
            yield
            if len(chains) == (TOGETHER_MAX if together else CHAINS_MAX):
                break
            first_id = node_id(self._first_of(chain.source.resource_id))
            # Of a node every wait may be the one that is joined.
            key = f"{first_id} {chain.flow}" if together else first_id
            if key not in chains:
                chains[key] = {
                    **(chain.to_dict() if together else {}),
                    "id": first_id,
                    "words": chain.words,
                    "age_seconds": chain.edges[0].age_seconds,
                }
        stalled: list[dict[str, Any]] = []
        known = self.standings.stalled()
        worst, _total = yield from best_in_steps(known, lambda first: known[first][0], BOTTLENECKS_MAX)
        for first in worst:
            yield
            seconds, why = known[first]
            if not is_lasting(self.standings.senders_of(first).seconds):
                stalled.append(
                    {
                        "id": node_id(first),
                        "title": self.name_of(first),
                        "words": why,
                        "age_seconds": seconds,
                        "cause": self.cause(first),
                    }
                )
        return {"bottlenecks": bottlenecks, "chains": list(chains.values()), "stalled": stalled}


@attrs.frozen(slots=True)
class RowStates:
    """States for the rows of lists."""

    standings: Standings
    _drawing: _Drawing

    def said(self, standing: Standing, *, reveal: bool = True) -> dict[str, Any]:
        """Return a state as JSON-able data; `reveal` False: without the root cause, which may be something that the
        caller may not see.
        """
        cause = None if standing.cause is None or not reveal else self._drawing.cause(standing.cause)
        because = f", because of {cause['title']}" if cause is not None and standing.is_blamed else ""
        return {
            "state": standing.state,
            "state_words": f"{standing.words}{because}",
            "state_seconds": standing.seconds,
            "cause": cause,
        }


def _label_of(candidate: Candidate) -> str:
    """Return the name of a node for people: the client-id or user of its connection, which say more than an address."""
    session = candidate.session
    who = "" if session is None else session.subscriptions.client_id or session.user or ""
    if not who:
        return candidate.name
    return who if candidate.role is Role.CONNECTION else f"{candidate.name.removesuffix(session.name)}{who}"


def flat_limiters(limiter: LimiterSnapshot) -> list[dict[str, Any]]:
    """Return a limiter as plain data; a composite one as its parts."""
    if limiter.parts:
        return [flat for part in limiter.parts for flat in flat_limiters(part)]
    scarce = limiter.scarce
    return [
        {
            "label": limiter.label,
            "used": limiter.used_bytes if scarce is None else scarce.used,
            "capacity": scarce and scarce.capacity,
            "unit": "bytes" if scarce is None else scarce.unit,
            "share": scarce and scarce.share,
            "throttled": limiter.throttled,
            "words": f"{limiter.words}, for {age_in_words(limiter.throttled_seconds or 0.0)}"
            if limiter.throttled
            else limiter.words,
        }
    ]


def _flow(source: int, sink: int, rate_per_second: float) -> dict[str, Any]:
    return {
        "from": node_id(source),
        "to": node_id(sink),
        "kind": "flow",
        "rate_per_second": rate_per_second,
        "age_seconds": 0.0,
        "words": f"{rate_per_second:,.0f} messages/s",
    }
