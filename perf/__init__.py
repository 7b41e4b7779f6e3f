"""Measures a STOMP broker from outside, and the same way for every broker.

Named scenarios (`perf.scenarios`) are data; one generic runner (`perf.runner`) drives any of them against any broker
that speaks STOMP 1.2 on loopback (`perf.peers`), with load made by processes of their own (`perf.load.worker`) that
cost less than the broker. `python -m perf --help` is the way in; docs/performance.md holds what it measured.

Nothing of Sluiceway is imported here: it is started as a subprocess like RabbitMQ, ActiveMQ and CoilMQ, so that no
broker is measured by a friend.
"""
