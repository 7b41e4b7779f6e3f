"""The kit that checks any STOMP broker: against ours, against broken ones, and against brokers that misbehave."""
