"""Does attention help, and does it matter how queries and keys are compared?

Additive (Bahdanau et al. 2015), dot-product, scaled dot-product (Vaswani et al. 2017) and no
attention, in an encoder–decoder that reverses, an encoder that sorts, and a decoder that recalls.
One head of 64 features, for which an unscaled dot product has a standard deviation of 8. Without
attention the feed-forward is wider, so that all variants have equally many parameters (in the
encoder–decoder nothing then reads the encoder).

  tfm sweep experiments/quickstart
"""

from tfm.sweep.space import chain, product, seeds, when

WIDTHS = {  # task in configs/tasks → width of the feed-forward without attention
    "reverse": 320,  # an encoder–decoder: six attentions for four feed-forwards
    "sort": 256,  # an encoder
    "recall": 256,  # a decoder
}
VARIANT = "model.attention.score"
TASK = "config"
METRIC = "accuracy"
BASELINE = "scaled_dot"


def sweep():
    tasks = [
        product(
            {"config": [f"configs/tasks/{task}.py"]},
            {"model.attention.score": ["additive", "dot", "scaled_dot", "none"]},
            when({"model.attention.score": "none"}, {"model.feedforward.width": [width]}),
        )
        for task, width in WIDTHS.items()
    ]
    same = {
        "model.attention.heads": [1],
        "model.position.scheme": ["sinusoidal"],  # rotary would favor dot products
        "train.steps": [300],
        "train.eval_every": [300],
    }
    return product(chain(*tasks), same, seeds(5))
