"""State of the broker, read in one place: `stat`, the HTTP API, the map and metrics render it.

    destinations   contents, counts and ages of destinations; durable subscriptions
    connections    input, output and waits of connections
    limits         values of limits, in words
    subscriptions  wishes of clients, and consumers of queues and logs; which consumers are stalled
    waits          which waits count: the rule for bottlenecks
    logs           contents of logs, and the lag of their groups

Flows, limiters and chains of waits are in `sluiceway.flow.snapshot`, the store in `sluiceway.store.reporting`.

A figure has one name and one definition. Sort keys of lists can be read alone, for a list may have a hundred thousand
rows of which fifty are shown. The views keep no state: each value is that of the moment.
"""
