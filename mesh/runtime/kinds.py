"""The kinds of text and number that the fields of a candidate hold, each with what it has to be."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from mesh.runtime.limits import MAX_URL_BYTES


def matching(pattern: str, expected: str) -> AfterValidator:
    """Text that is of `pattern` from end to end."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"expected {expected}")
        return text

    return AfterValidator(check)


_NUMBERS = r"[0-9]+\.[0-9]+\.[0-9]+"
_IMAGE = "an image with its digest, name@sha256:<64 hex digits>"
SAFE = r"[a-z0-9][a-z0-9._-]*"
_SEGMENT = r"[A-Za-z0-9._+-]+"

Safe = Annotated[str, matching(SAFE, "lower-case letters, digits, '.', '_', '-', beginning with a letter or digit")]
Platform = Annotated[str, matching(r"[a-z0-9._-]+/[a-z0-9._-]+", "system/architecture in lower case")]
Version = Annotated[str, matching(_NUMBERS + r"([-+][0-9A-Za-z.-]+)?", "a version like 1.0.0 or 1.0.0-rc.1")]
PlainVersion = Annotated[str, matching(_NUMBERS + r"(-[0-9A-Za-z.-]+)?", "a version like 1.0.0, without a +")]
PythonVersion = Annotated[str, matching(r"3\.(8|9|1[0-9])\.[0-9]+", "an exact version from 3.8 to 3.19, like 3.11.16")]
Sha256Id = Annotated[str, matching(r"sha256:[0-9a-f]{64}", "sha256:<64 lower-case hex digits>")]
Sha256 = Annotated[str, matching(r"[0-9a-f]{64}", "64 lower-case hex digits")]
Revision = Annotated[str, matching(r"[0-9a-f]{40}", "40 lower-case hex digits")]
ImageReference = Annotated[
    str, matching(r"[^\s@]+@sha256:[0-9a-f]{64}", "an image with its digest, name@sha256:<64 hex digits>")
]
ModelUri = Annotated[str, matching(r"hf://[A-Za-z0-9._-]+/[A-Za-z0-9._-]+", "hf://owner/repository")]
BundleId = Annotated[str, matching(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", "a dotted bundle id")]
GgufName = Annotated[str, matching(r"[^/\\\x00-\x1f\x7f]+\.gguf", "a file name that ends in .gguf, without separators")]
VariableName = Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name: letters, digits and '_'")]
Login = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}", "a login of at most 39 letters, digits and '-'")]
License = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,126}", "an SPDX licence id")]
Repository = Annotated[str, matching(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+", "owner/repository")]


def _relative(text: str) -> str:
    if not re.fullmatch(rf"{_SEGMENT}(/{_SEGMENT})*", text) or ".." in text.split("/"):
        raise ValueError("expected a relative path of plain segments, without '..'")
    return text


RelativePath = Annotated[str, AfterValidator(_relative)]


def _https(text: str) -> str:
    if len(text.encode()) > MAX_URL_BYTES:
        raise ValueError(f"over {MAX_URL_BYTES} bytes")
    try:
        url = urlsplit(text)
        host = url.hostname
    except ValueError:
        raise ValueError("expected an https URL") from None
    if url.scheme != "https" or not host or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("expected an https URL")
    if "@" in url.netloc:
        raise ValueError("expected no credentials in the URL")
    if "#" in text:
        raise ValueError("expected no fragment in the URL")
    return text


HttpsUrl = Annotated[str, AfterValidator(_https)]

Positive = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


def equal(value: int) -> AfterValidator:
    """The one integer that a field may be."""

    def check(given: int) -> int:
        if given != value:
            raise ValueError(f"expected {value}")
        return given

    return AfterValidator(check)


def _present(text: str) -> str:
    if not text:
        raise ValueError("expected text that is not empty")
    return text


Text = Annotated[str, AfterValidator(_present)]


def reserved(prefix: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Refuses names that are kept for whoever runs the candidate."""

    def check(environment: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in environment:
            if name.startswith(prefix):
                raise ValueError(f"{name[:80]}: {prefix}* is reserved")
        return environment

    return check
