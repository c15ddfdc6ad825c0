# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page's style sheet.

Every colour of text has a contrast of at least 4.5 to its background, every colour of a chart at least 3 (WCAG AA),
by day and by night; tests/unit/test_report_page.py computes both. Nothing is told by colour alone.
"""

from __future__ import annotations

from typing import Final

LIGHT: Final = {
    "paper": "#ffffff", "ink": "#1c2126", "faint": "#56606b", "rule": "#d6dbe0", "panel": "#f4f6f8",
    "link": "#0a58a8", "bad": "#a8261b", "advice": "#7a5200",
    "userspace": "#6d93c8", "flush": "#b4431c", "extents": "#7b3fa0", "ideal": "#2c7a51", "rewrites": "#1c2126",
    "waits": "#2f6f9f", "logged": "#2f6f9f", "allocated": "#b4431c", "disk": "#2c7a51", "written": "#7b3fa0",
}  # fmt: skip
DARK: Final = {
    "paper": "#14181c", "ink": "#e6e9ec", "faint": "#a3adb8", "rule": "#3a434c", "panel": "#1d2329",
    "link": "#7fb8f5", "bad": "#ff8a7d", "advice": "#e8b64c",
    "userspace": "#5f83b5", "flush": "#ff9c6e", "extents": "#c99ae6", "ideal": "#6fcf9b", "rewrites": "#e6e9ec",
    "waits": "#6db3e3", "logged": "#6db3e3", "allocated": "#ff9c6e", "disk": "#6fcf9b", "written": "#c99ae6",
}  # fmt: skip
BARS: Final = ("userspace", "flush", "waits", "disk", "written")
LINES: Final = ("ideal", "rewrites", "logged", "allocated")


def sheet() -> str:
    """The whole sheet."""
    fills = "".join(f".{name}{{fill:var(--{name})}}" for name in BARS)
    strokes = "".join(f".{name}{{fill:none;stroke:var(--{name});stroke-width:1.6}}" for name in LINES)
    return (
        f":root{{color-scheme:light dark;{_variables(LIGHT)}}}"
        f"@media(prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
        f"@media print{{:root{{color-scheme:light;{_variables(LIGHT)}}}{PRINT}}}{LAYOUT}{fills}{strokes}{CHART}"
    )


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


LAYOUT: Final = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
header,main,footer{max-width:1080px;margin:0 auto;padding:0 20px}
h1{font-size:1.7rem;line-height:1.2;margin:1.6rem 0 .3rem}
h2{font-size:1.25rem;margin:2.6rem 0 .4rem;padding-top:.6rem;border-top:1px solid var(--rule)}
h3{font-size:1rem;margin:1.4rem 0 .2rem}
p{margin:.4rem 0;max-width:90ch}
header p,footer,.note,caption,.key,th{color:var(--faint)}
footer{font-size:.9rem;padding:2rem 20px 3rem}
a{color:var(--link)}
nav ul{display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;list-style:none;padding:0;margin:.6rem 0 0}
nav a{display:inline-block;padding:.2rem 0}
figure{margin:1rem 0}
figure>svg{display:block;width:100%;height:auto}
.narrow{display:none!important}
.key{display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;list-style:none;padding:0;margin:.2rem 0;font-size:.9rem}
.swatch{width:20px;height:12px;margin-right:.4rem}
.note{font-size:.9rem}
.scroll{overflow-x:auto}
.scroll:focus-visible,a:focus-visible{outline:2px solid var(--link);outline-offset:2px}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;margin:.6rem 0;
min-width:min(100%,34rem)}
caption{text-align:left;padding:.3rem 0}
th,td{padding:.2rem .9rem .2rem 0;text-align:right;border-bottom:1px solid var(--rule);vertical-align:top}
th{font-weight:600}
thead th{white-space:nowrap}
.left{text-align:left}
td{white-space:nowrap}
.long{white-space:normal;overflow-wrap:anywhere;min-width:16rem}
.finding{border-left:4px solid var(--advice);padding:.1rem 0 .1rem 1rem;margin:1.2rem 0}
.finding.problem{border-color:var(--bad)}
.finding h3{margin-top:0}
.word{font-size:.85rem;font-weight:700;color:var(--advice)}
.problem .word{color:var(--bad)}
pre{background:var(--panel);padding:.6rem .8rem;margin:.5rem 0;font-size:.9rem;
white-space:pre-wrap;overflow-wrap:anywhere}
code{overflow-wrap:anywhere}
dl{font-size:.9rem;margin:.6rem 0;max-width:75ch}
dt{font-weight:600}
dd{margin:0 0 .3rem 1.2rem;color:var(--faint)}
@media(max-width:640px){.narrow{display:block!important}.wide{display:none!important}
h1{font-size:1.4rem}th,td{padding-right:.5rem}table{font-size:.8rem}header,main,footer{padding-left:14px;padding-right:14px}}
"""

PRINT: Final = """
body{font-size:10pt}.narrow{display:none!important}.wide{display:block!important}nav{display:none}
figure,tr,.finding{break-inside:avoid}h2,h3,caption{break-after:avoid}thead{display:table-header-group}
.scroll{overflow:visible}header,main,footer{max-width:none;padding:0}
*{print-color-adjust:exact}
"""

CHART: Final = """
svg text{font:11px system-ui,sans-serif;fill:var(--faint)}
svg .title{font-size:12px;fill:var(--ink);stroke:var(--paper);stroke-width:4px;paint-order:stroke}
svg .gap{font-size:13px;font-weight:700;fill:var(--ink)}
svg .marked{font-size:12px;font-weight:700;fill:var(--ink)}
.grid{stroke:var(--rule);fill:none}
.mark{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:5 3;fill:none}
g.extents,rect.extents{fill:var(--extents)}
path.extents{fill:none;stroke:var(--extents);stroke-width:1.6}
.ideal{stroke-dasharray:6 3}
.allocated{stroke-dasharray:3 2}
"""
