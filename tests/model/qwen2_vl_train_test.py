"""The encoders of Qwen2-VL, Qwen2.5-VL and Qwen3-VL train on images of any size, with a decoder of another family: from images as from what
`preprocess` made of them, alone as in packs, and a report shows whole images.

usage: qwen2_vl_train_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import io
import json
import os
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

import forked_program
from byte_tokenizer import tokenizer

engine = Path(sys.argv.pop(1)).resolve()
try:
    import torch
    from PIL import Image
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel, Qwen2_5_VLVisionConfig
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel, Qwen2VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionConfig, Qwen3VLVisionModel
    from transformers.utils import logging
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

logging.disable_progress_bar()
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
os.environ["FVLM_CACHE"] = str(folder / "cache")
DECODER = 24
VISION = {"qwen2": "", "qwen2_5": "rms_norm = true", "qwen3": "deepstack = 1"}  # with what the connector needs for it
SIZES = [(40, 24), (8, 8), (17, 60), (64, 33)]  # 5 x 3, 1 x 1, 2 x 8 and 8 x 4 cells of 8 pixels
RECIPE = """
local fvlm = require "fvlm"
local mix = fvlm.mix { { "questions.tar" }, system = "", max_frames = 40, max_text_tokens = 64 }
return fvlm.recipe {
  name = "NAME", precision = "fp32", log_every = 1,
  model = fvlm.model { vision = "VISION", decoder = "decoder", connector = fvlm.qwen2_vl { SETTINGS } },
  fvlm.stage "sft" {
    data = mix, objective = fvlm.next_token { on = "answer" }, optimizer = fvlm.adamw { lr = 1e-2 }, schedule = fvlm.constant {},
    batch = 8, samples = 80, packing = { frames = FRAMES, tokens = 400, segments = 8 },
  },
}
"""


def run(*command, code=0):
    result = forked_program.run(command, cwd=folder)
    assert result.returncode == code, f"{command} ended with {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stderr if code else result.stdout


def setUpModule():
    torch.manual_seed(2)
    common = {"num_heads": 2, "patch_size": 4}
    processor = Qwen2VLImageProcessorPil(patch_size=4, size={"shortest_edge": 64, "longest_edge": 8 * 8 * 40})
    for name, model in (
            ("qwen2", Qwen2VisionTransformerPretrainedModel(
                Qwen2VLVisionConfig(depth=2, embed_dim=32, mlp_ratio=2, hidden_size=DECODER, **common))),
            ("qwen2_5", Qwen2_5_VisionTransformerPretrainedModel(
                Qwen2_5_VLVisionConfig(depth=2, hidden_size=32, intermediate_size=48, out_hidden_size=DECODER, window_size=32,
                                       fullatt_block_indexes=[1], **common))),
            ("qwen3", Qwen3VLVisionModel(
                Qwen3VLVisionConfig(depth=2, hidden_size=32, intermediate_size=48, out_hidden_size=DECODER, num_position_embeddings=16,
                                    deepstack_visual_indexes=[0], **common)))):
        model.save_pretrained(folder / name)
        processor.save_pretrained(folder / name)
    LlamaForCausalLM(LlamaConfig(vocab_size=261, hidden_size=DECODER, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                                 pad_token_id=None, max_position_embeddings=512)).save_pretrained(folder / "decoder")
    (folder / "decoder" / "tokenizer.json").write_text(tokenizer(further=["<|vision_start|>", "<|vision_end|>"]))
    with tarfile.open(folder / "questions.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(12):
            image = Image.linear_gradient("L").resize(SIZES[number % 4])
            picture = io.BytesIO()
            Image.merge("RGB", (image, image.rotate(180), Image.new("L", image.size, 20 * number))).save(picture, "png")
            text = json.dumps({"user": "<image>Which?", "assistant": f"It is {number}."}).encode()
            for suffix, content in (("png", picture.getvalue()), ("json", text)):
                entry = tarfile.TarInfo(f"{number:03}.{suffix}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


class Training(unittest.TestCase):
    def losses(self, name, vision, frames=160, preprocessed=False):
        values = {"NAME": name, "VISION": vision, "FRAMES": frames, "SETTINGS": VISION[vision]}
        recipe = RECIPE
        for key, value in values.items():
            recipe = recipe.replace(key, str(value))
        (folder / f"{name}.lua").write_text(recipe)
        options = []
        if preprocessed:
            run(engine, "preprocess", f"{name}.lua", "--out", f"{name}_cells")
            options = ["--set", f"stages.sft.data.preprocessed={name}_cells/sft"]
        run(engine, "train", f"{name}.lua", *options, "--run-dir", name)
        lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if line["kind"] == "step"]

    def test_images_of_any_size(self):
        for vision in VISION:
            with self.subTest(vision):
                losses = self.losses(f"{vision}_whole", vision)
                self.assertEqual(len(losses), 10)
                self.assertLess(losses[-1], 0.8 * losses[0], "what is learnt")
                small = self.losses(f"{vision}_small", vision, frames=40)
                for packed, alone in zip(losses, small):
                    self.assertAlmostEqual(packed, alone, delta=2e-4 * packed, msg="steps of many packs")
                self.assertEqual(self.losses(f"{vision}_cached", vision, preprocessed=True), losses, "from preprocessed cells")

    def test_planned_memory_is_what_a_step_holds(self):
        for vision in VISION:
            with self.subTest(vision):
                name = f"{vision}_planned"
                self.losses(name, vision)
                budget, = json.loads(run(engine, "plan", f"{name}.lua", "--budget", "--json"))
                planned = budget["memory"]["sum"]
                found, = json.loads(run(engine, "train", f"{name}.lua", "--find-batch", "--stage", "sft", "--memory-mib",
                                        planned * 5 // 4 // 2**20, "--json"))
                held = found["tries"][0]["peak_bytes"]
                print(f"{vision}: {planned} bytes planned, {held} held, ratio {planned / held:.3f}")
                self.assertAlmostEqual(planned / held, 1, delta=0.1)

    def test_connectors_of_whole_images_are_refused(self):
        (folder / "wrong.lua").write_text(RECIPE.replace("NAME", "wrong").replace("VISION", "qwen2").replace("FRAMES", "160")
                                          .replace("fvlm.qwen2_vl { SETTINGS }", "fvlm.average_pool { rows = 1 }"))
        said = run(engine, "train", "wrong.lua", "--run-dir", "wrong", code=4)
        self.assertIn("'average_pool'", said)
        self.assertIn("use the connector fvlm.qwen2_vl", said)

    def test_layers_that_the_connector_does_not_read_are_refused(self):
        (folder / "wrong.lua").write_text(RECIPE.replace("NAME", "wrong").replace("VISION", "qwen3").replace("FRAMES", "160")
                                          .replace("SETTINGS", "deepstack = 2"))
        said = run(engine, "train", "wrong.lua", "--run-dir", "wrong", code=4)
        self.assertIn("the connector reads 2 further layers of the encoder, whose config names 1", said)
        self.assertIn("fvlm.qwen2_vl { deepstack = 1 }", said)


if __name__ == "__main__":
    unittest.main()
