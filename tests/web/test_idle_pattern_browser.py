"""The idle pattern of the map is like no owner's pattern, in a browser and without colours."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import Page
from web_harness import Visit

from gpupool.web.pages.overview import pool_map

SIZE = 80  # pixels: ten times an owner's pattern, almost seven times that of idle slices
ANGLES, OCTAVES = 8, 4
MAX_LIKENESS = 0.7  # a pattern with itself: 1
MIN_CONTRAST = 3.0  # WCAG 2.2, 1.4.11: between the lines of a pattern and their ground
Picture = npt.NDArray[np.float64]


def draw(page: Page, theme: str, fills: list[str]) -> list[Picture]:
    """Return the luminance of squares with these SVG fills, as the stylesheet of the overview draws them."""
    page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
    patterns = pool_map._IDLE + "".join(pool_map._pattern(slot) for slot in range(pool_map.PATTERNS))
    squares = "".join(
        f'<svg id="square{n}" width="{SIZE}" height="{SIZE}">{fill}</svg>' for n, fill in enumerate(fills)
    )
    drawn = f'<div class="probe"><svg width="0" height="0">{patterns}</svg>{squares}</div>'
    page.evaluate("html => document.documentElement.insertAdjacentHTML('afterbegin', html)", drawn)
    return [luminance(page, page.locator(f"#square{n}").screenshot()) for n in range(len(fills))]


def luminance(page: Page, png: bytes) -> Picture:
    """Return the relative luminance of each pixel, decoded by an empty page of the browser."""
    empty = page.context.new_page()
    pixels = empty.evaluate(
        """async ([png, size]) => {
            const bitmap = await createImageBitmap(new Blob([Uint8Array.from(atob(png), c => c.charCodeAt(0))]));
            const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext('2d');
            canvas.drawImage(bitmap, 0, 0);
            return [...canvas.getImageData(0, 0, size, size).data];
        }""",
        [base64.b64encode(png).decode(), SIZE],
    )
    empty.close()
    colours = np.array(pixels, float).reshape(SIZE, SIZE, 4)[..., :3] / 255
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ [0.2126, 0.7152, 0.0722])


def texture(picture: Picture) -> Picture:
    """Return the strength of the picture's waves by direction and length, which says nothing of colours."""
    power = np.abs(np.fft.fft2(picture - picture.mean())) ** 2
    y, x = np.meshgrid(np.fft.fftfreq(SIZE), np.fft.fftfreq(SIZE), indexing="ij")
    angle = np.round(np.arctan2(y, x) % np.pi / np.pi * ANGLES).astype(int) % ANGLES
    octave = np.clip(np.log2(np.hypot(x, y) * 16, where=(x != 0) | (y != 0), out=np.zeros_like(x)), 0, OCTAVES - 1)
    found = np.bincount((angle * OCTAVES + octave.astype(int)).ravel(), power.ravel(), ANGLES * OCTAVES)
    return np.asarray(found / max(np.linalg.norm(found), 1e-12))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_idle_slices_look_like_those_of_no_owner(visit: Visit, theme: str) -> None:
    page = visit()
    page.goto("/")
    owners = [f'<rect class="c{n}" width="100%" height="100%" fill="url(#o{n})"/>' for n in range(pool_map.PATTERNS)]
    idle = [f'<g class="c{n}">{owner}<rect class="idle" width="100%"/></g>' for n, owner in enumerate(owners)]
    drawn = draw(page, theme, owners + idle)
    of_owners, of_idle = drawn[: len(owners)], drawn[len(owners) :]
    like = [[float(texture(one) @ texture(other)) for other in of_owners] for one in of_idle]
    assert np.max(like) < MAX_LIKENESS, np.round(like, 2)
    for number, picture in enumerate(of_idle):
        contrast = (picture.max() + 0.05) / (picture.min() + 0.05)
        assert contrast > MIN_CONTRAST, (number, contrast)
