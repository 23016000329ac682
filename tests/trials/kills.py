"""Kill training runs, launchers of sweeps and their workers at random moments; nothing may change.

  python tests/trials/kills.py [KILLS] [--seed=N] [--steps=N]

It makes at least KILLS (60) kills with SIGKILL, in `tests/train/test_kill.py` (a run is killed
while it starts or trains, and begun again) and `tests/sweep/test_launch.py` (two workers of a
launcher, and then itself). In the end the folders must hold what those hold that were left alone:
the same arrays, logs and summaries. It takes some minutes, and is not a part of the test suite,
which makes few kills. `--steps` is how many steps of training there are for each kill (150). If a
run is over before it can be killed, the trial says so: give more; on a busy machine fewer do.
"""

import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]
TESTS = ("tests/train/test_kill.py", "tests/sweep/test_launch.py")
MODELS = 2  # whose runs test_kill.py kills, TFM_KILLS times each


def kills(rounds):
    """How many kills `TFM_KILLS=rounds` makes: of runs; of launchers, each with two workers."""
    return MODELS * rounds, 3 * (rounds // 2)


def main(argv):
    words = [arg for arg in argv if not arg.startswith("--")]
    options = dict(arg.removeprefix("--").split("=") for arg in argv if arg.startswith("--"))
    more = {f"TFM_KILLS_{name.upper()}": value for name, value in options.items()}
    wanted, rounds, begin = int(words[0]) if words else 60, 2, time.monotonic()
    while sum(kills(rounds)) < wanted:
        rounds += 2
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-ktest_kills_change_nothing", *TESTS],
        env={**os.environ, "TFM_KILLS": str(rounds), **more},
        cwd=ROOT,
    )  # fmt: skip
    runs, others = kills(rounds)
    if found.returncode == 0:
        print(
            f"{runs + others} kills ({runs} of runs, {others} of launchers and workers) changed "
            f"nothing, in {time.monotonic() - begin:.0f} s"
        )
    return found.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
