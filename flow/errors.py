"""Errors of flow control: always a mistake of the calling code, never of a peer.

Every error is raised before anything changed: the limiter, controller or registry that raised it is as it was before
the call.
"""


class FlowError(Exception):
    """A rule of flow control was broken by the caller. Base of all errors raised by this package."""


class NegativeAmountError(FlowError):
    """A count or a size below zero was charged, offered or released."""


class OverReleaseError(FlowError):
    """More was released than is held, so some element was released twice or never charged."""


class ThresholdError(FlowError):
    """A capacity, resume threshold, rate or burst makes no sense."""


class PairingError(FlowError):
    """A sink blocked a source twice, or resumed a source that it did not block."""


class FlowClosedError(FlowError):
    """An element was handed to a controller that is closed."""


class RegistrationError(FlowError):
    """A resource was opened twice, closed without being open, or closed while elements wait in its overflow."""
