"""Listeners on a network: TLS, WebSocket, several at once, and other settings while the broker runs."""
