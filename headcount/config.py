"""Strict, frozen configurations, and the one error a user is meant to read."""

from __future__ import annotations

import difflib
import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pydantic


class BadInput(ValueError):
    """Something a user gave that cannot be used; the message says what, and what is allowed.

    It is one line without control characters, whatever was given: they are written as escapes.
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(one if one.isprintable() else ascii(one)[1:-1] for one in message))


def choose(name: str, allowed: Iterable[str], what: str) -> str:
    """Return `name` if it is one of `allowed`.

    Raises:
        BadInput: otherwise, naming the nearest allowed spelling.
    """
    options = sorted(allowed)
    if name in options:
        return name
    near = difflib.get_close_matches(str(name), options, n=1, cutoff=0.5)
    hint = f" did you mean '{near[0]}'?" if near else ""
    raise BadInput(f"unknown {what} '{name}';{hint} allowed: {', '.join(options)}")


@contextmanager
def file_errors(path: str | Path, sentence: str) -> Iterator[None]:
    """Say in one sentence what keeps a file from being used, the reason of the system behind it.

    Raises:
        BadInput: in place of an OSError, and where no file can have such a name.
    """
    try:
        if b"\0" in os.fsencode(path):
            raise BadInput(f"{sentence}: no file can have a zero byte in its name")
        yield
    except OSError as error:
        raise BadInput(f"{sentence}: {error.strerror or error}") from None
    except UnicodeEncodeError:
        raise BadInput(f"{sentence}: this system can have no file of that name") from None


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """An empty file beside `path`, whose place it takes at the end; if anything goes wrong nothing changes. That the
    folder cannot be written shows before the work on what goes into the file.

    Raises:
        BadInput: if `path` cannot be written.
    """
    with file_errors(path, f"'{path}' cannot be written"):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        temporary = path.with_name(path.name + ".part")
        try:
            temporary.touch()
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces, so that equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """First 16 hexadecimal digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


class Config(pydantic.BaseModel):
    """Base of every configuration: immutable, no coercion, no unknown key."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Build from plain data (TOML, JSON, command line).

        Raises:
            BadInput: on the first key or value that does not fit, in one sentence.
        """
        try:
            # JSON mode keeps strictness but lets a list stand for a tuple.
            return cls.model_validate_json(json.dumps(dict(data)))
        except pydantic.ValidationError as error:
            raise BadInput(_sentence(cls, error)) from None
        except (TypeError, ValueError) as error:
            raise BadInput(f"{cls.title()}: {error}") from None

    @classmethod
    def title(cls) -> str:
        """How messages name this configuration."""
        return cls.__name__

    def changed(self, **changes: Any) -> Self:
        """A copy with some fields replaced, validated like new."""
        return self.parse({**self.model_dump(mode="json"), **changes})


def _sentence(cls: type[Config], error: pydantic.ValidationError) -> str:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    key = str(first["loc"][-1]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        fields = sorted(cls.model_fields)
        near = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
        hint = f" did you mean '{near[0]}'?" if near else ""
        return f"{cls.title()} has no key '{key}';{hint} allowed: {', '.join(fields)}"
    if first["type"] == "missing":
        return f"{cls.title()} needs a value for '{path}'"
    if first["type"] == "literal_error":
        options = [part.strip("' ") for part in first["ctx"]["expected"].replace(" or ", ", ").split(",")]
        near = difflib.get_close_matches(str(first["input"]), options, n=1, cutoff=0.5)
        hint = f" did you mean '{near[0]}'?" if near else ""
        return f"{path}: unknown value '{first['input']}';{hint} allowed: {', '.join(options)}"
    message = first["msg"].removeprefix("Value error, ")
    if not path:
        return message
    return f"{path} = {first['input']!r}: {message[0].lower()}{message[1:]}"
