"""What the broker is doing, read in one place: `stat`, the HTTP API, the map and metrics render what is here.

    destinations   what a destination holds and counted, and how old it is; durable subscriptions
    connections    what a connection brings, takes and waits for
    subscriptions  what a client asked for, and who takes from a queue or a log
    logs           what a log holds, and how far its groups are behind

Flows, limiters and chains of waits are in `sluiceway.flow.snapshot`, the store in `sluiceway.store.reporting`.

A figure has one name and one definition. Those that lists are sorted by can be read alone, for a list may have a
hundred thousand rows of which fifty are shown. Nothing here is kept: what is read is as it is at that moment.
"""
