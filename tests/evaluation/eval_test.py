"""`fvlm-engine eval` as a user runs it, against the PyTorch oracle: the loss of every option, log-probabilities of pairs,
rewards, entropies; its samples written by hand into shards.

usage: eval_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import io
import json
import shutil
import subprocess
import sys
import tarfile
import unittest
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "model"))
from against_oracle import engine, folder, tokenizers, tool, torch
from fvlm_oracle import Fvlm, label_losses, preference

MODES = ("coarse_fine", "coarse_only", "autoregressive")
SIDE = 28
QUESTIONS = [("What sat on the mat?", ["The cat.", "A camera.", "0123"], 0, 3, "animals"),
             ("What did it do then?", ["It ran!", "It is 3.14"], 1, 1, "animals"),
             ("Describe this.", ["A video.", "A brief caption for this video.", "you are helpful", "no"], 2, 0, ""),
             ("How much is it?", ["3.14", "9 is 3.14", "0"], 0, 4, "numbers")]
PAIRS = [("Describe this.", "A video shows what a camera saw.", "The mat sat.", 2),
         ("What sat on the mat?", "The cat, and then it ran!", "0123456789", 3),
         ("And then?", "it ran", "the mat sat on the cat", 0)]
RECIPE = """local fvlm = require "fvlm"
local function set(name, measure)
  return fvlm.evaluation(name) { data = fvlm.mix { { name .. ".tar", name = "unnamed" } }, measure = measure, entropy = true,
                                 modes = { "coarse_fine", "coarse_only", "autoregressive" } }
end
local function stage(name, objective, sets)
  return fvlm.stage(name) { data = fvlm.mix { { "pairs.tar" } }, objective = objective, optimizer = fvlm.adamw { lr = 1 },
                            samples = 8, batch = 4, evaluation = sets }
