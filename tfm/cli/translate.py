"""Write the target of a source: a translation, an answer, a command.

  tfm translate RUN ["TEXT"] [--file=FILE] [--json] [--part=N] [--batch=32] [settings]

For runs that were trained on pairs of texts, and for imported encoder–decoders. The text is given
in quotes, or each line of a file or of standard input is one; there is a line for each, in order.
With --n_best=N there are N lines for each, with their scores. A run that was trained on a mixture
is told which of its tasks is meant, --part=N. A source that is longer than what the model was made
for is an error: nothing is cut off.

"""

import json
from collections.abc import Sequence

from tfm.cli import options
from tfm.cli.generate import written
from tfm.config import arguments
from tfm.config.names import UserError
from tfm.run.text import text_writer


def main(argv: Sequence[str]) -> None:
    given = options.parse(
        argv, __doc__ + options.SETTINGS_HELP, (*options.SETTINGS, "file", "part", "batch")
    )
    if given is None:
        return
    settings, batch = options.settings_of(given), arguments.whole(given, "batch", 32)
    texts = options.texts_of(given, lines=True)
    writer = text_writer(options.load_run(given), options.part_of(given))
    if writer.goes_on:
        raise UserError(
            f"{given.words[0]} writes on from a text, and was not trained on pairs of texts: "
            "tfm generate"
        )
    spec = writer.fitting(texts, settings)
    if "json" in given.flags:
        print(json.dumps(written(writer, texts, spec, batch), indent=1, ensure_ascii=False))
        return
    for text, ones in zip(texts, writer.write(texts, spec, batch), strict=True):
        for one in ones:
            score = f"{one.score:.4f}\t" if spec.n_best > 1 else ""
            print(score + writer.text(writer.prompt(text), one.tokens))
