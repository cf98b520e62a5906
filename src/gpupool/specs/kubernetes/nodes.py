"""Putting YAML nodes together: a template with what goes over it, each part keeping its own place."""

from __future__ import annotations

from gpupool.specs.yamlnodes import Node


def text_node(text: str, at: Node) -> Node:
    """A text that stands in no file, at the place of another node."""
    return Node(at.line, at.column, text, plain_style=False)


def mapping(at: Node, **values: Node) -> Node:
    """A mapping that stands in no file."""
    made = Node(at.line, at.column, dict(values))
    made.keys = {key: (node.line, node.column) for key, node in values.items()}
    return made


def merged(base: Node | None, over: Node | None) -> Node | None:
    """A mapping with another put over it: mappings are merged, lists of named things by name, all else is replaced."""
    if base is None or over is None:
        return over if base is None else base
    if isinstance(base.value, dict) and isinstance(over.value, dict):
        made = Node(over.line, over.column, dict(base.value), keys={**base.keys, **over.keys})
        values = made.value
        if isinstance(values, dict):
            for key, node in over.value.items():
                values[key] = merged(base.value.get(key), node) or node
        return made
    if isinstance(base.value, list) and isinstance(over.value, list) and _all_named(base) and _all_named(over):
        return _merged_lists(base, over)
    return over


def _all_named(node: Node) -> bool:
    return isinstance(node.value, list) and all(_name(item) is not None for item in node.value)


def _name(node: Node) -> str | None:
    name = node.value.get("name") if isinstance(node.value, dict) else None
    return name.value if name is not None and isinstance(name.value, str) else None


def _merged_lists(base: Node, over: Node) -> Node:
    items: dict[str | None, Node] = {}
    for node in (base, over):
        for item in node.value if isinstance(node.value, list) else []:
            items[_name(item)] = merged(items.get(_name(item)), item) or item
    return Node(over.line, over.column, list(items.values()))
