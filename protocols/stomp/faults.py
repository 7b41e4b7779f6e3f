"""Errors of framing, in words: the parser's reports of invalid bytes.

Here, so that the parser reads as the walk that it is. Which command may come when is `transitions.refusal`.

Source: STOMP 1.2 "Frames", "Size Limits".
"""

from __future__ import annotations

from .errors import ProtocolError


def tls_handshake() -> ProtocolError:
    """The first byte is that of TLS."""
    return ProtocolError(
        "tls-handshake",
        "this is a STOMP port without TLS",
        "The first byte is that of a TLS handshake. Connect without TLS, or to the TLS port of the broker.",
    )


def nul_in_headers() -> ProtocolError:
    """A frame ends before its headers do."""
    return ProtocolError(
        "nul-in-headers",
        "a NUL where headers were expected",
        "A blank line must end the headers, even of a frame without a body;"
        " a body that holds NUL needs a content-length.",
    )


def head_too_large(bytes_max: int, limit: str) -> ProtocolError:
    """Command and headers are longer than `limit`, which is `bytes_max`, allows."""
    return ProtocolError(
        "header-block-too-large",
        f"headers of more than {bytes_max} bytes",
        f"Put the data into the body, or raise the limit of the listener ({limit}).",
    )


def body_too_large(command: str, bytes_max: int) -> ProtocolError:
    """A frame other than SEND has such a body."""
    return ProtocolError(
        "body-too-large",
        f"{command} with a body of more than {bytes_max} bytes",
        "Only SEND may carry a body, and only up to body_bytes_max of the listener.",
    )


def send_too_large(bytes_max: int, limit: str) -> ProtocolError:
    """A SEND has a longer body than `limit`, which is `bytes_max`, allows."""
    return ProtocolError(
        "body-too-large",
        f"SEND with a body of more than {bytes_max} bytes",
        f"Split the message, or raise {limit} of the listener.",
    )


def missing_nul(command: str, length: int) -> ProtocolError:
    """Make the error for a body of known length without a NUL behind it."""
    return ProtocolError(
        "missing-nul",
        f"{command} with content-length {length}: no NUL behind the body",
        "content-length counts octets, not characters; it must be the exact length of the body, and a NUL must follow.",
    )


def too_much_before_connected(bytes_max: int) -> ProtocolError:
    return ProtocolError(
        "too-much-before-connected",
        f"more than {bytes_max} bytes behind a CONNECT that is not answered yet",
        "Wait for CONNECTED before sending, or raise stash_bytes_max of the listener.",
    )
