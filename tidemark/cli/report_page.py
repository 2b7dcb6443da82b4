"""One HTML page about a store: activity, restart, memory, disk columns, log, replication, conflicts, node group.

The page is self-contained: styles and pictures (SVG) are inline. Bars are stretched to the width of the window and
contain no text, so that text keeps its size at any width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from tidemark.cli.output import epoch_text, time_text
from tidemark.engine.base.ids import gci_of
from tidemark.engine.types.base import counted

# Colours of the timeline: phases that NDB's restart shows separately. Other phases are grey.
PHASES = {
    "load": ("checkpoint", "local checkpoint"),
    "undo": ("undo", "UNDO"),
    "read log": ("redo", "REDO"),
    "read spool files": ("redo", "REDO"),
    "redo": ("redo", "REDO"),
    "build indexes": ("index", "indexes"),
}
CLASS_NAMES = ("wholly free", "any row", "small rows", "full")
ROW_NAMES = ("≥\u00a080\u00a0%", "≥\u00a060\u00a0%", "≥\u00a040\u00a0%", "≥\u00a020\u00a0%", "less")
FILL_NAMES = tuple(f"{step} %" for step in range(0, 100, 10))
MAP_EXTENTS = 64
MAP_LEVELS = 5
CONFLICT_BARS = 60

_STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #1d2329; --soft: #5b6670; --line: #d9dde1; --track: #eceff1;
  --checkpoint: #2b6cb0; --undo: #b7791f; --redo: #2f855a; --index: #805ad5; --other: #8795a1; --bad: #c53030; }
@media (prefers-color-scheme: dark) { :root { --page: #14181c; --ink: #e6eaed; --soft: #9aa7b2; --line: #333c44;
  --track: #232a30; --checkpoint: #63a4e8; --undo: #e0a748; --redo: #5dc08b; --index: #b196f0; --other: #7d8b97;
  --bad: #f47c7c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem 1rem 3rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .25rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; overflow-wrap: anywhere; }
p { margin: .25rem 0 .75rem; color: var(--soft); max-width: 45rem; }
svg { display: block; width: 100%; height: 1.1rem; background: var(--track); border-radius: 2px; }
svg.high { height: 7rem; }
svg.map { max-height: 24rem; }
.row, .axis { display: grid; grid-template-columns: 14rem 1fr 16rem; gap: 0 1rem; align-items: center;
  padding: .2rem 0; }
.axis.full { grid-template-columns: 1fr; }
.axis.full div { grid-column: 1; }
.name { overflow-wrap: anywhere; }
.value { font-variant-numeric: tabular-nums; color: var(--soft); }
.axis div { display: flex; justify-content: space-between; grid-column: 2; font-size: .8rem; color: var(--soft); }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; font-size: .85rem; color: var(--soft);
  margin-bottom: .5rem; }
.key i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .25rem 0 .75rem; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); font-weight: 400; }
th { color: var(--soft); }
th:first-child, td.text { text-align: left; }
td.cell { position: relative; min-width: 5rem; border: 2px solid var(--page); background: var(--track); }
td.cell i { position: absolute; inset: 0; background: var(--checkpoint); border-radius: 2px; }
td.cell span { position: relative; }
.checkpoint { fill: var(--checkpoint); } .undo { fill: var(--undo); } .redo { fill: var(--redo); }
.index { fill: var(--index); } .other { fill: var(--other); } .bad { fill: var(--bad); }
i.checkpoint { background: var(--checkpoint); } i.undo { background: var(--undo); } i.redo { background: var(--redo); }
i.index { background: var(--index); } i.other { background: var(--other); }
@media (max-width: 44rem) { .row { grid-template-columns: 1fr auto; } .row svg { grid-column: 1 / 3; grid-row: 2; }
  .row .value { text-align: right; } .axis { grid-template-columns: 1fr; } .axis div { grid-column: 1; }
  th, td { padding: .25rem .4rem; } td.cell { min-width: 3.6rem; } }
"""


