"""The console, as people see it: a real browser, a real broker, real STOMP clients."""
