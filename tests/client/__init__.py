"""The client of logs: against a broker that fails on command, and against the real one."""
