"""Ring attention and training by ranks that share sequences (--context-parallel), on the CPU.

usage: context_test.py FVLM_ENGINE MAKE_SHAPES RING_PROBE [TEST ...]
"""

import subprocess
import sys
from pathlib import Path

from ranks_test import Runs, recipe, run_tests, start, survives_kills

PROBE = sys.argv[3]


class ContextRuns(Runs):
    stages = ("isolated", "joined", "align", "instruct")
    samples = "captions=160,text=40,questions=160,documents=60,heldout/questions=12"

    def __init__(self, folder):
        super().__init__(folder, (Path(__file__).parent / "context.lua").read_text())


def equals_plain_attention(_):
    for ranks in (2, 4):
        processes = start([PROBE], ranks)
        said = [process.communicate(timeout=1800)[0] for process in processes]
        for rank, process in enumerate(processes):
            assert process.returncode == 0, f"rank {rank} of {ranks}: {process.returncode}\n{said[rank]}"
        cases = said[0].strip().splitlines()
        assert len(cases) == 36, said[0]
        print(f"{ranks} ranks: {len(cases)} cases of ring attention, outputs and gradients within "
              f"{max(float(case.split()[-1]) for case in cases):.2g} of attention over all rows, in float64")


def equals_one_process(runs):
    runs.need("one", 1)
    for ranks, context in ((2, 2), (4, 2), (4, 4)):
        run = f"ranks-{ranks}-{context}"
        runs.need(run, ranks, "--context-parallel", context)
        most = runs.expect_near("one", run)
        print(f"{ranks} ranks, {context} to a sequence: weights and moments within {most:.2g} of one process")
    runs.train("zero", 4, "--context-parallel", 2, "--zero")
    runs.expect_same_bits("ranks-4-2", "zero")
    runs.train("zero-2", 4, "--context-parallel", 2, "--zero", 2)
    most = runs.expect_near("one", "zero-2")
    print(f"4 ranks, 2 to a sequence: the same bits with --zero; with --zero 2 within {most:.2g}")


def resumes(runs):
    """To the same bits with the same ranks; with others to the same samples."""
    runs.need("one", 1)
    runs.need("ranks-2-2", 2, "--context-parallel", 2)
    for steps in (7, 8, 100):
        runs.train("parts", 2, "--context-parallel", 2, "--max-steps", steps)
    runs.expect_same_bits("ranks-2-2", "parts")
    for ranks, steps, options in ((4, 7, ["--context-parallel", 4]), (2, 6, []), (1, 7, []),
                                  (4, 100, ["--context-parallel", 2, "--zero"])):
        runs.train("elastic", ranks, "--max-steps", steps, *options)
    most = runs.expect_near("one", "elastic")
    print(f"resumed with and without --context-parallel: the same samples, weights within {most:.2g}")


def survives_kills_in_the_ring(runs):
    survives_kills(runs, "ranks-2-2", ("--context-parallel", 2))


def refuses(runs):
    def expect(words, *options):
        processes = start(runs.command("refused", *options), 2)
        said = [process.communicate(timeout=1800)[0] for process in processes]
        for process, text in zip(processes, said):
            assert process.returncode == 2 and words in text, f"{process.returncode}: {text}"

    expect("2 ranks cannot be divided into groups of 3", "--context-parallel", 3)
    text, runs.recipe = runs.recipe, runs.folder / "preferences.lua"
    runs.recipe.write_text(recipe())
    expect("the objective dpo of stage 'prefer'", "--context-parallel", 2)
    runs.recipe = text
    alone = subprocess.run([str(word) for word in runs.command("refused", "--context-parallel", 2)], text=True,
                           capture_output=True)
    assert alone.returncode == 2 and "there is one process" in alone.stderr, alone.stderr


if __name__ == "__main__":
    run_tests((equals_plain_attention, equals_one_process, resumes, survives_kills_in_the_ring, refuses), ContextRuns)
