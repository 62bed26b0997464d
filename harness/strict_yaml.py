"""YAML that means what a person reads.

PyYAML follows YAML 1.1, where `010` is 8, `off` is false, `1:30` is 90 and `1e-5` is text. Here every
scalar stays the text that was written; the model that reads it (`harness.spec`) asks for a number or
a flag and decides what text is one. Only plain mappings, sequences and scalars exist, so nothing is
ever constructed from a tag, duplicate keys are errors, and aliases are allowed within a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import yaml

from harness.errors import InputError

MAX_BYTES = 1_000_000
# Nodes after every alias is written out. The largest real file here has about a thousand.
MAX_NODES = 50_000

Tree = dict[str, "Tree"] | list["Tree"] | str | None
Path_ = tuple[str | int, ...]


class QuotedText(str):
    """A scalar that was written in quotes, or as a block: text, whatever it looks like."""


@dataclass(frozen=True)
class Document:
    """A parsed file: plain data, and the line on which each key or item begins."""

    path: Path
    root: Tree
    lines: dict[Path_, int] = field(repr=False)

    def place(self, key: Path_) -> str:
        """`file:line` of a key, or of the nearest parent that the file has."""
        while key and key not in self.lines:
            key = key[:-1]
        line = self.lines.get(key)
        return f"{self.path}:{line}" if line else str(self.path)


def dotted(key: Path_) -> str:
    """`("cases", 2, "id")` as a person writes it: `cases[2].id`."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def load(path: Path) -> Document:
    """Read one YAML file.

    Raises `InputError` when it cannot be read, is not YAML, has a duplicate key, a tag, more than
    one document, or aliases that expand past `MAX_NODES`.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "give a readable file") from None
    if len(content) > MAX_BYTES:
        raise InputError(str(path), f"has {len(content)} bytes", f"keep it under {MAX_BYTES}")
    try:
        node = yaml.compose(content.decode("utf-8"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"is not UTF-8 at byte {error.start}", "save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = error.problem or error.context or "it cannot be parsed"
        raise InputError(f"{path}:{line}", f"is not valid YAML: {problem}", "mend the syntax there") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(str(path), f"is not valid YAML: {error}", "mend the syntax") from None
    except RecursionError:
        raise InputError(str(path), "nests too deeply", "write it with fewer levels") from None
    if node is None:
        raise InputError(str(path), "is empty", "write a mapping of keys to values")
    _refuse_alias_bombs(path, node)
    lines: dict[Path_, int] = {}
    return Document(path, _plain(path, node, (), lines), lines)


def _refuse_alias_bombs(path: Path, root: yaml.Node) -> None:
    """Count the nodes as if aliases were written out, visiting each node once."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            return sizes[id(node)]
        if id(node) in open_nodes:
            line = node.start_mark.line + 1
            raise InputError(f"{path}:{line}", "an alias contains itself", "write the value out")
        open_nodes.add(id(node))
        total = 1
        if isinstance(node, yaml.MappingNode):
            total += sum(size(key) + size(value) for key, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            total += sum(size(item) for item in node.value)
        open_nodes.discard(id(node))
        if total > MAX_NODES:
            raise InputError(str(path), f"aliases expand to more than {MAX_NODES} nodes", "write the values out")
        sizes[id(node)] = total
        return total

    size(root)


# What the composer assigns to plain scalars that YAML 1.1 takes for something else than text. They
# are undone here; any other tag was written by hand and is refused.
_PLAIN_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value", "map", "seq")
}


def _plain(path: Path, node: yaml.Node, key: Path_, lines: dict[Path_, int]) -> Tree:
    line = node.start_mark.line + 1
    lines.setdefault(key, line)
    if node.tag not in _PLAIN_TAGS:
        shown = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise InputError(f"{path}:{line}", f'{dotted(key) or "the document"} has the tag "{shown}"', "remove the tag")
    if isinstance(node, yaml.ScalarNode):
        if node.style is not None:
            return QuotedText(node.value)
        return None if node.value in ("", "~", "null") else str(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(path, item, (*key, index), lines) for index, item in enumerate(node.value)]
    assert isinstance(node, yaml.MappingNode)
    mapping: dict[str, Tree] = {}
    for name_node, value_node in node.value:
        name_line = name_node.start_mark.line + 1
        if not isinstance(name_node, yaml.ScalarNode):
            raise InputError(f"{path}:{name_line}", "a key is not plain text", "write a word as the key")
        name = str(name_node.value)
        if name in mapping:
            raise InputError(f"{path}:{name_line}", f"{dotted((*key, name))} is given twice", "keep one of the two")
        lines[(*key, name)] = name_line
        mapping[name] = _plain(path, value_node, (*key, name), lines)
    return mapping
