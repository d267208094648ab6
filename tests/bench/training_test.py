"""`fvlm-engine bench profile`, `bench op`, `bench generate`, `bench dpo` and `bench ragged` as a user runs them, on the CPU. Nothing here depends on how long
anything takes.

usage: training_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE COMMAND ...: runs a Python program that imports transformers"""
import importlib.util
import json
import math
import os
import shlex
import socket
import subprocess
import sys
import unittest

import forked_program

engine, tools, *forked = sys.argv[1:]
del sys.argv[1:]
# What `--peer eager` is, but for the imports, which it shares.
EAGER_STEPS = shlex.join([*forked, f"{tools}/train-step", "--how", "eager"])


def bench(*arguments):
    return forked_program.run([engine, "bench", *arguments, "--device", "cpu"])


def with_defaults(defaults, given):
    """An option stands once: those of the defaults that are not given, then those that are."""
    pairs = zip(defaults[::2], defaults[1::2], strict=True)
    return [word for pair in pairs if pair[0] not in given for word in pair] + list(given)


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


# Steps take four packs in turn: the last one of these has the first one's again, so that their losses compare.
STEPS = ("--frames", "2", "--text", "9", "--warmup", "1", "--repeat", "4")


class Profile(Bench):
    def rows(self, *arguments):
        return super().rows("profile", *with_defaults(STEPS, arguments))

    def test_steps_learn_and_checkpointing_changes_nothing_but_memory(self):
        names = "tiny:2,tiny:2:checkpointing,tiny:2:light,tiny:2:light-vision"
        plain, *others = rows = self.rows("--configurations", names, "--deterministic")
        for row in rows:
            self.assertEqual((row["samples"], row["labels"], row["recorded_kernels"]), (2, 16, 0))
            self.assertLess(row["last_loss"], row["first_loss"])
            self.assertAlmostEqual(row["step"]["samples_per_second"], 2000 / row["step"]["median_ms"])
        for other in others:
            for same in ("first_loss", "flops"):
                self.assertEqual(plain[same], other[same], same)
            for rounded in ("last_loss", "gradient_norm"):  # both passes' rows in one product are summed in another order
                self.assertAlmostEqual(plain[rounded] / other[rounded], 1, delta=1e-6, msg=rounded)
            self.assertLess(other["peak_bytes"], plain["peak_bytes"])

    def test_ranks_take_the_steps_of_one_process(self):
        names = ("profile", *STEPS, "--sustained", "0.2", "--configurations", "tiny:2", "--precision", "fp32", "--json", "--device", "cpu")
        alone, = self.rows("--configurations", "tiny:2")
        for options, samples, labels in (([], 4, 32), (["--zero"], 4, 32), (["--context-parallel", "2"], 2, 16)):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            ranks = [subprocess.Popen([engine, "bench", *names, *options], text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE,
                                      env=dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank),
                                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))) for rank in range(2)]
            said = [rank.communicate(timeout=1800) for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0, 0], said)
            self.assertEqual(said[1][0], "")
            row, = json.loads(said[0][0])["rows"]
            self.assertEqual((row["samples"], row["labels"]), (samples, labels))
            self.assertEqual(len(row["alone_ms"]), 2)
            packs_of_a_rank = 1 / 2 if "--context-parallel" in options else 1
            self.assertAlmostEqual(row["share_of_alone"], packs_of_a_rank * max(row["alone_ms"]) / row["step"]["median_ms"], delta=1e-6)
            self.assertGreater(row["sustained"]["steps"], 0)
            # All have the same samples. The norm's squares are summed in float32, over all gradients or over slices.
            for same, delta in (("first_loss", 1e-6), ("last_loss", 1e-6), ("gradient_norm", 2e-4)):
                self.assertAlmostEqual(alone[same] / row[same], 1, delta=delta, msg=same)

    def test_adapters_train_a_part_of_the_numbers(self):
        plain, lora, light, qlora = self.rows("--configurations", "tiny:2,tiny:2:lora,tiny:2:lora:light,tiny:2:qlora")
        self.assertAlmostEqual(plain["first_loss"], lora["first_loss"], delta=1e-6)  # B is zeros
        self.assertAlmostEqual(plain["first_loss"], qlora["first_loss"], delta=0.5)  # of int4
        self.assertNotEqual(lora["first_loss"], qlora["first_loss"])
        for same in ("first_loss", "last_loss", "gradient_norm"):
            self.assertAlmostEqual(light[same] / lora[same], 1, delta=1e-6, msg=same)
        self.assertLess(light["peak_bytes"], lora["peak_bytes"])
        for row in (lora, qlora):
            self.assertLess(row["last_loss"], row["first_loss"])
            self.assertLess(row["flops"], 0.8 * plain["flops"])  # no gradients of frozen weights

    def test_work_that_is_saved_changes_nothing_but_rounding(self):
        saved, = self.rows("--configurations", "tiny:2")
        for switches in ("coarse_in_tower,skip_last_patches", "joint_weight_gradients"):
            whole, = self.rows("--configurations", "tiny:2", "--without", switches)
            for key in ("first_loss", "last_loss", "gradient_norm"):
                self.assertAlmostEqual(saved[key] / whole[key], 1, delta=1e-5, msg=f"{switches}: {key}")

    def test_repeated_images_are_encoded_once(self):
        once, = self.rows("--configurations", "tiny:2:stills", "--frames", "4")
        each, = self.rows("--configurations", "tiny:2:stills", "--frames", "4", "--without", "shared_repeated_frames")
        for key in ("first_loss", "last_loss", "gradient_norm"):
            self.assertAlmostEqual(once[key] / each[key], 1, delta=1e-5, msg=key)
        self.assertLess(once["flops"], each["flops"])

    def test_other_models_have_an_image_a_sample_and_may_be_frozen_in_part(self):
        for name in ("tiny-ghostvis:2", "tiny-smolvlm:2"):
            row, = self.rows("--configurations", name)
            self.assertEqual((row["samples"], row["labels"]), (2, 16))
            self.assertLess(row["last_loss"], row["first_loss"])

    def test_cells_of_an_image_are_trained_as_those_of_a_square(self):
        for name in ("tiny-qwen2-vl:2", "tiny-qwen2.5-vl:2"):
            row, = self.rows("--configurations", name)
            self.assertEqual((row["samples"], row["labels"]), (2, 16))
            self.assertLess(row["last_loss"], row["first_loss"])

    def test_questions_have_the_terms_of_latentwire(self):
        row, cached = self.rows("--configurations", "tiny-latentwire:2,tiny-latentwire:2:cached-teacher")
        self.assertEqual((row["samples"], row["labels"]), (2, 2 * (6 + 1 + 4 + 4)))
        self.assertLess(row["last_loss"], row["first_loss"])
        for same in ("first_loss", "last_loss"):
            self.assertEqual(cached[same], row[same], same)

    def test_pytorch_has_the_same_losses(self):
        try:
            import transformers  # noqa: F401
        except ImportError as error:
            self.skipTest(f"the oracle's wheels are not there ({error}): ./scripts/setup --oracles")
        for name in ("tiny:2", "tiny:2:lora", "tiny:2:stills", "tiny-ghostvis:2", "tiny-smolvlm:2", "tiny-qwen2-vl:2", "tiny-qwen2.5-vl:2",
                     "tiny-qwen2.5-vl:2:lora", "tiny-latentwire:2"):
            # Of steps that learn next to nothing, on the first and on the third pack.
            peer = "eager" if name == "tiny:2" else EAGER_STEPS
            row, = self.rows("--configurations", name, "--peer", peer, "--repeat", "2", "--rate", "1e-9")
            for loss in ("first_loss", "last_loss"):
                self.assertAlmostEqual(row["peer"][loss] / row[loss], 1, delta=1e-5, msg=f"{name}: {loss}")
            self.assertGreater(abs(row["first_loss"] / row["last_loss"] - 1), 1e-3, "other data in another step")

    def test_text_alone_leaves_the_tower_out(self):
        for frames, has_tower in (("2", True), ("0", False)):
            kernels = self.measured("profile", "--configurations", "tiny:2", "--frames", frames, "--text", "9", "--repeat", "1")["kernels"]
            self.assertEqual(any("layernorm" in line for line in kernels), has_tower, kernels)

    def test_wrong_options_are_refused(self):
        for words, *arguments in (("'tiny' is no configuration", "--configurations", "tiny"),
                                  ("--without: unknown switch 'coarse'", "--without", "coarse"),
                                  ("'tiny:0' is no configuration", "--configurations", "tiny:0"),
                                  ("'tiny:2:cached' is no configuration", "--configurations", "tiny:2:cached"),
                                  ("no teacher reads its samples", "--configurations", "tiny:2:cached-teacher"),
                                  ("there is no shape 'tin'", "--configurations", "tin:1"),
                                  ("its frames are the cells of an image", "--configurations", "tiny-qwen2-vl:2:stills"),
                                  ("--precision: expected", "--precision", "int4"),
                                  ("--repeat and --warmup of 1 or more", "--repeat", "0"),
                                  ("--sustained: expected 0 seconds or more, got -1", "--sustained=-1"),
                                  ("--model and --batch go together", "--model", "here"),
                                  ("--configurations excludes --model", "--model", "a", "--batch", "b", "--configurations", "tiny:1")):
            self.refused(words, "profile", *arguments)


    def test_a_peer_stands_beside_where_the_first_losses_agree(self):
        loss = self.rows("--configurations", "tiny:2")[0]["first_loss"]
        answer = '{\\"times_ms\\": [$t], \\"cpu_ms\\": [$t], \\"loss\\": %s, \\"peak_bytes\\": 7}'
        loop = "sh -c 'while read n; do t=$(yes 3 | head -$n | paste -sd,); echo \"" + answer + "\"; done'"
        (row,) = self.rows("--configurations", "tiny:2", "--peer", loop % (1.005 * loss))
        self.assertEqual((row["peer"]["step"]["median_ms"], row["peer"]["peak_bytes"]), (3, 7))
        self.assertAlmostEqual(row["ratio"], 3 / row["step"]["median_ms"])
        found = bench("profile", "--configurations", "tiny:2", "--peer", loop % (1.1 * loss), "--frames", "2",
                      "--text", "9", "--precision", "fp32")
        self.assertEqual(found.returncode, 4, found.stderr)
        self.assertIn("tiny:2: the losses differ: the engine's is", found.stderr)


    def test_steps_go_on_for_a_while(self):
        row, = self.rows("--configurations", "tiny:2", "--sustained", "0.5")
        sustained = row["sustained"]
        self.assertGreater(sustained["steps"], 0)
        self.assertAlmostEqual(sustained["samples_per_second"], 2 * sustained["steps"] / sustained["seconds"])
        self.assertIsNone(sustained["mean_watts"], "of a CPU")
        self.assertTrue(sustained["mean_mhz"] is None or sustained["mean_mhz"] > 0, sustained)
        loss = row["first_loss"]
        peer = ("sh -c 'while read n s; do if [ $n = for ]; then n=3; t=4; else t=5; fi; t=$(yes $t | head -$n | paste -sd,); "
                'echo "{\\"times_ms\\": [$t], \\"cpu_ms\\": [$t], \\"loss\\": %s}"; done\'' % loss)
        row, = self.rows("--configurations", "tiny:2", "--sustained", "0.1", "--peer", peer)
        side = row["peer"]["sustained"]
        self.assertEqual((side["steps"], side["median_ms"], side["samples_per_second"]), (3, 4, 500))
        self.assertEqual(side["mean_mhz"] is None, row["sustained"]["mean_mhz"] is None)
        self.assertAlmostEqual(row["sustained_ratio"], row["sustained"]["samples_per_second"] / 500)
        self.assertEqual(row["peer"]["step"]["median_ms"], 5, "the short figure stays")
        found = bench("profile", *STEPS, "--configurations", "tiny:2", "--sustained", "0.1", "--peer", peer, "--precision", "fp32")
        for word in ("short ms", "sustained ms", "MHz", "not known", "ratio, sustained", "peer"):
            self.assertIn(word, found.stdout)


