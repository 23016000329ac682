"""Kill training runs, launchers of sweeps and their workers at random moments; nothing may change.

  python tests/trials/kills.py [KILLS] [--seed=N] [--steps=N]

It makes at least KILLS (60) kills with SIGKILL, in `tests/train/test_kill.py` (a run is killed
while it starts or trains, and begun again), `tests/sweep/test_launch.py` (two workers of a
launcher, and then itself), and of imports, which may leave no hidden folder. In the end the folders
must hold what those hold that were left alone: the same arrays, logs and summaries. It takes some
minutes, and is not a part of the test suite, which makes few kills. `--steps` is how many steps of
training there are for each kill (150). If a run is over before it can be killed, the trial says so:
give more; on a busy machine fewer do.
"""

import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
IMPORTS = 12  # kills of imports
TESTS = ("tests/train/test_kill.py", "tests/sweep/test_launch.py")
MODELS = 2  # whose runs test_kill.py kills, TFM_KILLS times each


def kills(rounds):
    """How many kills `TFM_KILLS=rounds` makes: of runs; of launchers, each with two workers."""
    return MODELS * rounds, 3 * (rounds // 2)


def kill_imports(root, seed):
    """Kills imports at random moments; returns whether they left nothing and changed nothing."""
    from tests.helpers.huggingface import write

    argv = [sys.executable, "-m", "tfm", "import", write(root / "hf")]
    begin, rng = time.monotonic(), random.Random(seed)
    subprocess.run([*argv, f"--workdir={root}/whole"], cwd=ROOT, check=True)
    took = time.monotonic() - begin
    for _ in range(IMPORTS):
        process = subprocess.Popen([*argv, f"--workdir={root}/run"], cwd=ROOT)
        time.sleep(took * rng.uniform(0.5, 1))
        process.kill()
        process.wait()
        shutil.rmtree(root / "run", ignore_errors=True)  # if it was over before
    subprocess.run([*argv, f"--workdir={root}/run"], cwd=ROOT, check=True)
    whole, again = (arrays_of(root / name) for name in ("whole", "run"))
    left = sorted(path.name for path in root.iterdir())
    print(f"{IMPORTS} kills of imports left {', '.join(left)}")
    return whole == again and left == ["hf", "run", "whole"]


def arrays_of(folder):
    from tfm.run.checkpoint import Checkpoints

    return Checkpoints(folder, read_only=True).digest("last")


def main(argv):
    words = [arg for arg in argv if not arg.startswith("--")]
    options = dict(arg.removeprefix("--").split("=") for arg in argv if arg.startswith("--"))
    more = {f"TFM_KILLS_{name.upper()}": value for name, value in options.items()}
    wanted, rounds, begin = int(words[0]) if words else 60, 2, time.monotonic()
    while sum(kills(rounds)) + IMPORTS < wanted:
        rounds += 2
    with tempfile.TemporaryDirectory() as folder:
        if not kill_imports(pathlib.Path(folder), int(options.get("seed", 0))):
            return 1
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-mci", "-kkills_change_nothing", *TESTS],
        env={**os.environ, "TFM_KILLS": str(rounds), **more},
        cwd=ROOT,
    )  # fmt: skip
    runs, others = kills(rounds)
    if found.returncode == 0:
        print(
            f"{runs + others} more kills ({runs} of runs, {others} of launchers, workers) changed "
            f"nothing, in {time.monotonic() - begin:.0f} s"
        )
    return found.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
