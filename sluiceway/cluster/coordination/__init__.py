"""Port to a service on which hubs agree, and its adapters: live hubs, records by compare-and-set, watches, sessions.

port        the port: Coordination, Hub, its events and errors
session     certainty of a session by the hub's own clock
messages    messages between a hub and the service of one host
service     that service, without I/O
client      the hub's side of that service, without I/O
simulated   both ends in one process on virtual time, with faults
supervisor  the service behind a Unix socket, with a file of records
supervised  the hub's side behind a Unix socket
zookeeper   ZooKeeper, through kazoo

Import from the modules. The package itself imports nothing.
"""
