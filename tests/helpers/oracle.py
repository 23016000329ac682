"""Attention by its definition: one pair at a time, in NumPy float64, sharing no code with `tfm`."""

import math

import numpy as np

SCORES = {
    "dot": lambda q, k, h, t, s: q @ k,
    "scaled_dot": lambda q, k, h, t, s: q @ k / math.sqrt(len(q)),
    "additive": lambda q, k, h, t, s, w_HK: w_HK[h] @ np.tanh(q + k),
    "bilinear": lambda q, k, h, t, s, w_HKJ: q @ w_HKJ[h] @ k,
    "cosine": lambda q, k, h, t, s, log_scale_H: (
        math.exp(log_scale_H[h]) * (q @ k) / np.linalg.norm(q) / np.linalg.norm(k)
    ),
    "distance": lambda q, k, h, t, s: -sum((q - k) ** 2) / len(q) ** 0.5,
    "uniform": lambda q, k, h, t, s: 0.0,
    "linear": lambda q, k, h, t, s, w_HKM: q @ w_HKM[h, :, s],
    "static": lambda q, k, h, t, s, w_HLM: w_HLM[h, t, s],
}


def t5_bucket(ahead, buckets=32, max_distance=128, bidirectional=True):
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if ahead > 0 else 0
        distance = abs(ahead)
    else:
        distance = max(-ahead, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    grown = exact + int(
        math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact)
    )
    return first + min(grown, buckets - 1)


def alibi_slope(h, heads):
    assert heads & (heads - 1) == 0, "powers of two only"
    return 2.0 ** (-8.0 * (h + 1) / heads)


BIASES = {
    "alibi": lambda t, s, h, heads: -alibi_slope(h, heads) * abs(t - s),
    "relative": lambda t, s, h, heads, w_UH: w_UH[t5_bucket(s - t), h],
}


def rotary(x, p, base=10_000.0):
    """Each pair (i, i + n/2) is a complex number, turned by p / base^(2i/n)."""
    half = len(x) // 2
    z = x[:half] + 1j * x[half:]
    turned = z * np.exp(1j * p / base ** (2 * np.arange(half) / len(x)))
    return np.concatenate([turned.real, turned.imag])


def sinusoid(p, width, base=10_000.0):
    return np.array(
        [
            (math.sin if i % 2 == 0 else math.cos)(p / base ** ((i - i % 2) / width))
            for i in range(width)
        ]
    )


# From a position, the width and the length of the sequence to what joins the embeddings.
TABLES = {
    "sinusoidal": lambda p, width, length: sinusoid(p, width),
    "index": lambda p, width, length: np.full(width, p),
    "unit": lambda p, width, length: np.full(width, p / (length - 1)),
    "binary": lambda p, width, length: np.array([p // 2**i % 2 for i in range(width)]),
    "sine": lambda p, width, length: np.array(
        [math.sin(p / 10_000.0 ** (i / width)) for i in range(width)]
    ),
}


def softmax(logits, extra=0.0):
    exps = [math.exp(x) for x in logits]
    return [e / (sum(exps) + extra) for e in exps]


def threshold(weights_at, low, high):
    """The number at which weights that fall with it sum to 1, by bisection."""
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(weights_at(middle)) > 1 else (low, middle)
    return weights_at(low)


def entmax(logits, alpha):
    """max((α − 1) s − τ, 0)^(1 / (α − 1)), with the τ at which they sum to 1.  Peters et al. 2019,
    eq. 10."""
    if not logits:
        return []
    scaled = [(alpha - 1) * x for x in logits]
    weights_at = lambda tau: [max(x - tau, 0.0) ** (1 / (alpha - 1)) for x in scaled]
    return threshold(weights_at, max(scaled) - 1, max(scaled))


def relu_sum(logits):
    positive = [max(x, 0.0) for x in logits]
    return [x / sum(positive) if sum(positive) else 0.0 for x in positive]


def topk(logits, k=8):
    least = sorted(logits)[-k:][:1]
    kept = [math.exp(x) if x >= least[0] else 0.0 for x in logits]
    return [x / sum(kept) for x in kept]


# From the visible logits of a row to its weights.
NORMALIZERS = {
    "softmax": softmax,
    "softmax_zero": lambda logits: softmax(logits, extra=math.exp(0)),
    "sigmoid": lambda logits: [1 / (1 + math.exp(-x)) for x in logits],
    "relu": lambda logits: [max(x, 0.0) for x in logits],
    "none": lambda logits: logits,
    "sparsemax": lambda logits: entmax(logits, 2),
    "entmax15": lambda logits: entmax(logits, 1.5),
    "relu_sum": relu_sum,
    "topk": topk,
    "hard": lambda logits: [float(n == int(np.argmax(logits))) for n in range(len(logits))],
}


def attention(q, k, v, *, score, bias=None, visible=None, normalize=softmax, cap=None, pos=None):
    """q BTHK, k BSGK, v BSGE; score(q, k, h, t, s), bias(t, s, h), visible(b, h, i, j, t, s), where
    i, j are indices and t, s positions. Returns outputs BTHE and weights BHTS."""
    batch, rows, heads, _ = q.shape
    cols, groups = k.shape[1:3]
    q_pos, k_pos = pos or (
        np.tile(np.arange(rows), (batch, 1)),
        np.tile(np.arange(cols), (batch, 1)),
    )
    out = np.zeros((batch, rows, heads, v.shape[-1]))
    weights = np.zeros((batch, heads, rows, cols))
    for b in range(batch):
        for h in range(heads):
            g = h * groups // heads
            for i in range(rows):
                seen, logits = [], []
                for j in range(cols):
                    t, s = int(q_pos[b, i]), int(k_pos[b, j])
                    if visible is not None and not visible(b, h, i, j, t, s):
                        continue
                    x = score(q[b, i, h], k[b, j, g], h, t, s)
                    x += 0 if bias is None else bias(t, s, h)
                    seen.append(j)
                    logits.append(x if cap is None else cap * math.tanh(x / cap))
                for j, w in zip(seen, normalize(logits), strict=True):
                    weights[b, h, i, j] = w
                    out[b, i, h] += w * v[b, j, g]
    return out, weights
