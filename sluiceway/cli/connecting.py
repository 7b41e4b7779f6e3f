"""Common parts of all commands that talk to a broker: the options for its address and the login, and the words for
failures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

import click

from sluiceway.cli.exits import Exit, fail

_WHO_WE_ARE: Final = "They come from --login and SLUICEWAY_PASSCODE (or --passcode), or from the URL."
_CONNECT_REMEDIES: Final = {
    "no-answer": "; start one with `sluiceway serve`, or name another with --url",
    "unknown-host": ": name another with --url",
}
_REQUEST_REMEDIES: Final = {
    "TOPIC_NOT_EXIST": "`sluiceway log list` shows the logs that there are; `sluiceway log append` makes one.",
    "GROUP_NOT_EXIST": "`sluiceway log groups LOG` shows the groups that there are; a consumer's SUBSCRIBE makes one.",
    "INDEX_OUT_OF_BOUNDS": "`sluiceway log describe LOG` shows the first index and the next.",
    "GROUP_IN_USE": "`sluiceway stat` shows its consumers.",
}


CREDENTIALS: Final = (
    click.option(
        "--passcode",
        envvar="SLUICEWAY_PASSCODE",
        help="Passcode. Better from SLUICEWAY_PASSCODE: other users can see the arguments of a process.",
    ),
    click.option("--login", help="Login name. Overrides the one in the URL."),
)
"""Options of every command that logs in."""


def host_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the broker's address, its virtual host and the login; the command gets its `Address` as
    `address`. Ends the command with a message and an exit code on an error.
    """

    @wraps(command)
    def with_address(
        url: str,
        ca: str | None,
        cert: str | None,
        key: str | None,
        login: str | None,
        passcode: str | None,
        virtual_host: str | None,
        **options: Any,
    ) -> None:
        import attrs

        from sluiceway.client.address import Address, with_files

        try:
            address = Address.parse(with_files(url, ca, cert, key)).as_user(login, passcode)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--url") from None
        with told_errors():
            command(address=attrs.evolve(address, virtual_host=virtual_host), **options)

    for option in (
        click.option("--host", "virtual_host", help="Virtual host to ask for [default: the host of the URL]."),
        click.option("--key", metavar="FILE", help="PEM file with the key of --cert, if it is not in the same file."),
        click.option(
            "--cert", metavar="FILE", help="PEM file with the client's certificate, if the broker asks for one."
        ),
        click.option(
            "--ca",
            metavar="FILE",
            help="PEM file with the authorities to trust, with stomp+ssl:// [default: the system's].",
        ),
        *CREDENTIALS,
        click.option(
            "--url",
            envvar="SLUICEWAY_URL",
            default="stomp://127.0.0.1:61613",
            show_default=True,
            help="The broker: stomp://[LOGIN:PASSCODE@]HOST[:PORT], with TLS stomp+ssl://. Also from SLUICEWAY_URL.",
        ),
    ):
        with_address = option(with_address)
    return with_address


@contextmanager
def told_errors() -> Iterator[None]:
    """End the command on an error of the client: with a message, and the exit code for it."""
    from sluiceway.client import ClientError, GapError, LogDeletedError, RefusedError, RequestError

    try:
        yield
    except (RequestError, RefusedError) as error:
        fail(Exit.REFUSED, in_words(error))
    except GapError as error:
        gap = error.gap
        if gap.reason == "other-log":
            fail(Exit.INCOMPLETE, f"/log/{gap.log} was deleted, and another one is there. To read it: --from earliest.")
        fail(
            Exit.INCOMPLETE,
            f"records {gap.first} to {gap.end - 1} of /log/{gap.log} are gone "
            f"({gap.reason})\n"
            f"To continue without them: --from {gap.end}, or --on-gap tell.",
        )
    except LogDeletedError as error:
        fail(Exit.INCOMPLETE, str(error))
    except (ClientError, TimeoutError) as error:
        fail(Exit.CONNECT, in_words(error))


def in_words(error: Exception) -> str:
    """Describe an error, with the remedy in terms of the commands."""
    from sluiceway.client import CannotConnectError, RefusedError, RequestError

    match error:
        case RequestError():
            return "\n".join(filter(None, (str(error), _REQUEST_REMEDIES.get(error.code))))
        case RefusedError():
            who = _WHO_WE_ARE if error.code == "login-refused" else ""
            return "\n".join(filter(None, (error.short, error.detail, who)))
        case CannotConnectError(reason=str() as reason):
            return error.short + _CONNECT_REMEDIES[reason]
    return str(error)
