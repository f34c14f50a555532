"""Files made of blueprints: new ones, signed ones, one form out of the other. A body's bytes are never made again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from mesh.blueprint.body import Body, Module, encode_body
from mesh.blueprint.certificate import Certificate, check_links
from mesh.blueprint.container import Container, Inline, Internal, Locator, Source, head_of
from mesh.blueprint.modules import check_module
from mesh.blueprint.sealing import sign
from mesh.blueprint.signature import SecretKey
from mesh.blueprint.verification import Blueprint
from mesh.errors import KernelError
from mesh.identity.files import open_regular

_PIECE_BYTES: Final = 1 << 20

Find = Callable[[Module, Source], Path]


def preview(body: Body) -> bytes:
    """A file that nobody has signed, lite."""
    return head_of(encode_body(body), tuple(Locator(module.digest, Internal()) for module in body.modules))


def signed(container: Container, key: SecretKey, chain: Sequence[Certificate]) -> Iterator[bytes]:
    """The same file with another signature block. Raises ChainError where the chain is not one, or not that of `key`;
    who its root is, and what time it is, is for verifiers to say."""
    check_links(chain)
    locators = container.locators()
    block = sign(key, chain, container.header, [locator.digest for locator in locators])
    yield head_of(container.body, locators, block)
    yield from _payloads(container, locators)
    yield block


def lite(container: Container, sources: Mapping[bytes, Source] | None = None) -> Iterator[bytes]:
    """Without payloads. `sources` says by its digest where each module can be had; where it does not, one that was
    inline is in the installed engine, and another where it was."""

    def source(locator: Locator) -> Source:
        where = Internal() if isinstance(locator.source, Inline) else locator.source
        return where if sources is None else sources.get(locator.digest, where)

    locators = tuple(replace(locator, source=source(locator)) for locator in container.locators())
    yield head_of(container.body, locators, container.signature_block)
    yield container.signature_block


def full(container: Container, blueprint: Blueprint, find: Find) -> Iterator[bytes]:
    """With every module inline; those that are not yet are read where `find` says. Raises KernelError for bytes that
    are not what the body pins."""
    modules = {module.digest: module for module in blueprint.body.modules}
    paths: dict[bytes, Path] = {}
    at, locators = 0, []
    for locator in blueprint.locators:
        module = modules[locator.digest]
        if not isinstance(locator.source, Inline):
            paths[locator.digest] = path = find(module, locator.source)
            check_module(path, module)
        locators.append(Locator(locator.digest, Inline(at, module.length)))
        at += module.length
    yield head_of(container.body, tuple(locators), container.signature_block)
    for locator in blueprint.locators:
        if isinstance(locator.source, Inline):
            yield from container.pieces(locator.source)
        else:
            yield from _read(paths[locator.digest], modules[locator.digest])
    yield container.signature_block


def _payloads(container: Container, locators: Iterable[Locator]) -> Iterator[bytes]:
    for locator in locators:
        if isinstance(locator.source, Inline):
            yield from container.pieces(locator.source)


def _read(path: Path, module: Module) -> Iterator[bytes]:
    """The bytes at `path`, held to the pin once more as they are copied."""
    hasher, length = hashlib.sha256(), 0
    with open_regular(path) as file:
        while piece := file.read(_PIECE_BYTES):
            hasher.update(piece)
            length += len(piece)
            yield piece
    if (hasher.digest(), length) != (module.digest, module.length):
        raise KernelError(f"kernel module {module.name!r}: {path.name} changed while it was copied")
