"""Queues: where messages wait, in order, for consumers with credit.

Kinds: Relay (no buffer), ConsumedQueue (each message to one consumer; distribution.py says which), Topic (each message
to all), PartitionedQueue (several inside one). All of them keep their elements in a CursoredQueue. Pure: no trio, no
sockets, no clock of its own.

Import from the modules. The package itself imports nothing: Spark starts processes for each micro-batch, which need the
framing of records only.
"""
