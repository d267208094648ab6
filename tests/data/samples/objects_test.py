"""Boxes, points and names as Qwen2-VL, Qwen2.5-VL and Qwen3-VL write them, from JSONL and Parquet, with the folder's chat template and in ChatML: tokens are those
that transformers' tokenizer makes of the text, and pixels those of its image processor: objects_test.py SAMPLE_PROBE TEMPLATES."""
import json
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

probe, templates = sys.argv.pop(1), Path(sys.argv.pop(1))
sys.path.append(str(Path(__file__).resolve().parents[2] / "model"))
try:
    import pyarrow
    import pyarrow.parquet
    from byte_tokenizer import tokenizer
    from PIL import Image, ImageOps
    from transformers import PreTrainedTokenizerFast
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
except ImportError as error:
    print(f"Skipped\nthe oracle is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

scratch = tempfile.TemporaryDirectory()
root = Path(scratch.name)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|box_start|>", "<|box_end|>",
           "<|object_ref_start|>", "<|object_ref_end|>"]
LIMITS = [(3136, 28 * 28 * 24), (28 * 28 * 30, 28 * 28 * 50)]  # pixels of an image
draw = random.Random(1)
SIZES = [(60, 90), (301, 77), (640, 480), (28, 28)] + [(draw.randrange(30, 900), draw.randrange(30, 900)) for _ in range(40)]


def place_in(number):
    """A box and a point of a picture; of every fifth one they are at its end."""
    width, height = SIZES[number]
    (left, right), (top, bottom) = (sorted(round(draw.uniform(0, side), digits) for _ in range(2)) for side, digits in ((width, 1), (height, 2)))
    return ([left, top, right, bottom], [width / 3, height - 1]) if number % 5 else ([0, 0, width, height], [width, 0])


def setUpModule():
    global places, words
    content = json.loads(tokenizer())
    content["added_tokens"] = [content["added_tokens"][0] | {"id": 256 + place, "content": token} for place, token in enumerate(SPECIAL)]
    for part in ("pre_tokenizer", "decoder"):
        content[part] |= {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (root / "tokenizer.json").write_text(json.dumps(content))
    (root / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": (templates / "qwen2vl.jinja").read_text(), "eos_token": "<|im_end|>"}))
    places, lines = [place_in(number) for number in range(len(SIZES))], []
    for number, size in enumerate(SIZES):
        picture, name, exif = Image.new("RGB", size, (9, 99, 9)), f"{number}.jpg", Image.Exif()
        if number % 3 == 1:
            exif[0x0112] = 6
            picture = picture.rotate(90, expand=True)
        picture.save(root / name, exif=exif)
        lines.append({"messages": [{"role": "user", "content": "<image>Where?"}, {"role": "assistant", "content": "<ref-object> <bbox> <bbox>"}],
                      "images": [name], "objects": {"ref": ["disk"], "bbox": list(places[number])}})
    (root / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [line | {"images": [{"bytes": (root / line["images"][0]).read_bytes(), "path": line["images"][0]}]} for line in lines]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / "samples.parquet")
    words = PreTrainedTokenizerFast.from_pretrained(root)


class Objects(unittest.TestCase):
    def expect(self, family, text_of, limits):
        """`text_of`: of the place of a sample, its picture's sides and those of the resized picture."""
        (root / "config.json").write_text(json.dumps({"model_type": family}))
        (root / "preprocessor_config.json").write_text(json.dumps(
            {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2, "min_pixels": limits[0], "max_pixels": limits[1]}))
        processor, expected = Qwen2VLImageProcessorPil.from_pretrained(root), []
        for number, (width, height) in enumerate(SIZES):
            upright = ImageOps.exif_transpose(Image.open(root / f"{number}.jpg"))
            self.assertEqual(upright.size, (width, height))
            lines, columns = processor(upright, return_tensors="np")["image_grid_thw"][0, 1:].tolist()
            resized = (14 * columns, 14 * lines)
            self.assertEqual(resized[::-1], tuple(smart_resize(height, width, 28, *limits)))
            expected.append(words(text_of(places[number], (width, height), resized))["input_ids"])
        for file in ("samples.jsonl", "samples.parquet"):
            for template in ([], ["chatml"]):
                out = subprocess.run([probe, root, "28", "1", root / file, "/dev/null", *template], capture_output=True, text=True, check=True).stdout
                found = [json.loads(line) for line in out.splitlines()]
                self.assertEqual(len(found), len(expected))
                for number, (sample, ids) in enumerate(zip(found, expected)):
                    self.assertNotIn("error", sample)
                    learnt = [token for token, mask in zip(sample["ids"], sample["mask"]) if mask]
                    self.assertEqual(learnt[:len(ids)], ids, f"{family}, {file} {template}, sample {number}: {words.decode(learnt)}")
                    self.assertEqual(learnt[len(ids)], 256 + SPECIAL.index("<|im_end|>"))

    @staticmethod
    def of_a_thousand(place, own, _):
        return [[round(value / own[axis % 2] * 1000) for axis, value in enumerate(numbers)] for numbers in place]

    @staticmethod
    def in_pixels(place, own, resized):
        """As Qwen's own conversion for training has it."""
        return [[min(round(value * (resized[axis % 2] / own[axis % 2])), resized[axis % 2] - 1) for axis, value in enumerate(numbers)] for numbers in place]

    def test_qwen2_5_vl_counts_pixels_of_the_resized_image(self):
        for limits in LIMITS:
            self.expect("qwen2_5_vl", lambda *sides: "disk {} {}".format(*self.in_pixels(*sides)), limits)

    def test_qwen3_vl_counts_to_a_thousand(self):
        self.expect("qwen3_vl", lambda *sides: "disk {} {}".format(*self.of_a_thousand(*sides)), LIMITS[0])

    def test_qwen2_vl_has_tokens_around_names_and_boxes(self):
        def text(*sides):
            (x1, y1, x2, y2), (x, y) = self.of_a_thousand(*sides)
            return (f"<|object_ref_start|>disk<|object_ref_end|> <|box_start|>({x1},{y1}),({x2},{y2})<|box_end|> "
                    f"<|box_start|>({x},{y})<|box_end|>")
        self.expect("qwen2_vl", text, LIMITS[0])


if __name__ == "__main__":
    unittest.main()
