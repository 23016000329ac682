"""An explanation as one HTML file: its data, its style and its script are all inside."""

import html
import json
import pathlib
import re
from typing import Any

import numpy as np

from tfm.config.names import UserError
from tfm.explain import heads
from tfm.explain.explain import Explanation, Look, Next
from tfm.explain.pack import Blobs, coarser, means, narrower
from tfm.explain.terms import TERMS
from tfm.explain.walk import Picture, Stage

WEB = pathlib.Path(__file__).parent / "web"
SCRIPTS = ("data.js", "state.js", "colors.js", "canvas.js", "figures.js", "bars.js", "attention.js",
           "walk.js", "export.js", "main.js")  # fmt: skip
MOST = 10_000_000  # bytes of a page
THUMB = 32  # rows and columns of the small maps of all heads, at most
FEATURES = 16_384  # numbers of a picture of the walk, about


def page(explanations: list[Explanation], most: int = MOST) -> tuple[str, list[str]]:
    """Returns the page of one run, or of two on the same text, and notes about it."""
    if len(explanations) > 1:
        _check_same(*explanations)
    factor = 1
    while True:
        blobs, notes = Blobs(), []
        if factor > 1:
            notes.append(
                f"The maps are coarser: a cell is the mean of {factor} × {factor} pairs of tokens. "
                "--layers=… shows fewer layers, and all pairs."
            )
        runs = [_run(explanation, blobs, factor, notes) for explanation in explanations]
        if blobs.coarse:
            notes.append(
                "Large maps and pictures are stored in 8 bits: numbers that are read off them are "
                "marked ≈. --npz=FILE.npz writes all of them in full precision."
            )
        tree = {
            "text": explanations[0].text,
            "runs": runs,
            "notes": notes,
            "rule": heads.RULE,
            "tags": {name: about for name, (_, about) in heads.TAGS.items()},
        }
        text = _html(explanations, tree, blobs)
        if len(text.encode()) <= most or factor >= 64:
            return text, notes
        factor *= 2


def _check_same(first: Explanation, second: Explanation) -> None:
    """Raises unless both runs read the same tokens."""
    for name in first.sequences:
        if name not in second.sequences:
            raise UserError(f"--with: {first.name} reads {name!r}, and {second.name} does not")
        texts, others = ([text for text, _ in run.sequences[name]] for run in (first, second))
        if texts != others:
            same = [a == b for a, b in zip(texts, others, strict=False)]
            at = [*same, False].index(False)
            raise UserError(
                f"--with: the tokens of the two runs differ, from token {at} of {name!r} on, so "
                "their maps cannot be compared: they need the same tokenizer"
                + (" and the same --target" if name == "target" else "")
            )


def _html(explanations: list[Explanation], tree: dict[str, Any], blobs: Blobs) -> str:
    """Fills in the page; in its JSON, `<` is \\u003c, so that no text can end the script."""
    data = json.dumps({**tree, "blobs": blobs.texts}, ensure_ascii=False, allow_nan=False)
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    script = "\n".join((WEB / name).read_text("utf-8") for name in SCRIPTS)
    title = " and ".join(explanation.name for explanation in explanations)
    parts = {
        "title": html.escape(f"{title}: {explanations[0].text[:60]}"),
        "style": (WEB / "page.css").read_text("utf-8"),
        "data": data,
        "script": f'(() => {{\n"use strict";\n{script}\n}})();',
    }
    # In one pass, so that nothing in the data is taken for a place.
    text = (WEB / "page.html").read_text("utf-8")
    return re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], text)


def _run(run: Explanation, blobs: Blobs, factor: int, notes: list[str]) -> dict[str, Any]:
    notes += [note for note in run.notes if note not in notes]
    return {
        "name": run.name,
        "facts": list(run.facts.items()),
        "sequences": run.sequences,
        "sites": [_site(look, blobs, factor) for look in run.looks],
        "walks": [
            {**vars(walk), "stages": [_stage(stage, blobs) for stage in walk.stages]}
            for walk in run.walks
        ],
        "pictures": [
            {"title": title, "text": text, **_picture(picture, blobs)}
            for title, text, picture in run.pictures
        ],
        "next": None if run.next is None else _next(run.next, blobs),
        "loss": run.loss,
        "loss_of": run.loss_of,
    }  # fmt: skip


