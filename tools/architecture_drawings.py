"""Draw the pictures of docs/architecture.md, docs/images/packages.svg and round.svg."""

from html import escape
from itertools import pairwise
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SANS = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
INK, SOFT, LINE = "#1a202c", "#2d3748", "#4a5568"

# By layer, from the top: its name, its colours, and its packages, in the reverse order of docs/architecture.md.
LAYERS = (
    (
        ("what people see", "#e6f0fa", "#2b6cb0"),
        (
            ("cli", "one file per group of commands"),
            ("deploy", "a real federation: its organiser and its sites"),
            ("watch", "the live page: run folders in a browser"),
            ("reports", "tables, figures, HTML, PDF, the console, loggers"),
        ),
    ),
    (
        ("experiments", "#e8f5ec", "#2f7d4f"),
        (
            ("studies", "several runs: sweeps, comparisons, papers' tables"),
            ("runs", "one run: run(), its result, its folder, checkpoints"),
            ("recipe", "the file that describes an experiment"),
        ),
    ),
    (
        ("a federation at work", "#fdf1e0", "#b06a12"),
        (
            ("rounds", "the loop, its guard and its records"),
            ("engines", "where clients run; the one transaction"),
            ("methods", "the verbs, the participant, one file per method"),
            ("federation", "clients, messages, ledger, stores, plan, privacy"),
        ),
    ),
    (
        ("material", "#f3ecfa", "#6b46a8"),
        (
            ("learning", "losses, trainer, optimizers, merging"),
            ("models", "the zoo, own models, body and head"),
            ("data", "sources, partitions, splits, samples"),
        ),
    ),
    (("foundation", "#edf0f3", "#4a5568"), (("support", "knows nothing of federated learning"),)),
)

# The columns of a round: left edge, title, file, colours.
LANES = {
    "server": (14, "Server", "rounds/loop.py", "#e6f0fa", "#2b6cb0"),
    "engine": (254, "Engine", "engines/work.py", "#edf0f3", "#4a5568"),
    "client": (494, "Client", "methods/participant.py", "#e8f5ec", "#2f7d4f"),
    "store": (734, "Store", "federation/store.py", "#fdf1e0", "#b06a12"),
}
STEPS = (
    ("server", "brief", "the method's message for this client;", "the ledger counts it"),
    ("engine", "work", "was this brief answered before? then", "the commit answers"),
    ("store", "stage", "a copy of what the client keeps"),
    ("client", "perform", "the method's train: fork, fit, a reply"),
    ("client", "may_leave", "refuses whatever the method did not", "declare"),
    ("client", "finite", "refuses NaN: what diverged is not kept"),
    ("client", "leaving", "privacy, if the plan asks for it: clip", "and add noise"),
    ("store", "commit", "new state and reply, together or not", "at all"),
    ("engine", "Reply", "or a Fault, if the client's work", "failed"),
    ("server", "check", "the ledger counts it; length,", "may_leave, then the method's check"),
    ("server", "outliers", "replies that stand out beside the", "others are refused"),
    ("server", "merge", "the method's merge; undone if others", "diverge on it"),
    ("engine", "evaluate", "assess: every client's models on its", "own data"),
    ("server", "Reached", "history and RunState; a callback", "writes the checkpoint"),
)


def _text(text: str) -> str:
    return escape(text, quote=False)


def _page(width: int, height: int, title: str, said: str, parts: list[str]) -> str:
    tip = (
        '<marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="{LINE}"/></marker>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="title desc" font-family="{SANS}" font-size="13">'
    )
    body = [
        f'<title id="title">{_text(title)}</title>',
        f'<desc id="desc">{_text(said)}</desc>',
        "<defs>",
        f"  {tip}",
        "</defs>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff" stroke="#cbd5e0"/>',
        *parts,
    ]
    return "\n".join([head, *(f"  {line}" for line in body), "</svg>", ""])


