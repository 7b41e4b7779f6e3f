"""Trails over STOMP, for the API and the console: "Where is my message?"

    config      [trails]
    answering   from message ids and correlation ids to answers

`sluiceway.queues.trails` records them. This package imports nothing, so that the configuration may import `config`
alone.
"""
