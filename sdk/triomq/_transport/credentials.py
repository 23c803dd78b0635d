"""An account of brokers with access control: from the caller, the environment, or RocketMQ's file ``tools.yml``.

Upstream: ``SessionCredentials``, ``AclUtils.getAclRPCHook``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import attrs

from triomq.errors import InvalidCall

ACCESS_KEY_VARIABLE: Final = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "ROCKETMQ_SECRET_KEY"
SECURITY_TOKEN_VARIABLE: Final = "ROCKETMQ_SECURITY_TOKEN"
"""Environment variables of :meth:`Credentials.from_environment`; RocketMQ 4.9 itself reads none."""

FILE_BYTES_MAX: Final = 64 * 1024
"""The largest credentials file that is read."""

_LINE: Final = re.compile(r"(accessKey|secretKey)[ \t]*:(?:[ \t]+(.*))?", re.DOTALL)
_QUOTED: Final = re.compile(r"""(?:"([^"\\]*)"|'([^']*)')[ \t]*(?:[ \t]#.*)?""", re.DOTALL)
_PLAIN: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/+=@-]*)[ \t]*(?:[ \t]#.*)?", re.DOTALL)
_OTHER_IN_YAML: Final = re.compile(
    r"(?!(?:0|[1-9][0-9]*)$)[0-9][0-9A-Fa-fxo_.eE+-]*|true|false|yes|no|on|off|null|y|n", re.IGNORECASE
)
"""Plain text that YAML may read as a number, a date, a boolean or null."""


def _text(_credentials: object, attribute: attrs.Attribute[Any], value: object) -> None:
    # The value itself is never part of the text: it may be the secret, passed in the wrong place.
    if not isinstance(value, str) or not value.strip():
        raise InvalidCall(f"{attribute.name} is {'empty' if isinstance(value, str) else 'no text'}")


@attrs.frozen
class Credentials:
    """An account that signs every request of a client, for brokers with access control.

    Its text shows only the access key; the secret key is never sent.

    Args:
        access_key: the account's name.
        secret_key: its secret.
        security_token: the token of a temporary account; it is sent with every request.

    Raises:
        InvalidCall: a value is empty, or not text.
    """

    access_key: str = attrs.field(validator=_text)
    secret_key: str = attrs.field(validator=_text, repr=False)
    security_token: str | None = attrs.field(default=None, validator=attrs.validators.optional(_text), repr=False)

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] | None = None) -> Self:
        """The account in ``ROCKETMQ_ACCESS_KEY``, ``ROCKETMQ_SECRET_KEY`` and, if set, ``ROCKETMQ_SECURITY_TOKEN``.

        Args:
            variables: the environment; default: the process's own.

        Raises:
            InvalidCall: one of the first two is not set, or empty.
        """
        if variables is None:  # as a default value, `help()` and generated pages would show it, with all secrets
            variables = os.environ
        for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE):
            if not variables.get(name, "").strip():
                raise InvalidCall(f"the environment variable {name} is not set")
        token = variables.get(SECURITY_TOKEN_VARIABLE) or None
        return cls(variables[ACCESS_KEY_VARIABLE], variables[SECRET_KEY_VARIABLE], token)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """The account in a file like RocketMQ's ``conf/tools.yml``: a line ``accessKey: ...``, a line ``secretKey: ...``.

        Empty lines and comments may be between them. Other YAML is an error: values in several lines, escapes, lists,
        and plain text that YAML could read as something else, which must be quoted.

        Args:
            path: the file; it should be readable for its owner only.

        Raises:
            InvalidCall: the file cannot be read, or does not hold exactly these two lines.
        """
        try:
            with Path(path).open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
            text = data.decode()
        except (OSError, ValueError) as error:
            # No file has a name with a NUL.
            why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", error)
            raise InvalidCall(f"the credentials file {os.fspath(path)} cannot be read: {why}") from None
        if len(data) > FILE_BYTES_MAX:
            raise InvalidCall(f"the credentials file {os.fspath(path)} has more than {FILE_BYTES_MAX} bytes")
        found = _keys_of(text, f"the credentials file {os.fspath(path)}")
        return cls(found["accessKey"], found["secretKey"])


def _keys_of(text: str, file: str) -> dict[str, str]:
    """The two values by name. Errors show the line's number, not its text, which may be a secret."""
    found: dict[str, str] = {}
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = raw.rstrip()
        if not line or line.lstrip().startswith("#") or line == "---":
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise InvalidCall(f"{file}: line {number} is neither `accessKey: ...` nor `secretKey: ...`")
        name = match[1]
        if name in found:
            raise InvalidCall(f"{file}: line {number} gives {name} again")
        found[name] = _value_of(match[2] or "", f"{file}: {name} in line {number}")
    missing = [name for name in ("accessKey", "secretKey") if name not in found]
    if missing:
        raise InvalidCall(f"{file} has no {' and no '.join(missing)}")
    return found


def _value_of(text: str, where: str) -> str:
    text = text.strip()
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        value = quoted[1] if quoted[1] is not None else quoted[2]
    else:
        plain = _PLAIN.fullmatch(text)
        value = plain[1] if plain is not None else ""
        if text and not text.startswith("#") and (plain is None or _OTHER_IN_YAML.fullmatch(value)):
            raise InvalidCall(f"{where} is ambiguous in YAML; put the value in quotes, without escapes")
    if not value.strip():
        raise InvalidCall(f"{where} is empty")
    return str(value)
