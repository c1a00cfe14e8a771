"""Texts that others wrote, made fit for people's terminals."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` in one line without what a terminal would obey, and no message could carry.

    White space becomes a blank, and any other character that cannot be printed a question mark:
    names of files and of tensors may hold control sequences, and bytes that are no text at all.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in text)
