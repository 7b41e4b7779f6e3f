"""Thrift's binary protocol, framed, as far as the QueueService of Luxun needs it. Pure: no sockets, no clock.

    binary      messages and structs, by tables of their fields; frames
    queue_service   the structs and calls of `sluiceway/thrift/queue_service.thrift`

Source: seed 001 "Luxun Thrift IDL"; Apache Thrift, "Thrift Binary protocol encoding" and "Framed transport".
"""
