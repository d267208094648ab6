"""Training by several ranks on the CPU: what one process comes to, faults and resuming.

usage: ranks_test.py FVLM_ENGINE MAKE_SHAPES RANK_PROBE [TEST ...]. FVLM_KILLS: number of random kills, by default 3.
"""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forked_program

try:
    import torch
    from safetensors import safe_open
except ImportError:
    print("skipped: without the oracles' wheels (./scripts/setup --oracles)")
    sys.exit(77)

ENGINE, SHAPES, PROBE = sys.argv[1:4]
os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun sets it: the number of replicas in a process follows it
# Within what runs on several ranks are those on one: sums in another order, which Adam enlarges. LibTorch's products of float32, which
# a plugin computes on processors of AMD alone, are summed in an order of their own for each number of rows.
NEAR = 1e-6 if "AuthenticAMD" in Path("/proc/cpuinfo").read_text() else 2e-6
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
STAGES = ("align", "instruct", "prefer")
CHANGES = {  # of tests/train/small.lua: budgets of tokens, Muon, a control function, and steps that differ less by rounding
    'name = "small"': 'name = "ranks"',
    "lr = 2e-3": "lr = 1e-3",
    "described.batch = 8": "described.batch = described.batch or 8",
    "packing or {": 'packing or fvlm.arg("packs", "few") == "many" and { frames = 4, tokens = 160, segments = 2 } or '
                    'fvlm.arg("packs", "few") == "large" and { frames = 32, tokens = 512, segments = 16 } or {',
    "checkpoint = { every = 3, keep_last = 2 }": "checkpoint = { every = 1, keep_last = 3 }",
    "    samples = 64,\n": """    optimizer = fvlm.arg("muon", "no") == "yes" and fvlm.muon { lr = 1e-3, others = { lr = 1e-3 } } or nil,
    control = { every = 3, run = function(m, memory) memory.loss = m.loss; return { fvlm.scale_lr(0.9) } end },
    samples = 64, batch = { tokens = 160 },
"""}


def recipe():
    text = (Path(__file__).parent.parent / "train" / "small.lua").read_text()
    for before, after in CHANGES.items():
        assert before in text, before
        text = text.replace(before, after)
    return text


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(command, ranks, per_rank=lambda rank: [], environment=lambda rank: {}):
    """The ranks of a run, with torchrun's variables."""
    return [forked_program.start(command + per_rank(rank), env=dict(variables, **environment(rank)), together=True)
            for rank, variables in enumerate(variables_of(ranks))]


def variables_of(ranks):
    port = free_port()
    return [dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            for rank in range(ranks)]


def finish(command, ranks, per_rank=lambda rank: []):
    """What each rank of a run says, all of which end well."""
    with ThreadPoolExecutor(ranks) as pool:
        done = list(pool.map(lambda rank, variables: forked_program.run(command + per_rank(rank), env=variables), range(ranks), variables_of(ranks)))
    for rank, one in enumerate(done):
        assert one.returncode == 0, f"{command}: rank {rank} of {ranks}: {one.returncode}\n{one.stdout}{one.stderr}"
    return [one.stdout + one.stderr for one in done]


