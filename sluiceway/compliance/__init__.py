"""A compliance kit for STOMP brokers of any make: every duty of a server in STOMP 1.0, 1.1 and 1.2 as a named check.

    python -m sluiceway.compliance HOST:PORT

    wire        frames as bytes: a writer, and a strict reader that knows nothing of the broker's own parser
    transport   TCP, TLS and WebSocket, blocking, each operation with a deadline
    client      one connection of a check, with its transcript
    registry    checks, levels, clauses and results
    kit         what a check gets: connections, names, and helpers for what is left in a queue
    dialects    what differs from broker to broker: names of destinations, headers, virtual host
    checks/     the checks, one module for each part of the specifications
    running     a run: which versions the broker speaks, all checks with bounded parallelism, cleaning up
    text, data, page   reports: for a terminal, as JSON, as one HTML page

Nothing here imports the broker: what both read in the same wrong way would not be seen.
"""
