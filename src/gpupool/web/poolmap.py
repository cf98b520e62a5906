"""Draws the map of nodes and GPUs: every slice to size, in its owner's colour and pattern, with its use inside.

The drawing is written as text and not by a template: a large pool has thousands of shapes, and who looks at them must
not keep the scheduler waiting. Everything that people chose (names) goes through ``escape``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from markupsafe import Markup, escape

from gpupool.domain.units import WHOLE_GPU
from gpupool.web import filters
from gpupool.web.views.overview import GpuRow, NodeCard, Overview, Slice

COLOURS = 8
PATTERNS = 8
DENSE_FROM_GPUS = 48  # from here on bars are low and carry no words
AT_ONCE = 8  # nodes drawn before others get their turn
LABELLED_FROM = 180  # thousandths: narrower slices have no room for their name
LABELLED_FROM_ALONE = 70  # likewise, of a node that has the whole width

# What is drawn over the colour, in a square of 8: the second sign beside colour.
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
_IDLE = (
    '<pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" class="idle-fill">'
    '<rect width="6" height="6"/><path d="M-1 7 7-1M-1 1l2-2M5 7l2-2"/></pattern>'
)


def colour(slot: int) -> int:
    """The number of the colour of an owner."""
    return slot % COLOURS


def pattern(slot: int) -> int:
    """The number of its pattern: eight owners have their own colour and pattern, the next eight share neither pair."""
    return (slot + slot // COLOURS) % PATTERNS


@dataclass(frozen=True, slots=True)
class _Words:
    """How much is written into slices: nothing when they are ``dense``, no owner when there is one ``alone``."""

    dense: bool
    alone: bool
    wide: bool
    only: str

    def label(self, piece: Slice) -> str:
        """What is written into a slice; empty where there is no room."""
        if self.dense or piece.permille < (LABELLED_FROM_ALONE if self.wide else LABELLED_FROM):
            return ""
        name = piece.name if self.alone else f"{piece.owner} · {piece.name}"
        return f"{name} · idle" if piece.idle else name


def patterns(view: Overview) -> Markup:
    """The fills of all owners that hold something, to be put on the page once."""
    fills = _IDLE + "".join(_pattern(owner.slot) for owner in view.owners)
    return Markup('<svg class="fills" width="0" height="0" aria-hidden="true"><defs>%s</defs></svg>') % Markup(fills)  # noqa: S704 - numbers only


def _pattern(slot: int) -> str:
    return (
        f'<pattern id="o{slot}" width="8" height="8" patternUnits="userSpaceOnUse" class="c{colour(slot)}">'
        f'<rect width="8" height="8" class="tint"/><g class="stroke">{_STROKES[pattern(slot)]}</g></pattern>'
    )


def swatch(slot: int) -> Markup:
    """A sample of an owner's fill for the legend."""
    return Markup(  # noqa: S704 - numbers only
        f'<svg class="swatch" aria-hidden="true"><rect width="100%" height="100%" fill="url(#o{slot})" '
        f'class="c{colour(slot)} edge"/></svg>'
    )


def drawn(view: Overview, only: str = "") -> Iterator[str]:
    """All nodes, a few at a time; slices of others than ``only`` are faint. Joined they are markup."""
    words = _Words(
        dense=view.totals.gpus >= DENSE_FROM_GPUS, alone=len(view.owners) == 1, wide=len(view.nodes) == 1, only=only
    )
    yield f'<div class="map{" map-dense" if words.dense else ""}">'
    for begin in range(0, len(view.nodes), AT_ONCE):
        cards = view.nodes[begin : begin + AT_ONCE]
        yield "".join(part for card in cards for part in _node(card, view, words))
    yield "</div>"


def _node(card: NodeCard, view: Overview, words: _Words) -> Iterable[str]:
    name = escape(card.name)
    yield f'<section class="node node-{card.state}" id="node-{name}"><h3><a href="/nodes/{name}">{name}</a>'
    if card.state != "up":
        yield f' <span class="state state-{filters.tone(card.state)}">{filters.shape(card.state)} {card.state}</span>'
    yield f'<span class="node-sum">{filters.gpus(card.allocated)} of {len(card.gpus)}<span class="roomy"> allocated'
    yield f'</span></span></h3><p class="node-models">{escape(card.models)}</p>'
    for gpu in card.gpus:
        yield from _gpu(gpu, view, words)
    yield "</section>"


def _gpu(gpu: GpuRow, view: Overview, words: _Words) -> Iterable[str]:
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


def _classes(piece: Slice, slot: int, only: str) -> str:
    """Its colour, whether it is on its way out, and whether others are looked for; its fill is by the slot."""
    leaving = " leaving" if piece.leaving else ""
    faint = " faint" if only and piece.owner != only else ""
    return f'class="c{colour(slot)}{leaving}{faint}" fill="url(#o{slot})"'


def _slice(piece: Slice, begin: int, kind: str, words: str) -> str:
    x, width = _at(begin), _at(piece.permille)
    used = label = ""
    if piece.use:
        used = f'<rect class="use" x="{x}%" width="{_at(piece.permille * min(1.0, piece.use))}%"/>'
    if words:
        label = f'<svg x="{x}%" width="{width}%"><text x="5" y="14">{escape(words)}</text></svg>'
    idle = f'<rect class="idle" x="{x}%" width="{width}%"/>' if piece.idle else ""
    return (
        f'<a href="{piece.href}" tabindex="-1" {kind}><title>{escape(_told(piece))}</title>'
        f'<rect class="edge" x="{x}%" width="{width}%"/>{idle}{used}{label}</a>'
    )


def _told(piece: Slice) -> str:
    """What the pointer shows."""
    use = "use not measured" if piece.use is None else f"uses {piece.use:.0%} of it"
    state = ", idle for more than 5 minutes" if piece.idle else ", stopping" if piece.leaving else ""
    return f"{piece.about}\n{filters.gpus(piece.permille)} GPU, {use}{state}"


def _at(permille: float) -> str:
    return f"{permille * 100 / WHOLE_GPU:.5g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}%"