end
return fvlm.recipe {
  name = "tiny", precision = "fp32", model = fvlm.model { vision = "MODEL/vision", decoder = "MODEL/decoder", image_size = 28 },
  stage("instruct", fvlm.next_token { on = "answer" }, { set("questions", "choice"), set("losses", "loss") }),
  stage("prefer", fvlm.dpo { beta = 0.3 }, { set("pairs", "preference") }),
}
"""


def pixels(name, frames):
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randint(256, (frames, SIDE, SIDE, 3), generator=generator, dtype=torch.uint8)


def normalised(bytes):
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return ((bytes.float() / 255 - mean) / deviation).permute(0, 3, 1, 2)


def npy(array):
    head = str({"descr": "|u1", "fortran_order": False, "shape": tuple(array.shape)}).encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(array.flatten().tolist())


def write_shard(name, samples):
    with tarfile.open(folder / f"{name}.tar", "w") as tar:
        for key, frames, told in samples:
            members = {"json": json.dumps(told | {"frame_count": frames}).encode()}
            if frames:
                members["npy"] = npy(pixels(key, frames))
            for ending, content in members.items():
                info = tarfile.TarInfo(f"{key}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def png(picture):
    """A picture [height, width, 3] of bytes as a file."""
    height, width, _ = picture.shape
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in picture)

    def chunk(kind, content):
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def setUpModule():
    tool("make-tiny", "model", "gqa", folder / "gqa", "--seed", "1")
    tool("make-tiny", "model", "gqa", folder / "reference", "--seed", "2")
    tool("make-tiny", "model", "mha", folder / "mha", "--seed", "1")
    questions = [(f"q{i}", frames, {"user": user, "choices": options, "answer": right} | ({"source": source} if source else {}))
                 for i, (user, options, right, frames, source) in enumerate(QUESTIONS)]
    write_shard("questions", questions)
    write_shard("losses", questions)
    write_shard("pairs", [(f"p{i}", frames, {"user": user, "chosen_assistant": chosen, "rejected_assistant": rejected})
                          for i, (user, chosen, rejected, frames) in enumerate(PAIRS)])
    (folder / "tiny.lua").write_text(RECIPE.replace("MODEL", "gqa"))


def run(*options, recipe="tiny.lua", model="gqa"):
    command = [engine, "eval", folder / recipe, "--model", folder / model, *options]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=folder)


def results(*options):
    done = run("--json", *options)
    assert done.returncode == 0, done.stderr
    return {(one["set"], one["mode"]): one for one in json.loads(done.stdout)["results"]}


class Texts:
    """The chat of one question with each of its answers, as tokens and loss masks."""

    def __init__(self, tokenizer, user, answers):
        start, end = (tokenizer.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))

        def plain(text):
            return tokenizer.encode(text, add_special_tokens=False).ids

        self.ids, self.masks = [], []
        for answer in answers:
            prompt = [start, *plain("system\nYou are a helpful AI assistant."), end, *plain("\n"),
                      start, *plain("user\n" + user), end, *plain("\n"), start, *plain("assistant\n")]
            said = [*plain(answer), end, *plain("\n")]
            self.ids.append(prompt + said)
            self.masks.append([0] * len(prompt) + [1] * len(said))

    def tensors(self):
        return (torch.tensor(sum(self.ids, [])), torch.tensor(sum(self.masks, [])), [len(ids) for ids in self.ids])


class Eval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.reference = (Fvlm.load(folder / name, torch.float64) for name in ("gqa", "reference"))
        cls.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "gqa" / "decoder" / "tokenizer.json"))

    @torch.no_grad()
    def option_losses(self, question, mode):
        user, options, _, frames, _ = QUESTIONS[question]
        texts = Texts(self.tokenizer, user, options).tensors()
        shown = normalised(pixels(f"q{question}", frames)).double() if frames else torch.zeros(0, 3, SIDE, SIDE).double()
        _, tokens, _ = self.model.visual(shown, [frames], mode)
        many = len(options)
        hidden = self.model.text_hidden(tokens.repeat(many, 1), [frames] * many, texts[0], texts[2])
        return label_losses(hidden, self.model.decoder.lm_head, *texts)

    def test_every_options_loss_is_the_oracles(self):
        scores = folder / "scores.jsonl"
        found = results("--set-name", "questions", "--scores", scores)
        lines = [json.loads(line) for line in scores.read_text().splitlines()]
        self.assertEqual(len(lines), len(MODES) * len(QUESTIONS))
        for mode in MODES:
            hits, right_loss, right_labels = 0, 0, 0
            for question, (_, options, right, _, source) in enumerate(QUESTIONS):
                line, = (line for line in lines if line["mode"] == mode and line["key"] == f"q{question}")
                sums, labels = self.option_losses(question, mode)
                means = (sums / labels).tolist()
                for option, (own, oracle) in enumerate(zip(line["losses"], means, strict=True)):
                    self.assertLess(abs(own - oracle), 1e-5 * oracle, f"{mode}, q{question}, option {option}")
                self.assertEqual(line["labels"], labels.tolist())
                self.assertEqual((line["right"], line["source"]), (right, source or "unnamed"))
                hits += means.index(min(means)) == right
                right_loss, right_labels = right_loss + sums[right].item(), right_labels + labels[right].item()
            result = found["questions", mode]
            self.assertAlmostEqual(result["accuracy"], hits / len(QUESTIONS), 12)
            self.assertLess(abs(result["loss"] - right_loss / right_labels), 1e-5)
            self.assertEqual(result["samples"], len(QUESTIONS))
            self.assertEqual({name for name in result if "." in name},
                             {"accuracy.animals", "accuracy.numbers", "accuracy.unnamed"})

    def test_the_loss_of_questions_is_that_of_their_right_answers(self):
        found = results("--stage", "instruct")
        for mode in MODES:
            self.assertAlmostEqual(found["losses", mode]["loss"], found["questions", mode]["loss"], 5)

    @torch.no_grad()
    def test_preferences_and_rewards_are_the_oracles(self):
        found = results("--stage", "prefer", "--reference", folder / "reference")
        for mode in MODES:
            batch = {"frames": torch.cat([normalised(pixels(f"p{i}", pair[3])) for i, pair in enumerate(PAIRS)]).double(),
                     "frame_counts": torch.tensor([pair[3] for pair in PAIRS])}
            for side, prefix in ((1, "chosen_"), (2, "rejected_")):
                texts = [Texts(self.tokenizer, pair[0], [pair[side]]).tensors() for pair in PAIRS]
                batch |= {prefix + "input_ids": torch.cat([text[0] for text in texts]),
                          prefix + "loss_mask": torch.cat([text[1] for text in texts]),
                          prefix + "text_lengths": torch.tensor([text[2][0] for text in texts])}
            oracle = preference(self.model, self.reference, batch, mode, 0.3, logits=False)
            result, margins = found["pairs", mode], oracle["chosen_log_probs"] - oracle["rejected_log_probs"]
            self.assertAlmostEqual(result["accuracy"], (margins > 0).double().mean().item(), 12)
            self.assertLess(abs(result["margin"] - margins.mean().item()), 1e-4, mode)
            self.assertAlmostEqual(result["reward_accuracy"], oracle["accuracy"].item(), 12)
            self.assertLess(abs(result["reward_margin"] - oracle["margin"].item()), 1e-4, mode)
        self.assertNotIn("reward_margin", results("--stage", "prefer")["pairs", "coarse_fine"])

    @torch.no_grad()
    def test_entropy_is_the_oracles(self):
        found = results("--set-name", "questions")
        for mode in MODES:
            entropies = []
            for question, (_, _, _, frames, _) in enumerate(QUESTIONS):
                if frames:
                    shown = normalised(pixels(f"q{question}", frames)).double()
                    maps = self.model.attention(shown, self.model.visual(shown, [frames], mode)[0])
                    entropies += (-(maps * maps.log()).sum(-1)).mean((1, 2)).tolist()
            expected = sum(entropies) / len(entropies)
            self.assertLess(abs(found["questions", mode]["attention_entropy"] - expected), 1e-5, mode)

    def test_prints_tables_and_shows_samples(self):
        done = run("--stage", "instruct", "--samples", "2", "--show", folder / "shown")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("questions", "coarse_only", "accuracy", "entropy", "category"):
            self.assertIn(word, done.stdout)
        self.assertFalse((folder / "shown" / "instruct" / "questions" / "000.json").exists(), "the recipe shows none")
        (folder / "showing.lua").write_text(RECIPE.replace("MODEL", "gqa").replace("entropy = true", "show = 3"))
        done = run("--set-name", "questions", "--show", folder / "shown", recipe="showing.lua")
        self.assertEqual(done.returncode, 0, done.stderr)
        shown = json.loads((folder / "shown" / "instruct" / "questions" / "000.json").read_text())
        self.assertEqual((shown["question"], shown["expected"]), (QUESTIONS[0][0], QUESTIONS[0][1][0]))
        self.assertEqual((len(shown["frames"]), shown["grid"], len(shown["attention"][0])), (3, [4, 4], 16))

    def test_mode_replaces_the_modes_of_a_recipes_sets(self):
        found = results("--set-name", "questions", "--mode", "coarse_only")
        self.assertEqual(set(found), {("questions", "coarse_only")})

    def test_a_model_is_not_evaluated_in_modes_that_it_does_not_have(self):
        (folder / "mlp.lua").write_text("""local fvlm = require "fvlm"
