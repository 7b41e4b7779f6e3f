"""Services of handlers: one of each for an admin server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from sluiceway.admin.access import Access
    from sluiceway.admin.flowmap import FlowMaps
    from sluiceway.admin.history import History
    from sluiceway.admin.messages import MessageReader, Messages
    from sluiceway.admin.operations import Operations
    from sluiceway.admin.sampling import Sampler
    from sluiceway.admin.state import StateAnswers
    from sluiceway.admin.together import HubsTogether
    from sluiceway.broker import Broker
    from sluiceway.steps import StepPace


@attrs.frozen(slots=True)
class Services:
    """All services."""

    broker: Broker
    access: Access
    pace: StepPace
    sampler: Sampler
    history: History
    maps: FlowMaps
    state: StateAnswers
    reader: MessageReader
    messages: Messages
    operations: Operations
    together: HubsTogether | None = None
    """The other hubs; None: this broker is alone."""