class Runs:
    device, stages = "cpu", STAGES
    samples = "captions=160,text=40,questions=160,pairs=80,heldout/questions=50,heldout/pairs=30"

    def __init__(self, folder, text):
        self.folder, self.data, self.recipe = folder, folder / "data", folder / "ranks.lua"
        self.recipe.write_text(text)
        subprocess.run([SHAPES, "--out", self.data, "--frames", "2", "--size", "16", "--samples", self.samples],
                       check=True, capture_output=True)

    def command(self, run, *options):
        return [ENGINE, "train", self.recipe, "--arg", f"data={self.data}", "--run-dir", self.folder / run, "--device",
                self.device, *options]

    def train(self, run, ranks, *options):
        if ranks > 1:
            finish(self.command(run, *options), ranks)
            return
        done = forked_program.run(self.command(run, *options))
        assert done.returncode == 0, f"{run}: {done.returncode}\n{done.stdout}{done.stderr}"

    def need(self, run, ranks, *options):
        """A run of all stages that other tests read, too."""
        if not (self.folder / run).exists():
            self.train(run, ranks, *options)

    def checkpoints(self, run, stage):
        return sorted(path for path in (self.folder / run / stage).glob("step-*") if re.fullmatch(r"step-\d+", path.name))

    def tensors(self, run, stage):
        """Of the last checkpoint, with the optimizer's state whole."""
        folder, tensors = self.checkpoints(run, stage)[-1], {}
        for file in sorted(folder.rglob("*.safetensors")):
            name_of_file = re.sub(r"-\d+-of-\d+", "", str(file.relative_to(folder)))
            with safe_open(file, "pt") as content:
                for name in content.keys():
                    tensors.setdefault(f"{name_of_file}:{name}", []).append(content.get_tensor(name))
        return {name: parts[0] if len(parts) == 1 else torch.cat(parts) for name, parts in tensors.items()}

    def state(self, run, stage):
        return json.loads((self.checkpoints(run, stage)[-1] / "training_state/state.json").read_text())

    def metrics(self, run):
        lines = []
        for text in (self.folder / run / "metrics.jsonl").read_text().splitlines():
            line = json.loads(text)
            of_the_moment = [key for key in line if key.startswith("time.") or key.endswith("_per_second") or
                             key in ("data_wait_share", "device_memory_bytes", "device_memory_fragmentation", "gpu_utilization", "memory_bytes", "mfu", "seconds")]
            lines.append({key: value for key, value in line.items() if key not in of_the_moment})
        return lines

    def expect_same_bits(self, left, right):
        for stage in self.stages:
            a, b = self.tensors(left, stage), self.tensors(right, stage)
            assert a.keys() == b.keys(), stage
            for name in a:
                assert torch.equal(a[name], b[name]), f"{left} and {right}, {stage}: {name} differs"
        a, b = self.metrics(left), self.metrics(right)
        assert len(a) == len(b), f"{left} has {len(a)} lines of metrics, {right} {len(b)}"
        for one, other in zip(a, b):
            assert one == other, f"{left}: {one}\n{right}: {other}"

    def expect_near(self, left, right, scale=0):
        """Weights, losses, and the same samples at the same steps. `scale`: of what losses are sums of, where that is larger."""
        most = 0
        for stage in self.stages:
            a, b = self.tensors(left, stage), self.tensors(right, stage)
            assert a.keys() == b.keys(), stage
            for name in a:
                difference = (a[name].double() - b[name].double()).abs().max().item()
                assert difference < NEAR, f"{left} and {right}, {stage}: {name} differs by {difference:.3g}"
                most = max(most, difference)
            left_state, right_state = self.state(left, stage), self.state(right, stage)
            for key in ("cursor", "step", "samples", "text_tokens", "frames", "optimizer_steps", "rate_scale"):
                assert left_state[key] == right_state[key], f"{stage}: {key}: {left_state[key]} {right_state[key]}"
        a, b = ([line for line in self.metrics(run) if line.get("what") != "out_of_memory"] for run in (left, right))
        assert [(line["kind"], line["step"]) for line in a] == [(line["kind"], line["step"]) for line in b]
        for one, other in zip(a, b):
            if one["kind"] == "step":
                for key in ("loss", "gradient_norm"):
                    assert abs(one[key] - other[key]) <= 1e-5 * max(abs(one[key]), scale), f"{one}\n{other}"
                for key in ("samples", "samples_used", "text_tokens", "frames"):
                    assert one[key] == other[key], f"{key}: {one}\n{other}"
        return most


def equals_one_process(runs):
    for ranks in (2, 4):
        runs.need("one", 1)
        runs.need(f"ranks-{ranks}", ranks)
        most = runs.expect_near("one", f"ranks-{ranks}")
        print(f"{ranks} ranks: weights and moments within {most:.2g} of one process")


def evaluation_equals_one_process(runs):
    """The ranks' results are those that one process has with the same weights, to the bit."""
    for ranks in (2, 4):
        run = f"ranks-{ranks}"
        runs.need(run, ranks)
        for stage in ("instruct", "prefer"):
            checkpoint = runs.checkpoints(run, stage)[-1]
            done = forked_program.run([ENGINE, "eval", runs.recipe, "--arg", f"data={runs.data}", "--stage", stage, "--model", checkpoint,
                                       "--device", "cpu", "--json"])
            assert done.returncode == 0, done.stderr
            one = json.loads(done.stdout)["results"][0]
            together = [line for line in runs.metrics(run) if line["kind"] == "evaluation" and line["stage"] == stage][-1]
            assert together["samples"] == {"instruct": 50, "prefer": 30}[stage], together
            values = {name: value for name, value in one.items() if name not in ("stage", "set", "mode", "measure", "not_used")}
            for name, value in values.items():
                assert together[name] == value, f"{stage}, {ranks} ranks: {name} is {together[name]!r}, and {value!r} of one process"
            assert "loss" in values and "accuracy" in values, one
        print(f"{ranks} ranks: evaluations are those of one process, to the bit")


