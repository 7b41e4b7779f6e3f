"""Trails for people and programs: «where is my message?»

    config      [trails]
    answering   message ids and correlation ids to answers: over STOMP, for the API and the console

What is remembered, and how, is `sluiceway.queues.trails`. Nothing is imported here, so that the configuration may
import `config` alone.
"""
