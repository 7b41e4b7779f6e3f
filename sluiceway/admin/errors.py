"""Errors for clients of the admin port."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An answer other than the one asked for. The message, the code and the remedy go to the client."""

    def __init__(
        self, status: int, code: str, message: str, remedy: str = "", *, headers: dict[str, str] | None = None
    ) -> None:
        """`status`: of HTTP; `code`: a word for programs; `headers`: that go with it."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.remedy = remedy
        self.headers = headers or {}

    def to_dict(self) -> dict[str, Any]:
        """The body."""
        return {"error": {"code": self.code, "message": self.message, "remedy": self.remedy}}


def bad_request(message: str, remedy: str = "") -> ApiError:
    """The request makes no sense."""
    return ApiError(400, "bad-request", message, remedy)


def not_found(what: str, remedy: str = "") -> ApiError:
    """Make the error for a thing that does not exist now."""
    return ApiError(404, "not-found", what, remedy)


def conflict(code: str, message: str, remedy: str = "") -> ApiError:
    """Make the error for an action that the present state forbids."""
    return ApiError(409, code, message, remedy)
