"""A recipe put away, or taken out again: its `archived` key, and not a byte beside it."""

from __future__ import annotations

from mesh.errors import UsageError


def set_archived(text: str, *, archived: bool) -> str:
    """The recipe's text with the key set, every comment kept. Raises UsageError where the extra that edits TOML is
    missing."""
    try:
        import tomlkit
    except ImportError:
        raise UsageError("recipes are edited with the extra: pip install 'servemesh[launch]'") from None
    document = tomlkit.parse(text)
    if "archived" in document:
        document["archived"] = archived
        return tomlkit.dumps(document)
    if not archived:
        return text
    # a key of the top comes before the first table, or it would be that table's
    return f"archived = true\n{text}"
