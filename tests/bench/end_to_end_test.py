"""`fvlm-engine bench end-to-end` as a user runs it, on the CPU: training from JPEGs beside the device's steps. Nothing here depends on
how long anything takes.

usage: end_to_end_test.py FVLM_ENGINE"""
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

engine = sys.argv.pop()
SMALL = ("--shape", "tiny", "--device", "cpu", "--precision", "fp32", "--batch", "4", "--frames", "3", "--text", "24", "--samples", "10",
         "--seconds", "0.4", "--workers", "1")


def with_defaults(defaults, given):
    """An option stands once: those of the defaults that are not given, then those that are."""
    pairs = zip(defaults[::2], defaults[1::2], strict=True)
    return [word for pair in pairs if pair[0] not in given for word in pair] + list(given)


def bench(*arguments):
    return subprocess.run([engine, "bench", "end-to-end", *with_defaults(SMALL, [str(word) for word in arguments])], capture_output=True, text=True)


def hashes(folder):
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("[!.]*"))
            if path.is_file()}


class EndToEnd(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def measured(self, *arguments):
        found = bench("--json", *arguments)
        self.assertEqual(found.returncode, 0, found.stderr)
        return json.loads(found.stdout)

    def check(self, document):
        device, whole = document["device_step"], document["end_to_end"]
        self.assertGreater(device["steps"], 0)
        self.assertAlmostEqual(device["samples_per_second"], 4 * device["steps"] / device["seconds"])
        self.assertEqual(whole["samples"], 4 * whole["steps"])
        self.assertEqual(whole["frames"], 3 * whole["samples"])
        self.assertEqual(whole["text_tokens"], 24 * whole["samples"], "every sample has the same size")
        self.assertAlmostEqual(whole["samples_per_second"], whole["samples"] / whole["seconds"])
        self.assertAlmostEqual(document["share_of_device_step"], whole["samples_per_second"] / device["samples_per_second"])
        self.assertTrue(0 <= whole["waiting_for_data"] <= 1, whole)
        self.assertAlmostEqual(whole["waiting_for_data"], whole["parts_s"]["wait"] / whole["seconds"])
        self.assertLessEqual({"wait", "data", "backward", "optimizer"}, whole["parts_s"].keys())
        self.assertGreater(document["first_loss"], 1)
        self.assertEqual((document["batch"], document["workers"], document["samples"]), (4, 1, 10))

    def test_a_picture_is_repeated(self):
        document = self.measured()
        self.check(document)
        self.assertEqual(document["pictures"], 1)

    def test_every_frame_is_a_picture(self):
        self.check(self.measured("--pictures", 3))

    def test_pictures_are_kept_where_a_folder_is_named(self):
        first, second = self.folder / "first", self.folder / "second"
        self.measured("--data", first)
        made = hashes(first)
        self.assertLessEqual({"00000.tar", "made.json", "tokenizer/tokenizer.json"}, made.keys())
        with tarfile.open(first / "00000.tar") as shard:
            names = shard.getnames()
            self.assertEqual(len(names), 20)
            files = {name: shard.extractfile(name).read() for name in names}
        jpegs = {data for name, data in files.items() if name.endswith(".jpg")}
        captions = {data for name, data in files.items() if name.endswith(".txt")}
        self.assertEqual((len(jpegs), len(captions)), (10, 10), "no two alike")
        for data in jpegs:
            self.assertEqual((data[:3], data[-2:]), (b"\xff\xd8\xff", b"\xff\xd9"))
        self.assertEqual({len(data.split()) for data in captions}, {24})
        self.measured("--data", first)
        self.assertEqual(hashes(first), made)
        self.measured("--data", second)
        self.assertEqual(hashes(second), made, "the same pictures everywhere")
        for options in (("--text", 25), ("--samples", 11), ("--pictures", 3)):
            found = bench("--data", first, *options)
            self.assertEqual(found.returncode, 2, found.stderr)
            self.assertIn("were made with other settings", found.stderr)
        self.assertEqual(hashes(first), made)

    def test_a_folder_of_somebody_else_is_left_alone(self):
        (self.folder / "photo.jpg").write_text("mine")
        found = bench("--data", self.folder)
        self.assertEqual(found.returncode, 2, found.stderr)
        self.assertIn("does not hold pictures that this benchmark made", found.stderr)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["photo.jpg"])

    def test_the_table_says_what_is_what(self):
        found = bench()
        self.assertEqual(found.returncode, 0, found.stderr)
        for word in ("device step", "end to end", "of the device step", "waiting for data", "MHz", "10 JPEGs of 640 x 480 pixels",
                     "repeated to 3 frames", "24 tokens", "1 worker"):
            self.assertIn(word, found.stdout)

    def test_wrong_options_are_refused(self):
        for words, *arguments in (("there is no shape 'tin'", "--shape", "tin"), ("2 JPEGs for 3 frames", "--pictures", 2),
                                  ("--text: expected 16 or more, as a chat has tokens of its own, got 15", "--text", 15), ("--seconds above 0", "--seconds", 0),
                                  ("its samples have no pictures", "--shape", "tiny-latentwire"),
                                  ("its frames are the cells of an image", "--shape", "tiny-qwen2-vl"), ("--batch and --frames of 1 or more", "--batch", 0),
                                  ("--samples: expected 1 or more, got 0", "--samples", 0)):
            found = bench(*arguments)
            self.assertEqual((found.returncode, found.stdout), (2, ""), found.stderr)
            self.assertIn(words, found.stderr, arguments)


if __name__ == "__main__":
    unittest.main()
