"""The port for Thrift clients: Luxun's QueueService on the logs of this broker.

    server      the port: connections, frames, their limits
    service     calls and their answers
    desk        one connection's session with the broker: STOMP, in memory

A call is served by a STOMP session of its connection, so permissions, rates, limits and flow control are those of any
client, also where a log is at another hub.
"""