def packages() -> str:
    """The packages in layers."""
    heading = "A package imports only from packages drawn below it"
    parts = [f'<text x="20" y="32" font-size="15" font-weight="600" fill="{INK}">{heading}</text>']
    y, number = 54, sum(len(rows) for _, rows in LAYERS)
    for (label, fill, edge), rows in LAYERS:
        height = 32 * len(rows)
        parts.append(f'<rect x="52" y="{y}" width="548" height="{height}" rx="6" fill="{fill}" stroke="{edge}"/>')
        for k, (name, about) in enumerate(rows):
            at = y + 21 + 32 * k
            parts += [
                f'<text x="66" y="{at}" font-family="{MONO}" font-weight="600" fill="{INK}">{name}</text>',
                f'<text x="168" y="{at}" fill="{SOFT}">{_text(about)}</text>',
            ]
            if k < len(rows) - 1:
                parts.append(f'<path d="M52 {y + 32 * (k + 1)}h548" stroke="{edge}" stroke-opacity="0.35"/>')
        parts.append(f'<text x="612" y="{y + height // 2 + 4}" fill="{edge}">{label}</text>')
        y += height + 12
    bottom = y - 12
    code = '<tspan font-family="{0}" font-weight="600">{1}</tspan>'.format
    parts += [
        f'<path d="M32 60V{bottom - 6}" stroke="{LINE}" stroke-width="2" marker-end="url(#tip)"/>',
        f'<text transform="translate(24 {(54 + bottom) // 2}) rotate(-90)" text-anchor="middle" '
        f'fill="{LINE}">imports</text>',
        f'<text x="52" y="{bottom + 26}" fill="{SOFT}">{code(MONO, "errors")} and {code(MONO, "seeds")} may be '
        "imported from anywhere; there are no import cycles</text>",
    ]
    said = (
        f"{number} packages in layers. A package imports only from packages drawn below it. errors and seeds may "
        "be imported from anywhere."
    )
    return _page(760, bottom + 44, "The packages of mutua", said, parts)


def round_of_a_client() -> str:
    """What happens in one round of one client."""
    height = 78 + 58 * len(STEPS) + 20
    parts = []
    for x, title, file, fill, edge in LANES.values():
        middle = x + 116
        parts += [
            f'<rect x="{x}" y="12" width="232" height="{height - 24}" rx="6" fill="{fill}" stroke="{edge}" '
            'stroke-opacity="0.4"/>',
            f'<text x="{middle}" y="36" text-anchor="middle" font-size="15" font-weight="600" fill="{edge}">'
            f"{title}</text>",
            f'<text x="{middle}" y="54" text-anchor="middle" font-size="11" font-family="{MONO}" fill="{LINE}">'
            f"{file}</text>",
        ]
    places = [(LANES[step[0]][0] + 7, 78 + 58 * k) for k, step in enumerate(STEPS)]
    for (x, y), (to_x, to_y) in pairwise(places):
        start = x + 109, y + 44
        if x != to_x:
            start = (x + 218 if to_x > x else x), y + 22
        across = f"H{to_x + 109}" if x != to_x else ""
        parts.append(
            f'<path d="M{start[0]} {start[1]}{across}V{to_y - 2}" fill="none" stroke="{LINE}" stroke-width="1.5" '
            'marker-end="url(#tip)"/>'
        )
    for k, ((x, y), (lane, name, *lines)) in enumerate(zip(places, STEPS, strict=True)):
        edge = LANES[lane][4]
        parts += [
            f'<rect x="{x}" y="{y}" width="218" height="44" rx="5" fill="#ffffff" stroke="{edge}"/>',
            f'<text x="{x + 8}" y="{y + 15}" font-size="11"><tspan fill="{edge}" font-weight="600">'
            f'{k + 1}</tspan> <tspan font-family="{MONO}" font-size="12" font-weight="600" '
            f'fill="{INK}">{name}</tspan></text>',
        ]
        for row, line in enumerate(lines):
            at = y + 27 + 11 * row
            parts.append(f'<text x="{x + 8}" y="{at}" font-size="10.5" fill="{SOFT}">{_text(line)}</text>')
    said = (
        "Server, engine, client and store: brief, stage, perform, may_leave, privacy, commit, reply, check, "
        "merge, evaluate."
    )
    return _page(980, height, "One round of one client", said, parts)


DRAWINGS = {"packages": packages, "round": round_of_a_client}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (IMAGES / f"{name}.svg").write_text(draw(), encoding="utf-8")
