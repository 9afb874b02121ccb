"""Draw the pictures of docs/concepts.md: python tools/drawings.py writes docs/images/*.svg."""

from html import escape
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
INK, SOFT = "#1a202c", "#4a5568"
BLUE, GREEN, ORANGE, GREY = (
    ("#2b6cb0", "#e6f0fa"),
    ("#2f7d4f", "#e8f5ec"),
    ("#b06a12", "#fdf1e0"),
    (SOFT, "#edf0f3"),
)
Colours = tuple[str, str]


class Drawing:
    """A picture of boxes, arrows and words."""

    def __init__(self, title: str, said: str, width: int, height: int) -> None:
        self.title, self.said, self.size = title, said, (width, height)
        self.parts = [f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff" stroke="#cbd5e0"/>']

    def box(self, x: int, y: int, width: int, height: int, colours: Colours, title: str, *lines: str) -> None:
        """A box with a title and lines of text."""
        edge, fill = colours
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{edge}"/>'
        )
        self.words(x + 12, y + 21, title, weight=600, fill=edge)
        for k, line in enumerate(lines):
            self.words(x + 12, y + 40 + 17 * k, line, size=12)

    def words(
        self, x: int, y: int, text: str, *, size: int = 13, weight: int = 400, fill: str = INK, at: str = "start"
    ) -> None:
        """One line of text."""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{at}">'
            f"{escape(text)}</text>"
        )

    def arrow(self, x: int, y: int, to_x: int, to_y: int, *, dashed: bool = False, both: bool = False) -> None:
        """An arrow; dashed for what never happens over a network."""
        style = ' stroke-dasharray="5 4"' if dashed else ""
        start = ' marker-start="url(#tip)"' if both else ""
        self.parts.append(
            f'<path d="M{x} {y}L{to_x} {to_y}" fill="none" stroke="{SOFT}" stroke-width="1.6"{style}{start} '
            'marker-end="url(#tip)"/>'
        )

    def svg(self) -> str:
        """The whole picture."""
        width, height = self.size
        tip = (
            '<marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="{SOFT}"/></marker>'
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-labelledby="title desc" font-family="{FONT}">'
        )
        names = [f'<title id="title">{escape(self.title)}</title>', f'<desc id="desc">{escape(self.said)}</desc>']
        return "\n".join([head, *names, f"<defs>{tip}</defs>", *self.parts, "</svg>", ""])


def client() -> Drawing:
    """What a client has, what the server has, and what crosses between them."""
    said = (
        "A client has private data, a personal model and a meme; meme and personal model teach each other. The "
        "server has the global. It goes to the client, where a copy of it, the meme, is trained and sent back."
    )
    made = Drawing("A client and the server", said, 760, 330)
    made.parts.append(
        f'<rect x="20" y="20" width="450" height="290" rx="8" fill="{GREEN[1]}" stroke="{GREEN[0]}" '
        'stroke-opacity="0.5"/>'
    )
    made.words(36, 46, "One client (a hospital, a lab, a telephone)", weight=600, fill=GREEN[0])
    made.box(40, 64, 200, 66, ("#2f7d4f", "#ffffff"), "private data", "train, val, test:", "never leave")
    made.box(
        40,
        210,
        200,
        80,
        ("#2f7d4f", "#ffffff"),
        "personal model",
        "of the client's own design;",
        "never leaves; it serves",
    )
    made.box(262, 210, 190, 80, BLUE, "meme", "a copy of the global,", "trained here")
    made.arrow(120, 132, 120, 206)
    made.arrow(200, 132, 300, 206)
    made.arrow(242, 250, 258, 250, both=True)
    made.words(250, 306, "they teach each other", size=11, fill=SOFT, at="middle")
    made.box(560, 110, 180, 90, BLUE, "global", "the shared model", "on the server")
    made.arrow(560, 140, 456, 226)
    made.words(548, 150, "brief", size=12, fill=SOFT, at="end")
    made.arrow(456, 270, 620, 204)
    made.words(562, 262, "reply: the meme, and what", size=12, fill=SOFT)
    made.words(562, 278, "else the method declares", size=12, fill=SOFT)
    made.words(560, 96, "The server", weight=600, fill=BLUE[0])
    return made


def partial() -> Drawing:
    """A global that is a body without a head."""
    said = (
        "Two clients with different classes share the body of a model. Each completes it with an adaptor of its "
        "own, which never leaves. Only bodies are sent and merged."
    )
    made = Drawing("A partial global", said, 760, 260)
    for x, name, classes in ((20, "client low", "zero … four"), (520, "client high", "five … nine")):
        made.parts.append(
            f'<rect x="{x}" y="20" width="220" height="220" rx="8" fill="{GREEN[1]}" stroke="{GREEN[0]}" '
            'stroke-opacity="0.5"/>'
        )
        made.words(x + 16, 46, name, weight=600, fill=GREEN[0])
        made.box(x + 20, 62, 180, 66, ORANGE, "adaptor (head)", f"classes {classes};", "stays here, and lasts")
        made.box(x + 20, 150, 180, 66, BLUE, "meme's body", "the same design", "for all")
    made.box(300, 150, 160, 66, BLUE, "global: a body", "no head, so it", "predicts nothing alone")
    made.arrow(224, 183, 296, 183, both=True)
    made.arrow(536, 183, 464, 183, both=True)
    return made


def where() -> Drawing:
    """The three places where clients can be."""
    said = "The same method and recipe run on this machine's cores, on a cluster, or at sites on a network."
    made = Drawing("Where clients run", said, 760, 210)
    made.box(20, 20, 720, 46, GREY, "one recipe, one method, one seed: the same bytes of every message")
    places = (
        (20, GREEN, "this machine", ("a simulation: one worker", "process per core", "mutua run recipe.yaml")),
        (
            268,
            ORANGE,
            "a cluster",
            ("a simulation on many", "machines of one owner (Ray)", "mutua run … --engine ray"),
        ),
        (516, BLUE, "sites on a network", ("a real federation: data stay", "at the sites", "mutua deploy …")),
    )
    for x, colours, title, lines in places:
        made.box(x, 100, 224, 92, colours, title, *lines)
        made.arrow(x + 112, 68, x + 112, 96)
    return made


DRAWINGS = {"client": client, "partial": partial, "where": where}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (IMAGES / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