class Op(Bench):
    def rows(self, *arguments):
        document = self.measured("op", *arguments)
        ceiling = document["ceiling"]
        self.assertGreater(min(ceiling.values()), 0)
        for row in document["rows"]:
            plugins = [side["plugin"] for side in row["plugins"]]
            self.assertIn("reference", plugins, row)
            self.assertIn(row["chosen"], plugins)
            for side in row["plugins"]:
                self.assertNotIn("problem", side, row)
                self.assertFalse(side["recorded"])
                for name in ("forward", "backward"):
                    work = row["least"][name]
                    if name not in side:
                        self.assertEqual(work, {"bytes": 0, "flops": 0}, row)
                        continue
                    least = max(work["bytes"] / ceiling["bytes_per_second"], work["flops"] / ceiling["flops_per_second"])
                    self.assertAlmostEqual(side[name]["of_ceiling"] * side[name]["seconds"] / least, 1)
                    self.assertAlmostEqual(side[name]["bytes_per_second"] * side[name]["seconds"] / work["bytes"], 1)
        return document["rows"]

    def test_what_a_step_asks_for_each_question_once(self):
        rows = self.rows("--configurations", "tiny:2", "--frames", "2", "--text", "9")
        self.assertEqual({row["operation"] for row in rows}, {
            "attention", "causal-attention", "loss", "optimizer", "rmsnorm", "layernorm", "rope", "swiglu",
            "scaled_rows", "linear"})
        shapes = [(row["operation"], row["shape"]) for row in rows]
        self.assertEqual(len(shapes), len(set(shapes)))
        self.assertEqual({row["configuration"] for row in rows}, {"tiny:2"})
        (loss,) = [row for row in rows if row["operation"] == "loss"]
        self.assertEqual(loss["least"]["backward"]["flops"], 2 * loss["least"]["forward"]["flops"])

    SHAPES = ("attention:3x7x2x8", "causal-attention:3x7x2x8", "paged-attention:3x20x4x2x8", "loss:6x8x40", "optimizer:1000", "rmsnorm:6x8",
              "layernorm:6x8", "rope:6x2x4", "swiglu:6x8", "bias_gelu:6x8", "layerscale_residual:6x8",
              "scaled_rows:3x8x10", "linear:6x8x10")

    def test_shapes_of_ones_own(self):
        rows = self.rows("--shapes", ",".join(self.SHAPES))
        self.assertEqual([row["operation"] for row in rows], [shape.split(":")[0] for shape in self.SHAPES])
        self.assertEqual(rows[-1]["shape"], "6 rows of 10 from 8, with backward")
        self.assertEqual(rows[-1]["least"]["forward"]["flops"], 2 * 6 * 8 * 10)
        self.assertNotIn("configuration", rows[0])

    def test_pytorch_has_each_of_them_too(self):
        of_a_step = self.measured("op", "--configurations", "tiny:1", "--peer", "eager")["rows"]
        for row in of_a_step + self.measured("op", "--shapes", ",".join(self.SHAPES), "--peer", "eager")["rows"]:
            (peer,) = [side for side in row["plugins"] if side["plugin"] == "peer"]
            self.assertNotIn("problem", peer, row)
            self.assertGreater(min(peer["forward"]["seconds"], peer["both"]["seconds"]), 0)
            self.assertNotIn("backward", peer)

    def test_a_peer_that_cannot_says_why_and_one_that_talks_nonsense_is_quoted(self):
        loop = "sh -c 'while read line; do echo \"%s\"; done'"
        (row,) = self.measured("op", "--shapes", "swiglu:6x8", "--peer", loop % '{\\"problem\\": \\"too large\\"}')["rows"]
        self.assertEqual(row["plugins"][-1]["problem"], "too large")
        found = bench("op", "--shapes", "swiglu:6x8", "--peer", loop % '{\\"back\\": 1}', "--precision", "fp32")
        self.assertEqual((found.returncode, found.stdout), (6, ""), found.stderr)
        self.assertIn('answered without seconds: {"back": 1}', found.stderr)

    def test_some_operations_and_plugins_alone(self):
        rows = self.rows("--configurations", "tiny:1", "--operations", "swiglu,loss", "--kernels", "reference")
        self.assertEqual({row["operation"] for row in rows}, {"swiglu", "loss"})
        self.assertEqual({side["plugin"] for row in rows for side in row["plugins"]}, {"reference"})

    def test_the_table_says_what_was_chosen(self):
        found = bench("op", "--shapes", "swiglu:6x8", "--precision", "fp32")
        self.assertEqual(found.returncode, 0, found.stderr)
        for word in ("copied here: ", "TFLOP/s", "swiglu: 6 rows of 8, with backward; ", "forward us", "of ceiling", "chosen; ",
                     "reference"):
            self.assertIn(word, found.stdout)

    def test_wrong_options_are_refused(self):
        for words, *arguments in (("there is no operation 'rmsnrom'", "--shapes", "rmsnrom:3x4"),
                                  ("did you mean 'rmsnorm'?", "--operations", "rmsnrom"),
                                  ("'linear:3x4' is no shape", "--shapes", "linear:3x4"),
                                  ("linear:ROWSxINNERxWIDTH", "--shapes", "linear:3x4"),
                                  ("'swiglu:3x0' is no shape", "--shapes", "swiglu:3x0"),
                                  ("'swiglu:3xx4' is no shape", "--shapes", "swiglu:3xx4"),
                                  ("'tiny' is no configuration", "--configurations", "tiny"),
                                  ("mutually exclusive", "--configurations", "tiny:1", "--shapes", "swiglu:3x4")):
            self.refused(words, "op", *arguments)


