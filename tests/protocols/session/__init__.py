"""The pieces of a session that have an invariant of their own, each without the broker around it."""
