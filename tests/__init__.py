"""The tests are packages (`tests.flow`, `tests.queues`).

Otherwise pytest would put a folder that is named like a core package on the import path.
"""
