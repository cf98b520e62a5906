"""``python -m gpupool.verify``: check the GPUs of this machine, or those in ``CUDA_VISIBLE_DEVICES``.

The exit status is 0 for ok, 1 for suspect, 2 for fail, and 3 if nothing could be checked.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":  # the pool runs this file with a Python that need not know the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpupool.verify.cards import Card, check_card, check_nccl, check_peers, xid_check
from gpupool.verify.node_checks import check_node
from gpupool.verify.nvml import Device, Nvml, NvmlError, XidRecorder
from gpupool.verify.results import CheckOptions, Subject, VerifyReport, compare_with_peers
from gpupool.verify.table import table

NOTHING_CHECKED = 3


def main(arguments: list[str] | None = None) -> int:
    """Check, print the report and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        nvml = Nvml()
        cards = list(_cards(nvml))
    except (OSError, NvmlError) as error:
        sys.stderr.write(f"gpupool verify: no GPU can be checked: {error}\n")
        return NOTHING_CHECKED
    if options.gpu:
        cards = [card for card in cards if card.index in options.gpu]
    if not cards:
        sys.stderr.write("gpupool verify: this machine has no such GPU\n")
        return NOTHING_CHECKED
    report = run(nvml, cards, options.node, CheckOptions(options.level, options.burn, in_slice=options.slice))
    lines = [json.dumps(report.to_dict())] if options.json else table(report)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return report.exit_status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpupool.verify", description="Check the GPUs of this machine.")
    parser.add_argument("--gpu", metavar="N", type=int, action="append", help="check this GPU only; may be repeated")
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=1, help="1: quick; 2: thorough; 3: with load")
    parser.add_argument("--burn", metavar="SECONDS", type=float, default=60.0, help="length of the load of level 3")
    parser.add_argument("--slice", action="store_true", help="check the memory limit of this slice too")
    parser.add_argument("--node", metavar="NAME", default=socket.gethostname(), help="the node's name in the report")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def run(nvml: Nvml, cards: list[Card], node: str, options: CheckOptions) -> VerifyReport:
    """Check these GPUs and their node."""
    emulated = any(card.emulated for card in cards)
    driver = nvml.text("nvmlSystemGetDriverVersion")
    watch = XidRecorder(nvml, [card.device for card in cards if card.device is not None])
    present = [card.uuid for card in cards if card.device is not None]
    found = {card.uuid: check_card(card, [uuid for uuid in present if uuid != card.uuid], options) for card in cards}
    for uuid, check in check_peers(cards).items():
        found[uuid].append(check)
    together = check_nccl(cards, options)
    xids = watch.read()
    for card in cards:
        if card.device is not None:
            found[card.uuid].append(xid_check(xids.get(card.uuid, ())))
    gpus = tuple(Subject(card.index, card.uuid, card.model, tuple(found[card.uuid])) for card in cards)
    checks = (*check_node(driver, emulated=emulated), *together)
    return VerifyReport(node, options.level, emulated, driver, checks, compare_with_peers(gpus))


def _cards(nvml: Nvml) -> Iterator[Card]:
    """Yield the GPUs that this process may use, also those that have disappeared."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = [name.strip() for name in visible.split(",") if name.strip()] if visible is not None else []
    if named and not all(name.isdigit() for name in named):
        for place, uuid in enumerate(named):
            try:
                yield _card(nvml.device_of(uuid))
            except NvmlError as error:
                yield Card(place, uuid, "", None, str(error))
        return
    for index in [int(name) for name in named] if visible is not None else range(nvml.count):
        try:
            yield _card(nvml.device(index))
        except NvmlError as error:
            yield Card(index, f"index {index}", "", None, str(error))


def _card(device: Device) -> Card:
    return Card(device.index, device.uuid, device.model, device)


if __name__ == "__main__":
    sys.exit(main())
