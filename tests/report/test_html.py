"""The HTML page: figures within it, headings with ids, and tables that a click sorts by value."""

import json
import re
import shutil
import subprocess

import pytest

from report.html import SCRIPT, page

MARKDOWN = """# A *title* & more

## Results

See [the results](#results-1) and [a file](notes/minmax.md).

## Results

| arm | step |
|:--|--:|
| `a` | 1 ms |

![Steps <b>](figures/steps.png)

*Figure 1. Steps of [1].*

![gone](figures/gone.png)
"""
PICTURE = b"\x89PNG"


def test_figures_headings_and_tables() -> None:
    html = page(MARKDOWN, {"steps.png": PICTURE})
    assert "<title>A title &amp; more</title>" in html
    assert re.findall(r'<h\d id="([^"]*)"', html) == ["a-title--more", "results", "results-1"]
    data = 'src="data:image/png;base64,iVBORw=="'
    assert f'<figure><img {data} alt="Steps &lt;b&gt;"><figcaption>Figure 1. Steps of [1].</figcaption>' in html
    assert "<em>gone</em>" in html
    assert '<div class="scroll"><table>' in html
    assert '<td class="right">1 ms</td>' in html
    assert page(MARKDOWN, {"steps.png": PICTURE}) == html


def test_an_emphasis_below_no_picture_is_no_caption() -> None:
    assert "<figcaption>" not in page("*Figure 1. Alone.*", {})
    assert "<figcaption>" not in page("![x](a.png)\n\n*Figure 1.* Text.", {"a.png": PICTURE})
    assert "<figcaption>" not in page("![x](a.png)\n\n*Figure 1. a* b *c*", {"a.png": PICTURE})


CELLS = [  # and the order of their places, rising
    (["1.10 (1.00 to 1.20)", "0.919 (0.905 to 0.933)", "–"], [1, 0, 2]),
    (["1.44 s", "149 ms", "42.0 µs", "", "2.0 s"], [2, 1, 0, 4, 3]),
    (["2.21 GiB", "18.7 MiB", "1,024 MiB"], [1, 2, 0]),
    (["−1.0 %", "3.5 %", "-2 %", "2e-05", "not measured"], [2, 0, 3, 1, 4]),
    (["10 of 12", "9 of 12", "yes", "100"], [1, 0, 3, 2]),
    (["55.8 ms (13.2 %)", "never", "61,091 steps", "9 steps"], [0, 3, 2, 1]),
    (["2026-11-25", "2026-02-01", "minmax", "balanced"], [1, 0, 3, 2]),
]


def placed(columns: list[list[str]], direction: int) -> list[list[int]]:
    """Return the places of each column's cells when the page's script has sorted them; node runs it without a page."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed, which runs the page's script")
    code = f"""const document = {{ querySelectorAll: () => [] }};{SCRIPT}
const sorted = {json.dumps(columns)}.map((texts) => {{
  const keys = texts.map(sortKey);
  return [...keys.keys()].sort((a, b) => compareKeys(keys[a], keys[b], {direction}));
}});
console.log(JSON.stringify(sorted));"""
    found: list[list[int]] = json.loads(subprocess.run([node, "-e", code], capture_output=True, check=True).stdout)
    return found


def test_cells_sort_by_value() -> None:
    columns, rising = [cells for cells, _ in CELLS], [order for _, order in CELLS]
    for cells, places, expected in zip(columns, placed(columns, 1), rising, strict=True):
        assert places == expected, cells
    for cells, places, before in zip(columns, placed(columns, -1), rising, strict=True):
        last = [i for i in before if cells[i] in ("", "–", "not measured")]
        assert places == [i for i in reversed(before) if i not in last] + last, cells
