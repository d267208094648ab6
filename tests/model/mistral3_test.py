"""Folders of Mistral Small 3.1, Ministral 3, Pixtral and LightOnOCR against transformers: logits, loss and every gradient on texts with images of any
size inside, generated tokens, and folders that go through the engine and back.

usage: mistral3_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import shutil
import unittest

from cell_folders import IMAGE, CellFolders, edit
from with_transformers import engine, folder as root, run

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import (LightOnOcrConfig, LlavaConfig, Ministral3Config, Mistral3Config, MistralConfig, PixtralVisionConfig,
                          Qwen3Config)

LINE_END, END = 257, 258
TEXT = {"vocab_size": 262, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 2}
VISION = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_act": "silu", "image_size": 64}
# Queries are scaled from the 16th position on.
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1}


def mistral3(text, patch, **changes):
    return Mistral3Config(vision_config=PixtralVisionConfig(**VISION, patch_size=patch), text_config=text, image_token_index=IMAGE, **changes)


MODELS = {
    "mistral3": mistral3(MistralConfig(**TEXT, sliding_window=None, rms_norm_eps=1e-3), 4, tie_word_embeddings=False),
    "ministral3": mistral3(Ministral3Config(**TEXT, rope_parameters=dict(YARN)), 7, tie_word_embeddings=True),
    "with_biases": mistral3(Ministral3Config(**TEXT, rope_parameters=dict(YARN)), 2, tie_word_embeddings=False, spatial_merge_size=3,
                            multimodal_projector_bias=True),
    "pixtral": LlavaConfig(vision_config=PixtralVisionConfig(**VISION, patch_size=8), text_config=MistralConfig(**TEXT, sliding_window=None),
                           image_token_index=IMAGE, vision_feature_layer=-1, vision_feature_select_strategy="full"),
    "lighton_ocr": LightOnOcrConfig(vision_config=PixtralVisionConfig(**VISION, patch_size=7), text_config=Qwen3Config(**TEXT, rms_norm_eps=1e-3),
                                    image_token_id=IMAGE, tie_word_embeddings=True),
}


def merge_of(config):
    return getattr(config, "spatial_merge_size", 1)


class Mistral3(CellFolders, unittest.TestCase):
    configs = MODELS
    pictures = [[(2, 3), (5, 2)], [(3, 4)], [], [(1, 1), (1, 2)]]  # one of a single cell needs another beside it in transformers
    names = [("model.vision_tower.", "vision."), ("model.multi_modal_projector.", ""), ("model.vision_encoder.", "vision."),
             ("model.vision_projection.", ""), ("model.language_model.", "decoder.model."), ("lm_head.", "decoder.lm_head.")]
    further = ["[IMG_BREAK]", "[IMG_END]"]
    files = ["preprocessor_config.json", "processor_config.json", "tokenizer.json"]

    def side(self, config):
        return merge_of(config) * config.vision_config.patch_size

    def shown(self, lines, columns):
        return ([IMAGE] * columns + [LINE_END]) * (lines - 1) + [IMAGE] * columns + [END]

    def given_images(self, config, images, grids):
        """Images that are padded to one size."""
        sizes = [image.shape[1:] for image in images]
        height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
        return {"pixel_values": torch.stack([F.pad(image, (0, width - image.shape[2], 0, height - image.shape[1])) for image in images]),
                "image_sizes": torch.tensor([list(size) for size in sizes])}

    def write_processor(self, folder, name, config):
        patch = config.vision_config.patch_size
        (folder / "preprocessor_config.json").write_text(json.dumps(
            {"image_processor_type": "PixtralImageProcessor", "patch_size": patch, "size": {"longest_edge": 64}}))
        (folder / "processor_config.json").write_text(json.dumps(
            {"processor_class": f"{'LightOnOcr' if name == 'lighton_ocr' else 'Pixtral'}Processor", "patch_size": patch,
             "spatial_merge_size": merge_of(config)}))

    def changed(self, name, target, change):
        shutil.copytree(root / name, root / target)
        config, tensors = json.loads((root / name / "config.json").read_text()), load_file(root / name / "model.safetensors")
        change(config, tensors)
        (root / target / "config.json").write_text(json.dumps(config))
        save_file(tensors, root / target / "model.safetensors", metadata={"format": "pt"})
        return root / target

    def test_the_file_decides_whether_the_head_is_the_embedding(self):
        """Where config.json does not say it, as in published folders, which have another word for axial positions, too."""
        def as_published(config, _):
            del config["tie_word_embeddings"]
            config["vision_config"]["rope_parameters"]["rope_type"] = "default"
        for name, config in MODELS.items():
            if name == "pixtral":
                continue
            with self.subTest(name):
                silent = self.changed(name, f"{name}.silent", as_published)
                run(engine, "import", "--model", silent, "--out", root / f"{name}.silent.model")
                self.assertTrue(self.says_the_same((name, f"{name}.silent"), config))

    def test_the_names_of_transformers_4(self):
        def rename(config, tensors):
            config["vision_config"]["rope_theta"] = config["vision_config"].pop("rope_parameters")["rope_theta"]
            for key in list(tensors):
                newer = key.removeprefix("language_model.") if "lm_head" in key else "model." + key.replace("language_model.model.", "language_model.")
                tensors[newer] = tensors.pop(key)
        for name in ("mistral3", "pixtral"):
            with self.subTest(name):
                run(engine, "import", "--model", self.changed(name, f"{name}.4", rename), "--out", root / f"{name}.4.model")
                for part in ("vision/model", "connector", "decoder/model"):
                    files = [root / f"{one}.model" / f"{part}.safetensors" for one in (name, f"{name}.4")]
                    self.assertEqual(files[0].read_bytes(), files[1].read_bytes(), part)

    def test_a_lighton_ocr_may_call_itself_a_mistral3(self):
        """As published folders do, whose decoder has a key for norms that every Qwen3 has."""
        def as_published(config, _):
            config |= {"model_type": "mistral3", "architectures": ["LightOnOCRForConditionalGeneration"], "projector_hidden_act": "gelu",
                       "multimodal_projector_bias": False, "vision_feature_layer": -1}
            config["text_config"]["use_qk_norm"] = True
        written = self.changed("lighton_ocr", "lighton_ocr.published", as_published) / "processor_config.json"
        written.write_text(written.read_text().replace("LightOnOcr", "LightOnOCR"))
        run(engine, "import", "--model", root / "lighton_ocr.published", "--out", root / "lighton_ocr.published.model")
        self.assertTrue(self.says_the_same(("lighton_ocr", "lighton_ocr.published"), MODELS["lighton_ocr"]))

    def test_a_template_in_the_processors_config_is_the_decoders(self):
        """As older folders have it, whose other files say nothing of chats."""
        written = self.changed("mistral3", "with_template", lambda *_: None) / "processor_config.json"
        chat = "{% for message in messages %}{{ message.content }}!{% endfor %}"
        written.write_text(json.dumps(json.loads(written.read_text()) | {"chat_template": chat}))
        run(engine, "import", "--model", root / "with_template", "--out", root / "with_template.model")
        answer = json.loads(run(engine, "generate", root / "with_template.model", "--prompt", "Hello", "--max-tokens", "2", "--json"))
        self.assertEqual(answer["prompt"], len("Hello!"))
        run(engine, "export", root / "with_template.model", "--huggingface", "--out", root / "with_template.back")
        self.assertEqual((root / "with_template.back" / "processor_config.json").read_bytes(), written.read_bytes())

    def test_folders_that_do_not_fit_are_refused(self):
        projector = "multi_modal_projector.patch_merger.merging_layer.weight"
        beta = {key: value for key, value in YARN.items() if key != "llama_4_scaling_beta"}
        for number, (name, change, *words) in enumerate((
                ("mistral3", lambda _, tensors: tensors.pop(projector), f'tensor "{projector}" is missing'),
                ("mistral3", lambda _, tensors: tensors.update(extra=torch.ones(1)), '"extra"'),
                ("mistral3", edit("spatial_merge_size")(3), f'tensor "{projector}" has the shape [32, 128]', "[32, 288]"),
                ("mistral3", edit("vision_config", "patch_size")(5), 'patch_conv.weight" has the shape [32, 3, 4, 4]', "[32, 3, 5, 5]"),
                ("mistral3", edit("vision_config", "hidden_act")("gelu"), "vision_config", "'hidden_act' = \"gelu\"", "only silu is"),
                ("mistral3", edit("vision_config", "num_attention_heads")(16), "16 heads of a width of 32"),
                ("mistral3", edit("vision_config", "rope_parameters")({"rope_type": "axial", "rope_theta": 500.0}), "'rope_parameters'",
                 "theta of 10000"),
                ("mistral3", edit("vision_feature_layer")(-2), "'vision_feature_layer' = -2", "-1 is"),
                ("mistral3", edit("projector_hidden_act")("relu"), "'projector_hidden_act' = \"relu\""),
                ("mistral3", edit("quantization_config")({"quant_method": "mxfp4"}), "'quant_method' = \"mxfp4\""),
                ("ministral3", edit("text_config", "rope_parameters")(beta), "text_config", "'llama_4_scaling_beta' is missing"),
                ("lighton_ocr", lambda _, tensors: tensors.pop("model.vision_projection.norm.weight"),
                 'tensor "model.vision_projection.norm.weight" is missing'),
                ("lighton_ocr", edit("text_config", "model_type")("qwen2_moe"), "text_config", '"qwen2_moe" is not supported as decoder'),
                ("pixtral", edit("vision_feature_select_strategy")("default"), "'vision_feature_select_strategy' = \"default\"", "only full is"))):
            with self.subTest(words[0]):
                wrong = self.changed(name, f"wrong-{number}", change)
                said = run(engine, "import", "--model", wrong, "--out", root / "refused", code=4)
                for word in words:
                    self.assertIn(word, said)
                self.assertFalse((root / "refused").exists())


if __name__ == "__main__":
    unittest.main()
