"""What nobody may read: passwords and tokens in addresses, hidden in all that is shown or recorded.

Whatever prints a command line, an address or the words of a library goes through here.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

HIDDEN = "***"
# Where addresses come from beside the command line.
VARIABLES = ("NBSR_TRACKING", "NBSR_STORAGE", "NBSR_CLUSTER", "MLFLOW_TRACKING_URI", "RAY_AUTH_TOKEN")
# A password may hold any character, badly escaped ones too: it ends at the last @, if possible before the parameters.
PASSWORD = re.compile(r"([^:/?#]+://[^:/@]*:)((?:[^?]*(?=@)|.*(?=@)))@", re.DOTALL)
SECRET_PARAMETER = re.compile(r"([?&][^=&]*(?:password|passwd|pwd|token|secret|key)[^=&]*=)([^&]*)", re.IGNORECASE)


def masked(uri: str) -> str:
    """The URI as it may be shown: without password, and without values of secret parameters."""
    uri = PASSWORD.sub(rf"\1{HIDDEN}@", uri, count=1)
    return SECRET_PARAMETER.sub(rf"\1{HIDDEN}", uri)


def secrets_in(uri: str) -> list[str]:
    """Passwords and tokens in a URI, as they stand there and decoded; longest first, so that none hides another."""
    found = [match[2] for match in (PASSWORD.match(uri), *SECRET_PARAMETER.finditer(uri)) if match is not None]
    return sorted({form for secret in found for form in (secret, unquote(secret)) if form}, key=len, reverse=True)


def scrubbed(text: str, secrets: Iterable[str] | None = None) -> str:
    """A text without these secrets; by default without those that this process was started with."""
    for secret in own_secrets() if secrets is None else secrets:
        text = text.replace(secret, HIDDEN)
    return text


def own_secrets() -> list[str]:
    """What must not be told of this process's command line and environment; longest first."""
    values = {name: os.environ.get(name, "") for name in VARIABLES}
    found = {values.pop("RAY_AUTH_TOKEN")} - {""}
    for uri in (*sys.argv[1:], *values.values()):
        found.update(secrets_in(uri))
    return sorted(found, key=len, reverse=True)


def command_line(words: Sequence[str]) -> str:
    """A command as one would type it, without passwords."""
    return shlex.join(masked(word) for word in words)


def tell_unexpected(error: Exception) -> None:
    """Python's own report of an error that nobody caught, without this process's secrets."""
    sys.stderr.write(scrubbed("".join(traceback.format_exception(error))))
