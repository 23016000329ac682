"""Small builders of TensorFlow Datasets, with the names and features of real ones."""

import contextlib
import warnings

import numpy as np

PAIRS = [("der Hund schläft", "the dog sleeps"), ("die Katze läuft", "the cat runs")]
SENTENCES = [("a fine film", 1), ("no wit at all", 0), ("warm and funny", 1)]


def prepare(folder, name, config, features, splits, file_format="array_record"):
    """Write a data set: `features(tfds)` are its features, `splits` its examples."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        made = builder(name, config, features, splits)
        own = made(data_dir=str(folder), config=config or None, file_format=file_format)
        own.download_and_prepare()


def builder(name, config, features, splits, registered=False):
    """The class of a builder, which `tfds.builder` finds by its name if it is registered."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds

        tfds.disable_progress_bar()

        def info(self):
            return tfds.core.DatasetInfo(builder=self, features=features(tfds))

        def generators(self, manager):
            return {split: enumerate(examples) for split, examples in splits.items()}

        return type(
            name,
            (tfds.core.GeneratorBasedBuilder,),
            dict(
                name=name,
                VERSION=tfds.core.Version("1.0.0"),
                BUILDER_CONFIGS=[tfds.core.BuilderConfig(name=config)] if config else [],
                _info=info,
                _split_generators=generators,
                _generate_examples=lambda self: (),
                __module__=__name__,
            ),
            skip_registration=not registered,
        )


def translation(folder, name="wmt14_translate", config="de-en", many=20):
    rows = [{"de": f"{de} {i}", "en": f"{en} {i}"} for i in range(many) for de, en in PAIRS]
    features = lambda tfds: tfds.features.Translation(languages=("de", "en"))
    prepare(folder, name, config, features, {"train": rows, "validation": rows[:3]})
    return rows


def stsb(folder):
    rows = [dict(sentence1="a man eats", sentence2="a man sleeps", label=2.5)] * 3

    def features(tfds):
        text = tfds.features.Text()
        return tfds.features.FeaturesDict(dict(sentence1=text, sentence2=text, label=np.float32))

    prepare(folder, "glue", "stsb", features, dict(train=rows, validation=rows))


def sst2(folder, config="sst2"):
    rows = [dict(sentence=s, label=label, idx=i) for i, (s, label) in enumerate(SENTENCES * 4)]

    def features(tfds):
        label = tfds.features.ClassLabel(names=["negative", "positive"])
        return tfds.features.FeaturesDict(
            dict(sentence=tfds.features.Text(), label=label, idx=np.int32)
        )

    without = [{**row, "label": -1} for row in rows]
    prepare(folder, "glue", config, features, dict(train=rows, validation=rows[:5], test=without))
    return rows
