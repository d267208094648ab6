"""mmproj.gguf beside the package gguf: every tensor of the encoder and the connector under the name of gguf's own table, and the keys that
llama.cpp reads.

usage: vision_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))
from picture_questions import engine, folder, load_file, run, strengthen, tokenizer, tool, torch

try:
    import gguf
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, SiglipVisionConfig

VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28, "patch_size": 7}
TEXT = {"vocab_size": 260, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "bos_token_id": None, "eos_token_id": 258, "pad_token_id": None}
PIXELS = {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 3, "rescale_factor": 1 / 255}
QWEN3_VL = {"merger.norm": "v.post_ln", "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2"}
# A folder of the oracle's, and what llama.cpp calls tensors that are no weights or biases of a module in gguf's table.
MADE = {"smolvlm": {}, "gemma3": {"mm_input_projection_weight": "mm.input_projection.weight"},
        "internvl": {"cls_token": "v.class_embd", "position_embeddings": "v.position_embd.weight", "lambda_1": "ls1.weight",
                     "lambda_2": "ls2.weight", "multi_modal_projector.layer_norm": "mm.model.mlp.0",
                     "multi_modal_projector.linear_1": "mm.model.mlp.1", "multi_modal_projector.linear_2": "mm.model.mlp.3"},
        "qwen2_vl": {}, "qwen2_5_vl": {}, "qwen3_vl": QWEN3_VL, "qwen3_vl_moe": QWEN3_VL,
        "lfm2-vl": {}, "paddleocr-vl": {}, "glm-ocr": {}, "mistral3": {}, "gemma4": {"position_embedding_table": "v.position_embd.weight"}}


def make_llava(name, **config):
    torch.manual_seed(1)
    LlavaForConditionalGeneration(LlavaConfig(image_token_index=256, text_config=LlamaConfig(**TEXT), **config)).save_pretrained(folder / name)
    (folder / name / "tokenizer.json").write_text(tokenizer())
    clip = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28},
            "do_center_crop": True, "image_mean": [0.48, 0.45, 0.4], "image_std": [0.26, 0.27, 0.28]}
    siglip = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 28, "width": 28}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / name / "preprocessor_config.json").write_text(json.dumps(PIXELS | (siglip if "siglip" in name else clip)))


def setUpModule():
    (folder / "tokenizer").mkdir()
    tokens, bytes_of = json.loads(tokenizer(259, ["<|endoftext|>"])), {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokens | {"pre_tokenizer": bytes_of, "decoder": bytes_of}))
    for name in MADE:
        made = ["make-qwen2-vl", folder / name, "--family", name] if name.startswith("qwen") else [f"make-{name}", folder / name]
        tool(*made, *(["--family", "mistral3"] if name == "mistral3" else []), "--tokenizer", folder / "tokenizer")
    config = json.loads((folder / "qwen2_5_vl" / "config.json").read_text())
    config["vision_config"]["window_size"] = 112  # as all published ones have it, and llama.cpp
    (folder / "qwen2_5_vl" / "config.json").write_text(json.dumps(config))
    make_llava("llava", vision_config=CLIPVisionConfig(**VISION))  # reads the last layer but one, without the class token
    make_llava("llava-siglip", vision_config=SiglipVisionConfig(**VISION, vision_use_head=False), vision_feature_layer=-1,
               vision_feature_select_strategy="full")
    make_llava("llava-class", vision_config=CLIPVisionConfig(**VISION), vision_feature_select_strategy="full")
    for name in (*MADE, "llava", "llava-siglip", "llava-class"):
        strengthen(folder / name / "model.safetensors")
        run(engine, "import", "--model", name, "--out", f"{name}.model")


def exported(name, kind="f32"):
    out = folder / f"{name}.{kind}"
    if not out.exists():
        run(engine, "export", f"{name}.model", "--gguf", kind, "--out", out)
    return gguf.GGUFReader(out / "mmproj.gguf")


def values(reader):
    return {key: field.contents() for key, field in reader.fields.items()}


class Vision(unittest.TestCase):
    def tensors(self, name, further):
        reader = exported(name)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 3)
        tensors = {tensor.name: torch.tensor(tensor.data) for tensor in reader.tensors}
        state, expected = load_file(folder / name / "model.safetensors"), {}
        for own, tensor in state.items():
            if "language_model" in own or "text_model" in own or own.startswith(("lm_head", "model.embed_tokens", "model.layers", "model.norm")):
                continue
            spelled = (own, own.removeprefix("model."), f"model.{own}", own.replace("vision_tower.", "vision_tower.vision_model."),
                       own.replace("model.vision_tower.", "vision_tower.vision_model."), own.replace("visual.vision_model.", "vision_tower.vision_model."),
                       own.replace("model.vision_tower.encoder.", "vision_model.model.").replace(".linear.weight", ".weight"))
            endings = (".weight", ".bias", ".input_min", ".input_max", ".output_min", ".output_max")
            known = next(filter(None, (names.get_name(one, endings) for one in spelled)), None)
            ending = "." + own.rsplit(".", 1)[1]
            for part, theirs in further.items():
                if own.endswith(part) or own.endswith(part + ending):
                    layer = own.split(".layer.")[1].split(".")[0] if part.startswith("lambda") else ""
                    known = (f"v.blk.{layer}." if layer else "") + theirs + (ending if own.endswith(part + ending) else "")
            self.assertIsNotNone(known, own)
            if name == "mistral3" and ("q_proj" in own or "k_proj" in own):  # rotary positions turn neighbours there
                tensor = tensor.unflatten(0, (2, 2, -1)).transpose(1, 2).reshape(tensor.shape)
            if tensor.dim() == 2 and "patch_embed" in own:  # a row of pixels becomes a convolution
                tensor = tensor.unflatten(1, (4, 4, 3)).permute(0, 3, 1, 2)
            if ".qkv." in own and MADE.get(name) is not QWEN3_VL:
                expected |= {known.replace("qkv", part): piece for part, piece in zip("qkv", tensor.chunk(3))}
            elif tensor.dim() == 5:  # a convolution for each of two frames
                expected |= {known: tensor[:, :, 0], known + ".1": tensor[:, :, 1]}
            else:
                expected[known] = tensor + 1 if "soft_emb_norm" in own else tensor
        return tensors, expected

    def test_every_tensor(self):
        for name, further in MADE.items():
            with self.subTest(name):
                tensors, expected = self.tensors(name, further)
                if name == "mistral3":  # behind each line of patches
                    row = json.loads((folder / name / "tokenizer.json").read_text())["added_tokens"]
                    row = next(token["id"] for token in row if token["content"] == "[IMG_BREAK]")
                    state = load_file(folder / name / "model.safetensors")
                    expected["v.token_embd.img_break"] = next(value for key, value in state.items() if key.endswith("embed_tokens.weight"))[row]
                self.assertEqual(set(tensors), set(expected))
                for key, right in expected.items():
                    self.assertTrue(torch.equal(tensors[key], right.reshape(tensors[key].shape)), key)

    def test_layers_that_are_read_alone(self):
        for name, layers in {"llava": 2, "llava-siglip": 3}.items():
            with self.subTest(name):
                tensors, expected = self.tensors(name, {"multi_modal_projector.linear_1": "mm.0"})  # the table has Pixtral's
                left_out = {key for key in expected if key.startswith("v.blk.2.") and layers == 2} | {"v.post_ln.weight", "v.post_ln.bias"}
                self.assertEqual(set(tensors), set(expected) - left_out)
                for key, tensor in tensors.items():
                    self.assertTrue(torch.equal(tensor, expected[key]), key)
                keys = values(exported(name))
                self.assertEqual((keys["clip.projector_type"], keys["clip.vision.block_count"], keys["clip.vision.feature_layer"]),
                                 ("mlp", layers, [layers]))
                self.assertEqual("clip.use_gelu" in keys, name == "llava-siglip")

    def test_keys(self):
        keys = values(exported("smolvlm"))
        expected = {"general.architecture": "clip", "clip.has_vision_encoder": True, "clip.projector_type": "idefics3", "clip.use_gelu": True,
                    "clip.vision.image_size": 32, "clip.vision.patch_size": 8, "clip.vision.embedding_length": 64,
                    "clip.vision.feed_forward_length": 256, "clip.vision.block_count": 2, "clip.vision.attention.head_count": 4,
                    "clip.vision.projection_dim": 64, "clip.vision.projector.scale_factor": 2, "clip.vision.preproc_image_size": 64,
                    "clip.vision.image_mean": [0.5] * 3, "clip.vision.image_std": [0.5] * 3}
        self.assertEqual({key: keys.get(key) for key in expected}, expected)
        internvl, gemma = values(exported("internvl")), values(exported("gemma3"))
        self.assertEqual([internvl[f"clip.vision.{key}"] for key in ("projector.scale_factor", "preproc_min_tiles", "preproc_max_tiles")], [2, 1, 4])
        qwen, qwen25 = values(exported("qwen2_vl")), values(exported("qwen2_5_vl"))
        self.assertEqual([keys["clip.projector_type"] for keys in (qwen, qwen25)], ["qwen2vl_merger", "qwen2.5vl_merger"])
        self.assertEqual([keys["clip.vision.spatial_merge_size"] for keys in (qwen, qwen25)], [2, 2])
        self.assertEqual((qwen25["clip.use_silu"], "clip.use_gelu" in qwen, "clip.vision.n_wa_pattern" in qwen), (True, False, False))
        deep, gemma4, paddle = values(exported("qwen3_vl")), values(exported("gemma4")), values(exported("paddleocr-vl"))
        self.assertEqual((deep["clip.vision.is_deepstack_layers"], deep["clip.vision.image_size"]), ([True, False], 24))  # learned positions of 6 x 6 patches
        self.assertEqual(values(gguf.GGUFReader(folder / "qwen3_vl.f32" / "model.gguf"))["qwen3vl.n_deepstack_layers"], 1)
        exported("qwen3_vl_moe")
        of_experts = values(gguf.GGUFReader(folder / "qwen3_vl_moe.f32" / "model.gguf"))
        self.assertEqual((of_experts["general.architecture"], of_experts["qwen3vlmoe.n_deepstack_layers"]), ("qwen3vlmoe", 1))
        self.assertEqual((gemma4["clip.vision.image_mean"], gemma4["clip.vision.image_std"], gemma4["clip.vision.projector.scale_factor"]),
                         ([0] * 3, [1] * 3, 3))
        self.assertEqual((paddle["clip.vision.image_min_pixels"], paddle["clip.vision.image_max_pixels"]), (64, 2560))
        self.assertEqual((gemma["clip.projector_type"], gemma["clip.vision.projector.scale_factor"]), ("gemma3", 2))

    def test_types(self):
        for kind, linear, patch in (("f16", "F16", "F16"), ("bf16", "BF16", "F32"), ("q8_0", "Q8_0", "F32")):
            with self.subTest(kind):
                types = {tensor.name: tensor.tensor_type.name for tensor in exported("smolvlm", kind).tensors}
                self.assertEqual([types[name] for name in ("v.blk.0.attn_q.weight", "mm.model.fc.weight", "v.patch_embd.weight",
                                                           "v.position_embd.weight", "v.blk.0.ln1.weight")],
                                 [linear, linear, patch, "F32", "F32"])

    def test_the_decoder_comes_along(self):
        exported("smolvlm")
        reader = gguf.GGUFReader(folder / "smolvlm.f32" / "model.gguf")
        tensors = {tensor.name: torch.tensor(tensor.data) for tensor in reader.tensors}
        state = load_file(folder / "smolvlm" / "model.safetensors")
        self.assertTrue(torch.equal(tensors["token_embd.weight"], state["model.text_model.embed_tokens.weight"]))

    def test_refusals(self):
        said = run(engine, "export", "llava-class.model", "--gguf", "f16", "--out", "none", code=4)
        self.assertIn("the decoder reads the class token", said)
        self.assertFalse((folder / "none").exists())
        run(engine, "export", "llava-class.model", "--gguf", "f16", "--decoder-only", "--out", "alone")
        self.assertEqual([path.name for path in (folder / "alone").iterdir()], ["model.gguf"])


class Decoders(unittest.TestCase):
    """Of whole models that rotate rows by several positions: llama.cpp then has the two features of a pair half of the rotated ones apart."""

    def test_pairs(self):
        for name, heads in (("glm-ocr", 4), ("paddleocr-vl", 0)):
            with self.subTest(name):
                exported(name)
                state = load_file(folder / name / "model.safetensors")
                right = next(tensor for key, tensor in state.items() if "visual" not in key and key.endswith("layers.1.self_attn.q_proj.weight"))
                if heads:  # files of GLM's have them next to each other
                    right = right.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(right.shape)
                found = {tensor.name: torch.tensor(tensor.data) for tensor in gguf.GGUFReader(folder / f"{name}.f32" / "model.gguf").tensors}
                self.assertTrue(torch.equal(found["blk.1.attn_q.weight"], right))


if __name__ == "__main__":
    unittest.main()
