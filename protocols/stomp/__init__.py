"""STOMP 1.0, 1.1 and 1.2 without any I/O: bytes in, batches of events out; commands in, bytes out.

The files are a pipeline: `parser` (with `head`, `headcache`, `acks`, `receive_buffer`, `escaping`, `limits`) makes
`frames`, `machine` judges them by the tables in `transitions`, `encoder` writes what goes back. `errors` says whose
fault a failure is.
"""
