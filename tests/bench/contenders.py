"""Contenders that are timed in tests: they do nothing, and say how long it took."""


def make(pace):
    return lambda count: 0.001 * pace


def make_case(case):
    return make(1)


def fail(_):
    raise ValueError("broken on purpose")
