"""CLIP's, SigLIP's, SmolVLM's, InternVL's, Qianfan-OCR's, Ovis2's and Granite Docling's vision encoders against transformers: hidden states, every gradient, and folders.

usage: vit_test.py FVLM_ENGINE TOWER_PROBE; exit 77 where transformers is missing."""
import json
import shutil
import sys
import unittest
from pathlib import Path

from with_transformers import assert_near, engine, folder as root, run, with_float64

import torch
from safetensors.torch import load_file, save_file
from transformers import (CLIPConfig, CLIPModel, CLIPVisionConfig, CLIPVisionModel, InternVLVisionConfig, InternVLVisionModel,
                          LlamaConfig, LlamaForCausalLM, SiglipConfig, SiglipModel, SiglipVisionConfig, SiglipVisionModel)
from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionConfig, Idefics3VisionTransformer
from transformers.models.granite_docling.modeling_granite_docling import GraniteDoclingVisionConfig, GraniteDoclingVisionModel
from transformers.models.ovis2.modeling_ovis2 import Ovis2VisionConfig, Ovis2VisionModel
from transformers.models.qianfan_ocr.modeling_qianfan_ocr import QianfanOCRVisionConfig, QianfanOCRVisionModel
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionConfig, SmolVLMVisionTransformer

