"""The STOMP machine: bytes in, frames out, with no I/O and no clock."""
