"""`generate --data`: each sample of a file is answered as `generate --prompt` answers it alone, by a model with M-RoPE whose frames are cells of
images of any size, and by one that cuts images into tiles; in the order of the samples, again after a cut, and beside samples that are broken.

usage: generate_data_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import base64
import fcntl
import json
import os
import shutil
import subprocess
import tarfile
import unittest

import forked_program
from picture_questions import engine, folder, make, write_clip, write_pictures

SIZES = [(32, 24), (17, 60), (64, 33), (40, 40)]
MODELS = ("cells", "tiles")
TOKENS = 10


def setUpModule():
    for name, program, sizes in (("cells", "make-qwen2-vl", SIZES), ("tiles", "make-llava-next", [(32, 32), (120, 30)])):
        make(program, sizes, 40, 1024)
        (folder / "model").rename(folder / name)
        shutil.rmtree(folder / "hf")
        shutil.rmtree(folder / "words")
    write_pictures(SIZES)
    write_clip()


def data_url(picture):
    return "data:image/png;base64," + base64.b64encode((folder / picture).read_bytes()).decode()


# A sample, its key if it is not its line, what it expects, and the same question of `generate`.
SAMPLES = [
    ({"messages": [{"role": "user", "content": [{"type": "image", "path": "0.png"}, {"type": "text", "text": "Which colour?"}]}]},
     None, None, ["--prompt", "<image>Which colour?", "--image", "0.png"]),
    ({"conversations": [{"from": "human", "value": "<image>\nWhich shape?"}, {"from": "gpt", "value": "A disk."}], "image": "1.png"},
     None, "A disk.", ["--prompt", "<image>\nWhich shape?", "--image", "1.png"]),
    ({"user": "Is this <image> a circle?", "image": "2.png", "assistant": "No."},
     None, "No.", ["--prompt", "Is this <image> a circle?", "--image", "2.png"]),
    ({"prompt": "What is one and one?", "answer": "two"}, None, "two", ["--prompt", "What is one and one?"]),
    ({"custom_id": "large", "method": "POST", "body": {"model": "any", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Is it large?"}, {"type": "image_url", "image_url": {"url": data_url}}]}]}},
     "large", None, ["--prompt", "Is it large?<image>", "--image", "3.png"]),
    ({"question": "Which is larger?", "images": ["1.png", "0.png"]}, None, None,
     ["--prompt", "Which is larger?", "--image", "1.png", "--image", "0.png"]),
    ({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]},
     None, "I.", ["--prompt", "Who?", "--system", "Be brief."]),
    ({"prompt": [{"role": "user", "content": "Pick one."}], "chosen": [{"role": "assistant", "content": "This."}],
      "rejected": [{"role": "assistant", "content": "None."}]}, None, "This.", ["--prompt", "Pick one."]),
    ({"user": "Which?", "choices": ["left", "right"], "answer": "B"}, None, "right", ["--prompt", "Which?"]),
    ({"context": "Ann has a cat.", "question": "Who?", "answers": {"text": ["Ann"], "answer_start": [0]}}, None, "Ann",
     ["--prompt", "Context: Ann has a cat.\nQuestion: Who?"]),
    ({"context": "A dog barks.", "question": "What?"}, None, None, ["--prompt", "Context: A dog barks.\nQuestion: What?"]),
]


def line_of(sample):
    return json.dumps(sample, default=lambda url: url("3.png"))  # a picture that is there once the tests begin


def write(name, lines):
    (folder / name).write_text("".join(line + "\n" for line in lines))
    return name


def run(*words, code=0):
    result = forked_program.run((engine, "generate", *words), cwd=folder)
    assert result.returncode == code, f"{words} ended with {result.returncode}\n{result.stdout}{result.stderr}"
    return result


def answers_in(name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


class Data(unittest.TestCase):
    def setUp(self):
        (folder / "out.jsonl").unlink(missing_ok=True)

    def ask(self, model, *options, out="out.jsonl", data=("data.jsonl",), code=0):
        files = [word for name in data for word in ("--data", name)]
        return run(model, *files, "--answers", out, "--max-tokens", TOKENS, *options, code=code)

    def test_answers_are_those_of_single_calls_in_their_order(self):
        write("data.jsonl", [line_of(sample) for sample, *_ in SAMPLES])
        for model, several in zip(MODELS, ([["--ignore-eos"], ["--temperature", 0.8, "--seed", 3]],
                                           [["--ignore-eos"], ["--stop", "e", "--repetition-penalty", 1.3]])):
            for options in several:
                with self.subTest(model, options=options):
                    self.setUp()
                    self.ask(model, *options)
                    answers, told = answers_in("out.jsonl"), set()
                    self.assertEqual([answer["key"] for answer in answers],
                                     [key or f"line {number}" for number, (_, key, *_) in enumerate(SAMPLES, 1)])
                    for answer, (_, _, expected, question) in zip(answers, SAMPLES, strict=True):
                        alone = json.loads(run(model, *question, "--max-tokens", TOKENS, "--json", *options).stdout)
                        self.assertEqual(answer["answer"], alone["text"], question)
                        self.assertEqual(answer["completion_tokens"], len(alone["ids"]))
                        self.assertEqual(answer["finish_reason"], "stop" if alone["ended"] or alone["stopped"] else "length")
                        self.assertGreaterEqual(answer["prompt_tokens"], alone["prompt"] + alone["frames"])
                        self.assertEqual(answer.get("expected"), expected)
                        told.add(answer["answer"])
                    self.assertGreater(len(told), 4, "the answers depend on the samples")

    def test_forms_and_videos_are_those_of_single_calls(self):
        (folder / "yes.json").write_text('{"enum": ["yes", "no"]}')
        write("data.jsonl", [json.dumps({"user": "Does it turn?", "video": "clip.gif"}), json.dumps({"user": "<video>Again?", "video": "clip.gif"})])
        for options in ([], ["--regex", "[a-d]{2}[0-9]"], ["--choice", "it does", "--choice", "no"], ["--json-schema", "yes.json"]):
            self.setUp()
            self.ask("cells", *options)
            for answer, prompt in zip(answers_in("out.jsonl"), ("Does it turn?", "<video>Again?"), strict=True):
                alone = run("cells", "--video", "clip.gif", "--prompt", prompt, "--max-tokens", TOKENS, "--json", *options)
                self.assertEqual(answer["answer"], json.loads(alone.stdout)["text"])
        self.assertIn(answer["answer"], ('"yes"', '"no"'))

    @unittest.skipUnless(os.environ.get("FVLM_MAKE_SHAPES_MP4"), "FFmpeg's libraries are not there")
    def test_videos_may_be_larger_than_images(self):
        subprocess.run([os.environ["FVLM_MAKE_SHAPES_MP4"], "--out", "shapes", "--format", "mp4", "--samples", "questions=1"], cwd=folder, check=True,
                       capture_output=True)
        shard = next((folder / "shapes" / "questions").glob("*.tar"))
        with tarfile.open(shard) as tar:
            clip = next(tar.extractfile(member).read() for member in tar if member.name.endswith(".mp4"))
        (folder / "small.mp4").write_bytes(clip)
        with open(folder / "large.mp4", "wb") as file:  # with a hole that no player reads
            file.write(clip + (300 << 20).to_bytes(4, "big") + b"free")
            file.truncate(len(clip) + (300 << 20))
        write("data.jsonl", [json.dumps({"user": "Does it turn?", "video": f"{name}.mp4"}) for name in ("small", "large")])
        self.ask("cells")
        small, large = answers_in("out.jsonl")
        self.assertEqual(large["answer"], small["answer"])
        alone = run("cells", "--video", "small.mp4", "--prompt", "Does it turn?", "--max-tokens", TOKENS, "--json")
        self.assertEqual(small["answer"], json.loads(alone.stdout)["text"])

    def test_a_question_is_asked_of_pictures_without_one(self):
        shutil.rmtree(folder / "photos", ignore_errors=True)
        (folder / "photos").mkdir()
        for number in range(3):
            shutil.copy(folder / f"{number}.png", folder / "photos")
        said = self.ask("cells", data=["photos"], code=4).stderr
        self.assertIn("no answer to 3 of 3 samples; the first: 0: photos: sample '0': it has no question", said)
        self.setUp()
        self.ask("cells", "--prompt", "What is it?", data=["photos"])
        answers = answers_in("out.jsonl")
        self.assertEqual([answer["key"] for answer in answers], ["0", "1", "2"])
        for number, answer in enumerate(answers):
            alone = run("cells", "--image", f"{number}.png", "--prompt", "What is it?", "--max-tokens", TOKENS, "--json")
            self.assertEqual(answer["answer"], json.loads(alone.stdout)["text"])

    def test_fields_and_roots_and_several_files(self):
        (folder / "lists").mkdir(exist_ok=True)
        for name, picture in (("a", "0.png"), ("b", "1.png")):
            write(f"lists/{name}.jsonl", [json.dumps({"q": "Which?", "image": picture, "a": "This."})])
        self.ask("cells", "--field", "user=q", "--field", "assistant=a", "--root", folder, data=["lists/a.jsonl", "lists/b.jsonl"])
        self.assertEqual([(answer["key"], answer["expected"]) for answer in answers_in("out.jsonl")],
                         [("lists/a.jsonl: line 1", "This."), ("lists/b.jsonl: line 1", "This.")])

    def test_the_same_command_goes_on_where_it_was_cut(self):
        write("data.jsonl", [line_of(sample) for sample, *_ in SAMPLES])
        self.ask("cells")
        whole = (folder / "out.jsonl").read_bytes()
        lines = whole.splitlines(keepends=True)
        for kept in (b"", lines[0][:4], b"".join(lines[:3]) + lines[3][:-1], b"".join(lines[:5]) + lines[5][:20]):
            (folder / "out.jsonl").write_bytes(kept)
            said = self.ask("cells").stderr
            self.assertEqual((folder / "out.jsonl").read_bytes(), whole)
            done = kept.count(b"\n")
            self.assertIn(f"out.jsonl: {len(lines) - done} answers" + (f" besides {done} that were there" if done else ""), said)
        self.assertIn("out.jsonl: up to date", self.ask("cells").stderr)
        self.assertEqual(json.loads(self.ask("cells", "--json").stdout)["answered"], 0)
        self.assertEqual((folder / "out.jsonl").read_bytes(), whole)

    def test_broken_samples_have_their_lines_and_the_others_their_answers(self):
        (folder / "words.png").write_text("no picture")
        (folder / "cut.png").write_bytes((folder / "3.png").read_bytes()[:60])
        good = json.dumps({"user": "What?", "image": "0.png"})
        broken = [(json.dumps({"user": "What?", "image": "nowhere.png"}), "nowhere.png: No such file"),
                  (json.dumps({"user": "What?", "image": "words.png"}), "not an image"),
                  (json.dumps({"user": "What?", "image": "cut.png"}), "image 0: "),
                  ('{"user": ', "line 7"),
                  (json.dumps({"image": "0.png"}), "it has no question"),
                  (json.dumps({"user": "<image>?"}), "<image>"),
                  (json.dumps({"token_ids": [1, 2], "loss_mask": [0, 1]}), "it is token ids"),
                  (json.dumps({"messages": [{"role": "assistant", "content": "I."}]}), "nothing is asked before its last answer"),
                  (json.dumps({"custom_id": "a", "body": {"messages": [{"role": "user", "content": "?"}], "temperature": 1}}),
                   "its body has temperature"),
                  (json.dumps({"custom_id": "b", "body": {"messages": [{"role": "user", "content": "?"}], "response_format": {"type": "json_object"}}}),
                   "its body has response_format, and options of the command say it for all samples"),
                  (json.dumps({"custom_id": "a", "body": {"messages": [{"role": "user", "content": "?"}]}}), "the same custom_id")]
        write("data.jsonl", [good, *(line for sample, _ in broken[:3] for line in (sample, good)), *(line for line, _ in broken[3:]), good])
        words = [None, *(word for _, said in broken[:3] for word in (said, None)), *(said for _, said in broken[3:]), None]
        words[7] = "line 8"
        said = self.ask("cells", code=4).stderr
        self.assertIn(f"no answer to {len(broken)} of {len(words)} samples; the first: line 2: ", said)
        answers = answers_in("out.jsonl")
        for answer, word in zip(answers, words, strict=True):
            self.assertEqual("answer" in answer, word is None, answer)
            self.assertIn(word or "", answer.get("error", ""))
        alone = json.loads(run("cells", "--image", "0.png", "--prompt", "What?", "--max-tokens", TOKENS, "--json").stdout)
        self.assertEqual({answer["answer"] for answer in answers if "answer" in answer}, {alone["text"]})
        again = self.ask("cells", "--json", code=4)
        self.assertEqual(json.loads(again.stdout)["error"]["kind"], "data")
        self.assertEqual(answers_in("out.jsonl"), answers)

    def test_another_file_is_left_as_it_is(self):
        write("data.jsonl", [json.dumps({"user": "What?"})])
        for content, words in (('{"user": "What?"}\n', "line 1 is no answer of `generate --data`"), ('{"user": ', "line 1 is no answer"),
                               ('{"key": "line 1", "model": "/models/other", "answer": "a"}\n', "line 1 is an answer of another model, /models/other")):
            (folder / "out.jsonl").write_text(content)
            self.assertIn(words, self.ask("cells", code=4).stderr)
            self.assertEqual((folder / "out.jsonl").read_text(), content)
        (folder / "out.jsonl").write_text("")
        self.ask("cells", "--temperature", 0.5)
        answers = (folder / "out.jsonl").read_text()
        said = self.ask("cells", code=4).stderr
        self.assertIn(f"line 1 was answered with the options '--max-tokens {TOKENS} --temperature 0.5', and not with the options '--max-tokens {TOKENS}'", said)
        self.assertEqual((folder / "out.jsonl").read_text(), answers)
        (folder / "out.jsonl").write_text("")
        with open(folder / "out.jsonl") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.assertIn("another process writes answers into this file", self.ask("cells", code=2).stderr)
        self.assertIn("nowhere/out.jsonl", self.ask("cells", out="nowhere/out.jsonl", code=7).stderr)
        self.assertIn("none.jsonl", self.ask("cells", data=["none.jsonl"], code=4).stderr)

    def test_settings_that_no_answer_can_have_ask_nothing(self):
        for words, options in (("top-p is a share", ["--top-p", 90]), ("a temperature is 0 or more", ["--temperature", -1]), ("a stop text is empty", ["--stop", ""])):
            self.assertIn(words, self.ask("cells", *options, code=2).stderr)
            self.assertFalse((folder / "out.jsonl").exists())

    def test_options_that_do_not_go_together(self):
        data = ["--data", "data.jsonl", "--answers", "out.jsonl"]
        for words, options in (("--data needs --answers", data[:2]), ("--answers needs --data", ["--prompt", "a", *data[2:]]),
                               ("--batch and --data are mutually exclusive", [*data, "--batch", "b"]),
                               ("--image needs --prompt without --data", [*data, "--image", "0.png"]),
                               ("--video needs --prompt without --data", [*data, "--video", "clip.gif"]),
                               ("--context needs --prompt without --data", [*data, "--context", "a"]),
                               ("--cache-rows needs --data", ["--prompt", "a", "--cache-rows", 64]),
                               ("--root needs --data", ["--batch", "b", "--root", "a"]),
                               ("--regex needs --prompt", ["--batch", "b", "--regex", "a"]),
                               ("--field needs --data", ["--prompt", "a", "--field", "user=q"]),
                               ("--json-schema and --ignore-eos are mutually exclusive", [*data, "--json-schema", "yes.json", "--ignore-eos"])):
            self.assertIn(words, run("cells", *options, code=2).stderr)
        self.assertFalse((folder / "out.jsonl").exists())


if __name__ == "__main__":
    unittest.main()