def page(title: str, status: Mapping[str, Any], space: Mapping[str, Any], made_us: int, **more: Any) -> str:
    """Return the page of a store.

    Args:
        title: The name of the store.
        status: As `Database.status`, with the report of the last restart as `restart`.
        space: As `Database.space_report`.
        made_us: The time of the page, in µs since 1970.
        more: `conflicts`, source epochs of refused rows or None if they are not known, and `group`, the group as this
            node remembers it or None.
    """
    parts = {
        "activity": _activity(status),
        "restart": _restart(status["restart"]),
        "memory": _memory(status),
        "disk": _disk(status, space),
        "log": _log(status),
        "flight": _flight(status["replication"]),
        "conflicts": _conflicts(status["replication"], more.get("conflicts")),
        "group": _group(more.get("group")),
    }
    sections = [(name, "\n".join(part)) for name, part in parts.items()]
    body = "\n".join(f'<section id="{name}">\n{part}\n</section>' for name, part in sections)
    epoch = status["epoch"]["current"]
    about = (
        f"Made {time_text(made_us, 'seconds')} by Tidemark {status['process']['version']}: store"
        f" {status['store']['uuid']}, opening {status['store']['incarnation']}, state {status['store']['state']}, epoch"
        f" {epoch_text(epoch)}"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"/>\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n<p>{escape(about)}</p>\n{body}\n"
        f"</body>\n</html>\n"
    )


# --- pieces ---------------------------------------------------------------------------------------
_STRETCHED = 'preserveAspectRatio="none" role="img"'
Bar = tuple[float, float, str]  # start and length as shares of the width, and its colour


def _svg(bars: Iterable[Bar], label: str) -> str:
    drawn = "".join(
        f'<rect x="{start * 1_000:.2f}" y="0" width="{max(length * 1_000, 1):.2f}" height="10" class="{colour}"/>'
        for start, length, colour in bars
        if length
    )
    return f'<svg viewBox="0 0 1000 10" {_STRETCHED} aria-label="{escape(label)}">{drawn}</svg>'


def _row(name: str, bars: Iterable[Bar], value: str) -> str:
    return (
        f'<div class="row"><span class="name">{escape(name)}</span>{_svg(bars, f"{name}: {value}")}'
        f'<span class="value">{escape(value)}</span></div>'
    )


def _axis(marks: Sequence[str], more: str = "") -> str:
    shown = "".join(f"<span>{escape(each)}</span>" for each in marks)
    return f'<div class="axis{more}"><div>{shown}</div></div>'