return fvlm.recipe { name = "mlp", precision = "fp32",
  model = fvlm.model { vision = "gqa/vision", decoder = "gqa/decoder", image_size = 28, connector = fvlm.mlp {} },
  fvlm.stage "learn" { data = fvlm.mix { { "pairs.tar", fields = { assistant = "chosen_assistant" } }, max_frames = 4, max_text_tokens = 64 },
                       objective = fvlm.next_token { on = "answer" }, optimizer = fvlm.adamw { lr = 1e-3 }, samples = 3, batch = 3 } }
""")
        subprocess.run([engine, "train", "mlp.lua", "--run-dir", "mlp", "--device", "cpu"], cwd=folder, check=True, capture_output=True)
        done = run("--stage", "instruct", model="mlp")
        self.assertEqual(done.returncode, 4, done.stdout)
        self.assertIn("the mode coarse_fine, which the model's connector, mlp, does not have", done.stderr)
        self.assertIn("in another mode: patches", done.stderr)
        done = run("--mode", "coarse_only", model="mlp")
        self.assertEqual((done.returncode, "use patches" in done.stderr), (2, True), done.stderr)

    def test_bad_input_is_refused_with_its_reason(self):
        for code, words, options in (
                (2, ["no stage 'later'", "instruct or prefer"], ["--stage", "later"]),
                (2, ["the stage 'prefer' has no evaluation set 'losses'", "it has pairs"], ["--stage", "prefer", "--set-name", "losses"]),
                (2, ["no evaluation set 'quiz'", "questions"], ["--set-name", "quiz"]),
                (2, ["--samples"], ["--samples", "-1"]),
                (4, ["there is no such folder", "name a model directory"], ["--reference", folder / "nothing"])):
            done = run(*options)
            self.assertEqual(done.returncode, code, done.stderr)
            for word in words:
                self.assertIn(word, done.stderr)
        (folder / "wrong.lua").write_text(RECIPE.replace("MODEL", "gqa").replace('"losses", "loss"', '"losses", "preference"'))
        done = run(recipe="wrong.lua")
        self.assertEqual(done.returncode, 4)
        for word in ("'q0'", "is no pair", "losses.tar"):
            self.assertIn(word, done.stderr)
        done = run(model="nothing")
        self.assertEqual(done.returncode, 4, done.stderr)
        shutil.copytree(folder / "gqa", folder / "swapped")
        tokenizer = folder / "swapped" / "decoder" / "tokenizer.json"
        words = json.loads(tokenizer.read_text())
        vocabulary = words["model"]["vocab"]
        first, second = sorted((token for token in vocabulary if len(token) == 1), key=vocabulary.get)[:2]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
        tokenizer.write_text(json.dumps(words))
        done = run(model="swapped")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("the model has another tokenizer than the recipe's: id ", done.stderr)
        done = run("--set", "stages.instruct.evaluation.sets=[]", "--stage", "instruct")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("the stage 'instruct' has no evaluation set\n  name a stage that has one, or leave out --stage: prefer", done.stderr)


class Benchmarks(unittest.TestCase):
    """Questions as benchmarks write them are the samples of a shard that say the same."""

    @classmethod
    def setUpClass(cls):
        cls.media = folder / "media"
        for i, (_, _, _, frames, _) in enumerate(QUESTIONS):
            for t, picture in enumerate(pixels(f"q{i}", frames)):
                path = cls.media / "clips" / f"q{i}" / f"{t:02}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(png(picture))
        results("--set-name", "questions", "--scores", folder / "shard.jsonl")
        cls.losses = {(line["key"], line["mode"]): line["losses"]
                      for line in map(json.loads, (folder / "shard.jsonl").read_text().splitlines())}

    def write(self, name, content):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def run_form(self, form, *options, files, media=None):
        questions = sum((["--questions", file] for file in files), [])
        command = [engine, "eval", folder / "gqa", "--form", form, *questions, "--media", media or self.media, *options]
        return subprocess.run([str(word) for word in command], capture_output=True, text=True)

    def asked(self, form, *options, **where):
        scores = folder / "form.jsonl"
        done = self.run_form(form, "--json", "--scores", scores, *options, **where)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["results"], [json.loads(line) for line in scores.read_text().splitlines()]

    def assert_losses(self, line, question):
        for own, shard in zip(line["losses"], self.losses[f"q{question}", line["mode"]], strict=True):
            self.assertLess(abs(own - shard), 1e-5 * shard, f"q{question}, {line['mode']}")

    def test_mvbench(self):
        rows = {"first": [], "second": []}
        seen = [i for i, question in enumerate(QUESTIONS) if question[3]]
        for i in seen:
            user, options, right, _, _ = QUESTIONS[i]
            rows["first" if i < 2 else "second"].append(
                {"video": f"q{i}", "question": user, "candidates": options, "answer": options[right]})
        files = [self.write(f"mvbench/{name}.json", entries) for name, entries in rows.items()]
        found, lines = self.asked("mvbench", "--mode", "coarse_fine", "--mode", "autoregressive", files=files)
        self.assertEqual(len(lines), 2 * len(seen))
        for line, i in zip(lines, seen * 2):
            self.assert_losses(line, i)
            self.assertEqual((line["source"], line["right"]), ("first" if i < 2 else "second", QUESTIONS[i][2]))
        self.assertEqual([one["mode"] for one in found], ["coarse_fine", "autoregressive"])
        self.assertLessEqual({"accuracy.first", "accuracy.second"}, set(found[0]))

    def test_mvbench_means_a_part_of_a_clip_by_its_seconds(self):
        rows = [{"video": "q0", "question": QUESTIONS[0][0], "candidates": QUESTIONS[0][1], "answer": "The cat.", "start": 0,
                 "end": seconds} for seconds in (1.0, 0.34)]
        _, lines = self.asked("mvbench", files=[self.write("span.json", rows)])
        self.assertEqual(lines[0]["mode"], "autoregressive", "the mode of use is the default")
        self.assert_losses(lines[0], 0)  # three pictures of a second
        with self.assertRaises(AssertionError):
            self.assert_losses(lines[1], 0)  # the first alone

    def test_video_mme(self):
        def entry(i):
            user, options, right, _, source = QUESTIONS[i]
            letters = [f"{chr(65 + j)}. {option}" for j, option in enumerate(options)]
            return {"question_id": f"00{i}-1", "task_type": source, "question": user, "options": letters,
                    "answer": chr(65 + right)}

        flat = "".join(json.dumps({"video_id": f"00{i}", "videoID": f"q{i}", "duration": ("short", "long")[i]} | entry(i)) + "\n"
                       for i in (0, 1))
        nested = [{"video_id": f"q{i}", "duration": ("short", "long")[i], "domain": "Cats", "questions": [entry(i)]} for i in (0, 1)]
        for file in (self.write("mme.jsonl", flat), self.write("mme.json", nested)):
            found, lines = self.asked("video-mme", files=[file])
            for i, line in enumerate(lines):
                self.assert_losses(line, i)
                self.assertEqual((line["right"], line["source"]), (QUESTIONS[i][2], ("short", "long")[i]))
            self.assertLessEqual({"accuracy.short", "accuracy.long"}, set(found[0]))
        found, _ = self.asked("video-mme", "--by", "task_type", files=[folder / "mme.jsonl"])
        self.assertFalse([name for name in found[0] if "." in name], "all are of one task")

    def test_scienceqa(self):
        problems = {}
        for i, split in ((1, "test"), (2, "test"), (0, "train")):
            user, options, right, frames, source = QUESTIONS[i]
            problems[str(i)] = {"question": user, "choices": options, "answer": right, "hint": "", "split": split,
                                "image": "image.png" if frames else None, "subject": source or "letters"}
            if frames:
                path = self.media / split / str(i) / "image.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(png(pixels(f"q{i}", frames)[0]))
        file = self.write("problems.json", problems)
        found, lines = self.asked("scienceqa", "--split", "test", files=[file])
        self.assertEqual([line["key"] for line in lines], ["1", "2"])
        for line in lines:
            self.assert_losses(line, int(line["key"]))
        self.assertLessEqual({"accuracy.animals", "accuracy.letters"}, set(found[0]))
        problems["1"]["hint"] = "Look at it."
        _, hinted = self.asked("scienceqa", "--split", "test", files=[self.write("problems.json", problems)])
        self.assertNotEqual(hinted[0]["losses"], lines[0]["losses"])

    def test_a_still_that_is_repeated_is_a_clip_of_equal_pictures(self):
        user, options, right, _, _ = QUESTIONS[1]
        picture = png(pixels("q1", 1)[0])
        clip = self.media / "stills" / "clip"
        clip.mkdir(parents=True, exist_ok=True)
        for path in (self.media / "stills" / "still.png", *(clip / f"{t}.png" for t in range(3))):
            path.write_bytes(picture)
        file = self.write("stills.json", [{"video": name, "question": user, "candidates": options, "answer": options[right]}
                                          for name in ("stills/still.png", "stills/clip")])
        modes = ["--mode", "autoregressive", "--mode", "coarse_fine", "--mode", "coarse_only"]
        found, lines = self.asked("mvbench", *modes, "--image-frames", 3, files=[file])
        self.assertEqual([one["samples"] for one in found], [2, 2, 2])
        _, once = self.asked("mvbench", *modes, files=[file])
        for i in range(0, 6, 2):
            for still, clip in zip(lines[i]["losses"], lines[i + 1]["losses"], strict=True):
                self.assertLess(abs(still - clip), 1e-5 * clip, lines[i]["mode"])
            self.assertNotEqual(once[i]["losses"], lines[i]["losses"], "one frame is another question")

    def test_media_that_are_missing_are_counted(self):
        rows = [{"video": f"q{i}", "question": "What?", "candidates": ["a", "b"], "answer": "a"} for i in (0, 1, 7)]
        file = self.write("missing.json", rows)
        found, _ = self.asked("mvbench", files=[file])
        self.assertEqual((found[0]["samples"], found[0]["not_used"]), (2, 1))
        done = self.run_form("mvbench", files=[self.write("none.json", rows[2:])])
        self.assertEqual(done.returncode, 4)
        self.assertIn("there is no 'q7'", done.stderr)

    def test_bad_input_is_refused_by_file_and_entry(self):
        good = {"video": "q0", "question": "What?", "candidates": ["a", "b"], "answer": "a"}
        for bad, words in (({"question": None}, "'question'"), ({"candidates": "ab"}, "a list was expected"),
                           ({"answer": "c"}, "none of the 2 options"), ({"answer": 2}, "0 to 1"), ({"start": 1}, "go together"),
                           ({"candidates": ["a", ""]}, "empty"), ({"start": "x", "end": 2}, "a number of seconds")):
            done = self.run_form("mvbench", files=[self.write("bad.json", [good, good | bad])])
            self.assertEqual(done.returncode, 4, done.stderr)
            for word in ("bad.json, entry 1", words):
                self.assertIn(word, done.stderr)
        lines = [json.dumps(good), "", '{"video": }']
        for name, content, words in (("bad.jsonl", "\n".join(lines), "bad.jsonl, line 3"), ("bad.json", "7", "neither a list nor"),
                                     ("bad.json", "[3]", "an object was expected"), ("rows.parquet", "PAR1....", "to_json"),
                                     ("bad.json", [], "has no sample")):
            done = self.run_form("mvbench", files=[self.write(name, content)])
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn(words, done.stderr)
        file = self.write("good.json", [good])
        def refused(code, words, form, *options, **where):
            done = self.run_form(form, *options, files=[file], **where)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(words, done.stderr)
        refused(2, "mvbench, video-mme or scienceqa", "quiz")
        refused(2, "unknown --mode 'fast'", "mvbench", "--mode", "fast")
        refused(2, "excludes --questions", "mvbench", "--stage", "x")
        refused(4, "no 'topic'", "mvbench", "--by", "topic")
        refused(4, "no such media folder", "mvbench", media="/nowhere")


if __name__ == "__main__":
    unittest.main()
