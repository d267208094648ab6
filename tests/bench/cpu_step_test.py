"""`fvlm-engine bench cpu-step` as a user runs it. Nothing here depends on how long anything takes.

usage: cpu_step_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import json
import subprocess
import tempfile
import unittest
from pathlib import Path

import forked_program
from against_oracle import engine, tool

SIDE = {"median_ms", "least_ms", "median_cpu_ms", "samples_per_second", "loss"}
FAKE = """
while read steps; do
  times=$(for i in $(seq $steps); do printf '%s1' "${comma}"; comma=,; done)
  echo "{\\"times_ms\\": [$times], \\"cpu_ms\\": [$times], \\"loss\\": LOSS}"
done
"""


def bench(*arguments):
    return forked_program.run([engine, "bench", "cpu-step", *arguments])


class CpuStep(unittest.TestCase):
    def measured(self, *arguments):
        found = bench("--json", "--threads", 1, "--repeat", 3, "--warmup", 1, *arguments)
        self.assertEqual(found.returncode, 0, found.stderr)
        return json.loads(found.stdout)

    def refused(self, code, *arguments):
        found = bench(*arguments)
        self.assertEqual(found.returncode, code, found.stderr)
        self.assertEqual(found.stdout, "")
        return found.stderr

    def fake_peer(self, loss):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        script = Path(folder.name, "peer.sh")
        script.write_text(FAKE.replace("LOSS", str(loss)))
        return f"sh {script}"

    def test_engine_and_pytorch_take_turns_on_the_same_data_and_agree(self):
        found = self.measured()
        self.assertEqual({"bench": "cpu-step", "model": "tiny", "mode": "coarse_fine", "dtype": "fp32", "threads": 1},
                         {key: found[key] for key in ("bench", "model", "mode", "dtype", "threads")})
        self.assertIn("bench-step", found["peer"])
        self.assertTrue(any(line.startswith("attention: ") for line in found["kernels"]), found["kernels"])
        ragged, even = found["rows"]
        self.assertEqual([ragged["batch"], even["batch"]], ["ragged", "even"])
        self.assertLess(ragged["decoder_rows"], ragged["padded_rows"])
        self.assertEqual(even["decoder_rows"], even["padded_rows"])
        for row in found["rows"]:
            for side in ("engine", "peer"):
                self.assertLessEqual(SIDE, row[side].keys())
                self.assertGreater(row[side]["least_ms"], 0)
            self.assertEqual(row["repeat"], 3)
            self.assertAlmostEqual(row["ratio"], row["peer"]["median_ms"] / row["engine"]["median_ms"])
            self.assertLess(abs(row["engine"]["loss"] - row["peer"]["loss"]), 1e-4 * row["peer"]["loss"])
        self.assertGreater(abs(ragged["engine"]["loss"] - even["engine"]["loss"]), 1e-3)

    def test_without_a_peer_there_is_no_ratio(self):
        for row in self.measured("--peer", "none")["rows"]:
            self.assertLessEqual(SIDE, row["engine"].keys())
            self.assertFalse({"peer", "ratio", "ratio_of_least"} & row.keys())

    def test_recomputed_layers_the_references_and_other_modes_change_no_loss(self):
        def losses(*arguments):
            return [row["engine"]["loss"] for row in self.measured("--peer", "none", *arguments)["rows"]]

        kept = losses()
        for option in (("--recompute", "all"), ("--recompute", "light"), ("--recompute", "every:2"), ("--recompute", "layers:0,3")):
            self.assertEqual(losses(*option), kept, option)
        for kernels in ("reference", "measure"):
            for ours, other in zip(kept, losses("--kernels", kernels)):
                self.assertLess(abs(ours - other), 1e-5 * other, kernels)
        self.assertNotEqual(losses("--mode", "coarse_only"), kept)

    def test_a_model_and_a_batch_of_ones_own(self):
        with tempfile.TemporaryDirectory() as folder:
            model, batch = Path(folder, "gqa"), Path(folder, "mix.safetensors")
            for command in (["model", "gqa", model], ["batch", batch, "--model", model, "--frames", "2,0,3",
                                                      "--text", "5,9,4"]):
                tool("make-tiny", *command)
            (row,) = self.measured("--model", model, "--batch", batch, "--mode", "shallow")["rows"]
            self.assertEqual((row["batch"], row["samples"], row["frames"], row["decoder_rows"], row["padded_rows"]),
                             ("mix.safetensors", 3, 5, 23, 27))
            self.assertIn("there is no token", self.refused(4, "--model", model, "--batch", self.wrong_batch(folder)))

    @staticmethod
    def wrong_batch(folder):
        from safetensors.torch import load_file, save_file

        batch = load_file(Path(folder, "mix.safetensors"))
        batch["input_ids"][3] = 1 << 20
        save_file(batch, Path(folder, "wrong.safetensors"))
        return Path(folder, "wrong.safetensors")

    def test_a_peer_with_another_loss_compares_nothing(self):
        text = self.refused(4, "--repeat", 1, "--peer", self.fake_peer(1.25))
        self.assertIn("batch ragged: the losses differ: the engine's is", text)
        self.assertIn("the peer's 1.25", text)

    def test_a_peer_that_does_not_work_is_an_error(self):
        self.assertIn("the peer ended with exit code 7", self.refused(6, "--peer", "sh -c 'exit 7'"))

    def test_the_table_names_both_sides(self):
        found = bench("--threads", 1, "--repeat", 1)
        self.assertEqual(found.returncode, 0, found.stderr)
        for word in ("ragged", "even", "engine", "peer", "ratio", "samples/s", "loss", "365 decoder rows packed, 640 padded"):
            self.assertIn(word, found.stdout)

    def test_wrong_options_are_refused(self):
        for arguments, words in (
            (["--shape", "tinny"], "there is no shape 'tinny'"),
            (["--mode", "autoregressive"], "it has no training step"),
            (["--mode", "fast"], "has no mode 'fast'"),
            (["--model", "somewhere"], "--model and --batch go together"),
            (["--model", "a", "--batch", "b", "--shape", "tiny"], "mutually exclusive"),
            (["--repeat", "0"], "--repeat of 1 or more"),
            (["--warmup", "-1"], "--warmup and --threads of 0 or more"),
            (["--recompute", "every:0"], "recompute 'every:0': expected a whole number of 1 or more"),
            (["--recompute", "layers:4"], "there is no layer 4: layers are 0 to 3"),
            (["--recompute", "layers:x"], "'x' is not a layer's number"),
            (["--recompute", "some"], "there is no such choice"),
            (["--repeats", "3"], "did you mean '--repeat'?"),
        ):
            self.assertIn(words, self.refused(2, "--peer", "none", *arguments), arguments)
        other = subprocess.run([str(engine), "bench", "cpu-stp"], capture_output=True, text=True)
        self.assertEqual((other.returncode, "did you mean 'bench cpu-step'?" in other.stderr), (2, True), other.stderr)


if __name__ == "__main__":
    unittest.main()
