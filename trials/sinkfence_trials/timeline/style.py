"""How a timeline looks: colours for light and dark screens, and for paper."""

from __future__ import annotations

from typing import Final

# No red among the workers' colours: it is kept for what broke a rule.
_LIGHT: Final = ("#b05a00", "#1a5fb4", "#1b7f4d", "#7a3db8", "#0b7285", "#6b6b00", "#4a5568")
_DARK: Final = ("#f0a040", "#6aa8ff", "#4ccf8a", "#c79bff", "#4fd0e0", "#cfcf5a", "#aab4c8")
COLOURS: Final = len(_LIGHT)


def _variables(colours: tuple[str, ...], **others: str) -> str:
    own = "".join(f"--c{index}:{colour};" for index, colour in enumerate(colours))
    return own + "".join(f"--{name}:{colour};" for name, colour in others.items())


_BY_DAY: Final = _variables(
    _LIGHT, paper="#fff", ink="#1c1e21", faint="#5b6470", line="#d9dde3", bad="#cf0f2b"
)
_BY_NIGHT: Final = _variables(
    _DARK, paper="#15171b", ink="#e9ebee", faint="#a3adb9", line="#363c45", bad="#ff5a6e"
)

COLOURS_CSS: Final = (
    f":root{{{_BY_DAY}color-scheme:light dark}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_BY_NIGHT}}}}}"
    + "".join(f".c{index}{{--c:var(--c{index})}}" for index in range(COLOURS))
)

PICTURE_CSS: Final = (
    "svg text{font:13.5px system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif;"
    "fill:var(--ink)}"
    "svg .name{font-weight:600}svg .c{fill:var(--c)}svg .head{font-weight:700;font-size:14px}"
    "svg .tick{font-size:11.5px;fill:var(--faint)}svg .faint{font-size:11px;fill:var(--c,var(--faint))}"
    "svg .name,svg .head,svg .note{paint-order:stroke;stroke:var(--paper);stroke-width:3px;"
    "stroke-linejoin:round}svg .note{font-size:12px;font-weight:600}"
    "svg .bad{fill:var(--bad)}svg .in{font-size:12.5px}"
    ".grid{stroke:var(--line);stroke-width:.6}.base{stroke:var(--line);stroke-width:1.2}"
    ".hold{fill:var(--c);fill-opacity:.2;stroke:var(--c);stroke-width:1.4;rx:4px}"
    ".seen{fill:var(--c);fill-opacity:.13}.plate{fill:var(--paper);fill-opacity:.88;rx:4px}"
    ".hatch{stroke:var(--faint);stroke-width:2.4;opacity:.55}"
    ".fault{stroke:var(--faint);stroke-width:1}.kill{fill:var(--ink)}"
    ".m{fill:var(--c)}.m .cross{stroke:var(--c);stroke-width:3;fill:none;stroke-linecap:round}"
    ".m .ring{stroke:var(--c);stroke-width:1.8;fill:var(--paper)}.key{--c:var(--ink)}"
    ".late{stroke:var(--c);stroke-width:1.2;stroke-dasharray:4 4;opacity:.75;fill:none}"
    ".wrong{stroke:var(--bad);stroke-width:1.8;fill:none;opacity:.85}"
    ".flaw{fill:var(--bad);stroke:var(--paper);stroke-width:1.5}"
)

PAGE_CSS: Final = (
    "body{margin:0 auto;max-width:1060px;padding:16px;overflow-wrap:anywhere;"
    "background:var(--paper);color:var(--ink);"
    "font:16px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif}"
    "h1{font-size:1.5rem;line-height:1.2;margin:.3rem 0 .5rem;overflow-wrap:anywhere}h2{font-size:1.1rem}"
    ".verdict{border-left:5px solid var(--c2);padding:.3rem .8rem;margin:.6rem 0 1.2rem}"
    ".verdict.wrong{border-color:var(--bad);opacity:1}"
    ".verdict ul{margin:.3rem 0;padding-left:1.1rem}"
    "figure{margin:0}.timeline{display:block;width:100%;height:auto}.narrow{display:none}"
    ".rows{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.85rem}"
    "td,th{text-align:left;padding:.2rem .6rem .2rem 0;border-bottom:1px solid var(--line);"
    "vertical-align:top;"
    "overflow-wrap:anywhere}th{white-space:nowrap}td:nth-child(2),td:nth-child(3){min-width:6.5em}"
    "td:first-child,td:nth-child(4){font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".broken td{color:var(--bad);font-weight:600}.refusal td{font-weight:600}"
    "tr:target{outline:2px solid var(--bad)}"
    "a{color:inherit}.note{color:var(--faint)}"
    "@media screen and (max-width:700px){.wide{display:none}.narrow{display:block}body{padding:12px}"
    "thead{display:none}tr{display:block;border-bottom:1px solid var(--line);padding:.3rem 0}"
    "td,td:nth-child(n){display:inline;border:0;min-width:0}td:last-child{display:block}}"
    "@media print{@page{size:A4 landscape;margin:12mm}body{padding:0;max-width:none}"
    "svg,tr{break-inside:avoid}"
    "thead{display:table-header-group}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}"
)
