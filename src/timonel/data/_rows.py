"""Two plain formats that a person edits, read so that every cell knows its line.

    rows      a table: cells separated by one tab, a header, `#` comments, `-` for an empty cell
    leaves    a YAML file of nested keys: (key, key, ...) -> text

A leaf is the text as written: `no` and `1` stay texts, and a key that occurs twice
is refused, not overwritten.
All text comes out in Unicode's NFC form, so that one letter typed in two ways is one letter.

Errors:
    InputError: no such file, not UTF-8, no such structure; with file and line.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from timonel.errors import InputError

_DEEPEST = 8
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's reads ten times faster, where it is


@dataclass(frozen=True, slots=True)
class Leaf:
    """A text of a YAML file and the line that it stands in, counted from 1."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table and its line, counted from 1; an empty cell is an empty text."""

    line: int
    cells: dict[str, str]

    def __getitem__(self, column: str) -> str:
        return self.cells[column]

    def listed(self, column: str) -> tuple[str, ...]:
        """The comma-separated parts of a cell."""
        return tuple(part.strip() for part in self.cells[column].split(",") if part.strip())


def wrong(path: Path, line: int, what: str, to_do: str) -> InputError:
    """The one sentence that says where, what, and what to do."""
    return InputError(f"{path}, line {line}: {what}; {to_do}.")


def read_text(path: Path) -> str:
    """A UTF-8 file's text in NFC."""
    try:
        return unicodedata.normalize("NFC", path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); name a readable file.") from error


def rows(path: Path, columns: Sequence[str]) -> tuple[Row, ...]:
    """All rows of a table whose header must be exactly `columns`, in any order.

    Every cell but a list's or a note's is checked for emptiness by whoever knows what it means.
    """
    # Not `splitlines`, which also breaks at characters that may stand in a text.
    numbered = [(number, line) for number, line in enumerate(read_text(path).split("\n"), 1)]
    split = [
        (number, [cell.strip() for cell in line.split("\t")])
        for number, line in numbered
        if line.strip() and not line.startswith("#")
    ]
    if not split:
        raise wrong(path, 1, "the table is empty", f"begin it with the header {', '.join(columns)}")
    (line, header), *body = split
    if sorted(header) != sorted(columns):
        raise wrong(
            path,
            line,
            f"the header is {', '.join(header)}",
            f"make it {', '.join(columns)}, tabs between them",
        )
    for line, cells in body:
        if len(cells) != len(header):
            raise wrong(
                path,
                line,
                f"{len(cells)} cells where the header has {len(header)}",
                "put one tab between cells",
            )
    return tuple(
        Row(line, {name: "" if cell == "-" else cell for name, cell in zip(header, cells, strict=True)})
        for line, cells in body
    )


def leaves(path: Path) -> dict[tuple[str, ...], Leaf]:
    """Every text of a YAML file under the keys that lead to it, in file order."""
    try:
        root = yaml.compose(read_text(path), Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or "unreadable"
        raise wrong(
            path, mark.line + 1 if mark else 1, f"no valid YAML ({what})", "put texts in double quotes"
        ) from error
    found: dict[tuple[str, ...], Leaf] = {}
    for keys, leaf in _walk(path, root, ()):
        if keys in found:
            raise wrong(
                path,
                leaf.line,
                f"{'.'.join(keys)} was given in line {found[keys].line} too",
                "keep one of them",
            )
        found[keys] = leaf
    return found


def _walk(path: Path, node: yaml.Node | None, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    if len(keys) > _DEEPEST:  # an alias may hold itself
        raise wrong(path, 1, f"{'.'.join(keys)} is nested too deeply", "take out the alias that repeats it")
    if isinstance(node, yaml.ScalarNode) and keys:
        yield keys, Leaf(node.value, node.start_mark.line + 1)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _walk(path, value, (*keys, key.value if isinstance(key, yaml.ScalarNode) else "?"))
    else:
        line = node.start_mark.line + 1 if node is not None else 1
        raise wrong(path, line, f"{'.'.join(keys) or 'the file'} is no text and has no keys", "write `key: text`")