def rewards_equal_one_process(runs):
    """A prompt gets the same answers whichever rank has it."""
    of_pairs = 'data = mix { { data .. "/pairs/*.tar" } }, objective = fvlm.dpo { beta = 0.1 }'
    of_answers = ('data = mix { { data .. "/questions/*.tar" } }, '
                  'objective = fvlm.grpo { answers = 4, max_new_tokens = 8, reward = function(answer) return #answer.text end, kl = 0.1 }')
    assert of_pairs in recipe()
    folder = runs.folder / "rewards"
    folder.mkdir()
    rewarded = type(runs)(folder, recipe().replace(of_pairs, of_answers))
    for ranks in (1, 2):
        rewarded.train(f"ranks-{ranks}", ranks)
    most = rewarded.expect_near("ranks-1", "ranks-2", scale=1)
    lines = [[line for line in rewarded.metrics(f"ranks-{ranks}") if line["stage"] == "prefer" and line["kind"] == "step"] for ranks in (1, 2)]
    for one, other in zip(*lines):
        for key in ("reward", "reward_deviation", "answer_tokens", "cut_off_share"):
            assert abs(one[key] - other[key]) < 1e-5, f"{key}: {one}\n{other}"
    print(f"2 ranks, rewards: weights and moments within {most:.2g} of one process")


def a_checkpoint_is_of_all_ranks(runs):
    """Each rank writes a slice of the optimizer's state, and a file says how many there were."""
    runs.need("ranks-2", 2)
    for stage in STAGES:
        files = sorted(path.name for path in (runs.checkpoints("ranks-2", stage)[-1] / "training_state").iterdir())
        assert files == ["checksums.txt", "optimizer-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors",
                         "state.json"], files
    runs.need("one", 1)
    files = sorted(path.name for path in (runs.checkpoints("one", "align")[-1] / "training_state").iterdir())
    assert files == ["checksums.txt", "optimizer.safetensors", "state.json"], files


def zero_changes_no_bit(runs):
    for ranks in (2, 4):
        runs.need(f"ranks-{ranks}", ranks)
        runs.train(f"zero-{ranks}", ranks, "--zero")
        runs.expect_same_bits(f"ranks-{ranks}", f"zero-{ranks}")
        print(f"{ranks} ranks: the same bits with --zero")
    for name, options in (("large", ()), ("muon-large", ("--arg", "muon=yes"))):  # no rank has more than one pack
        runs.train(name, 4, "--arg", "packs=large", *options)
        runs.train(f"{name}-zero2", 4, "--arg", "packs=large", *options, "--zero", "2")
        runs.expect_same_bits(name, f"{name}-zero2")
    print("4 ranks of one pack each: the same bits with --zero 2, with AdamW and Muon")
    runs.train("muon", 3, "--arg", "muon=yes")
    runs.train("muon-zero", 3, "--arg", "muon=yes", "--zero")
    runs.expect_same_bits("muon", "muon-zero")
    print("3 ranks with Muon: the same bits with --zero")


def accumulates_unequal_packs(runs):
    """Steps of several packs, of which some ranks have more than others."""
    runs.train("one-many", 1, "--arg", "packs=many")
    for ranks in (2, 3):
        runs.train(f"many-{ranks}", ranks, "--arg", "packs=many")
        most = runs.expect_near("one-many", f"many-{ranks}")
        runs.train(f"many-zero-{ranks}", ranks, "--arg", "packs=many", "--zero")
        runs.expect_same_bits(f"many-{ranks}", f"many-zero-{ranks}")
        runs.train(f"many-zero2-{ranks}", ranks, "--arg", "packs=many", "--zero", "2")  # which adds up in another order
        most_of_two = runs.expect_near("one-many", f"many-zero2-{ranks}")
        print(f"{ranks} ranks, several packs a step: within {most:.2g} of one process, the same bits with --zero, within "
              f"{most_of_two:.2g} with --zero 2")


