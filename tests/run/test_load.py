"""One line of Python gives a run folder's model, and decoding with its cache writes the text."""

import os
import pathlib

import jax
import pytest
from jax import numpy as jnp

import tfm
from tfm.config.names import UserError
from tfm.interop.folder import import_folder

FOLDER = pathlib.Path(os.environ.get("TFM_DATA", ""), "stories260K")
needs_data = pytest.mark.skipif(
    "TFM_DATA" not in os.environ, reason="needs real data: set TFM_DATA to its folder"
)


@needs_data
def test_an_imported_model_writes_its_authors_text(tmp_path):
    import_folder(str(FOLDER), str(tmp_path / "run"))
    run = tfm.load(str(tmp_path / "run"))
    ids = run.reader.encode("Once upon a time, Lily saw 3 dogs.")
    assert ids == [1, 403, 407, 261, 378, 432, 317, 394, 410, 472, 400, 428, 419, 426]
    cache = run.model.init_cache(1, 64)
    decode = jax.jit(
        lambda tokens, cache: run.model.apply(run.variables, tokens, cache, method="decode")
    )
    token, written = jnp.array([[1]]), []
    for _ in range(60):
        logits, cache = decode(token, cache)
        token = jnp.argmax(logits, -1)
        written.append(int(token[0, 0]))
    text = run.reader.decode(written)
    assert len(text) > 100
    assert (FOLDER / "greedy.txt").read_text().strip().startswith(text.strip())
    with pytest.raises(UserError, match="an imported model has no data: name a data set"):
        _ = run.data


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(UserError, match=f"no file {tmp_path}/config.json"):
        tfm.load(str(tmp_path))