class Generate(Bench):
    SMALL = ("--shapes", "tiny", "--batches", "1,3", "--prompt", "9", "--answer", "5", "--repeat", "1", "--dtype", "fp32")

    def measured(self, *arguments):
        found = bench("generate", *with_defaults(self.SMALL, arguments), "--json")
        self.assertEqual(found.returncode, 0, found.stderr)
        return json.loads(found.stdout)

    def test_each_batch_is_measured(self):
        document = self.measured()
        self.assertEqual((document["bench"], document["prompt"], document["answer"], document["dtype"]), ("generate", 9, 5, "fp32"))
        self.assertEqual([(row["shape"], row["batch"]) for row in document["rows"]], [("tiny", 1), ("tiny", 3)])
        for row in document["rows"]:
            engine = row["engine"]
            self.assertTrue(0 < engine["first_seconds"] < engine["seconds"], row)
            self.assertAlmostEqual(engine["tokens_per_second"] * engine["seconds"], 5 * row["batch"])
            self.assertAlmostEqual(engine["decoded_per_second"] * (engine["seconds"] - engine["first_seconds"]), 4 * row["batch"])
            self.assertGreater(engine["peak_bytes"], 0)
            self.assertNotIn("ratio", row)

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not there: ./scripts/setup --oracles")
    def test_transformers_beside_it(self):
        for row in self.measured("--peer", "eager")["rows"]:
            self.assertNotIn("problem", row["peer"], row)
            self.assertAlmostEqual(row["ratio"], row["peer"]["seconds"] / row["engine"]["seconds"])
            for seconds in ("seconds", "first_seconds"):  # of two measurements
                self.assertGreater(row["peer"][seconds], 0)

    def test_a_model_drafts_for_itself_without_a_mistake_and_another_one_does_not(self):
        for draft, right in (("tiny", 1), ("tiny-smolvlm", 0)):  # random models of the same vocabulary
            for row in self.measured("--draft", draft, "--speculate", "2", "--answer", "16")["rows"]:
                self.assertAlmostEqual(row["accepted"], right, delta=0.2)
                self.assertAlmostEqual(row["draft_ratio"], row["engine"]["seconds"] / row["drafted"]["seconds"])

    def test_videos_at_once_and_one_after_another(self):
        found = bench("generate", "--shapes", "tiny", "--videos", "3", "--frames", "2", "--prompt", "4", "--answer", "3", "--repeat", "1",
                      "--json")
        self.assertEqual(found.returncode, 0, found.stderr)
        document = json.loads(found.stdout)
        self.assertEqual([document[key] for key in ("videos", "frames", "prompt", "answer")], [3, 2, 4, 3])
        row, = document["rows"]
        self.assertAlmostEqual(row["ratio"], row["one_by_one_seconds"] / row["together_seconds"])
        self.refused("its frames are the cells of an image", "generate", "--shapes", "tiny-qwen2-vl", "--videos", "2", "--frames", "2")

    def test_a_peer_that_ran_out_of_memory_has_no_ratio(self):
        loop = "sh -c 'while read line; do echo \"{\\\"problem\\\": \\\"out of memory\\\"}\"; done'"
        found = bench("generate", *self.SMALL, "--peer", loop)
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertIn("out of memory", found.stdout)

    def test_wrong_options_are_refused(self):
        for words, *arguments in (("there is no shape 'tinny'", "--shapes", "tinny"),
                                  ("'x' is no number", "--batches", "1,x"),
                                  ("0 prompts at once", "--batches", "0"), ("an answer of 1 token", "--answer", "1"),
                                  ("--frames needs --videos", "--frames", "2"), ("--speculate needs --draft", "--speculate", "2"),
                                  ("0 drafts a step", "--draft", "tiny", "--speculate", "0"),
                                  ("--batches does not go with --videos", "--videos", "2")):
            found = bench("generate", *with_defaults(self.SMALL, arguments))
            self.assertEqual(found.returncode, 2, found.stderr)
            self.assertIn(words, found.stderr)


