"""Links: one connection between two hubs of a cluster, with many flows.

`records` cuts bytes into records, `greeting` proves who the peer is, `flow` is one end of one flow, `machine` the
whole link without its stream. These are pure. `shell` moves the bytes; `stream` makes a flow look like the stream
of a client.
"""
