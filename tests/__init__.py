"""The tests are packages (`tests.flow`, `tests.queues`), or pytest would put a folder named like a core package on the path."""
