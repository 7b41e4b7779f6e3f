"""Configurations of other brokers, read and written as one of ours; and their messages, moved.

    findings      settings, and a report of what has no equivalent
    rabbitmq      definitions of RabbitMQ
    activemq      activemq.xml and its files of properties
    moving        messages of queues, from one connection to another
    ledger        how far each message is, on the disk
    translation   headers of other brokers, and what their messages are known by
    verdicts      the report of a move

Configurations are pure: documents in, text out. sluiceway/cli/migrate.py reads and writes them, and runs the moves.
"""
