"""Several hubs, one broker. Design: docs/design/cluster.md.

coordination  port to a service on which hubs agree, and its adapters
rendezvous    choice of a hub for each shard
claim_states  states of a hub's claim on a shard
ownership     shards and their owners

Import from the modules. The package itself imports nothing.
"""
