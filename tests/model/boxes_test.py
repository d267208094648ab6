"""Boxes of samples in training, evaluations, rewards and `generate --data`, with tiny models of the Qwen-VL families. What the boxes become is tested in
tests/data/samples/objects_test.py.

usage: boxes_test.py FVLM_ENGINE CHAT_TEMPLATE; exit 77 where transformers is missing."""
import json
import shutil
import unittest

import qwen2_vl_pictures_test as tiny
from with_transformers import engine, folder, run

from PIL import Image

SIZES = [(60, 90), (301, 77), (200, 190), (640, 480), (97, 131), (150, 40)]
RECIPE = """
local fvlm = require "fvlm"
local data = fvlm.mix { { "FILE" }, chat_template = "default", system = "", max_frames = 60, max_text_tokens = 240 BOXES }
return fvlm.recipe {
  name = "boxes", precision = "fp32", log_every = 1, model = fvlm.model { directory = "MODEL" },
  fvlm.stage "sft" {
    data = data, objective = OBJECTIVE, optimizer = fvlm.adamw { lr = 3e-3, weight_decay = 0 }, schedule = fvlm.constant {},
    batch = 6, samples = 12, packing = { frames = 240, tokens = 2400, segments = 24 },
    evaluation = { fvlm.evaluation "where" { data = data, measure = "iou", max_new_tokens = 60 } },
  },
}
"""


def sample_of(number):
    width, height = SIZES[number]
    return {"messages": [{"role": "user", "content": "<image>Where is the <ref-object>?"},
                         {"role": "assistant", "content": "{\"bbox_2d\": <bbox>, \"label\": \"<ref-object>\"}"}],
            "images": [f"box-{number}.png"], "objects": {"ref": ["disk", "disk"], "bbox": [[0.1 * width, 0.25 * height, width - 3.0, height - 7.5]]}}


def write_recipe(name, family="qwen2_5_vl", file="boxes.jsonl", boxes="", objective='fvlm.next_token { on = "answer" }'):
    text = RECIPE
    for key, value in (("FILE", folder / file), ("MODEL", folder / f"{family}.model"), ("BOXES", boxes), ("OBJECTIVE", objective)):
        text = text.replace(key, str(value))
    (folder / name).write_text(text)
    return folder / name


def setUpModule():
    for family in ("qwen2_5_vl", "qwen3_vl"):
        tiny.make(family, tiny.TEMPLATE.read_text())
    for number, size in enumerate(SIZES):
        Image.merge("RGB", [Image.linear_gradient("L").resize(size).rotate(90 * turn).resize(size) for turn in range(3)]).save(folder / f"box-{number}.png")
    (folder / "boxes.jsonl").write_text("".join(json.dumps(sample_of(number)) + "\n" for number in range(len(SIZES))))


def text_of(recipe):
    """What the first sample of the stage says."""
    text, = json.loads(run(engine, "data", "show", recipe, 0, "--json"))["texts"]
    return bytes(token for token, mask in zip(text["token_ids"], text["loss_mask"]) if mask and token < 256).decode()


