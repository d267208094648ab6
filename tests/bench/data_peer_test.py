"""tools/bench-data-peer as `fvlm-engine bench data` and a person run it. Nothing here depends on how long anything takes.

usage: data_peer_test.py MAKE_SHAPES BENCH_DATA_PEER; exit 77 where its wheels are missing."""
import importlib.machinery
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

make_shapes, peer = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
try:
    import numpy
    import torch
    import webdataset  # noqa: F401
    from PIL import Image
except ImportError as error:
    print(f"Skipped\nthe peer's wheels are not there ({error}): ./scripts/setup --bench\n")
    sys.exit(77)


class Peer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.data = Path(cls.folder.name, "shapes")
        subprocess.run([make_shapes, "--out", cls.data, "--samples", "captions=40,text=10", "--shard-size", "20",
                        "--frames", "3"], check=True, capture_output=True)
        cls.shards = sorted(map(str, cls.data.glob("captions/*.tar")))

    def run_peer(self, *arguments, text=None):
        return subprocess.run([sys.executable, str(peer), *arguments], capture_output=True, text=True, input=text)

    def test_each_line_is_a_turn_of_so_many_samples(self):
        found = self.run_peer("--turns", "--batch", "8", "--size", "16", *self.shards, text="16\n20\n")
        self.assertEqual(found.returncode, 0, found.stderr)
        first, second = map(json.loads, found.stdout.splitlines())
        self.assertEqual((first["samples"], first["frames"]), (16, 48))
        self.assertEqual((second["samples"], second["frames"]), (24, 72), "whole batches")
        self.assertGreater(first["seconds"], 0)

    def test_a_person_gets_samples_per_second(self):
        found = self.run_peer("--samples", "8", "--batch", "4", "--size", "16", *self.shards)
        self.assertEqual(found.returncode, 0, found.stderr)
        answer = json.loads(found.stdout)
        self.assertAlmostEqual(answer["samples_per_second"], answer["samples"] / answer["seconds"], delta=0.01)

    def test_text_alone_has_no_frames(self):
        found = self.run_peer("--turns", "--batch", "5", *map(str, self.data.glob("text/*.tar")), text="5\n")
        self.assertEqual(json.loads(found.stdout)["frames"], 0, found.stderr)

    def test_frames_are_resized_and_normalised(self):
        loader = importlib.machinery.SourceFileLoader("peer", str(peer))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("peer", loader))
        loader.exec_module(module)
        with tarfile.open(self.shards[0]) as tar:
            sample = {member.name.split(".", 1)[1]: tar.extractfile(member).read() for member in tar.getmembers()[:4]}
        frames, text = module.Decode(24, False)(sample)
        self.assertEqual(list(frames.shape), [3, 3, 24, 24])
        self.assertIn("caption", text)
        image = Image.open(io.BytesIO(sample["001.png"])).convert("RGB").resize((24, 24), Image.Resampling.BICUBIC)
        expected = (numpy.asarray(image) / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
        torch.testing.assert_close(frames[1].permute(1, 2, 0), torch.from_numpy(expected).float())


if __name__ == "__main__":
    unittest.main(verbosity=2)
