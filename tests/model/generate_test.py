"""`fvlm-engine generate` as a user runs it: against the oracle token for token, where it ends, its text, its errors.

usage: generate_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import json
import shutil
import subprocess
import unittest
import zlib

import forked_program
from against_oracle import engine, folder, load_file, save_file, tokenizers, tool, torch


def command_of(model, batch, *options):
    return [str(word) for word in (engine, "generate", folder / model, "--batch", folder / f"{batch}.safetensors", *options)]


def run(model, batch, *options):
    return forked_program.run(command_of(model, batch, *options))


def ours(model, batch, *options):
    result = run(model, batch, "--json", *options)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def theirs(model, batch, *options):
    printed = tool("generate", folder / model, "--batch", folder / f"{batch}.safetensors", *options)
    return [json.loads(line) for line in printed.splitlines()]


def ids_of(answers):
    return [sample["ids"] for sample in answers["samples"]]


def setUpModule():
    tool("make-tiny", "all", folder, "--seed", "1")


class Generate(unittest.TestCase):
    def copy(self, name):
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(folder / "gqa", folder / name)
        return folder / name / "decoder"

    def batch(self, **changes):
        """The mixed batch with these tensors in place of its own; None leaves one out."""
        tensors = load_file(folder / "gqa.mix.safetensors") | changes
        save_file({name: tensor for name, tensor in tensors.items() if tensor is not None},
                  folder / "changed.safetensors")
        return "changed"

    def assert_same(self, model, batch, *options):
        answers, right = ours(model, batch, *options), theirs(model, batch, *options)
        for sample, (own, other) in enumerate(zip(answers["samples"], right, strict=True)):
            self.assertGreater(other["lead"], 1e-4, "too near to call")
            self.assertEqual(own["ids"], other["ids"], f"{model}, sample {sample}")
        return answers

    def assert_refused(self, code, words, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, result.stderr)

    def test_token_for_token_as_the_oracle(self):
        for model in ("gqa", "untied", "mqa-odd", "shallow"):
            with self.subTest(model=model):
                answers = self.assert_same(model, f"{model}.mix", "--limit", "8", "--ignore-eos")
                self.assertEqual([sample["frames"] for sample in answers["samples"]], [0, 1, 5, 0, 3, 2])
                self.assertEqual([sample["prompt"] for sample in answers["samples"]], [7, 4, 12, 1, 9, 6])
                self.assertEqual(answers["tokens"], 48)
                self.assertEqual([sample["ended"] for sample in answers["samples"]], [False] * 6)
                self.assertGreater(answers["tokens_per_second"], 0)

    def test_drafts_of_another_model_change_no_answer(self):
        tool("make-tiny", "model", "gqa", folder / "other", "--seed", "2")
        for options in (("--ignore-eos",), ("--ignore-eos", "--temperature", "0.8", "--seed", "3")):
            plain = ids_of(ours("gqa", "gqa.mix", "--limit", "20", *options))
            for draft in ("other", "gqa"):
                with self.subTest(draft=draft, options=options):
                    drafted = ours("gqa", "gqa.mix", "--limit", "20", "--draft", folder / draft, "--speculate", "3", *options)
                    self.assertEqual(ids_of(drafted), plain)

    def test_drafts_need_the_same_tokenizer(self):
        tokenizer = json.loads((folder / "gqa" / "decoder" / "tokenizer.json").read_text())
        vocabulary = tokenizer["model"]["vocab"]
        first, second = sorted((token for token in vocabulary if len(token) == 1), key=vocabulary.get)[:2]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
        (self.copy("swapped") / "tokenizer.json").write_text(json.dumps(tokenizer))
        self.assert_refused(4, ["another tokenizer: id ", "same family"], "gqa", "gqa.mix", "--draft", folder / "swapped")
        (self.copy("mute") / "tokenizer.json").unlink()
        self.assert_refused(4, "only one of the model and its draft model has a tokenizer.json", "gqa", "gqa.mix",
                            "--draft", folder / "mute")
        self.assert_refused(2, "no effect", "gqa", "gqa.mix", "--draft", folder / "gqa", "--speculate", "0")
        self.assert_refused(2, "expected 0 to 64", "gqa", "gqa.mix", "--speculate", "65")

    def test_needs_no_loss_mask(self):
        self.assertEqual(ids_of(ours("gqa", self.batch(loss_mask=None))), ids_of(ours("gqa", "gqa.mix")))

    def test_stops_where_the_decoders_configs_say(self):
        free = ids_of(ours("gqa", "gqa.mix", "--limit", "6", "--ignore-eos"))
        third, fifth = free[0][2], free[2][4]
        for name, config, generation in (("list", {}, {"eos_token_id": [third, fifth]}), ("one", {}, {"eos_token_id": third}),
                                         ("config", {"eos_token_id": [fifth, third]}, None),
                                         ("empty", {"eos_token_id": third}, {"do_sample": False}),
                                         ("first", {"eos_token_id": fifth}, {"eos_token_id": third})):
            with self.subTest(name):
                decoder = self.copy(name)
                path = decoder / "config.json"
                path.write_text(json.dumps(json.loads(path.read_text()) | config))
                if generation is None:
                    (decoder / "generation_config.json").unlink(missing_ok=True)
                else:
                    (decoder / "generation_config.json").write_text(json.dumps(generation))
                answers = self.assert_same(name, "gqa.mix", "--limit", "6")
                self.assertEqual(answers["samples"][0]["ids"], free[0][: free[0].index(third) + 1])
                self.assertTrue(answers["samples"][0]["ended"])
                self.assertEqual(ids_of(ours(name, "gqa.mix", "--limit", "6", "--ignore-eos")), free)

    def test_text_is_what_the_tokenizer_makes_of_the_ids(self):
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "gqa" / "decoder" / "tokenizer.json"))
        answers = ours("gqa", "gqa.mix", "--limit", "12")
        expected = [tokenizer.decode(ids, skip_special_tokens=True) for ids in ids_of(answers)]
        self.assertEqual([sample["text"] for sample in answers["samples"]], expected)
        printed = run("gqa", "gqa.mix", "--limit", "12")
        self.assertEqual(printed.returncode, 0, printed.stderr)
        for text in expected:
            if text.isprintable():
                self.assertIn(f"\n{text}\n", printed.stdout)
        self.assertIn("tokens in", printed.stderr)
        self.assertIn("gqa computes in fp32 on the CPU", printed.stderr)
        self.assertNotIn("computes", printed.stdout)
        together = subprocess.run(command_of("gqa", "gqa.mix", "--limit", "12"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        self.assertTrue(together.rstrip("\n").rsplit("\n", 1)[1].startswith("info: "), together)

    def write_picture(self, path, shade):
        """A PNG of 28 x 28 pixels; -> the frame as the model gets it."""
        rows = b"".join(b"\0" + bytes((shade + 5 * row + 3 * column) % 256 for column in range(28) for _ in range(3))
                        for row in range(28))

        def chunk(kind, content):
            return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes([0, 0, 0, 28, 0, 0, 0, 28, 8, 2, 0, 0, 0]))
                         + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
        shades = torch.tensor([[(shade + 5 * row + 3 * column) % 256 for column in range(28)] for row in range(28)])
        mean, deviation = (torch.tensor(v)[:, None, None] for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
        return (shades / 255 - mean) / deviation

    def ask(self, *options, code=0):
        result = forked_program.run([engine, "generate", folder / "gqa", *options])
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def asked(self, *options):
        return json.loads(self.ask("--json", *options).stdout)

    def test_pictures_and_a_question_are_the_batch_that_they_make(self):
        clip = folder / "clip"
        clip.mkdir(exist_ok=True)
        frames = torch.stack([self.write_picture(clip / f"{i}.png", 40 * i) for i in range(3)])
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "gqa" / "decoder" / "tokenizer.json"))
        start, end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")

        def prompt(system):
            turns = ([("system", system)] if system else []) + [("user", "What is this?")]
            ids = [[start, *tokenizer.encode(f"{role}\n{text}").ids, end, *tokenizer.encode("\n").ids] for role, text in turns]
            return sum(ids, []) + [start, *tokenizer.encode("assistant\n").ids]

        for system, options in (("You are a helpful AI assistant.", []), ("", ["--system", ""])):
            ids = prompt(system)
            for shown, media in ((frames, ["--video", clip]), (frames[:1], ["--image", clip / "0.png"]),
                                 (frames[:1].repeat(4, 1, 1, 1), ["--image", clip / "0.png", "--image-frames", 4]),
                                 (frames[[0, 2]], ["--video", clip, "--frames", 2]), (frames[:0], []),
                                 (frames[[2, 0]], ["--image", clip / "2.png", "--image", clip / "0.png"])):
                batch = {"frames": shown if len(shown) else frames, "frame_counts": torch.tensor([len(shown)]),
                         "input_ids": torch.tensor(ids), "text_lengths": torch.tensor([len(ids)])}
                if not len(shown):
                    batch["frames"] = frames[:0]
                save_file({name: tensor.contiguous() for name, tensor in batch.items()}, folder / "asked.safetensors")
                expected = ours("gqa", "asked", "--limit", "8")["samples"][0]
                answer = self.asked("--prompt", "What is this?", "--max-tokens", 8, *media, *options)
                self.assertEqual(answer["ids"], expected["ids"], f"{media} {options}")
                self.assertEqual((answer["frames"], answer["prompt"]), (len(shown), len(ids)))

    def test_a_checkpoint_is_asked_as_its_run_asked_it(self):
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(folder / "gqa", run / "instruct" / "step-000001")
        (folder / "run.lua").write_text(f"""local fvlm = require "fvlm"
            return fvlm.recipe {{ name = "run", precision = "fp32",
              model = fvlm.model {{ vision = "{folder}/gqa/vision", decoder = "{folder}/gqa/decoder", image_size = 14 }},
              fvlm.stage "instruct" {{ data = fvlm.mix {{ {{ "*.tar" }}, system = "", replicate_image_frames = 3, max_frames = 5,
                  max_text_tokens = 64 }},
                objective = fvlm.next_token {{ on = "answer" }}, optimizer = fvlm.adamw {{ lr = 1 }}, samples = 8, batch = 4 }} }}""")
        plan = subprocess.run([engine, "plan", folder / "run.lua", "--json"], capture_output=True, text=True, check=True)
        (run / "plan.json").write_text(plan.stdout)
        self.write_picture(folder / "a.png", 9)

        def asked(model, *options):
            command = [engine, "generate", model, "--prompt", "What?", "--image", folder / "a.png", "--max-tokens", 4, "--json"]
            result = forked_program.run([*command, *options])
            self.assertEqual(result.returncode, 0, result.stderr)
            answer = json.loads(result.stdout)
            return answer["ids"], answer["frames"], answer["prompt"]

        by_run = asked(run / "instruct" / "step-000001")
        self.assertEqual(by_run, asked(folder / "gqa", "--system", "", "--image-frames", 3, "--image-size", 14))
        self.assertEqual(by_run[1], 3)
        self.assertEqual(asked(run / "instruct" / "step-000001", "--image-frames", 2)[1], 2)
        self.assertGreater(asked(folder / "gqa")[2], by_run[2])

    def test_repeating_an_image_is_for_one_image(self):
        self.write_picture(folder / "a.png", 9)
        images = ["--image", folder / "a.png"] * 2
        refusal = self.ask("--prompt", "What?", *images, "--image-frames", 3, code=2).stderr
        self.assertIn("--image-frames repeats a prompt's only image, and there are 2", refusal)
        self.assertEqual(self.asked("--prompt", "What?", *images, "--image-frames", 1)["frames"], 2)

    def test_draws_repeat_with_their_seed_and_differ_without(self):
        question = ["--prompt", "Describe this.", "--max-tokens", 12, "--ignore-eos"]
        greedy, hot = self.asked(*question)["ids"], self.asked(*question, "--temperature", 1, "--seed", 7)["ids"]
        self.assertEqual(self.asked(*question, "--temperature", 1, "--seed", 7)["ids"], hot)
        self.assertNotEqual(self.asked(*question, "--temperature", 1, "--seed", 8)["ids"], hot)
        self.assertNotEqual(greedy, hot)
        self.assertEqual(self.asked(*question, "--temperature", 1, "--top-p", 1e-6)["ids"], greedy)
        self.assertEqual(self.asked(*question, "--temperature", 1e-4)["ids"], greedy)

    def test_stops_at_a_text_and_streams_what_it_says(self):
        question = ["--prompt", "Describe this.", "--max-tokens", 20, "--ignore-eos", "--temperature", 1, "--seed", 1]
        whole = self.asked(*question)
        self.assertFalse(whole["stopped"])
        stop = next(letter for letter in whole["text"][len(whole["text"]) // 2 :] if letter.isascii() and letter.isprintable())
        cut = self.asked(*question, "--stop", stop, "--stop", "nobody says this")
        self.assertTrue(cut["stopped"])
        self.assertEqual(cut["text"], whole["text"][: whole["text"].index(stop)])
        self.assertLess(len(cut["ids"]), len(whole["ids"]))
        self.assertEqual(cut["ids"], whole["ids"][: len(cut["ids"])])
        if cut["text"].isprintable():
            self.assertEqual(self.ask(*question, "--stop", stop).stdout, cut["text"] + "\n")

    def test_an_answer_that_could_not_be_written_is_no_success(self):
        for verb in ("generate", "chat"):
            prompt = ["--prompt", "Hello"] if verb == "generate" else []
            with open("/dev/full", "w") as full:
                result = subprocess.run([engine, verb, folder / "gqa", "--max-tokens", "4", *prompt], input="Hello\n", stdout=full,
                                        stderr=subprocess.PIPE, text=True)
            self.assertEqual(result.returncode, 7, f"{verb}: {result.stderr}")
            self.assertIn("standard output: ", result.stderr)

    def test_ids_where_there_is_no_tokenizer(self):
        (self.copy("silent") / "tokenizer.json").unlink()
        answers = ours("silent", "gqa.mix", "--limit", "3")
        self.assertEqual([sample["text"] for sample in answers["samples"]], [None] * 6)
        self.assertIn(str(ids_of(answers)[0]), run("silent", "gqa.mix", "--limit", "3").stdout)

    def test_ends_where_the_decoder_has_no_more_positions(self):
        path = self.copy("short") / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 20}))
        answers = ours("short", "gqa.mix", "--ignore-eos")
        self.assertEqual([len(ids) for ids in ids_of(answers)], [13, 15, 3, 19, 8, 12])
        self.assert_refused(4, ["sample 5", "maximum context length is 20 tokens"], "short",
                            self.batch(input_ids=torch.zeros(51, dtype=torch.long),
                                       text_lengths=torch.tensor([7, 4, 12, 1, 9, 18])))

    def test_bad_input_is_refused_with_its_reason(self):
        self.assert_refused(2, "--limit", "gqa", "gqa.mix", "--limit", "0")
        self.assert_refused(2, "--device: expected cpu or cuda", "gqa", "gqa.mix", "--device", "tpu")
        self.assert_refused(2, "--dtype: expected fp32, bf16 or fp64, got 'fp8'", "gqa", "gqa.mix", "--dtype", "fp8")
        self.assert_refused(4, "name a model directory", "nothing-here", "gqa.mix")
        self.assert_refused(4, "no-batch.safetensors", "gqa", "no-batch")
        self.assert_refused(4, "input_ids", "gqa", self.batch(input_ids=None))
        self.assert_refused(4, ["sample 0", "no token 4096"], "gqa", self.batch(input_ids=torch.full((39,), 4096)))
        self.assert_refused(4, ["sample 1", "its prompt is empty"], "gqa",
                            self.batch(text_lengths=torch.tensor([11, 0, 12, 1, 9, 6])))
        self.assert_refused(4, "do not sum to the 39 tokens", "gqa",
                            self.batch(text_lengths=torch.tensor([7, 4, 12, 1, 9, 5])))
        self.assert_refused(4, "do not sum to the 11 frames", "gqa",
                            self.batch(frame_counts=torch.tensor([0, 1, 5, 0, 3, 1])))
        nothing = {name: torch.zeros(0, dtype=torch.long) for name in ("input_ids", "text_lengths", "frame_counts")}
        self.assert_refused(4, "there is no sample", "gqa", self.batch(frames=torch.zeros(0, 3, 28, 28), **nothing))
        self.assert_refused(4, "do not fit the vision tower", "gqa", self.batch(frames=torch.zeros(11, 3, 4, 4)))
        (self.copy("bad") / "tokenizer.json").write_text("{")
        self.assert_refused(4, "tokenizer.json", "bad", "gqa.mix")
        (self.copy("bad") / "generation_config.json").write_text('{"eos_token_id": "end"}')
        self.assert_refused(4, ["generation_config.json", "eos_token_id"], "bad", "gqa.mix")
        (folder / "words").write_text("no media")
        for code, words, options in ((2, "--prompt, --data or --batch is missing", []), (2, "mutually exclusive", ["--batch", "b", "--prompt", "x"]),
                                     (2, "--stop needs --prompt", ["--batch", "b", "--stop", "x"]),
                                     (2, "mutually exclusive", ["--prompt", "x", "--image", "a", "--video", "b"]),
                                     (2, "--video: a prompt has one video, got 2", ["--prompt", "x", "--video", "a", "--video", "b"]),
                                     (2, "stop text is empty", ["--prompt", "x", "--stop", ""]),
                                     (2, "temperature", ["--prompt", "x", "--temperature", "-1"]),
                                     (2, "top-p", ["--prompt", "x", "--top-p", "0"]),
                                     (2, "--frames", ["--prompt", "x", "--image", folder / "words", "--frames", "0"]),
                                     (4, "words: not an image: expected JPEG", ["--prompt", "x", "--image", folder / "words"]),
                                     (4, "use --video for", ["--prompt", "x", "--image", folder / "words"]),
                                     (4, "nowhere", ["--prompt", "x", "--video", folder / "nowhere"])):
            result = forked_program.run([engine, "generate", folder / "gqa", *options])
            self.assertEqual(result.returncode, code, f"{options}: {result.stderr}")
            self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()
