"""Results as one HTML page with SVG charts: it loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from gpupool.bench.figures import CaseOutcome, value_text
from gpupool.bench.results import Result

EMULATED = "Emulated GPUs: no figure of this page describes a real GPU."
WIDTH, ROW, LABEL_WIDTH, VALUE_WIDTH = 760, 22, 330, 110
STYLE = (
    "body{font:15px sans-serif;margin:2em;max-width:64em}table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}"
    "td:last-child{overflow-wrap:anywhere}"
    ".number{text-align:right;white-space:nowrap}.emulated{background:#fff3cd;padding:.6em 1em;font-weight:bold}"
    "figure{margin:1.5em 0}figcaption{font-weight:bold}svg{width:100%;height:auto}"
)


def page(results: Sequence[Result]) -> str:
    """Return the page: conditions, and for each benchmark its table, its charts and published figures."""
    label = f'<p class="emulated">{EMULATED}</p>' if any(result.emulated for result in results) else ""
    parts = list(dict.fromkeys(result.figure.part for result in results))
    sections = "\n".join(_section(part, [one for one in results if one.figure.part == part]) for part in parts)
    head = f'<meta charset="utf-8"><title>gpupool bench</title><style>{STYLE}</style>'
    body = f"<h1>gpupool bench</h1>\n{label}\n{_conditions(results)}\n{sections}"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _conditions(results: Sequence[Result]) -> str:
    rows = []
    for command in dict.fromkeys(result.facts["machine"]["command"] for result in results):
        facts = next(one.facts for one in results if one.facts["machine"]["command"] == command)
        machine = facts["machine"]
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        nodes = "; ".join(f"{node['name']}: {', '.join(node['gpus']) or 'no GPU'}" for node in facts["pool"]["nodes"])
        rows.append((command, machine["date"], f"{machine['cpu']}, {machine['cores']} cores", nodes, versions))
    return _table(("Command", "Date", "Machine", "Nodes", "Versions"), rows)


def _section(part: str, results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        figure = result.figure
        measured = figure.outcome is CaseOutcome.MEASURED
        value = value_text(figure) if measured else figure.outcome.value
        ratio = "" if figure.ratio is None else f"{figure.ratio:.3g}"
        note = figure.reason or ("emulated" if result.emulated else "")
        rows.append((figure.name, value, ratio, figure.baseline, figure.goal, note))
    table = _table(("Figure", "Value", "Ratio", "Baseline", "Goal", "Note"), rows, numbers=(1, 2))
    units = dict.fromkeys(one.figure.unit for one in results if one.figure.outcome is CaseOutcome.MEASURED)
    charts = "\n".join(_chart(part, unit, results) for unit in units)
    return f'<section id="{escape(part)}"><h2>{escape(part)}</h2>{table}{charts}{_published(part)}</section>'


def _published(part: str) -> str:
    rows = [(one.what, one.value, one.conditions, one.source) for one in PUBLISHED if one.part == part]
    if not rows:
        return ""
    heading = "<h3>Published figures</h3><p>Other programs on other machines: compare ratios, not values.</p>"
    return heading + _table(("What", "Value", "Conditions", "Source"), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    tags = ['<td class="number">' if index in numbers else "<td>" for index in range(len(header))]
    lines = ("".join(f"{tag}{escape(cell)}</td>" for tag, cell in zip(tags, row, strict=True)) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _chart(part: str, unit: str, results: Sequence[Result]) -> str:
    """Return horizontal bars of all figures with one unit."""
    bars = [(one.figure.name, one.figure.value or 0.0, value_text(one.figure)) for one in results if _has(one, unit)]
    most = max(value for _, value, _ in bars) or 1.0
    drawn = "".join(_bar(index, bar, most) for index, bar in enumerate(bars))
    svg = f'<svg viewBox="0 0 {WIDTH} {ROW * len(bars)}" role="img" xmlns="http://www.w3.org/2000/svg">{drawn}</svg>'
    return f"<figure><figcaption>{escape(part)}: {escape(unit)}</figcaption>{svg}</figure>"


def _has(result: Result, unit: str) -> bool:
    return result.figure.outcome is CaseOutcome.MEASURED and result.figure.unit == unit


def _bar(index: int, bar: tuple[str, float, str], most: float) -> str:
    name, value, text = bar
    y, width = index * ROW, max(1.0, value / most * (WIDTH - LABEL_WIDTH - VALUE_WIDTH))
    middle = y + ROW * 0.65
    return (
        f'<text x="{LABEL_WIDTH - 6}" y="{middle:.1f}" font-size="11" text-anchor="end">{escape(name)}</text>'
        f'<rect x="{LABEL_WIDTH}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}" fill="#1b6ca8"/>'
        f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{middle:.1f}" font-size="11">{escape(text)}</text>'
    )


NVIDIA = (
    "https://github.com/NVIDIA/DeepLearningExamples/blob/291f0d02e815b148fa5c2b81bf07aa3552142895"
    "/PyTorch/Classification/ConvNets/resnet50v1.5/README.md"
)
BITFUSION = "README of github.com/alexhanl/machine-learning (Bitfusion 4.0.1)"
V100_1, V100_8 = "1 x V100 16GB (DGX-1), FP32, PyTorch 21.03", "8 x V100 16GB (DGX-1), FP32, PyTorch 21.03"
A100_1, A100_8 = "1 x A100 80GB (DGX A100), TF32, PyTorch 21.03", "8 x A100 80GB (DGX A100), TF32, PyTorch 21.03"
REMOTE = "V100 32GB over 10 GbE, MTU 9000; ratio to the same GPU in the same machine"


@dataclass(frozen=True, slots=True)
class Published:
    """One published figure. ``part`` is the benchmark that measures something similar."""

    part: str
    what: str
    value: str
    conditions: str
    source: str


PUBLISHED = (
    Published("train", "ResNet-50 v1.5 training", "367 images/s", V100_1, NVIDIA),
    Published("train", "ResNet-50 v1.5 training", "938 images/s", A100_1, NVIDIA),
    Published("scaling", "ResNet-50 v1.5 training", "2855 images/s, 7.76 times one GPU", V100_8, NVIDIA),
    Published("scaling", "ResNet-50 v1.5 training", "7248 images/s, 7.72 times one GPU", A100_8, NVIDIA),
    Published("overhead", "remote ResNet-50 training, batch 256", "0.972", REMOTE, BITFUSION),
    Published("overhead", "remote ResNet-50 inference, batch 256", "0.980", REMOTE, BITFUSION),
    Published("overhead", "remote ResNet-50 inference, batch 1", "0.62", REMOTE, BITFUSION),
    Published("overhead", "remote ResNeXt-101 inference, batch 1", "0.69", REMOTE, BITFUSION),
)