def _columns(counts: Sequence[int], names: Sequence[str], what: str) -> Iterator[str]:
    """Yield vertical bars over the whole width, and the first, middle and last of their names."""
    high, wide = max(counts, default=0) or 1, 1_000 / max(len(counts), 1)
    drawn = "".join(
        f'<rect x="{place * wide + wide * 0.06:.2f}" y="{100 - 100 * count / high:.2f}" width="{wide * 0.88:.2f}"'
        f' height="{100 * count / high:.2f}" class="checkpoint"><title>{escape(names[place])}: {count:,}</title></rect>'
        for place, count in enumerate(counts)
    )
    yield (f'<svg class="high" viewBox="0 0 1000 100" {_STRETCHED} aria-label="{escape(what)}">{drawn}</svg>')
    shown = list(dict.fromkeys((names[0], names[len(names) // 2], names[-1]))) if names else []
    yield _axis(shown, " full")


def _key(entries: Iterable[tuple[str, str]]) -> str:
    marks = "".join(f'<span><i class="{colour}"></i>{escape(name)}</span>' for colour, name in entries)
    return f'<div class="key">{marks}</div>'


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cell(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"<td>{value:,}</td>"
    return f'<td class="text">{escape(str(value))}</td>'


def _bytes(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1_024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:,.1f} {unit}"
        count /= 1_024
    raise AssertionError


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole else 0.0


# --- sections -------------------------------------------------------------------------------------
def _activity(status: Mapping[str, Any]) -> Iterator[str]:
    seconds, commits = status["store"]["open_seconds"], status["log"]["transactions_written"]
    yield "<h2>Activity</h2>"
    since = f"in the {seconds:,.0f} s since the opening"
    if not commits:
        yield f"<p>No commit with changes {since}.</p>"
        return
    rate = f", {commits / seconds:,.1f} a second" if seconds else ""
    written = _bytes(status["log"]["bytes_written"])
    yield f"<p>{counted(commits, 'commit')} with changes {since}{rate}; {written} of log.</p>"
    timed = (
        ("commit that waits for the disk", status["transactions"]["commit_seconds"]),
        ("write of the log with its sync", status["log"]["sync_seconds"]),
        ("local checkpoint", status["lcp"]["run_seconds"]),
    )
    rows = [
        (what, each["count"], _time(each["sum_seconds"] / each["count"]), _within(each, 0.5), _within(each, 0.99))
        for what, each in timed
        if each["count"]
    ]
    if rows:
        yield _table(("what", "count", "mean", "half took up to", "99 % took up to"), rows)


def _within(histogram: Mapping[str, Any], share: float) -> str:
    """Return the bound of the first bucket up to which this share of the durations is."""
    needed = share * histogram["count"]
    bound = next((bound for bound, count in histogram["buckets"] if count >= needed), None)
    return f"more than {_time(histogram['buckets'][-1][0])}" if bound is None else _time(bound)


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:,.3g}\u00a0{unit}"
    return f"{seconds / 1e-6:,.3g}\u00a0µs"


def _restart(report: Mapping[str, Any]) -> Iterator[str]:
    phases = report["phases"]
    whole = sum(each["ms"] for each in phases)
    yield "<h2>Restart</h2>"
    if report["is_new"] or not whole:
        yield "<p>The store was made by this opening: there was nothing to restart.</p>"
        return
    yield (
        f"<p>The last opening took {whole:,.0f} ms: local checkpoint {report['lcp_id']} of epoch"
        f" {epoch_text(report['lcp_epoch'])}, then {report['groups']:,} groups of"
        f" the log up to LSN {report['end_lsn']:,}.</p>"
    )
    yield _key([*dict.fromkeys(PHASES.values()), ("other", "other")])
    start = 0.0
    for each in phases:
        value = f"{each['ms']:,.1f} ms"
        if each["rows"]:
            value += f", {each['rows']:,} rows"
        if each["bytes"]:
            value += f", {_bytes(each['bytes'])}"
        colour = PHASES.get(each["name"], ("other", ""))[0]
        yield _row(each["name"], [(start / whole, each["ms"] / whole, colour)], value)
        start += each["ms"]
    yield _axis([f"{whole * quarter / 4:,.0f} ms" for quarter in range(5)])


def _memory(status: Mapping[str, Any]) -> Iterator[str]:
    from tidemark.engine.memory.arena_layout import PAGE_BYTES

    memory, snapshots = status["memory"], status["snapshots"]
    whole = memory["data_memory_bytes"]
    yield "<h2>Memory</h2>"
    yield f"<p>{memory['used_bytes'] // PAGE_BYTES:,} of {whole // PAGE_BYTES:,} pages of data memory are in use.</p>"
    for name, used, size, colour in (
        ("data memory", memory["used_bytes"], whole, "checkpoint"),
        ("open operations", memory["operation_bytes"], whole, "redo"),
        ("old rows for snapshots", snapshots["used_bytes"], snapshots["size_bytes"], "index"),
    ):
        yield _row(name, [(0, _share(used, size), colour)], f"{_bytes(used)} of {_bytes(size)}")
    for size, each in status["disk"].get("page_buffer", {}).items():
        dirty, resident, frames = each["dirty"], each["resident"], each["frames"]
        bars = [
            (0.0, _share(resident - dirty, frames), "checkpoint"),
            (_share(resident - dirty, frames), _share(dirty, frames), "undo"),
        ]
        value = f"{resident:,} of {frames:,} frames, {dirty:,} dirty"
        yield _row(f"page cache of {_bytes(int(size))}", bars, value)
    most = max([each["rows"] for each in status["tables"].values()], default=0)
    yield "<h3>Rows of tables, and their memory</h3>"
    if not status["tables"]:
        yield "<p>There is no table.</p>"
    for name, each in status["tables"].items():
        indexes = ", ".join(each.get("indexes", {}))
        value = f"{each['rows']:,}, {_bytes(each['memory_bytes'])}" + (f", index {indexes}" if indexes else "")
        yield _row(name, [(0, _share(each["rows"], most), "checkpoint")], value)


def _disk(status: Mapping[str, Any], space: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Disk columns</h2>"
    if not space["tablespaces"]:
        yield "<p>The store has no tablespace: all columns are in memory.</p>"
        return
    for name, each in space["tablespaces"].items():
        used = each["extents"] - each["free_extents"]
        value = f"{used:,} of {each['extents']:,} extents of {_bytes(each['extent_bytes'])}"
        yield _row(f"tablespace {name}", [(0, _share(used, each["extents"]), "checkpoint")], value)
    if not space["tables"]:
        yield "<p>No table has disk columns.</p>"
    for name, table in space["tables"].items():
        yield f"<h3>{escape(name)}: {table['extents']:,} extents, {table['current']:,} of them current</h3>"
        yield "<p>Search matrix: extents by their free words (rows) and by what their best page has room for.</p>"
        yield _matrix(table)
        yield f"<p>Pages by the share that is used, {sum(table['pages_by_fill']):,} in all.</p>"
        yield from _columns(table["pages_by_fill"], FILL_NAMES, f"pages of {name} by their used share")
        if table["map"]:
            yield (
                f"<p>Map: one line for each of the first {min(MAP_EXTENTS, len(table['map'])):,} extents, its pages"
                " from left to right; full ones have the strongest colour.</p>"
            )
            yield _map(table["map"][:MAP_EXTENTS])


def _matrix(table: Mapping[str, Any]) -> str:
    most = max([count for row in table["matrix"] for count in row], default=0) or 1
    head = "".join(f"<th>{escape(each)}</th>" for each in ("free words", *CLASS_NAMES))
    rows = []
    for name, counts, shares in zip(ROW_NAMES, table["matrix"], table["matrix_free_share"], strict=True):
        cells = "".join(
            f'<td class="cell"><i style="opacity: {0.6 * count / most:.2f}"></i><span>{count:,}'
            f"{f' <small>{share:.0%} free</small>' if count else ''}</span></td>"
            for count, share in zip(counts, shares, strict=True)
        )
        rows.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _map(extents: Sequence[Mapping[str, Any]]) -> str:
    pages = max(len(each["percent_used"]) for each in extents)
    drawn = []
    for line, each in enumerate(extents):
        levels = [-(-percent * MAP_LEVELS // 100) for percent in each["percent_used"]]
        start = 0
        for level, run in groupby(levels):
            length = len(list(run))
            if level:
                drawn.append(
                    f'<rect x="{start}" y="{line}" width="{length}" height="0.9" class="checkpoint"'
                    f' opacity="{level / MAP_LEVELS:.1f}"/>'
                )
            start += length
    return (
        f'<svg class="map" style="height: {1.2 * len(extents):.1f}rem" viewBox="0 0 {pages} {len(extents)}"'
        f' {_STRETCHED} aria-label="map of extents">'
        f"{''.join(drawn)}</svg>"
    )


def _log(status: Mapping[str, Any]) -> Iterator[str]:
    log, undo, binlog = status["log"], status["disk"].get("undo"), status["binlog"]
    used = log["head_lsn"] - log["tail_lsn"]
    yield "<h2>Log</h2>"
    yield (
        f"<p>The REDO log has LSN {log['tail_lsn']:,} (the tail) to {log['head_lsn']:,} (the head); what needs it"
        " begins where its bar begins.</p>"
    )
    size = log["capacity_bytes"]
    yield _row("REDO log", [(0, _share(used, size), "redo")], f"{_bytes(used)} of {_bytes(size)}")
    for need in log["held_by"]:
        start = _share(need["lsn"] - log["tail_lsn"], size)
        bars = [(start, _share(need["bytes"], size), "other")]
        yield _row(need["what"], bars, f"{_bytes(need['bytes'])} from LSN {need['lsn']:,}")
    yield _axis(["tail", "half", "full"])
    if undo:
        held = undo["head"] - undo["tail"]
        bars = [(0.0, _share(held, undo["capacity_bytes"]), "undo")]
        yield _row("UNDO log", bars, f"{_bytes(held)} of {_bytes(undo['capacity_bytes'])}")
    if binlog is None:
        yield "<p>The store writes no binlog in this opening.</p>"
    else:
        where = f"{binlog['file']}:{binlog['position']:,}, {binlog['files']:,} files, {binlog['epochs']:,} epochs"
        gap = " It has a gap." if binlog["has_gap"] else ""
        yield f"<p>The binlog is at {escape(where)} since the opening.{gap}</p>"


def _flight(replication: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Epochs in flight</h2>"
    trails, channels = replication["lag"], replication.get("channels", {})
    if not trails and not channels:
        yield "<p>No site follows this store in this opening, and it follows none.</p>"
        return
    most = max([each["lag_epochs"] for each in trails.values()] + [each["lag"]["epochs"] for each in channels.values()])
    colours = ("checkpoint", "undo", "redo", "index")
    for name, trail in trails.items():
        yield f"<h3>{escape(name)}</h3>"
        stations = list(trail["stations"].items())
        yield _key([(colours[place % 4], f"not {station} yet") for place, (station, _) in enumerate(stations)])
        start, bars = 0.0, []
        for place, (_, each) in enumerate(stations):
            length = _share(each["epochs_on_the_way"], most)
            bars += [(start, length, colours[place % 4])]
            start += length
        yield _row("epochs", bars, f"{trail['lag_epochs']:,}, the oldest {trail['lag_seconds']:,.1f} s old")
    for name, channel in channels.items():
        lag = channel["lag"]
        age = "unknown age" if lag["seconds"] is None else f"{lag['seconds']:,.1f} s"
        bars = [(0.0, _share(lag["epochs"], most), "redo")]
        yield _row(f"channel {name} from {channel['source']}", bars, f"{lag['epochs']:,} epochs to apply, {age}")


def _conflicts(replication: Mapping[str, Any], epochs: Sequence[int] | None) -> Iterator[str]:
    yield "<h2>Conflicts</h2>"
    counters = [
        (name, value)
        for name, value in replication["variables"].items()
        if "conflict" in name and value and not name.endswith("_epoch")
    ]
    if counters:
        yield _table(("counter since the opening", "rows or transactions"), counters)
    else:
        yield "<p>No conflict was counted since the opening.</p>"
    if epochs is None:
        yield "<p>The exceptions tables are shown over time when no other process has the store open.</p>"
    elif not epochs:
        yield "<p>No exceptions table has a row.</p>"
    else:
        gcis = [int(gci_of(epoch)) for epoch in epochs]
        first, last = min(gcis), max(gcis)
        step = -(-(last - first + 1) // CONFLICT_BARS)
        counts = [0] * ((last - first) // step + 1)
        for gci in gcis:
            counts[(gci - first) // step] += 1
        yield f"<p>{len(epochs):,} rows in exceptions tables, by the GCI of their source; a bar is {step:,} GCIs.</p>"
        yield from _columns(counts, [f"GCI {first + place * step:,}" for place in range(len(counts))], "conflicts")


def _group(group: Mapping[str, Any] | None) -> Iterator[str]:
    yield "<h2>Node group</h2>"
    if group is None:
        yield "<p>The store is not a node of a group.</p>"
        return
    yield f"<p>Node {group['node']}, view {group['view']:,} as this node remembers it.</p>"
    rows = [
        (f"node {number}", address, "primary" if number == group["primary"] else "member")
        for number, address in group["members"]
    ]
    yield _table(("node", "address", "role"), rows)