class Boxes(unittest.TestCase):
    def test_another_family_has_to_be_told(self):
        shutil.copytree(folder / "qwen3_vl.model", folder / "other.model")
        whole = folder / "other.model" / "decoder" / "whole_model.json"
        whole.write_text(whole.read_text().replace('"qwen3_vl"', '"smolvlm"'))
        recipe = write_recipe("other.lua", "other")
        for words in (("data", "show", recipe, 0), ("data", "check", recipe), ("train", recipe, "--run-dir", folder / "other")):
            self.assertIn('boxes = "norm1000" in the mix', run(engine, *words, code=3))
        self.assertEqual(text_of(write_recipe("told.lua", "other", boxes=', boxes = "norm1000"')), text_of(write_recipe("known.lua", "qwen3_vl")))

    def test_boxes_are_drawn_on_the_images_as_they_are(self):
        """In three units, on the second of two images, upright, and a point."""
        gray = (90, 90, 90)
        Image.new("RGB", (400, 300), gray).save(folder / "first.png")
        turned = Image.new("RGB", (200, 100), gray)
        turned.getexif()[0x0112] = 6  # upright it has 100 x 200 pixels
        turned.save(folder / "second.jpg", exif=turned.getexif(), quality=100)
        box, colors = (40, 60, 360.0, 240.3), {"red": (255, 40, 40), "green": (40, 220, 40)}
        units = {"real": box, "norm1000": (100, 200, 900, 801), "norm1": (0.1, 0.2, 0.9, 0.801)}
        across = {"real": (50, 150), "norm1000": (500, 750), "norm1": (0.5, 0.75)}
        for boxes, (unit, place) in zip(("norm1000_yx", "pixels", "norm1"), units.items()):
            sample = {"messages": [{"role": "user", "content": "<image><image>Where is the <ref-object>?"},
                                   {"role": "assistant", "content": "At <bbox> and at <bbox>, a <ref-object>."}],
                      "images": ["first.png", "second.jpg"],
                      "objects": {"ref": ["disk\u001b[31m", "dot"], "bbox": [place, across[unit]], "bbox_type": unit, "image_id": [0, 1]}}
            (folder / f"{unit}.jsonl").write_text(json.dumps(sample) + "\n")
            recipe = write_recipe(f"{unit}.lua", file=f"{unit}.jsonl", boxes=f', boxes = "{boxes}"').rename(folder / f"drawn-{unit}.lua")
            written = json.loads(run(engine, "data", "show", recipe, 0, "--images", folder / unit, "--json"))["images"]
            self.assertEqual(written["files"], [str(folder / unit / "0.png"), str(folder / unit / "1.png")])
            self.assertEqual([(one["number"], one["color"], one["image"], one["name"]) for one in written["objects"]],
                             [(0, "red", 0, "disk\u001b[31m"), (1, "green", 1, "dot")])
            for one, expected in zip(written["objects"], (box, (50, 150))):
                self.assertEqual([round(number, 6) for number in one["pixels"]], list(expected), unit)
            first, second = (Image.open(file) for file in written["files"])
            self.assertEqual([first.size, second.size], [(400, 300), (100, 200)], unit)
            for x, y in ((41, 150), (358, 150), (200, 61), (200, 239), (359, 240)):
                self.assertEqual(first.getpixel((x, y)), colors["red"], (unit, x, y))
            for x, y in ((39, 150), (360, 150), (200, 59), (200, 241), (42, 150), (200, 62)):
                self.assertEqual(first.getpixel((x, y)), (0, 0, 0), (unit, x, y))
            for x, y in ((38, 150), (361, 150), (200, 58), (200, 242), (43, 150), (200, 63), (5, 5)):
                self.assertEqual(first.getpixel((x, y)), gray, (unit, x, y))
            self.assertEqual(second.getpixel((50, 150)), colors["green"])
            self.assertEqual(second.getpixel((52, 150)), (0, 0, 0))
            for had, shown in zip(gray, second.getpixel((45, 150))):
                self.assertLess(abs(had - shown), 3)
        said = run(engine, "data", "show", recipe, 0, "--images", folder / "again")
        self.assertRegex(said, r"0 +red +\S*again/0\.png +\[40, 60, 360, 240\.\d+\] +disk")
        self.assertNotIn("\u001b", said)

    def test_images_without_objects_are_written_as_they_are(self):
        sample = sample_of(1)
        del sample["objects"]
        (folder / "bare.jsonl").write_text(json.dumps(sample) + "\n" + json.dumps({"user": "How are you?", "assistant": "Well."}) + "\n")
        recipe = write_recipe("bare.lua", file="bare.jsonl")
        counts = set()
        for number in (0, 1):
            written = json.loads(run(engine, "data", "show", recipe, number, "--images", folder / f"bare-{number}", "--json"))["images"]
            self.assertEqual(written["objects"], [])
            for file in written["files"]:
                self.assertEqual(Image.open(file).tobytes(), Image.open(folder / "box-1.png").tobytes())
            counts.add(len(written["files"]))
        self.assertEqual(counts, {0, 1})

    def test_a_box_outside_of_its_picture_is_a_broken_sample(self):
        outside = sample_of(0)
        outside["objects"]["bbox"] = [[10, 10, 70, 20]]
        (folder / "outside.jsonl").write_text((folder / "boxes.jsonl").read_text() + json.dumps(outside) + "\n")
        recipe = write_recipe("outside.lua", file="outside.jsonl")
        run(engine, "train", recipe, "--run-dir", folder / "outside")
        self.assertIn("[10, 10, 70, 20], is outside of image 0, which has 60 x 90 pixels", (folder / "outside" / "quarantine.log").read_text())

    def test_questions_and_answers_of_generate_have_the_boxes(self):
        asked = {"messages": [{"role": "user", "content": "<image>What is at <bbox>?"}, {"role": "assistant", "content": "At <bbox>."}],
                 "images": ["box-3.png"], "objects": {"bbox": [[0, 0, 320, 240], [64, 48]]}}
        (folder / "asked.jsonl").write_text(json.dumps(asked) + "\n")
        run(engine, "generate", folder / "qwen3_vl.model", "--data", folder / "asked.jsonl", "--answers", folder / "asked.out.jsonl", "--max-tokens", 4)
        line = json.loads((folder / "asked.out.jsonl").read_text())
        self.assertEqual(line["expected"], "At [100, 100].")
        plain = json.loads(run(engine, "generate", folder / "qwen3_vl.model", "--image", folder / "box-3.png", "--prompt", "What is at [0, 0, 500, 500]?",
                               "--max-tokens", 4, "--json"))
        self.assertEqual(line["prompt_tokens"], plain["prompt"] + plain["frames"])

    def test_a_model_that_learns_boxes_is_measured_by_their_overlap(self):
        recipe = write_recipe("learn.lua")

        def measured(name, *options):
            run(engine, "train", recipe, "--run-dir", folder / name, *options)
            lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
            return [line for line in lines if line.get("measure") == "iou"][-1]

        line = measured("two_steps")
        self.assertEqual(line["samples"], len(SIZES))
        self.assertLess(line["iou"], 0.5)
        line = measured("learnt", "--set", "stages.sft.samples=900")
        print(f"after 150 steps: iou {line['iou']:.3f}, box_accuracy {line['box_accuracy']:.3f}")
        self.assertGreater(line["iou"], 0.5)
        run(engine, "eval", recipe, "--model", folder / "learnt", "--scores", folder / "scores.jsonl")
        scores = [json.loads(one) for one in (folder / "scores.jsonl").read_text().splitlines()]
        for name in ("iou", "box_accuracy"):
            self.assertAlmostEqual(sum(one[name] for one in scores) / len(scores), line[name], delta=1e-9)

    def test_an_evaluation_of_overlap_needs_boxes(self):
        sample = sample_of(0) | {"objects": {"ref": ["disk"], "bbox": []}}
        sample["messages"][1]["content"] = "There."
        (folder / "none.jsonl").write_text(json.dumps(sample) + "\n")
        self.assertIn("has no box in its last answer", run(engine, "train", write_recipe("none.lua", file="none.jsonl"), "--run-dir", folder / "none", code=4))

    def test_a_reward_may_be_the_overlap(self):
        function = "function(answer) return answer.iou + answer.box_accuracy + 0.01 * answer.tokens end"
        for number, said in enumerate(('"iou"', '"box_accuracy"', function)):
            recipe = write_recipe("reward.lua", objective=f"fvlm.grpo {{ answers = 2, max_new_tokens = 8, reward = {said} }}")
            run(engine, "train", recipe, "--run-dir", folder / f"reward_{number}", "--max-steps", 1)


if __name__ == "__main__":
    unittest.main()
