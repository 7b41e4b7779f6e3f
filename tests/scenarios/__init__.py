"""The whole broker over memory streams, in virtual time: one test, one guarantee."""
