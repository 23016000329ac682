"""What a reader makes of texts, beside the library `tokenizers` itself."""

import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from tfm.config.names import UserError
from tfm.data.datasets import open_dataset
from tfm.data.reader import of_data, of_huggingface, of_tree
from tfm.data.tokenizers.published import of_rules

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on"]


def rules(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1"):
    made = tokenizers.Tokenizer(
        models.WordLevel({word: id_ for id_, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(name, WORDS.index(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=special
    )
    return made


@pytest.mark.parametrize(
    ("single", "pair"),
    [
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
        ("[CLS] $A", "[CLS] $A [SEP] $B:1"),
        ("$A [SEP]", "$A [SEP] $B:1 [SEP]:1"),
        ("$A", "$A [SEP] [SEP] $B:1"),
    ],
)
def test_an_import_puts_around_texts_what_its_rules_do(single, pair):
    made = rules(single, pair)
    reader = of_huggingface(
        of_rules(rules(single, pair)), {"id2label": {"1": "b", "0": "a"}}, 12, "tags"
    )
    assert reader.encode("the cat") == made.encode("the cat").ids
    both = made.encode("the cat", "sat on")
    assert reader.sentences("the cat", "sat on") == (both.ids, both.type_ids)
    assert reader.decode(reader.encode("the cat")) == made.decode(made.encode("the cat").ids)
    assert reader.labels == ("a", "b")
    ids, places = reader.words(["sat", "on"])
    assert [ids[place] for place in places] == [WORDS.index("sat"), WORDS.index("on")]
    ids, (place,) = reader.with_marks("the [MASK] on", lambda _: reader.mask)
    assert ids[place] == WORDS.index("[MASK]")
    assert [*ids[:place], 6, *ids[place + 1 :]] == made.encode("the cat on").ids


def test_ids_of_the_generation_config():
    config = {"eos_token_id": [3, 2], "bos_token_id": 2, "decoder_start_token_id": 4}
    reader = of_huggingface(None, config, 9, "pairs")
    assert (reader.ends, reader.start, reader.decoder_start) == ((3, 2), 2, 4)
    assert reader.numbers
    assert reader.names([5, 11]) == ["5", "<11>"]
    with pytest.raises(UserError, match="its tokenizer has 9 ids and its model 8"):
        of_huggingface(of_rules(rules()), {}, 8, "text")


@pytest.mark.parametrize("name", ["recall", "english_french", "spell", "parity"])
def test_a_reader_is_saved_and_read(name):
    dataset = open_dataset(name, "train", 4)
    made = of_data(dataset, None, ("[MASK]",))
    read = of_tree(json.loads(json.dumps(made.to_tree())), None)
    assert read.to_tree() == made.to_tree()
    assert read.mask == dataset.vocab
    ids = dataset.take([0]).tokens.ids.tolist()
    assert read.ids(read.decode(ids)) == ids
    if dataset.pieces:
        assert read.decode(ids) == " ".join(dataset.pieces[id_] for id_ in ids)
    assert read.names([1, dataset.vocab]) == ["<bos>", "[MASK]"]