def begins_anew_together(runs):
    """A rank has so little memory left in a pass that it fails before, during or after the reduction of gradients."""
    def train(run, ranks, memory, zero=0):
        finish([PROBE, runs.recipe, runs.data, runs.folder / run, 60000, 1, "memory", memory, zero], ranks)
        return runs.state(run, "prefer")["split"] > 1

    train("probe", 1, 0)
    for zero, limits in ((0, (1, 40000, 80000, 160000, 320000)), (2, (80000, 160000, 320000))):  # with --zero 2, buckets need memory
        failed = 0
        for memory in limits:
            if train(f"memory-{memory}-{zero}", 3, memory, zero):
                failed += 1
                runs.expect_near("probe", f"memory-{memory}-{zero}")
                assert any(line.get("what") == "out_of_memory" for line in runs.metrics(f"memory-{memory}-{zero}"))
        assert failed >= 2, f"--zero {zero}: {failed} of the limits were reached"
        print(f"3 ranks, one of which runs out of memory, --zero {zero}: near one process in {failed} runs")


def resumes_to_the_same_bits(runs):
    for steps, options in ((7, []), (6, ["--zero"]), (100, [])):
        runs.train("parts", 2, *options, "--max-steps", steps)
    runs.need("ranks-2", 2)
    runs.expect_same_bits("ranks-2", "parts")
    print("2 ranks: the same bits when resumed twice")


def resumes_with_other_ranks(runs):
    for ranks, steps, options in ((4, 5, ["--zero"]), (2, 6, ["--zero", "2"]), (1, 7, []), (4, 100, ["--zero"])):
        runs.train("elastic", ranks, "--max-steps", steps, *options)
    runs.need("one", 1)
    most = runs.expect_near("one", "elastic")
    print(f"4, 2, 1 and 4 ranks: the same samples, weights and moments within {most:.2g} of one process")


def fills_the_memory_of_the_least_rank(runs):
    """With packing.tokens = "memory", all ranks have the pack of the one with the least memory, and a resumed run keeps it."""
    sets = [word for value in ("packing.tokens=memory", "packing.frames=auto", "packing.segments=auto", "batch.samples=64")
            for word in ("--set", f"stages.align.{value}")] + ["--stage", "align"]

    def pack(run, mebibytes, *options):
        command = runs.command(run, *sets, *options)
        said = finish(command, len(mebibytes), lambda rank: ["--memory-mib", mebibytes[rank]])
        return json.loads((runs.folder / run / "run.json").read_text())["packs"]["align"], said[0]

    much, _ = pack("memory-much", (64, 64))
    least, said = pack("memory-least", (64, 5), "--max-steps", 1)
    assert least["tokens"] < much["tokens"], f"{least} {much}"
    assert "5.0 MiB as --memory-mib says, the least of 2 ranks" in said, said
    resumed, said = pack("memory-least", (64, 64))
    assert resumed == least and "as when the run began" in said, f"{resumed} {least}\n{said}"
    few, _ = pack("memory-few", (5, 5))
    assert few == least, f"{few} {least}"
    for left, right in zip(runs.metrics("memory-least"), runs.metrics("memory-few")):
        assert left == right, f"{left}\n{right}"
    print(f"2 ranks: packs of {least['tokens']} tokens where one has 5 MiB, of {much['tokens']} where both have 64")


def names_the_failed_rank(runs):
    """Each phase of a step, thrown in, hung, stopped or killed: all others end and name it."""
    waited = [("data", "hang", 1, "loading data, stage align, step 2"), ("step", "stop", 1, "stage align, step"),
              ("setup", "hang", 1, "start"), ("evaluation", "hang", 1, "evaluation, stage instruct, step 4"),
              ("checkpoint", "hang", 1, "checkpoint, stage align, step 3"),
              ("writing", "hang", 1, "has not written its part of the checkpoint of stage align, step 3"),
              ("writing", "stop", 1, "stage align, step")]
    noticed = [("setup", "exit", 1, "start"), ("data", "throw", 1, "loading data, stage align, step 2"),
               ("pack", "throw", 0, "forward and backward, stage align, step 2"),  # rank 0 serves the store
               ("step", "throw", 1, "optimizer, stage align, step 2"), ("pack", "kill", 1, "stage align, step")]
    noticed_later = [("evaluation", "throw", 1, "evaluation, stage instruct, step 4"),
                     ("evaluation", "kill", 2, "stage instruct, step"),
                     ("checkpoint", "throw", 0, "checkpoint, stage align, step 3"),
                     ("checkpoint", "throw", 1, "checkpoint, stage align, step 3"),
                     ("writing", "kill", 1, "stage align, step"), ("writing", "kill", 0, "")]
    for timeout, cases in ((30, waited), (1800, noticed), (1800, noticed_later)):
        began, running = time.monotonic(), []
        for where, how, failing, phase in cases:
            run = runs.folder / f"fails-{where}-{how}-{failing}"
            running.append(start([PROBE, runs.recipe, runs.data, run, timeout * 1000, failing, where, how, 0], 3))
        for (where, how, failing, phase), ranks in zip(cases, running):
            for rank, process in enumerate(ranks):
                if rank == failing:
                    continue
                said = process.communicate(timeout=timeout + 1800)[0]
                assert process.returncode == 75, f"{where}, {how}: rank {rank} ended with {process.returncode}\n{said}"
                # Where rank 0 was killed, which serves the store here, nobody is left to ask.
                names = f"rank {failing} " in said and phase in said or how == "kill" and "or rank 0, which serves it" in said
                assert names, f"{where}, {how}: rank {rank} says\n{said}"
            print(f"rank {failing}: {where}, {how}: the others ended after {time.monotonic() - began:.1f} s")
            if ranks[failing].poll() is None:
                ranks[failing].kill()
            ranks[failing].communicate()
    for name in ("writing-kill-0", "writing-kill-1", "writing-hang-1", "checkpoint-throw-0"):
        leaves_no_half_checkpoint(runs, f"fails-{name}")


