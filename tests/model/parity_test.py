"""`fvlm-engine trace` against the PyTorch oracle in float64: every mode, DPO, lambda_coarse, shallow; every gradient.

usage: parity_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import os
import subprocess
import unittest
from concurrent.futures import ThreadPoolExecutor

import forked_program
from against_oracle import engine, folder, load_file, save_file, tool, torch

MODELS = ("gqa", "mha", "untied", "mqa-odd", "head-dim", "published", "shallow", "registers")
CASES = {  # name: batch and options
    "coarse_fine": "mix --mode coarse_fine --grads --attention",
    "refined": "mix --mode refined --grads --attention",
    "coarse_only": "equal --mode coarse_only --grads --attention",
    "shallow": "equal --mode shallow --grads --attention",
    "autoregressive": "mix --mode autoregressive --attention",
    "lambda": "mix --lambda-coarse 0.7 --grads",
    "text": "text --grads --attention",
    "dpo": "dpo --objective dpo --grads --attention",
    "no attention": "mix --mode coarse_fine --grads",
}


def arguments(model, case, out):
    kind, *options = CASES[case].split()
    if case == "dpo":
        options += ["--reference", str(folder / f"{model}-reference")]
    return [str(folder / model), "--batch", str(folder / f"{model}.{kind}.safetensors"), *options, "--out", str(out)]


def ours(model, case, *options):
    out = folder / f"ours.{model}.{case}{''.join(options)}.safetensors"
    command = [str(engine), "trace", *arguments(model, case, out), *options]
    result = forked_program.run(command, env={**os.environ, "FVLM_CACHE": str(folder / "cache")})
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stderr}"
    return load_file(out)


def setUpModule():
    tool("make-tiny", "all", folder, "--seed", "1")
    jobs = [(model, case) for model in MODELS for case in CASES if case != "no attention"]
    lines = [" ".join([*arguments(model, case, folder / f"theirs.{model}.{case}.safetensors"), "--dtype", "fp64"])
             for model, case in jobs]
    (folder / "jobs").write_text("\n".join(lines))
    tool("trace", "--jobs", folder / "jobs")
    with ThreadPoolExecutor(2) as pool:
        global traces
        traces = dict(zip(jobs, pool.map(lambda job: ours(*job), jobs)))


def farthest(a, b, floor=0.0):
    scale = max(b.double().abs().max().item(), floor)
    return (a.double() - b.double()).abs().max().item() / scale if scale else a.double().abs().max().item()


class Parity(unittest.TestCase):
    def check(self, model, case, trace, loss=1e-6, other=1e-5, gradients=1e-4):
        expected = load_file(folder / f"theirs.{model}.{case}.safetensors")
        # What mathematics makes zero (a key's bias) is rounding alone: measured against a hundredth of the largest.
        floor = max([g.abs().max().item() for n, g in expected.items() if n.startswith("grad.")], default=0.0) / 100
        # Rewards and margins are differences of log-probabilities, beta times.
        rewards = 0.1 * max([p.abs().max().item() for n, p in expected.items() if n.endswith("log_probs")], default=0.0)
        for name, right in expected.items():
            if name not in trace:  # mask_token: in the files for transformers' sake alone
                self.assertTrue(name.startswith("grad.") and not right.any(), f"{name} is missing")
                continue
            self.assertEqual(trace[name].shape, right.shape, name)
            if not right.numel():
                continue
            is_gradient = name.startswith("grad.")
            tolerance = gradients if is_gradient else loss if name == "loss" else other
            least = floor if is_gradient else rewards if name == "margin" or name.endswith("rewards") else 0.0
            self.assertLessEqual(farthest(trace[name], right, least), tolerance, name)
        self.assertLessEqual(set(trace), set(expected))

    def test_every_model_in_every_mode(self):
        for (model, case), trace in traces.items():
            with self.subTest(model=model, case=case):
                self.check(model, case, trace)

    def test_float64_leaves_only_the_rounding_of_rotary_tables(self):
        for model in ("gqa", "mqa-odd"):
            for case in ("coarse_fine", "dpo"):
                with self.subTest(model=model, case=case):
                    self.check(model, case, ours(model, case, "--dtype", "fp64"), 1e-7, 1e-6, 1e-5)

    def test_a_mask_with_weights_is_refused(self):
        tensors = load_file(folder / "gqa.mix.safetensors")
        save_file(tensors | {"loss_mask": tensors["loss_mask"] * 0.5}, folder / "gqa.halves.safetensors")
        result = subprocess.run([engine, "trace", folder / "gqa", "--batch", folder / "gqa.halves.safetensors", "--out",
                                 folder / "none"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 4)
        self.assertIn("loss_mask: holds what is neither 0 nor 1", result.stderr)

    def test_references_alone_and_the_fastest_give_the_same(self):
        for kernels in ("reference", "measure"):
            for case in ("coarse_fine", "dpo"):
                with self.subTest(kernels=kernels, case=case):
                    self.check("gqa", case, ours("gqa", case, "--kernels", kernels))

    def test_attention_is_a_distribution_in_every_row_and_changes_nothing_else(self):
        for dtype in ("fp32", "bf16"):
            trace = ours("gqa", "coarse_fine", "--dtype", dtype)
            attention = trace.pop("attention")
            self.assertEqual(list(attention.shape), [11, 3, 4, 17], "frames, layers, heads, tokens")
            self.assertLessEqual((attention.sum(-1) - 1).abs().max().item(), 1e-5)
            self.assertGreater(attention.std(-1).min().item(), 1e-3, "neither uniform")
            without = ours("gqa", "no attention", "--dtype", dtype)
            self.assertEqual(set(trace), set(without))
            for name, tensor in without.items():
                self.assertTrue(torch.equal(trace[name], tensor), name)

    def test_bfloat16_is_near(self):
        trace, expected = ours("gqa", "coarse_fine", "--dtype", "bf16"), load_file(folder / "theirs.gqa.coarse_fine.safetensors")
        self.assertLessEqual(farthest(trace["loss"], expected["loss"]), 2e-2)
        for name in ("logits", "visual_tokens", "attention", "queries", "grad.decoder.model.norm.weight", "grad.q_static"):
            self.assertLessEqual(farthest(trace[name], expected[name]), 0.15, name)


if __name__ == "__main__":
    unittest.main()