class Dpo(Bench):
    def test_pairs_are_measured_with_both_references(self):
        remembered, live = self.rows("dpo", "--configurations", "tiny:2", *STEPS)
        for row, reference in ((remembered, "remembered"), (live, "live")):
            self.assertEqual((row["reference"], row["samples"], row["labels"]), (reference, 2, 2))
            self.assertAlmostEqual(row["first_loss"], math.log(2), delta=1e-5, msg="policy and reference begin the same")
            self.assertLess(row["last_loss"], row["first_loss"])
        self.assertGreater(remembered["remember"]["median_ms"], 0)
        self.assertNotIn("remember", live)
        self.assertAlmostEqual(remembered["last_loss"], live["last_loss"], delta=1e-6)
        self.assertLess(remembered["flops"], live["flops"])

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not there: ./scripts/setup --oracles")
    def test_pytorch_learns_as_much_from_the_same_pairs(self):
        steps = ("--frames", "2", "--text", "9", "--warmup", "1")
        for name in ("tiny:2", "tiny-ghostvis:2", "tiny-smolvlm:2", "tiny-qwen2-vl:2", "tiny-qwen2.5-vl:2"):
            # The first loss is the same for all models, and the peer takes four more steps to warm up.
            *_, measured = self.rows("dpo", "--configurations", name, *steps, "--repeat", "2", "--peer", EAGER_STEPS)
            *_, engine = self.rows("dpo", "--configurations", name, *steps, "--repeat", "6")
            learned = math.log(2) - engine["last_loss"]
            self.assertGreater(learned, 0.01, name)
            self.assertAlmostEqual(measured["peer"]["last_loss"], engine["last_loss"], delta=1e-3 * learned, msg=name)

    def test_wrong_options_are_refused(self):
        for words, *arguments in (("there is no shape 'tin'", "--configurations", "tin:1"),
                                  ("bench dpo has no option '--model'", "--model", "here")):
            self.refused(words, "dpo", *arguments)


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
            for part in (*row["passes"], row["whole_passes"], row["steady"]):
                self.assertGreater(part["steps"], 0)
                for fill in ("fill_of_frames", "fill_of_rows"):
                    self.assertTrue(0.1 < part[fill] <= 1, (fill, part[fill]))
                self.assertGreaterEqual(part["computed_rows"] + 1e-6, part["fill_of_rows"] * part["steps"] * tokens)
                self.assertAlmostEqual(sum(part["parts_s"].values()) / part["seconds"], 1, delta=0.2)
                self.assertAlmostEqual(part["samples_per_second"], part["samples"] / part["seconds"])
                self.assertLessEqual({"wait", "data", "backward", "optimizer"}, part["parts_s"].keys())
            self.assertEqual(row["first_pass"], row["passes"][0])
            for name in ("whole_passes", "steady"):  # no step captures anything on a CPU
                self.assertEqual(row[name], {key: row["passes"][1][key] for key in row[name]}, name)
            self.assertGreater(row["first_loss"], 1)
            self.assertGreater(row["peak_bytes"], 0)
        self.assertGreater(first["passes"][0]["steps"], second["passes"][0]["steps"])

    def test_a_peer_stands_beside_where_the_losses_of_the_first_pack_agree(self):
        loss = self.rows("--packs", "64:1440")[0]["first_loss"]
        arguments = ("ragged", "--shape", "quickstart", "--samples", "6", "--passes", "2", "--packs", "64:1440")

        def peer(first, learnt):
            return "sh -c 'while read n; do if [ $n = 0 ]; then echo \"%s\"; else echo \"%s\"; fi; done'" % tuple(
                json.dumps(answer).replace('"', '\\"') for answer in (first, learnt))

        learnt = {"steps": 2, "samples": 6, "frames": 50, "tokens": 500, "rows": 550, "computed_rows": 700, "seconds": 0.5,
                  "loss": 1, "peak_bytes": 7}
        document = self.measured(*arguments, "--peer", peer({"loss": 1.005 * loss}, learnt))
        side, (row,) = document["peer_side"], document["rows"]
        self.assertEqual((len(side["passes"]), side["peak_bytes"]), (2, 7))
        for name in ("first_pass", "whole_passes", "steady"):
            self.assertEqual((side[name]["samples_per_second"], side[name]["frames_per_second"]), (12, 100), name)
        for name in ("whole_passes", "steady"):
            self.assertAlmostEqual(row[f"ratio_of_{name}"], row[name]["samples_per_second"] / 12)
        short = self.measured(*arguments, "--peer", peer({"loss": loss}, {"problem": "out of memory"}))
        self.assertEqual(short["peer_side"]["problem"], "out of memory")
        self.assertNotIn("ratio_of_whole_passes", short["rows"][0])
        for code, words, first, answer in ((4, "the first pack: the losses differ", {"loss": 1.1 * loss}, learnt),
                                           (6, "answered without loss", {}, learnt),
                                           (6, "answered without seconds", {"loss": loss}, {**learnt, "seconds": None})):
            found = bench(*arguments, "--precision", "fp32", "--peer", peer(first, answer))
            self.assertEqual(found.returncode, code, found.stderr)
            self.assertIn(words, found.stderr)

    def test_a_seed_says_what_the_samples_are(self):
        def facts(seed):
            (row,) = self.rows("--packs", "64:1440", "--seed", seed)
            return [[part[key] for key in ("steps", "samples", "fill_of_frames", "fill_of_rows")] for part in row["passes"]]

        self.assertEqual(facts("1"), facts("1"))
        self.assertNotEqual(facts("1"), facts("2"))

    def test_the_table_names_passes_and_parts(self):
        found = bench("ragged", "--shape", "quickstart", "--samples", "8", "--passes", "2", "--packs", "64:1440")
        self.assertEqual(found.returncode, 0, found.stderr)
        for word in ("packs of 64 frames and 1440 tokens: peak ", "samples/s", "1, the first", "whole passes, 2 to 2",
                     "steady: without captures", "new shapes", "backward "):
            self.assertIn(word, found.stdout)

    def test_wrong_options_are_refused(self):
        for words, *arguments in (("'512' is no size of a pack", "--packs", "512"),
                                  ("'64:1440x' is no size of a pack", "--packs", "64:1440x"),
                                  ("a pack of 32:4000 does not hold the longest sample", "--packs", "32:4000"),
                                  ("64:1088 or more", "--packs", "64:1000"),
                                  ("there is no shape 'tin'", "--shape", "tin"),
                                  ("its frames are the cells of an image", "--shape", "tiny-qwen2-vl"),
                                  ("--passes of 2 or more", "--passes", "1"),
                                  ("did you mean '--packs'?", "--pack", "64:1440")):
            self.refused(words, "ragged", *arguments)


if __name__ == "__main__":
    unittest.main()
