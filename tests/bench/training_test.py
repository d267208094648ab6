"""`fvlm-engine bench profile` and `bench ragged` as a user runs them, on the CPU. Nothing here depends on how long
anything takes.

usage: training_test.py FVLM_ENGINE"""
import json
import subprocess
import sys
import unittest

engine = sys.argv.pop()


def bench(*arguments):
    return subprocess.run([engine, "bench", *arguments, "--device", "cpu"], capture_output=True, text=True)


class Bench(unittest.TestCase):
    def measured(self, *arguments):
        found = bench(*arguments, "--precision", "fp32", "--json")
        self.assertEqual(found.returncode, 0, found.stderr)
        return json.loads(found.stdout)

    def refused(self, words, *arguments):
        found = bench(*arguments)
        self.assertEqual((found.returncode, found.stdout), (2, ""), found.stderr)
        self.assertIn(words, found.stderr, arguments)

    def rows(self, *arguments):
        document = self.measured(*arguments)
        self.assertTrue(any(line.startswith("attention: ") for line in document["kernels"]), document["kernels"])
        self.assertEqual(len(document["kernels"]), len(set(document["kernels"])))
        return document["rows"]


class Profile(Bench):
    def rows(self, *arguments):
        return super().rows("profile", "--frames", "2", "--text", "9", "--warmup", "1", "--repeat", "2", *arguments)

    def test_steps_learn_and_checkpointing_changes_nothing_but_memory(self):
        plain, checkpointed = self.rows("--configurations", "tiny:2,tiny:2:checkpointing", "--deterministic")
        for row in (plain, checkpointed):
            self.assertEqual((row["samples"], row["labels"], row["recorded_kernels"]), (2, 16, 0))
            self.assertLess(row["last_loss"], row["first_loss"])
            self.assertAlmostEqual(row["step"]["samples_per_second"], 2000 / row["step"]["median_ms"])
        for same in ("first_loss", "last_loss", "gradient_norm", "flops"):
            self.assertEqual(plain[same], checkpointed[same], same)
        self.assertLess(checkpointed["peak_bytes"], plain["peak_bytes"])

    def test_wrong_options_are_refused(self):
        for words, *arguments in (("'tiny' is no configuration", "--configurations", "tiny"),
                                  ("'tiny:0' is no configuration", "--configurations", "tiny:0"),
                                  ("there is no shape 'tin'", "--configurations", "tin:1"),
                                  ("--precision wants", "--precision", "int4"),
                                  ("--repeat and --warmup want 1 or more", "--repeat", "0")):
            self.refused(words, "profile", *arguments)


class Ragged(Bench):
    SAMPLES = 24

    def rows(self, *arguments):
        return super().rows("ragged", "--shape", "quickstart", "--samples", str(self.SAMPLES), "--passes", "2", *arguments)

    def test_passes_cover_the_samples_and_add_up(self):
        first, second = self.rows("--packs", "64:1440,160:3600")
        for row, frames, tokens in ((first, 64, 1440), (second, 160, 3600)):
            self.assertEqual(row["packs"], f"{frames}:{tokens}")
            self.assertEqual(len(row["passes"]), 2)
            self.assertGreaterEqual(sum(part["samples"] for part in row["passes"]), 2 * self.SAMPLES)
            self.assertEqual(row["classes"], 0, "nothing is recorded on a CPU")
            for part in (*row["passes"], row["replayed"]):
                self.assertGreater(part["steps"], 0)
                for fill in ("fill_of_frames", "fill_of_rows"):
                    self.assertTrue(0.1 < part[fill] <= 1, (fill, part[fill]))
                self.assertGreaterEqual(part["computed_rows"] + 1e-6, part["fill_of_rows"] * part["steps"] * tokens)
                self.assertAlmostEqual(sum(part["parts_s"].values()) / part["seconds"], 1, delta=0.2)
                self.assertAlmostEqual(part["samples_per_second"], part["samples"] / part["seconds"])
                self.assertLessEqual({"wait", "data", "backward", "optimizer"}, part["parts_s"].keys())
            self.assertEqual(row["replayed"], {key: row["passes"][1][key] for key in row["replayed"]})
            self.assertGreater(row["first_loss"], 1)
            self.assertGreater(row["peak_bytes"], 0)
        self.assertGreater(first["passes"][0]["steps"], second["passes"][0]["steps"])

    def test_a_seed_says_what_the_samples_are(self):
        def facts(seed):
            (row,) = self.rows("--packs", "64:1440", "--seed", seed)
            return [[part[key] for key in ("steps", "samples", "fill_of_frames", "fill_of_rows")] for part in row["passes"]]

        self.assertEqual(facts("1"), facts("1"))
        self.assertNotEqual(facts("1"), facts("2"))

    def test_the_table_names_passes_and_parts(self):
        found = bench("ragged", "--shape", "quickstart", "--samples", "8", "--passes", "2", "--packs", "64:1440")
        self.assertEqual(found.returncode, 0, found.stderr)
        for word in ("packs of 64 frames and 1440 tokens: peak ", "samples/s", "steady", "new classes", "backward "):
            self.assertIn(word, found.stdout)

    def test_wrong_options_are_refused(self):
        for words, *arguments in (("'512' is no size of a pack", "--packs", "512"),
                                  ("'64:1440x' is no size of a pack", "--packs", "64:1440x"),
                                  ("a pack of 32:4000 does not hold the longest sample", "--packs", "32:4000"),
                                  ("64:1088 or more", "--packs", "64:1000"),
                                  ("there is no shape 'tin'", "--shape", "tin"),
                                  ("--passes 2 or more", "--passes", "1"),
                                  ("did you mean '--packs'?", "--pack", "64:1440")):
            self.refused(words, "ragged", *arguments)


if __name__ == "__main__":
    unittest.main()
