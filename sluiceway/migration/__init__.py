"""Configurations of other brokers, read and written as one of ours.

    findings   settings, and a report of what has no equivalent
    rabbitmq   definitions of RabbitMQ

Pure: documents in, text out. sluiceway/cli/migrate.py reads and writes them.
"""
