"""Training by several ranks on the GPUs of this machine, by NCCL, up to four of them; two ranks share a single GPU by Gloo.

usage: gpu_ranks_test.py FVLM_ENGINE MAKE_SHAPES RANK_PROBE [TEST ...]
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import torch

from ranks_test import ENGINE, TORCHRUN, Runs, ranks_of, recipe, rewards_equal_one_process, run_tests, start

GPUS = torch.cuda.device_count()
SEVERAL = [ranks for ranks in (2, 4) if ranks <= max(GPUS, 2)]


class GpuRuns(Runs):
    device = "cuda"

    def __init__(self, folder, text):
        fp32 = 'precision = "fp32"'
        assert fp32 in text
        super().__init__(folder, text.replace(fp32, fp32 + ", deterministic = true"))


def one_rank_has_the_bits_of_a_process(runs):
    runs.need("one", 1)
    rank, = start(runs.command("nccl-1"), 1)
    said = rank.communicate(timeout=1800)[0]
    assert rank.returncode == 0, said
    runs.expect_same_bits("one", "nccl-1")
    print("1 rank by NCCL: the bits of a process alone")


def equals_one_process(runs):
    runs.need("one", 1)
    for ranks in SEVERAL:
        runs.need(f"ranks-{ranks}", ranks)
        most = runs.expect_near("one", f"ranks-{ranks}")
        print(f"{ranks} ranks: weights and moments within {most:.2g} of one process")


def zero_changes_no_more_than_rounding(runs):
    runs.need("one", 1)
    for ranks in SEVERAL:
        runs.need(f"ranks-{ranks}", ranks)
        for level in (1, 2) if ranks <= GPUS else (1,):  # gradients that go through the host cannot be divided
            run = f"zero-{level}-{ranks}"
            runs.train(run, ranks, "--zero", level)
            most = runs.expect_near(f"ranks-{ranks}", run)
            print(f"{ranks} ranks with --zero {level}: within {most:.2g} of those without")
            if ranks == 2:  # a sum of two numbers has one order
                assert most == 0


def copy_engines_sum_as_nccl_does(runs):
    """--no-peer-copies, beside ranks whose gradients copy engines exchange, as they do in all other tests."""
    if GPUS < 2:
        print("copy engines: need two GPUs")
        return
    for ranks in SEVERAL:
        for options in ((), ("--zero",)):
            said = {}
            for by in ("copies", "nccl"):
                run = f"by-{by}-{ranks}{''.join(options)}"
                processes = start(runs.command(run, *options, *(["--no-peer-copies"] if by == "nccl" else [])), ranks)
                outputs = [process.communicate(timeout=1800)[0] for process in processes]
                for rank, process in enumerate(processes):
                    assert process.returncode == 0, f"{run}: rank {rank}: {process.returncode}\n{outputs[rank]}"
                said[by] = outputs[0]
            assert f"{ranks} ranks train together, by copy engines and nccl" in said["copies"], said["copies"]
            assert "by nccl alone" not in said["copies"], said["copies"]
            assert f"{ranks} ranks train together, by nccl" in said["nccl"], said["nccl"]
            runs_of = [f"by-{by}-{ranks}{''.join(options)}" for by in ("copies", "nccl")]
            if ranks == 2:  # a sum of two numbers has one order
                runs.expect_same_bits(*runs_of)
                print(f"2 ranks {' '.join(options)}: the same bits by copy engines and by NCCL")
            else:
                most = runs.expect_near(*runs_of)
                print(f"{ranks} ranks {' '.join(options)}: by copy engines within {most:.2g} of by NCCL")


def resumes_with_other_ranks(runs):
    most_ranks = SEVERAL[-1]
    for ranks, steps, options in ((most_ranks, 5, ["--zero"]), (2, 6, []), (1, 7, []), (most_ranks, 100, ["--zero"])):
        runs.train("elastic", ranks, "--max-steps", steps, *options)
    runs.need("one", 1)
    most = runs.expect_near("one", "elastic")
    print(f"{most_ranks}, 2, 1 and {most_ranks} ranks: the same samples, weights and moments within {most:.2g} of one process")


def lines(runs, run):
    file = runs.folder / run / "metrics.jsonl"
    return file.read_text().count('"kind":"step"') if file.exists() else 0


def goes_on_after(how, runs):
    """A rank that is killed or stopped under torchrun, which starts all of them anew from the last checkpoint."""
    ranks = SEVERAL[-1] if GPUS > 1 else 2
    runs.need(f"ranks-{ranks}", ranks)
    run = f"after-{how.name}"
    command = [*TORCHRUN, "--standalone", "--max-restarts", "3", "--monitor-interval", "0.1", "--nproc-per-node", ranks,
               "--no-python", *runs.command(run, "--rank-timeout", 10)]
    said = runs.folder / f"{run}.log"
    with said.open("w") as log:
        torchrun = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
    while lines(runs, run) < 2:
        assert torchrun.poll() is None, said.read_text()
        time.sleep(0.01)
    before = set(ranks_of(torchrun))
    os.kill(max(before), how)
    began, known = time.monotonic(), None
    while torchrun.poll() is None:
        anew = before.isdisjoint(ranks_of(torchrun))
        if anew and known is None:
            known = lines(runs, run)
        if known is not None and lines(runs, run) > known:
            break
        assert time.monotonic() - began < 1800, said.read_text()
        time.sleep(0.05)
    seconds = time.monotonic() - began
    assert torchrun.wait(timeout=1800) == 0, said.read_text()
    runs.expect_same_bits(f"ranks-{ranks}", run)
    names = [line for line in said.read_text().splitlines() if "rank" in line and "error" in line.lower()]
    print(f"{how.name} of one of {ranks} ranks: it trains again {seconds:.1f} s later, and ends in the same bits; said: "
          f"{names[0] if names else 'nothing'}")


def goes_on_after_a_kill(runs):
    goes_on_after(signal.SIGKILL, runs)


def goes_on_after_a_stop(runs):
    goes_on_after(signal.SIGSTOP, runs)


def shares_sequences(runs):
    """--context-parallel, beside one process."""
    if GPUS < 2:
        print("--context-parallel: needs two GPUs")
        return
    class ContextRuns(GpuRuns):
        stages = ("isolated", "joined", "align", "instruct")
        samples = "captions=160,text=40,questions=160,pairs=40,documents=60,heldout/questions=50"

    folder = runs.folder / "context"
    folder.mkdir()
    context = ContextRuns(folder, (Path(__file__).parent / "context.lua").read_text())
    context.train("one", 1)
    for ranks, shared in ((2, 2), (4, 2), (4, 4)):
        if ranks > GPUS:
            continue
        run = f"ranks-{ranks}-{shared}"
        context.train(run, ranks, "--context-parallel", shared)
        most = context.expect_near("one", run)
        print(f"{ranks} ranks, {shared} to a sequence: weights and moments within {most:.2g} of one process")


if __name__ == "__main__":
    print(f"{GPUS} GPUs, {ENGINE}")
    run_tests((one_rank_has_the_bits_of_a_process, equals_one_process, rewards_equal_one_process, zero_changes_no_more_than_rounding,
               copy_engines_sum_as_nccl_does, resumes_with_other_ranks, goes_on_after_a_kill, goes_on_after_a_stop,
               shares_sequences),
              lambda folder: GpuRuns(folder, recipe()))
