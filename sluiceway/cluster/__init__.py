"""Several hubs, one broker. Design: docs/design/cluster.md.

coordination     port to a service on which hubs agree, and its adapters
rendezvous       choice of a hub for each shard
claim_states     states of a hub's claim on a shard
owner_records    records of shards and of the cluster
ownership        shards and their owners
placement        where destinations are at home, for sessions
owned_placement  the same by the owners of their shards
links, proxies   links to other hubs; sessions whose clients are there

Import from the modules. The package itself imports nothing.
"""
