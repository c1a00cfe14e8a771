"""Sanitising of untrusted text for terminals and messages."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return `text` on one line, without unprintable characters.

    White space becomes a blank, any other unprintable character a question mark: file and tensor
    names may contain control sequences, or bytes that are not valid text.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in text)
