"""The map of nodes and GPUs: slices to scale, in their owner's colour and pattern, with their utilisation.

The drawing is written as text and not by a template: a large pool has thousands of shapes, and rendering must not
delay the scheduler. All names go through ``escape``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from markupsafe import Markup, escape

from gpupool.domain.units import WHOLE_GPU
from gpupool.web.kit import filters
from gpupool.web.pages.overview.view import GpuRow, MapSlice, NodeCard, Overview

PATTERNS = 8
DENSE_FROM_GPUS = 48  # from here on bars are low and have no labels
NODES_PER_BATCH = 8  # nodes drawn before other tasks run
MIN_LABEL_PERMILLE = 180  # thousandths: narrower slices have no room for their name
MIN_LABEL_PERMILLE_WIDE = 70  # likewise, of a node that has the whole width

# What is drawn over the colour, in a square of 8: the second sign besides colour.
_STROKES = (
    "",
    '<path d="M-2 10 10-2M-2 2 2-2M6 10l4-4"/>',
    '<circle cx="2" cy="2" r="1.1"/><circle cx="6" cy="6" r="1.1"/>',
    '<path d="M2 0v8M6 0v8"/>',
    '<path d="M-2-2 10 10M6-2l4 4M-2 6l4 4"/>',
    '<path d="M0 2h8M0 6h8"/>',
    '<path d="M0 4h8M4 0v8"/>',
    '<path d="M0 0 4 4 8 0M0 8 4 4"/>',
)
_IDLE = (  # rings, which no owner has
    '<pattern id="idle" width="12" height="12" patternUnits="userSpaceOnUse" class="idle-fill">'
    '<rect width="12" height="12"/><circle cx="6" cy="6" r="3.5"/></pattern>'
)


def pattern(slot: int) -> int:
    """Return the pattern number of an owner; colour and pattern together are unique for 64 owners."""
    return (slot + slot // filters.COLOURS) % PATTERNS


@dataclass(frozen=True, slots=True)
class _LabelRules:
    """The texts in slices: none when they are ``dense``, no owner when there is one ``alone``."""

    dense: bool
    alone: bool
    wide: bool
    only: str

    def label(self, piece: MapSlice) -> str:
        """Return the label of a slice; empty if there is no room."""
        if self.dense or piece.permille < (MIN_LABEL_PERMILLE_WIDE if self.wide else MIN_LABEL_PERMILLE):
            return ""
        name = piece.name if self.alone else f"{piece.owner} · {piece.name}"
        return f"{name} · idle" if piece.idle else name


def patterns(view: Overview) -> Markup:
    """Return the SVG fills of all owners, for the page to include once."""
    fills = _IDLE + "".join(_pattern(owner.slot) for owner in view.owners)
    return Markup('<svg class="fills" width="0" height="0" aria-hidden="true"><defs>%s</defs></svg>') % Markup(fills)  # noqa: S704 - numbers only


def _pattern(slot: int) -> str:
    return (
        f'<pattern id="o{slot}" width="8" height="8" patternUnits="userSpaceOnUse" class="c{filters.colour(slot)}">'
        f'<rect width="8" height="8" class="tint"/><g class="stroke">{_STROKES[pattern(slot)]}</g></pattern>'
    )


def swatch(slot: int) -> Markup:
    """Return a sample of an owner's fill for the legend."""
    return Markup(  # noqa: S704 - numbers only
        f'<svg class="swatch" aria-hidden="true"><rect width="100%" height="100%" fill="url(#o{slot})" '
        f'class="c{filters.colour(slot)} edge"/></svg>'
    )


def draw_map(view: Overview, only: str = "") -> Iterator[str]:
    """Yield the HTML of all nodes, a few at a time; slices of owners other than ``only`` are faint."""
    words = _LabelRules(
        dense=view.totals.gpus >= DENSE_FROM_GPUS, alone=len(view.owners) == 1, wide=len(view.nodes) == 1, only=only
    )
    yield f'<div class="map{" map-dense" if words.dense else ""}">'
    for begin in range(0, len(view.nodes), NODES_PER_BATCH):
        cards = view.nodes[begin : begin + NODES_PER_BATCH]
        yield "".join(part for card in cards for part in _node(card, view, words))
    yield "</div>"


def _node(card: NodeCard, view: Overview, words: _LabelRules) -> Iterable[str]:
    name = escape(card.name)
    yield f'<section class="node node-{card.state}" id="node-{name}"><h3><a href="/nodes/{name}">{name}</a>'
    if card.state != "up":
        yield f' <span class="state state-{filters.tone(card.state)}">{filters.shape(card.state)} {card.state}</span>'
    yield f'<span class="node-sum">{filters.gpus(card.allocated)} of {len(card.gpus)}<span class="roomy"> allocated'
    yield f'</span></span></h3><p class="node-models">{escape(card.models)}</p>'
    for gpu in card.gpus:
        yield from _gpu(gpu, view, words)
    yield "</section>"


def _gpu(gpu: GpuRow, view: Overview, words: _LabelRules) -> Iterable[str]:
    yield f'<div class="gpu" aria-hidden="true"><a class="gpu-no" href="{escape(gpu.href)}" tabindex="-1">{gpu.index}'
    yield '</a><svg class="slices">'
    if gpu.trouble:
        yield f'<g class="trouble"><title>{escape(gpu.trouble)}</title><rect width="100%" height="100%"/>'
        yield f'<text x="6" y="50%">✕ {escape(gpu.trouble)}</text></g>'
    begin = 0
    for piece in gpu.slices:
        kind = _classes(piece, view.slots[piece.owner], words.only)
        yield _slice(piece, begin, kind, words.label(piece))
        begin += piece.permille
    yield f'</svg><span class="gpu-use">{_percent(gpu.utilisation)}</span></div>'


def _classes(piece: MapSlice, slot: int, only: str) -> str:
    """Return the attributes for colour, stopping state and filter of a slice."""
    leaving = " leaving" if piece.leaving else ""
    faint = " faint" if only and piece.owner != only else ""
    return f'class="c{filters.colour(slot)}{leaving}{faint}" fill="url(#o{slot})"'


def _slice(piece: MapSlice, begin: int, kind: str, words: str) -> str:
    x, width = _at(begin), _at(piece.permille)
    used = label = ""
    if piece.use:
        used = f'<rect class="use" x="{x}%" width="{_at(piece.permille * min(1.0, piece.use))}%"/>'
    if words:
        label = f'<svg x="{x}%" width="{width}%"><text x="5" y="14">{escape(words)}</text></svg>'
    idle = f'<rect class="idle" x="{x}%" width="{width}%"/>' if piece.idle else ""
    return (
        f'<a href="{piece.href}" tabindex="-1" {kind}><title>{escape(_tooltip(piece))}</title>'
        f'<rect class="edge" x="{x}%" width="{width}%"/>{idle}{used}{label}</a>'
    )


def _tooltip(piece: MapSlice) -> str:
    """Return the tooltip of a slice."""
    use = "use not measured" if piece.use is None else f"uses {piece.use:.0%} of it"
    state = ", idle for more than 5 minutes" if piece.idle else ", stopping" if piece.leaving else ""
    return f"{piece.about}\n{filters.gpus(piece.permille)} GPU, {use}{state}"


def _at(permille: float) -> str:
    return f"{permille * 100 / WHOLE_GPU:.5g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}%"
