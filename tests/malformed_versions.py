"""Versions that every interface refuses alike, as INVALID_ARGUMENT."""

from typing import Final

MALFORMED_VERSIONS: Final = (
    "2.",
    ".int8",
    ".",
    "2.int8.x",
    "2..int8",
    "02.int8",
    "0.int8",
    "-1.int8",
    "two.int8",
    "2.in t8",
    "2.-int8",
    " 2.int8",
    "2.int8\n",
    "٢.int8",
    f"2.{'x' * 200}",
)
