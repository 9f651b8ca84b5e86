"""Texts that are harmless to keep, and not to show or to follow."""

from random import Random

BIDI, ZERO_WIDTH = "\u202e\u2066\u2067\u200f", "\u200b\u2060\ufeff"
KINDS: dict[str, tuple[str, ...]] = {
    "script": ("<script>alert(1)</script>", "</title><script src=//x.example/a.js></script>", "</style><script>x"),
    "handler": ('"><img src=x onerror=alert(1)>', "<svg onload=alert(1)>", "<body onload='x'>", '" onmouseover="x'),
    "embedded": ("<iframe src=//x.example>", "<object data=x>", "<base href=//x.example>", "<form action=//x.example>"),
    "refresh": ('<meta http-equiv="refresh" content="0;url=//x.example">', '<link rel="preload" href="//x.example">'),
    "markdown": (
        "[x](javascript:alert(1))", "![x](http://x.example/x.png)", "<http://x.example>", "[x]: javascript:x\n[x]",
        "# heading", "| a | b |\n|--|--|", "```html\n<script>", "&lt;script&gt;", "&#60;script&#62;", "\\<script>",
    ),
    "formula": ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("http://x.example")'),
    "bidi": (f"a{BIDI}b", "invoice\u202efdp.exe", f"static{ZERO_WIDTH}", "\u061c\u200e"),
    "terminal": (
        "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x1b]8;;http://x.example\x1b\\link", "\x9b2J", "a\rb",
        "\x08\x08\x7f", "\x1b[2J\x1b[H", "\x1b[1A12:00:00 done",
    ),
    "rich": ("[red]x[/red]", "[link=http://x.example]x[/]", ":warning:", "[/]", "[bold", "\\[x]"),
    "mathtext": ("$x_{$", "$\\frac{1}{0}$", "a $ b $ c", "$\\undefined$", "_hidden", "$" * 50),
    "path": ("../../canary/kept", "../escaped", "..", "~/escaped", "a/../../../escaped", "..\\..\\escaped", ".hidden"),
    "nul": ("a\0b", "\0"),
    "long": ("x" * 10**6, "é " * 2000, "=" * 300, "\x1b" * 5000),
    "surrogate": ("\ud800", "a\udcffb"),
    "newline": ("x\n12:00:00 done: all well", "x\r\nerror: none", "x\n\n# h\n\n<script>", "\u2028x"),
}  # fmt: skip


def hostile_text(random: Random) -> str:
    """Return a text of one kind, or two joined."""
    parts = [random.choice(random.choice(list(KINDS.values()))) for _ in range(random.choice([1, 1, 2]))]
    return " ".join(parts)
