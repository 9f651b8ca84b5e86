"""The PDF: no text becomes code, the same text gives the same bytes, and nothing runs out of a page."""

import io
import re
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
import typst
from PIL import Image

from ddpsched.errors import DataError
from experiments.reliability.hostile_texts.texts import hostile_text
from report.build import write
from report.pdf import TypstMissing, num_pages, pdf, write_source
from report.reading import tokens
from report.render import as_text
from report.typst_markup import Markup, literal

HOSTILE = [
    '#read("/etc/passwd")', "$x$", "\\", '\\"', '"', '"#panic("x");"', "*b*", "_e_", "@ref", "<label>", "`r`", "= h",
    "//", "/* c", "]", "[#x]", "#", ";", "a\nb", "{{x}}", "~", "https://a.org/#x", "- x", "\u202egnp", "&quot;",
    "\u200b\\u{22}", "ℓ∈Σ 日本", "x" * 300,
]  # fmt: skip
DOCUMENT = """# Title {0}

Text {0} with *emphasis {0} x*, **strong {0} x**, a [link {0} x](https://example.org) and a<sub>r</sub>.

- item {0}
  1. inner {0}

> quoted {0}

| left | right {0} |
|:--|--:|
| {0} | **x {0} x** |

<div class="formula">c<sub>r</sub>(k) &nbsp; = Σ</div>

---

![words {0} x](figures/a.png)

*Figure 1. Caption {0} x.*
"""


def png(width: int = 40, height: int = 20) -> bytes:
    content = io.BytesIO()
    Image.new("L", (width, height), 128).save(content, "PNG")
    return content.getvalue()


def markup(text: str) -> str:
    return Markup({"a.png": "0.png"}).document(tokens(DOCUMENT.format(as_text(text))))


def skeleton(source: str) -> str:
    """Return markup without what stands in string literals, however often they follow one another."""
    return re.sub(r'(#"";)+', '#"";', re.sub(r'"(?:[^"\\]|\\.)*"', '""', source))


def without_measures(source: str) -> str:
    """Return a skeleton without the words to be measured, whose number depends on the text."""
    return re.sub(r'(?:strong|raw)?\(""\), ', "", source)


def test_no_text_is_code() -> None:
    expected = without_measures(skeleton(markup("harmless")))
    random = Random(0)
    for text in [*HOSTILE, *(hostile_text(random)[:200] for _ in range(200))]:
        assert without_measures(skeleton(markup(f"x {text} x"))) == expected, ascii(text)


def test_the_check_finds_code() -> None:
    assert skeleton(f"#{literal('a')};#read({literal('b')})") != skeleton(f"#{literal('a')};")


def test_hostile_texts_are_printed() -> None:
    text = "\n\n".join(DOCUMENT.format(as_text(text)) for text in HOSTILE)
    code = "".join(f"\n\n```\n{text}\n```\n\nand `` {text} ``" for text in HOSTILE if "`" not in text)
    made = pdf(text + code, {"a.png": png()})
    assert made == pdf(text + code, {"a.png": png()})
    assert num_pages(made) == len(re.findall(rb"/Type\s*/Page\b", made)) > 1
    assert b"ddpsched-pdf-" not in made  # the temporary folder


def test_pages_of_other_bytes() -> None:
    with pytest.raises(DataError, match=r"4 bytes with no page; give what"):
        num_pages(b"text")


def images(text: str, folder: Path, figures: dict[str, bytes]) -> list[np.ndarray]:
    """Return the pages in grey, 2 points a pixel."""
    made = typst.compile(write_source(text, figures, folder), root=folder, format="png", ppi=36)
    pages = made if isinstance(made, list) else [made]
    return [np.asarray(Image.open(io.BytesIO(page)).convert("L")) for page in pages]


@pytest.mark.parametrize(
    "row",
    [
        ["0.919 (0.905 to 0.933)"] * 14,
        ["token_budget (length_grouped)", "Linux-6.18.44-fc-v669-x86_64-with-glibc2.36", "y" * 400, "a b " * 100],
        [f"`{'code_' * 12}`"] * 3,
        ["1"] * 60,
    ],
    ids=["intervals", "words", "code", "columns"],
)
@pytest.mark.parametrize("side", [":--", "--:"])
def test_nothing_runs_out_of_the_page(tmp_path: Path, row: list[str], side: str) -> None:
    rows = [[f"heading {i}" for i in range(len(row))], [side] * len(row), row, row]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    text = f"# {'Wide ' * 40}\n\n{'w' * 500} `{'c' * 500}`\n\n{table}\n\n![x](a.png)\n"
    for page in images(text, tmp_path, {"a.png": png(400, 3000)}):
        assert (page < 200).any()
        margins = np.concatenate([page[:, :28].ravel(), page[:, -28:].ravel(), page[:26].ravel()])
        assert (margins > 250).all()


def test_the_check_of_margins_can_fail(tmp_path: Path) -> None:
    source = write_source("x", {}, tmp_path)
    source.write_text(source.read_text() + '#box(width: 30cm, fill: black, "x")\n')
    (page,) = [typst.compile(source, root=tmp_path, format="png", ppi=36)]
    assert (np.asarray(Image.open(io.BytesIO(page)).convert("L"))[:, -28:] < 200).any()


def test_links_of_a_repository_are_text() -> None:
    made = Markup({}).document(tokens("[a](notes/a.md), [b](#b), [c](https://c.org), [d](ftp://d.org), ![e](e.png)"))
    assert re.findall(r'#link\("([^"]*)"\)', made) == ["https://c.org"]
    for word in "abcde":
        assert f'"{word}"' in made


def test_a_figure_that_is_none_is_named() -> None:
    with pytest.raises(DataError, match=r"no PDF can be made: .*; draw the figures anew"):
        pdf("![x](a.png)", {"a.png": b"no picture"})


def test_what_a_page_cannot_show_is_named() -> None:
    assert Markup({}).document(tokens("a<br>b <!-- c > d --><span>e</span>")).count("linebreak") == 1
    assert Markup({}).document(tokens("a <sub>b *c</sub> d*")).count("[") == 2


def test_without_typst_the_rest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write({tmp_path / "report": ("# Title", {})})
    assert num_pages((tmp_path / "report.pdf").read_bytes()) == 1
    monkeypatch.setitem(sys.modules, "typst", None)
    with pytest.raises(TypstMissing):
        pdf("# Title", {})
    assert write({tmp_path / "report": ("# Other", {})}) == tmp_path / "report.html"
    assert "Other" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "report.md").read_text() == "# Other"
    assert not (tmp_path / "report.pdf").exists()  # it was of another text
    assert 'no report.pdf: typst is missing, which makes the PDF; install it: pip install -e ".[report]"' in (
        capsys.readouterr().err
    )