probe = Path(sys.argv.pop(1)).resolve()
BASE = {"hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 14}
TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 30,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
TOKENIZER = """{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"}}"""


def make(kind, config):
    """A model whose every bias and scale matters."""
    torch.manual_seed(1)
    model = kind(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def saved(model, **changes):
    folder = root / f"folder-{len(list(root.iterdir()))}"
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def last_hidden(model, frames):
    return model(frames).last_hidden_state


def last_hidden_of_any_size(model, frames):
    return model(frames, interpolate_pos_encoding=True).last_hidden_state


def d_hidden_like(hidden):
    return torch.randn(hidden.shape, generator=torch.Generator().manual_seed(3)).to(hidden.dtype)


class Encoders(unittest.TestCase):
    def check(self, folder, model, frames, hidden_of):
        """hidden_of(model, frames): [frames, tokens, width], what the folder's encoder should make of the frames."""
        hidden = hidden_of(model, frames).detach()
        save_file({"frames": frames, "d_hidden": d_hidden_like(hidden).flatten(0, 1)}, root / "in.safetensors")
        run(probe, "vision", folder, root / "in.safetensors", root / "out.safetensors")

        def expected_of(model):
            model.zero_grad()
            hidden = hidden_of(model, frames.to(next(model.parameters()).dtype))
            hidden.backward(d_hidden_like(hidden))
            return {name: p.grad for name, p in model.named_parameters() if p.grad is not None} | {"hidden": hidden.detach()}

        ours, (expected, exact) = load_file(root / "out.safetensors"), with_float64(expected_of, model)
        self.assertEqual(set(ours), set(expected))
        assert_near(ours, expected, exact, folder.name)

    def test_clip(self):
        for changes in ({}, {"hidden_act": "gelu"}, {"hidden_act": "gelu_pytorch_tanh", "hidden_size": 30, "num_attention_heads": 3}):
            with self.subTest(**changes):
                model, frames = make(CLIPVisionModel, CLIPVisionConfig(**(BASE | changes))), torch.randn(2, 3, 28, 28)
                self.check(saved(model), model, frames, last_hidden)

    def test_clip_at_another_image_size(self):
        model, frames = make(CLIPVisionModel, CLIPVisionConfig(**BASE)), torch.randn(3, 3, 42, 56)
        self.check(saved(model), model, frames, last_hidden_of_any_size)

    def test_features_of_any_layer_with_and_without_the_class_token(self):
        model, frames = make(CLIPVisionModel, CLIPVisionConfig(**BASE)), torch.randn(2, 3, 28, 28)
        for layer in (-1, -2, 1, 3, -3):
            for strategy in ("full", "default"):
                with self.subTest(layer=layer, strategy=strategy):
                    folder = saved(model, vision_feature_layer=layer, vision_feature_select_strategy=strategy)
                    self.check(folder, model, frames, lambda model, frames: model(frames, output_hidden_states=True).hidden_states[layer][
                        :, 1 if strategy == "default" else 0:])

    def test_features_of_several_layers_side_by_side(self):
        for kind, config in ((CLIPVisionModel, CLIPVisionConfig), (SiglipVisionModel, SiglipVisionConfig)):
            model, frames = make(kind, config(**BASE)), torch.randn(2, 3, 28, 28)
            for layers in ([-2, 1], [3, 1], [2]):
                with self.subTest(kind=kind.__name__, layers=layers):
                    self.check(saved(model, vision_feature_layer=layers), model, frames, lambda model, frames: torch.cat(
                        [model(frames, output_hidden_states=True).hidden_states[layer] for layer in layers], -1))

    def test_siglip(self):
        for changes in ({}, {"vision_use_head": False}, {"hidden_act": "gelu"}):
            with self.subTest(**changes):
                model, frames = make(SiglipVisionModel, SiglipVisionConfig(**(BASE | changes))), torch.randn(2, 3, 28, 28)
                self.check(saved(model), model, frames, last_hidden)

    def test_siglip_at_another_image_size_and_layer(self):
        model, frames = make(SiglipVisionModel, SiglipVisionConfig(**BASE)), torch.randn(3, 3, 56, 42)
        self.check(saved(model), model, frames, last_hidden_of_any_size)
        self.check(saved(model, vision_feature_layer=-2), model, frames, lambda model, frames: model(
            frames, interpolate_pos_encoding=True, output_hidden_states=True).hidden_states[-2])

    def test_position_ids_of_idefics3_and_smolvlm(self):
        for patches in (2, 13, 27):  # fractions of 1/13 and 1/27 are rounded
            config = BASE | {"patch_size": 4, "image_size": 4 * patches}
            for kind, of in ((Idefics3VisionTransformer, Idefics3VisionConfig), (SmolVLMVisionTransformer, SmolVLMVisionConfig)):
                model = make(kind, of(**config))
                folder = saved(model)
                for rows, columns in ((patches, patches), (1, patches), (patches, 3), (5, 2 * patches)):
                    with self.subTest(patches=patches, rows=rows, columns=columns, kind=kind.__name__):
                        frames = torch.randn(2, 3, 4 * rows, 4 * columns)
                        self.check(folder, model, frames, last_hidden)

    def test_internvl(self):
        for changes in ({}, {"attention_bias": True}, {"use_qk_norm": True, "norm_type": "rms_norm"},
                        {"use_qk_norm": True, "attention_bias": True, "layer_norm_eps": 1e-3}, {"use_mean_pooling": False},
                        {"hidden_act": "gelu_pytorch_tanh", "use_mask_token": True, "hidden_size": 30, "num_attention_heads": 3}):
            with self.subTest(**changes):
                model, frames = make(InternVLVisionModel, InternVLVisionConfig(**(BASE | changes))), torch.randn(2, 3, 28, 28)
                self.check(saved(model), model, frames, last_hidden)

    def test_qianfan_ocr(self):
        for changes in ({}, {"use_qk_norm": True, "attention_bias": False, "use_mean_pooling": False}):
            with self.subTest(**changes):
                model, frames = make(QianfanOCRVisionModel, QianfanOCRVisionConfig(**(BASE | changes))), torch.randn(2, 3, 28, 28)
                self.check(saved(model), model, frames, last_hidden)

    def test_ovis2(self):
        """The head behind the transformer, which is the connector's, is in its files, too."""
        for changes in ({}, {"rms_norm_eps": 1e-2, "intermediate_size": 70, "hidden_size": 30, "num_attention_heads": 3}):
            with self.subTest(**changes):
                model, frames = make(Ovis2VisionModel, Ovis2VisionConfig(**(BASE | {"vocab_size": 20} | changes))), torch.randn(2, 3, 28, 28)
                self.check(saved(model), model.transformer, frames, last_hidden)

    def test_granite_docling(self):
        """The connector, which is one of its own here, is in its files, too."""
        for changes in ({"deepstack_visual_indexes": [0, 2]}, {"deepstack_visual_indexes": [], "use_fine_route": False, "scale_factor": 1, "hidden_act": "gelu"}):
            with self.subTest(**changes):
                config = GraniteDoclingVisionConfig(**(BASE | {"out_hidden_size": 24, "scale_factor": 2} | changes))
                model = make(GraniteDoclingVisionModel, config)
                self.check(saved(model), model, torch.randn(2, 3, 28, 28), lambda model, frames: model.encode(frames)[0])

    def test_internvl_at_another_image_size_and_layer(self):
        model, frames = make(InternVLVisionModel, InternVLVisionConfig(**BASE, use_mean_pooling=False)), torch.randn(3, 3, 42, 56)
        self.check(saved(model), model, frames, last_hidden)
        for layer in (-2, 1, 3):
            with self.subTest(layer=layer):
                folder = saved(model, vision_feature_layer=layer, vision_feature_select_strategy="default")
                self.check(folder, model, frames, lambda model, frames: model(frames, output_hidden_states=True).hidden_states[layer][:, 1:])

    def import_folder(self, vision):
        decoder, out = root / "decoder", root / f"model-{vision.name}"
        if not decoder.exists():
            LlamaForCausalLM(LlamaConfig(vocab_size=61, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                         num_attention_heads=1, pad_token_id=None)).save_pretrained(decoder)
            (decoder / "tokenizer.json").write_text(TOKENIZER)
        run(engine, "import", "--vision", vision, "--decoder", decoder, "--out", out)
        return out / "vision"

    def expect_same_tensors(self, folder, source, prefix=""):
        ours, theirs = load_file(folder / "model.safetensors"), load_file(source / "model.safetensors")
        theirs = {name.removeprefix(prefix): value for name, value in theirs.items() if name.startswith(prefix)}
        self.assertEqual(set(ours), set(theirs))
        for name, value in theirs.items():
            self.assertTrue(torch.equal(ours[name], value) and ours[name].dtype == value.dtype, name)

    def test_folders_come_back_with_equal_bytes(self):
        frames = torch.randn(2, 3, 28, 28)
        for kind, of in ((CLIPVisionModel, CLIPVisionConfig), (SiglipVisionModel, SiglipVisionConfig),
                         (SmolVLMVisionTransformer, SmolVLMVisionConfig), (InternVLVisionModel, InternVLVisionConfig)):
            with self.subTest(kind.__name__):
                model = make(kind, of(**BASE))
                for changes in ({}, {"vision_feature_layer": -2}):
                    source = saved(model, **changes)
                    out = self.import_folder(source)
                    self.expect_same_tensors(out, source)
                    again = kind.from_pretrained(out).eval()
                    self.assertTrue(torch.equal(last_hidden(again, frames), last_hidden(model, frames)))

    def test_the_vision_part_of_a_whole_model(self):
        frames = torch.randn(2, 3, 28, 28)
        for kind, of, vision, part in ((CLIPModel, CLIPConfig, CLIPVisionConfig, CLIPVisionModel),
                                       (SiglipModel, SiglipConfig, SiglipVisionConfig, SiglipVisionModel)):
            with self.subTest(kind.__name__):
                whole = make(kind, of(vision_config=vision(**BASE).to_dict(), text_config=TEXT))
                source = saved(whole)
                self.check(source, whole.vision_model, frames, last_hidden)
                out = self.import_folder(source)
                self.expect_same_tensors(out, source, "vision_model.")
                again = part.from_pretrained(out).eval()
                self.assertTrue(torch.equal(last_hidden(again, frames), last_hidden(whole.vision_model, frames)))

    def test_names_of_older_files(self):
        model, frames = make(CLIPVisionModel, CLIPVisionConfig(**BASE)), torch.randn(2, 3, 28, 28)
        folder = saved(model)
        old = {f"vision_model.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
        old["vision_model.embeddings.position_ids"] = torch.arange(5)[None]
        save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
        self.check(folder, model, frames, last_hidden)

    def test_what_is_not_supported_is_named(self):
        frames = {"frames": torch.randn(1, 3, 28, 28), "d_hidden": torch.randn(5, 32)}
        save_file(frames, root / "in.safetensors")
        self.expect_refusals(saved(make(InternVLVisionModel, InternVLVisionConfig(**BASE))), (
            ({"norm_type": "batch_norm"}, ["'norm_type' = \"batch_norm\"", "rms_norm"]),
            ({"use_absolute_position_embeddings": False}, ["'use_absolute_position_embeddings' = false"]),
            ({"projection_dropout": 0.5}, ["'projection_dropout' = 0.5"]),
            ({"image_size": [28, 42]}, ["'image_size'", "[28,42]"])))
        self.expect_refusals(saved(make(Ovis2VisionModel, Ovis2VisionConfig(**BASE, vocab_size=20))), (
            ({"hidden_act": "gelu"}, ["'hidden_act' = \"gelu\"", "only silu is"]),
            ({"qkv_bias": True, "mlp_bias": True}, ["'qkv_bias' = true", "'mlp_bias' = true", "have no biases"])))
        self.expect_refusals(saved(make(CLIPVisionModel, CLIPVisionConfig(**BASE))), (
            ({"hidden_act": "relu"}, ["'hidden_act' = \"relu\"", "quick_gelu"]),
            ({"attention_dropout": 0.1}, ["'attention_dropout' = 0.1"]),
            ({"vision_feature_layer": 4}, ["'vision_feature_layer' = 4", "3 layers"]),
            ({"vision_feature_layer": [1, 4]}, ["'vision_feature_layer' = [1,4]", "3 layers"]),
            ({"vision_feature_select_strategy": "cls"}, ["'vision_feature_select_strategy' = \"cls\""]),
            ({"num_attention_heads": 5}, ["5 heads", "32"])))

    def expect_refusals(self, source, cases):
        for changes, words in cases:
            with self.subTest(**changes):
                folder = root / "changed"
                shutil.copytree(source, folder, dirs_exist_ok=True)
                config = json.loads((source / "config.json").read_text())
                (folder / "config.json").write_text(json.dumps(config | changes))
                said = run(probe, "vision", folder, root / "in.safetensors", root / "out.safetensors", code=4)
                for word in words:
                    self.assertIn(word, said)


if __name__ == "__main__":
    unittest.main()