def ignores_broken_pipes_from_the_start(runs):
    """Whoever writes to a rank that is gone gets SIGPIPE, which ends a process that does not ignore it: without a word. Training ignores
    it, and here, where rank 1 hangs before, it has not begun."""
    probe = [PROBE, runs.recipe, runs.data, runs.folder / "gone", 20000, 1, "setup", "hang", 0]
    ranks = [subprocess.Popen([str(word) for word in probe], env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
             for variables in variables_of(2)]
    until = time.monotonic() + 600
    while not ignores(ranks[0].pid, signal.SIGPIPE):
        assert ranks[0].poll() is None and time.monotonic() < until, f"SIGPIPE would end rank 0\n{ranks[0].communicate()[0]}"
        time.sleep(0.1)
    for process in ranks:
        process.kill()
        process.communicate()


def ignores(pid, number):
    ignored = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn:"))
    return int(ignored.split()[1], 16) >> (number - 1) & 1


def leaves_no_half_checkpoint(runs, run):
    """What lies there under a checkpoint's name is whole, and the next start takes the rest away."""
    for checkpoint in runs.checkpoints(run, "align"):
        lines = (checkpoint / "training_state/checksums.txt").read_text().splitlines()[:-1]
        listed = {line.split(" ", 2)[2]: int(line.split(" ", 2)[1]) for line in lines}
        there = {str(path.relative_to(checkpoint)): path.stat().st_size for path in checkpoint.rglob("*") if path.is_file()}
        del there["training_state/checksums.txt"]
        assert listed == there, f"{checkpoint}: {listed} {there}"
    assert [path.name for path in runs.checkpoints(run, "align")][-1] == "step-000002", runs.checkpoints(run, "align")
    runs.train(run, 2, "--stage", "align")
    names = [path.name for path in (runs.folder / run / "align").iterdir()]
    assert not [name for name in names if ".partial-" in name or ".removed" in name], names
    assert "step-000010" in names, names


def resumes_after_a_dropped_connection(runs):
    """A rank's connection to the store, or to the other ranks, is cut in a step: torchrun starts all of them anew."""
    def torchrun(run, failing, how):
        probe = [PROBE, runs.recipe, runs.data, runs.folder / run, 20000, failing, "step", how, 0]
        done = subprocess.run([str(word) for word in [*TORCHRUN, "--standalone", "--max-restarts", "1", "--monitor-interval", "0.05",
                                                      "--nproc-per-node", "2", "--no-python", *probe]],
                              capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stderr
        return done.stderr
    torchrun("connected", -1, "no way")
    for how, reason in (("drop-store", "the store of the rendezvous does not answer"), ("drop-ranks", "the connection between ranks broke")):
        said = torchrun(how, 1, how)
        assert reason in said, f"{how}: {said}"
        runs.expect_same_bits("connected", how)
        print(f"{how}: resumed to the same bits and lines")


def names_the_address_where_nobody_is(runs):
    """A rank that never reaches the store has nothing to take leave of."""
    port = free_port()
    variables = dict(os.environ, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    probe = [PROBE, runs.recipe, runs.data, runs.folder / "alone", 2000, -1, "step", "no way", 0]
    done = subprocess.run([str(word) for word in probe], env=variables, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 6, f"{done.returncode}\n{done.stderr}"
    assert "rank 1 of 2 did not meet the others" in done.stderr and f"127.0.0.1:{port}" in done.stderr, done.stderr


def refuses_different_ranks(runs):
    ranks = start(runs.command("mixed"), 2, lambda rank: ["--set", "seed=7"] if rank == 1 else [])
    said = [process.communicate(timeout=1800)[0] for process in ranks]
    for rank in range(2):
        assert ranks[rank].returncode == 2, said[rank]
        assert re.search(r"rank 1 \(.*\) is not set up as rank 0 \(.*\) is:\n  rank 1 has the plan's hash: ", said[rank]), said[rank]
    assert not (runs.folder / "mixed").exists(), "a step was taken"
    ranks = start(runs.command("mixed"), 2, lambda rank: ["--zero", "2"] if rank == 1 else [])
    said = [process.communicate(timeout=1800)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [2, 2] and "with --zero 2" in said[1], said


def doctor_compares_the_ranks(runs):
    ranks = start([ENGINE, "doctor"], 2)
    said = [process.communicate(timeout=1800)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert re.search(r"ok +ranks +2 ranks: fvlm-engine: .*, the device: cpu; [0-9]+ plugins; clocks within 0\.\d+ s", said[0]), said[0]
    assert all(f"rank {rank}: {socket.gethostname()}, cpu" in said[0] for rank in range(2)), said[0]
    assert "processor" not in said[1], said[1]
    other = runs.folder / "plugins"  # that rank 1 alone has
    shutil.copytree(Path(ENGINE).parent.parent / "lib/fvlm/plugins/loss-chunked", other / "another-loss")
    manifest = other / "another-loss/plugin.toml"
    manifest.write_text(manifest.read_text().replace('name = "loss-chunked"', 'name = "another-loss"'))
    ranks = start([ENGINE, "doctor", "--json"], 2, environment=lambda rank: {"FVLM_PLUGIN_PATH": str(other)} if rank == 1 else {})
    said = [process.communicate(timeout=1800)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [2, 2], said
    finding = json.loads(said[0][said[0].index("{"):])["ranks"]
    assert not finding["ok"] and "rank 1 has the plugin another-loss" in finding["text"], finding


def survives_kills(runs, whole="ranks-2", options=()):
    """kill -9 of random ranks at random instants, under torchrun, which starts all of them anew."""
    runs.need(whole, 2, *options)
    kills, done, again, instants = int(os.environ.get("FVLM_KILLS", "3")), 0, 0, random.Random(5)
    while done < kills:
        run = f"killed-{again}"
        again += 1
        torchrun = subprocess.Popen(
            [str(word) for word in [*TORCHRUN, "--standalone", "--max-restarts", "1000", "--monitor-interval", "0.05",
                                    "--nproc-per-node", "2", "--no-python", *runs.command(run, *options)]],
            text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while torchrun.poll() is None and done < kills:
            time.sleep(instants.uniform(0.1, 3))
            if ranks := ranks_of(torchrun):
                os.kill(instants.choice(ranks), signal.SIGKILL)
                done += 1
        said = torchrun.communicate(timeout=1800)[1]
        assert torchrun.returncode == 0, said
        runs.expect_same_bits(whole, run)
        shutil.rmtree(runs.folder / run)
    print(f"{done} kills in {again} runs: the same bits and lines")


def ranks_of(torchrun):
    """The processes that it started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == torchrun.pid and (process / "exe").resolve() == Path(ENGINE).resolve():
                found.append(int(process.name))
        except OSError:
            pass  # it ended
    return sorted(found)


TESTS = (equals_one_process, evaluation_equals_one_process, rewards_equal_one_process, a_checkpoint_is_of_all_ranks, zero_changes_no_bit,
         accumulates_unequal_packs, begins_anew_together, resumes_to_the_same_bits, resumes_with_other_ranks,
         fills_the_memory_of_the_least_rank, names_the_failed_rank, ignores_broken_pipes_from_the_start,
         names_the_address_where_nobody_is, refuses_different_ranks, doctor_compares_the_ranks,
         resumes_after_a_dropped_connection, survives_kills)


def run_tests(tests, make_runs):
    with tempfile.TemporaryDirectory() as scratch:
        runs = make_runs(Path(scratch))
        for test in [test for test in tests if test.__name__ in sys.argv[4:] or len(sys.argv) == 4]:
            began = time.monotonic()
            test(runs)
            print(f"  {test.__name__}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    run_tests(TESTS, lambda folder: Runs(folder, recipe()))