def _site(look: Look, blobs: Blobs, factor: int) -> dict[str, Any]:
    site, arrays = look.site, look.site.arrays
    visible = arrays.get("visible_NHTS")
    layers, count = range(len(site.layers)), range(site.heads)
    maps: dict[str, Any] = {}
    for name in ("weights", "logits", "score", "bias"):
        x = arrays.get(f"{name}_NHTS")
        if x is None or (name == "score" and "bias_NHTS" not in arrays and site.spec is not None
                         and site.spec.cap is None):  # fmt: skip
            continue  # without a bias and a cap, scores are the logits
        maps[name] = [
            [_map(x[n, h], None if visible is None else visible[n, h], blobs, factor)
             for h in count]
            for n in layers
        ]  # fmt: skip
    for name in TERMS:
        if name in look.terms:  # the page multiplies them
            # The mean of a product over pairs of two groups is the product of their means.
            left, right = (means(side, factor, 0) for side in look.terms[name])
            maps[name] = [
                [{"left": blobs.add(left[:, h], exact=True),
                  "right": blobs.add(right[:, h], exact=True)} for h in count]
            ]  # fmt: skip
    mask: Any = None
    if visible is not None:
        same = bool(np.all(visible == visible[:1, :1]))
        mask = [
            [blobs.bits(coarser(x_TS.astype(float), factor) > 0) for x_TS in x_HTS]
            for x_HTS in (visible[:1, :1] if same else visible)
        ]
    norms = look.value_norms
    fields = ("name", "title", "rows", "cols", "layers", "heads")
    return {
        **{field: getattr(site, field) for field in fields},
        "factor": factor,
        "maps": maps,
        "mask": mask,
        "norms": None if norms is None else [blobs.add(x_HS) for x_HS in norms],
        "thumbs": [
            [blobs.add(coarser(x_TS, -(-max(x_TS.shape) // THUMB))) for x_TS in x_HTS]
            for x_HTS in arrays["weights_NHTS"]
        ],
        "stats": look.heads,
        "formulas": look.formulas,
        "muted": look.muted,
        "terms": {name: name.replace("_", " · ") for name in look.terms},
    }


def _map(
    x_TS: np.ndarray, visible_TS: np.ndarray | None, blobs: Blobs, factor: int
) -> dict[str, Any]:
    where = None if visible_TS is None else coarser(visible_TS.astype(float), factor) > 0
    return blobs.add(coarser(x_TS, factor, visible_TS), where)


def _stage(stage: Stage, blobs: Blobs) -> dict[str, Any]:
    return {**vars(stage), "pictures": [_picture(picture, blobs) for picture in stage.pictures]}


def _picture(picture: Picture, blobs: Blobs) -> dict[str, Any]:
    """Packs the matrices of a site by layer and head. Columns with names are never averaged."""
    x, sizes = np.atleast_2d(picture.data), list(np.shape(picture.data))
    most = FEATURES if picture.names is None else x.size

    def packed(part: np.ndarray, depth: int) -> Any:
        if depth:
            return [packed(inner, depth - 1) for inner in part]
        return blobs.add(narrower(part, most)[0])

    lead = sum(axis in "NH" for axis in picture.axes[:-2])
    return {
        **vars(picture),
        "sizes": [*sizes[:-1], picture.total or sizes[-1]],
        "lead": lead,
        "group": narrower(x.reshape(-1, *x.shape[-2:])[0], most)[1],
        "data": packed(x, lead),
    }


def _next(predicted: Next, blobs: Blobs) -> dict[str, Any]:
    """Packs logits in float32, since the page computes probabilities from them."""
    about = {"shape": [1, predicted.logits.shape[1]], "low": 0.0, "high": 0.0, "type": "f4"}
    return {
        **vars(predicted),
        "logits": [{**about, "blob": blobs.pack(np.asarray(x, "<f4"))} for x in predicted.logits],
        "continuations": [continuation._asdict() for continuation in predicted.continuations],
    }
