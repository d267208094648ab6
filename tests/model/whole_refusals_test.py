"""What `import --model` and `export --huggingface` say of folders of whole models that do not fit.

usage: whole_refusals_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import shutil
import subprocess
import unittest

from byte_tokenizer import tokenizer
from with_transformers import changed_copy, engine, folder as root, run
from whole_models import IMAGE, VOCABULARY, make_models

import torch


def setUpModule():
    make_models(("llava-clip-llama", "llava-siglip-llama", "smolvlm", "internvl-qwen2", "qianfan-ocr", "ovis2", "granite-docling"))


class WrongFolders(unittest.TestCase):
    def refused(self, name, *words, config=None, tensors=None, tokenizer=None, **options):
        """Importing a changed copy of a folder ends with code 4, says these words, and leaves nothing behind."""
        changed = changed_copy(root / name, config, tensors)
        if tokenizer is not None:
            (changed / "tokenizer.json").write_text(tokenizer)
        said = run(engine, "import", *options.get("by", ("--model", changed)), "--out", root / "refused", code=4)
        for word in words:
            self.assertIn(word, said)
        self.assertFalse((root / "refused").exists())
        return said

    def test_another_architecture(self):
        self.refused("smolvlm", '"mllama" is not supported', "llava, llava_next, ", "config.json",
                     config=lambda one: one.update(model_type="mllama"))
        self.refused("smolvlm", '"deepseek_vl_hybrid" is not supported', "deepseek_vl, ", config=lambda one: one.update(model_type="deepseek_vl_hybrid"))
        self.refused("llava-clip-llama", '"mixtral" is not supported as decoder', "text_config", "llama, mistral",
                     config=lambda one: one["text_config"].update(model_type="mixtral"))
        self.refused("llava-clip-llama", '"mllama_vision_model" is not supported as vision tower', "vision_config",
                     config=lambda one: one["vision_config"].update(model_type="mllama_vision_model"))
        self.refused("smolvlm", "--model", '"smolvlm"', by=("--vision", root / "smolvlm", "--decoder", root / "smolvlm"))

    def test_a_missing_image_processor_is_warned_of(self):
        def warned(name):
            said = subprocess.run([str(engine), "import", "--model", str(root / name), "--out", str(root / f"{name}.imported")],
                                  capture_output=True, text=True, check=True).stderr
            return "there is no preprocessor_config.json" in said
        bare = root / "bare"
        shutil.copytree(root / "llava-clip-llama", bare)
        for file in ("preprocessor_config.json", "processor_config.json"):
            (bare / file).unlink(missing_ok=True)
        self.assertEqual((warned("bare"), warned("llava-clip-llama")), (True, False))

    def test_what_is_not_supported_is_named(self):
        self.refused("llava-clip-llama", "'projector_hidden_act' = \"relu\"", config=lambda one: one.update(projector_hidden_act="relu"))
        for layers, written in (([-2, 4], "[-2,4]"), ([], "[]"), ([-4], "[-4]"), ("last", '"last"'), (0, "0")):
            said = self.refused("llava-clip-llama", f"'vision_feature_layer' = {written} is none of the 3 layers, and no list of some",
                                config=lambda one: one.update(vision_feature_layer=layers))
            self.assertEqual(said.count("vision_feature_layer"), 1, said)
        self.refused("llava-clip-llama", "multi_modal_projector.linear_1.weight",
                     config=lambda one: one.update(vision_feature_layer=[-2, -1]))
        self.refused("internvl-qwen2", "'downsample_ratio' = 0.4", "'vision_feature_select_strategy' = \"full\"",
                     config=lambda one: one.update(downsample_ratio=0.4, vision_feature_select_strategy="full"))
        self.refused("qianfan-ocr", "'norm_type' = \"batch_norm\"", "layer_norm and rms_norm are",
                     config=lambda one: one["vision_config"].update(norm_type="batch_norm"))
        self.refused("llava-siglip-llama", "'vision_feature_select_strategy' = \"default\"", "no class token",
                     config=lambda one: one.update(vision_feature_select_strategy="default"))

    def test_what_ovis2_does_not_support_is_named(self):
        for part, key, value, *words in (
                ("vision_config", "hidden_stride", 3, "vision_config: 'hidden_stride' = 3 does not divide the 4 patches of a side of an image"),
                ("vision_config", "num_visual_indicator_tokens", 4, "'num_visual_indicator_tokens' = 4", "5 is"),
                ("vision_config", "tokenize_function", "st_argmax", "'tokenize_function' = \"st_argmax\"", "only softmax is"),
                ("vision_config", "vocab_size", 46, 'head_linear.weight" has the shape [40, 128]', "[41, 128]", "visual_embeddings_table.weight"),
                ("vision_config", "vocab_size", 5, "'vocab_size' is 5", "from 6"),
                ("vision_config", "hidden_act", "gelu", "'hidden_act' = \"gelu\"", "only silu is"),
                ("vision_config", "qkv_bias", True, "'qkv_bias' = true"),
                (None, "visual_indicator_token_ids", [250, 251], "'visual_indicator_token_ids' = [250,251]", "5 ids are"),
                (None, "hidden_size", 64, "'hidden_size' = 64", "that of text_config is 48"),
                (None, "vocab_size", 100, "'vocab_size' = 100", "that of text_config is 260")):
            with self.subTest(key, value=value):
                self.refused("ovis2", *words, config=lambda one: (one[part] if part else one).update({key: value}))

    def test_what_granite_docling_does_not_support_is_named(self):
        for part, key, value, *words in (
                ("vision_config", "deepstack_visual_indexes", [2, 0], "'deepstack_visual_indexes' = [2,0]", "layers from 0 to 2 in ascending order are"),
                ("vision_config", "deepstack_visual_indexes", [0, 3], "'deepstack_visual_indexes' = [0,3]", "layers from 0 to 2 in ascending order are"),
                ("text_config", "num_hidden_layers", 1, "'deepstack_visual_indexes' names 2 layers", "has 1"),
                ("vision_config", "out_hidden_size", 40, "'out_hidden_size' = 40 of vision_config is not 'hidden_size' = 48 of text_config"),
                ("vision_config", "scale_factor", 1, "'scale_factor' = 1", "an even number is"),
                ("vision_config", "scale_factor", 4, 'model.vision_model.connector.coarse.projection.weight" has the shape [48, 128]'),
                ("text_config", "hidden_act", "gelu", "'hidden_act' = \"gelu\"", "only silu is"),
                (None, "density_router_hidden_size", 21, 'model.density_router.fc1.weight" has the shape [20, 32]')):
            with self.subTest(key, value=value):
                self.refused("granite-docling", *words, config=lambda one: (one[part] if part else one).update({key: value}))

    def test_fused_tensors_whose_rows_are_not_those_of_three(self):
        name = "vision_model.encoder.layers.1.attn.qkv.weight"

        def resize(rows):
            return lambda tensors: tensors.update({name: tensors[name][:rows].clone()})
        self.refused("qianfan-ocr", f'"{name}" has the shape [95, 32]', "those of 3 tensors", tensors=resize(95))
        self.refused("qianfan-ocr", "vision_model.encoder.layers.1.attention.k_proj.weight", "[31, 32]", tensors=resize(93))
        self.refused("qianfan-ocr", "vision_model.encoder.layers.1.attention.k_proj.weight", tensors=lambda tensors: tensors.pop(name))

    def test_missing_and_unknown_and_misshapen_tensors(self):
        def change(tensors):
            tensors["model.text_model.layers.7.mlp.up_proj.weight"] = torch.zeros(2, 2)
            tensors["visual_projection"] = torch.zeros(2)
            del tensors["model.vision_model.encoder.layers.1.mlp.fc1.bias"]
            tensors["model.connector.modality_projection.proj.weight"] = torch.zeros(3, 3)

        self.refused("smolvlm", 'tensor "model.text_model.layers.7.mlp.up_proj.weight" is not one of this model',
                     'tensor "visual_projection" is not one of this model',
                     'tensor "model.vision_model.encoder.layers.1.mlp.fc1.bias" is missing',
                     'tensor "model.connector.modality_projection.proj.weight" has the shape [3, 3]', "model.safetensors", tensors=change)

    def test_an_image_token_outside_the_vocabulary(self):
        for name, key in (("llava-clip-llama", "image_token_index"), ("smolvlm", "image_token_id")):
            self.refused(name, f"the image token {VOCABULARY} is outside the vocabulary of {VOCABULARY} tokens", "config.json",
                         config=lambda one: one.update({key: VOCABULARY}))

    def test_a_tokenizer_that_does_not_fit(self):
        self.refused("smolvlm", "tokenizer", str(VOCABULARY), tokenizer=tokenizer(VOCABULARY + 1))
        without = json.loads(tokenizer()) | {"added_tokens": []}
        self.refused("smolvlm", f"{IMAGE} is the image token", "tokens 0 to 255", "tokenizer.json", tokenizer=json.dumps(without))

    def test_models_that_are_not_of_the_imported_form(self):
        model = root / "smolvlm.model"
        run(engine, "import", "--vision", model / "vision", "--decoder", model / "decoder", "--out", root / "foveated")
        said = run(engine, "export", root / "foveated", "--huggingface", "--out", root / "refused", code=4)
        for word in ("other kinds or sizes", '"model.connector.modality_projection.proj.weight" of the imported folder',
                     "without --huggingface"):
            self.assertIn(word, said)
        shutil.copytree(root / "foveated", root / "separate")
        (root / "separate" / "decoder" / "whole_model.json").unlink()
        said = run(engine, "export", root / "separate", "--huggingface", "--out", root / "refused", code=4)
        self.assertIn("was not imported from one Hugging Face folder", said)

    def test_options_that_exclude_each_other(self):
        said = run(engine, "import", "--model", root / "smolvlm", "--vision", root / "smolvlm", "--out", root / "refused", code=2)
        self.assertIn("--model excludes --vision", said)
        said = run(engine, "import", "--out", root / "refused", code=2)
        self.assertIn("--vision is missing", said)


if __name__ == "__main__":
    unittest.main()
