"""The results of a query as one HTML file: frames of the matching windows, scores and times. It loads nothing else."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.files import write_text_atomic
from covid_cmsf.pages.thumbnails import encode_webp, resize_short_edge
from covid_cmsf.search.find import FoundVideo

NUM_FRAMES = 5  # of a strip
EDGE = 96  # pixels
QUALITY = 60
STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --faint: #5c6670; --line: #d8dee4; --page: #ffffff; --card: #f6f8fa;
  --bar: #3b6fb5; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ec; --faint: #9aa5af; --line: #343b43; --page: #14171a;
  --card: #1d2126; --bar: #6c9fe0; } }
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem; background: var(--page); color: var(--text);
  font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.3rem; margin: 0 0 1rem; overflow-wrap: anywhere; }
ol { list-style: none; margin: 1.5rem 0; padding: 0; display: grid; gap: 0.75rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 0.75rem;
  display: grid; grid-template-columns: minmax(0, 1fr) 15rem; gap: 1rem; align-items: center; }
h2 { font-size: 1rem; margin: 0 0 0.4rem; overflow-wrap: anywhere; }
img { width: 100%; height: auto; border-radius: 4px; display: block; }
p { margin: 0; color: var(--faint); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { font-weight: normal; text-align: left; padding-right: 0.5rem; }
td { text-align: right; }
meter { width: 6rem; }
.first { font-weight: 600; }
@media (max-width: 45rem) { article { grid-template-columns: 1fr; } }
"""
# Nothing is loaded and no script runs, even if a name of a video has HTML in it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def make_strip(clips: Clips, record: ClipRecord, start: int, end: int) -> bytes:
    """Return frames of the window [start, end) side by side, as WebP."""
    last = max(start, min(end, record.num_frames) - 1)
    numbers = sorted({round(float(number)) for number in np.linspace(min(start, last), last, NUM_FRAMES)})
    frames = clips.read_raw(record, "rgb", numbers).permute(0, 2, 3, 1).numpy()
    pictures = [resize_short_edge(frame, EDGE) for frame in frames]
    width, height = pictures[0].size
    strip = Image.new("RGB", (width * NUM_FRAMES, height), (128, 128, 128))
    for number, picture in enumerate(pictures):
        strip.paste(picture, (number * width, 0))
    return encode_webp([strip], QUALITY)


def write_results(
    path: Path,
    *,
    query: str,
    modality: str,
    query_strip: bytes | None,
    found: Sequence[tuple[FoundVideo, bytes | None]],
) -> None:
    """Write the page; a strip is None where the video's pictures are not at hand."""
    cards = "\n".join(f"<li>{_card(one, strip, number)}</li>" for number, (one, strip) in enumerate(found, start=1))
    title = f"Most like {query}"
    about = f"The query. Below, the {len(found)} videos most like it ({modality})."
    picture = _picture(query_strip, f"frames of {query}")
    write_text_atomic(
        path,
        f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><main><h1>{html.escape(title)}</h1>
<article><div>{picture}</div><p>{html.escape(about)}</p></article>
<ol>
{cards}
</ol></main></body></html>
""",
    )


def _card(one: FoundVideo, strip: bytes | None, number: int) -> str:
    rows = "".join(
        f"<tr{' class=first' if name == one.found_by else ''}><th scope=row>{html.escape(name)}</th>"
        f'<td><meter min="0" max="1" value="{max(0.0, value):.3f}"></meter></td><td>{value:.3f}</td></tr>'
        for name, value in one.by_modality.items()
    )
    times = f"{one.start:.2f} to {one.end:.2f} s, like {one.query_start:.2f} to {one.query_end:.2f} s of the query"
    return (
        f"<article><div><h2>{number}. {html.escape(_printable(one.video_id))}</h2>"
        f"{_picture(strip, f'frames of {one.video_id}')}</div>"
        f"<div><table><tr class=first><th scope=row>score</th><td></td><td>{one.score:.3f}</td></tr>{rows}</table>"
        f"<p>{times}. Found by {html.escape(one.found_by)}.</p></div></article>"
    )


def _picture(strip: bytes | None, text: str) -> str:
    if strip is None:
        return "<p>no pictures at hand</p>"
    data = base64.b64encode(strip).decode()
    return f'<img alt="{html.escape(_printable(text))}" src="data:image/webp;base64,{data}">'


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
