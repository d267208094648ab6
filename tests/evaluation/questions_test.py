"""`fvlm-engine eval --questions` as a user runs it: benchmarks as they are published, against shards that say the same.

usage: questions_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import base64
import csv
import gzip
import json
import unittest

import forked_program
from eval_sets import QUESTIONS, engine, folder, make_sets, pixels, png, results, train_mlp


def setUpModule():
    make_sets()


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

    def run_form(self, form, *options, files, media=None, model="gqa"):
        questions = sum((["--questions", file] for file in files), [])
        command = [engine, "eval", folder / model, "--form", form, *questions, "--media", media or self.media, *options]
        return forked_program.run(command)

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
        packed = folder / "problems.json.gz"
        packed.write_bytes(gzip.compress(file.read_bytes()))
        self.assertEqual(self.asked("scienceqa", "--split", "test", files=[packed])[1], lines)
        packed.write_bytes(packed.read_bytes()[:40])
        self.assertIn("problems.json.gz", self.run_form("scienceqa", files=[packed]).stderr)
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

    def listed(self, i):
        """A question as forms that list options ask it, with the image that a row has of it."""
        user, options, right, _, _ = QUESTIONS[i]
        listing = "".join(f"\n{chr(65 + j)}. {option}" for j, option in enumerate(options))
        asked = user + listing + "\nAnswer with the option's letter from the given choices directly."
        return asked, [chr(65 + j) for j in range(len(options))], chr(65 + right), png(pixels(f"row {i}", 1)[0])

    def losses_of_listed(self, numbers):
        """The losses of the letters, by a form that lists nothing itself."""
        rows = []
        for i in numbers:
            asked, letters, right, picture = self.listed(i)
            path = self.media / "rows" / f"row-{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture)
            rows.append({"video": f"rows/row-{i}", "question": asked, "candidates": letters, "answer": right})
        _, lines = self.asked("mvbench", files=[self.write("listed.json", rows)])
        return [line["losses"] for line in lines]

    def assert_same_losses(self, lines, expected):
        self.assertEqual(len(lines), len(expected))
        for line, losses in zip(lines, expected):
            for own, other in zip(line["losses"], losses, strict=True):
                self.assertLess(abs(own - other), 1e-5 * other, line["key"])

    def write_tsv(self, name, rows):
        columns = list(dict.fromkeys(key for row in rows for key in row))
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, delimiter="\t", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return folder / name

    def test_tsv_of_vlmevalkit(self):
        def row(index, i, **more):
            user, options, right, _, source = QUESTIONS[i]
            letters = {chr(65 + j): option for j, option in enumerate(options)}
            return {"index": index, "question": user, "answer": chr(65 + right), "category": source or "letters",
                    "image": base64.b64encode(self.listed(i)[3]).decode(), "split": "dev", "l2-category": "all"} | letters | more

        rows = [row(i, i) for i in range(4)]
        path = self.write_tsv("mmbench.tsv", rows)
        found, lines = self.asked("columns", files=[path], media=folder)
        self.assert_same_losses(lines, self.losses_of_listed(range(4)))
        self.assertEqual([line["right"] for line in lines], [question[2] for question in QUESTIONS])
        self.assertLessEqual({"accuracy.animals", "accuracy.letters", "accuracy.numbers"}, set(found[0]))
        found, _ = self.asked("columns", "--by", "l2-category", files=[path], media=folder)
        self.assertFalse([name for name in found[0] if "." in name], "all are of one category")
        more = [row(1000002, 2, image="2"), row(4, 0, answer="Z"), row(5, 1, image=""), row(6, 1, split="test"),
                row(7, 1, image=base64.b64encode(b"no image" * 20).decode()), row(8, 1, question="a\ttab\nand \"a line\"")]
        path = self.write_tsv("broken.tsv", rows + more)
        done = self.run_form("columns", "--json", "--split", "dev", files=[path], media=folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        result, = json.loads(done.stdout)["results"]
        self.assertEqual((result["samples"], result["not_used"]), (7, 2), done.stderr)
        self.assertIn(f"'row 5 (line 7)' of {path}: 'answer' is \"Z\", none of the 3 options", done.stderr)
        _, lines = self.asked("columns", "--split", "dev", files=[path], media=folder)
        line, = (line for line in lines if line["key"] == "row 4 (line 6)")
        self.assert_same_losses([line], self.losses_of_listed([2]))  # the image of row 2

    def test_parquet_with_questions_of_both_kinds(self):
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            self.skipTest("pyarrow is not there")

        def image(i):
            return {"bytes": self.listed(i)[3], "path": f"{i}.png"}

        rows = [{"id": f"validation_Art_{i}", "question": QUESTIONS[i][0], "options": str(QUESTIONS[i][1]), "answer": self.listed(i)[2],
                 "image_1": image(i), "image_2": None, "subfield": ("Drawing", "Music")[i % 2]} for i in range(3)]
        rows.append(rows[0] | {"question": "Is <image 2> like <image 1>?", "image_2": image(1)})
        rows += [rows[0] | {"question": "How many?", "options": "[]", "answer": answer, "subfield": field}
                 for answer, field in (("7", "Music"), ("['3.1', '3.10']", "Drawing"))]
        rows.append(rows[0] | {"answer": "?"})
        path = folder / "mmmu.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
        found, lines = self.asked("columns", files=[path], media=folder)
        self.assertEqual([(one["set"], one["measure"], one["samples"], one["not_used"]) for one in found],
                         [("columns", "choice", 4, 1), ("columns-open", "answer", 2, 0)])
        self.assert_same_losses(lines[:3], self.losses_of_listed(range(3)))
        self.assertEqual([line["expected"] for line in lines[4:]], [["7"], ["3.1", "3.10"]])
        self.assertLessEqual({"accuracy.Drawing", "accuracy.Music"}, set(found[0]) & set(found[1]))
        found, lines = self.asked("columns", "--measure", "answer", files=[path], media=folder)
        self.assertEqual([(one["measure"], one["samples"]) for one in found], [("answer", 6)])
        self.assertEqual([line["expected"] for line in lines[:2]], [["A"], ["B"]])
        found, _ = self.asked("columns", "--measure", "choice", files=[path], media=folder)
        self.assertEqual([(one["measure"], one["samples"]) for one in found], [("choice", 4)])

    def test_images_stand_where_the_text_names_them(self):
        """With a connector that puts rows in their places in the text."""
        train_mlp()
        first, second = (base64.b64encode(self.listed(i)[3]).decode() for i in (0, 1))
        row = {"A": "yes", "B": "no", "answer": "A"}
        rows = [row | {"question": "Is <image 1> like <image 2>?", "image_1": first, "image_2": second},
                row | {"question": "Is <image 2> like <image 1>?", "image_1": second, "image_2": first},
                row | {"question": "Is <image 2> like <image 1>?", "image_1": first, "image_2": second},
                row | {"question": "Is it like <image 3>?", "image_1": first, "image_2": second}]
        path = self.write("places.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        (result,), lines = self.asked("columns", files=[path], media=folder, model="mlp")
        self.assertEqual((result["samples"], result["not_used"]), (3, 1))
        self.assertEqual(lines[0]["losses"], lines[1]["losses"])
        self.assertNotEqual(lines[0]["losses"], lines[2]["losses"])

    def test_forms_differ_in_the_measure_that_comes_first(self):
        rows = [{"query": "Is there a cat?", "label": label, "type": kind, "image": base64.b64encode(self.listed(0)[3]).decode()}
                for label, kind in (("yes", "human"), ("no", "augmented"))]
        path = self.write("open.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        for form, headline in (("docvqa", "anls"), ("chartqa", "relaxed_accuracy"), ("ocrbench", "ocr_accuracy"),
                               ("pope", "yes_no_accuracy"), ("columns", "accuracy"), ("textvqa", "vqa_accuracy")):
            fields = ["--field", "question=query", "--field", "answer=label"]
            (result,), lines = self.asked(form, *fields, files=[path], media=folder)
            self.assertEqual(result["measure"], "answer", form)
            self.assertLessEqual({f"{headline}.human", f"{headline}.augmented", "yes_f1.human", "yes_share"}, set(result), form)
            self.assertEqual([line["expected"] for line in lines], [["yes"], ["no"]])
            if headline not in ("accuracy", "vqa_accuracy"):
                mean = sum(line[headline] for line in lines) / 2
                self.assertAlmostEqual(result[headline], mean, 12)

    def test_media_that_are_missing_are_counted(self):
        rows = [{"video": f"q{i}", "question": "What?", "candidates": ["a", "b"], "answer": "a"} for i in (0, 1, 7)]
        file = self.write("missing.json", rows)
        found, _ = self.asked("mvbench", files=[file])
        self.assertEqual((found[0]["samples"], found[0]["not_used"]), (2, 1))
        done = self.run_form("mvbench", files=[self.write("none.json", rows[2:])])
        self.assertEqual(done.returncode, 4)
        self.assertIn("there is no 'q7'", done.stderr)

    def test_questions_that_the_decoder_has_no_positions_for_are_counted(self):
        positions = json.loads((folder / "gqa" / "decoder" / "config.json").read_text())["max_position_embeddings"]
        rows = [{"question": "What? " + hint, "answer": "a", "choices": options} for hint in ("", "very " * positions)
                for options in (["a", "b"], None)]
        path = self.write("long.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        done = self.run_form("columns", "--json", files=[path])
        self.assertEqual(done.returncode, 0, done.stderr)
        for result in json.loads(done.stdout)["results"]:
            self.assertEqual((result["samples"], result["not_used"]), (1, 1))
        self.assertRegex(done.stderr, f"'line 3' of .*it takes [0-9,]+ rows, [0-9,]+ of them tokens of text, and the decoder has {positions:,} positions")
        self.assertIn("--max-pixels", done.stderr)

    def test_answers_are_as_long_as_max_tokens_says(self):
        path = self.write("open.jsonl", json.dumps({"question": "What?", "answer": "a"}))
        answers = [self.asked("columns", *options, files=[path])[1][0]["answer"] for options in ([], ["--max-tokens", 3])]
        self.assertTrue(answers[0].startswith(answers[1]), answers)
        self.assertLess(len(answers[1]), len(answers[0]))

    def test_bad_input_is_refused_by_file_and_entry(self):
        good = {"video": "q0", "question": "What?", "candidates": ["a", "b"], "answer": "a"}
        for bad, words in (({"question": None}, "'question'"), ({"candidates": "ab"}, "a list was expected"),
                           ({"answer": "c"}, "none of the 2 options"), ({"answer": 2}, "0 to 1"), ({"start": 1}, "go together"),
                           ({"candidates": ["a", ""]}, "empty"), ({"start": "x", "end": 2}, "a number of seconds")):
            done = self.run_form("mvbench", "--json", files=[self.write("bad.json", [good, good | bad])])
            self.assertEqual(done.returncode, 0, done.stderr)
            result, = json.loads(done.stdout)["results"]
            self.assertEqual((result["samples"], result["not_used"]), (1, 1))
            for word in ("'entry 1' of", "bad.json: ", words):
                self.assertIn(word, done.stderr)
        done = self.run_form("mvbench", files=[self.write("bad.jsonl", "\n".join([json.dumps(good), "", '{"video": }']))])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1 of 2 samples cannot be used; the first, 'line 3' of", done.stderr)
        for name, content, words in (("bad.json", "7", "neither a list nor"), ("bad.json", "[3]", "an object was expected"),
                                     ("rows.parquet", "PAR1....", "no sample in 1 shard"), ("bad.tsv", "video\n", "has no tab"),
                                     ("bad.tar", "x", "are read from .json, .jsonl, .tsv and .parquet"), ("bad.json", [], "has no sample")):
            done = self.run_form("mvbench", files=[self.write(name, content)])
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn(words, done.stderr)
        file = self.write("good.json", [good])
        def refused(code, words, form, *options, **where):
            done = self.run_form(form, *options, files=[file], **where)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(words, done.stderr)
        refused(2, "it is mvbench, video-mme, scienceqa, columns, docvqa, textvqa, chartqa, ocrbench or pope", "quiz")
        refused(2, "unknown --mode 'fast'", "mvbench", "--mode", "fast")
        refused(2, "excludes --questions", "mvbench", "--stage", "x")
        refused(2, "use choice, answer or loss", "mvbench", "--measure", "anls")
        refused(2, "expected PART=KEY", "mvbench", "--field", "question")
        refused(4, "no 'topic'", "mvbench", "--by", "topic")
        refused(4, "no such media folder", "mvbench", media="/nowhere")


if __name__ == "__main__":
    unittest.main()
