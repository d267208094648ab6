"""`fvlm-engine bench ragged --peer eager` and the peer itself, tools/oracle/train-ragged, on the CPU. Nothing here depends on
how long anything takes.

usage: ragged_peer_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

engine, tools = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
try:
    import torch
    import transformers  # noqa: F401
    from safetensors.torch import save_file
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

sys.path.insert(0, str(tools))
loader = importlib.machinery.SourceFileLoader("train_ragged", str(tools / "train-ragged"))
peer = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
loader.exec_module(peer)


class Batches(unittest.TestCase):
    SIZES = [((7 * i) % 65, 24 + (131 * i) % 900) for i in range(200)]

    def made(self, frames=256, bucket=256, rows=16384):
        batches = list(peer.batches(self.SIZES, range(200), frames, bucket, rows))
        self.assertEqual(sorted(number for batch in batches for number in batch), list(range(200)))
        return batches

    def test_every_sample_once_and_within_the_limits(self):
        for frames, bucket, rows in ((256, 256, 16384), (128, 64, 4096), (256, 4096, 8192)):
            for batch in self.made(frames, bucket, rows):
                lengths = [sum(self.SIZES[number]) for number in batch]
                self.assertLessEqual(sum(self.SIZES[number][0] for number in batch), frames)
                self.assertLessEqual(max(lengths) * len(batch), rows)
                self.assertEqual(len({length // bucket for length in lengths}), 1)

    def test_they_are_filled(self):
        self.assertLess(len(self.made()), 200 / 4)
        self.assertGreater(len(self.made(frames=64)), len(self.made()))

    def test_a_sample_that_is_larger_than_all_limits_stands_alone(self):
        self.assertEqual([len(batch) for batch in self.made(frames=0, rows=1)], [1] * 200)


class Stream(unittest.TestCase):
    def test_frames_are_pieces_of_the_noise(self):
        noise, elements = torch.arange(3 * 4 + 9.0), 3 * 4
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "stream"
            save_file({"frame_counts": torch.tensor([1, 0, 2]), "text_lengths": torch.tensor([2, 3, 1]),
                       "input_ids": torch.arange(6), "frame_shifts": torch.tensor([5, 9, 0]), "size": torch.tensor([2]),
                       "noise": noise}, file)
            stream = peer.Stream(file, "cpu", torch.float32)
        batch = stream.batch([2, 0])
        expected = torch.stack([noise[at : at + elements] for at in (9, 0, 5)]).view(3, 2, 2, 3).permute(0, 3, 1, 2)
        self.assertTrue(torch.equal(batch["frames"], expected))
        self.assertEqual(batch["input_ids"].tolist(), [5, 0, 1])
        self.assertEqual(batch["frame_counts"].tolist(), [2, 1])
        self.assertEqual(batch["text_lengths"].tolist(), [1, 2])
        self.assertEqual(stream.batch([1])["frames"].shape, (0, 3, 2, 2), "text alone")


class Ragged(unittest.TestCase):
    def test_both_sides_agree_on_the_first_pack(self):
        found = subprocess.run([str(engine), "bench", "ragged", "--shape", "tiny", "--samples", "6", "--passes", "2", "--packs",
                                "64:1440", "--device", "cpu", "--precision", "fp32", "--peer", "eager", "--json"],
                               capture_output=True, text=True)
        self.assertEqual(found.returncode, 0, found.stderr)
        document = json.loads(found.stdout)
        (row,), side = document["rows"], document["peer_side"]
        self.assertAlmostEqual(side["first_loss"], row["first_loss"], delta=1e-4 * row["first_loss"])
        self.assertEqual(len(side["passes"]), 2)
        for part in (side["first_pass"], side["whole_passes"]):
            self.assertEqual(part["samples"], 6)
            self.assertGreaterEqual(part["computed_rows"], part["rows"])
            self.assertGreater(part["steps"], 0)
            self.assertAlmostEqual(part["samples_per_second"], 6 / part["seconds"])
        self.assertEqual(side["steady"], side["whole_passes"], "it captures nothing")
        self.assertAlmostEqual(row["ratio_of_whole_passes"],
                               row["whole_passes"]["samples_per_second"] / side["whole_passes"]["samples_per_second"])


if __name__ == "__main__":
    unittest.main()
