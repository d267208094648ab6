"""Quantized model directories beside compressed-tensors and transformers: packed bytes, logits of decoders and of a whole SmolVLM,
ways through import and export, and what is said of models that cannot be quantized or are damaged.

usage: export_test.py FVLM_ENGINE; exit 77 where the oracle's wheels are missing."""
import json
import shutil
import subprocess
import sys
import unittest
from unittest import mock

import tiny_smolvlm
from tiny_smolvlm import FILES, IMAGE, TEXT, TOKENS, VISION, relative, write_batch
from with_transformers import engine, folder as root, run

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, CLIPVisionConfig, Dinov2Config, LlamaConfig,
                          LlavaConfig, PreTrainedModel, Qwen2_5_VLConfig, Qwen2VLConfig, SiglipVisionConfig)
from transformers.models.dinov2.modeling_dinov2 import Dinov2PreTrainedModel
from transformers.quantizers.base import HfQuantizer

try:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

BITS = {"int8": 8, "int4": 4}
QWEN_IMAGES = """{"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
                  "min_pixels": 3136, "max_pixels": 12544}"""


def setUpModule():
    global frames
    _, frames = tiny_smolvlm.make()
    for scheme in BITS:
        run(engine, "export", root / "plain", "--quantize", scheme, "--out", root / scheme)
        run(engine, "export", root / scheme, "--huggingface", "--out", root / f"{scheme}-hf")


def traced(model, name="trace", tokens=TOKENS, dtype="fp32"):
    write_batch(root / "batch.safetensors", tokens, frames)
    run(engine, "trace", root / model, "--batch", root / "batch.safetensors", "--dtype", dtype, "--out", root / f"{name}.safetensors")
    return load_file(root / f"{name}.safetensors")


def tensors_of(model, part):
    return load_file(root / model / part / "model.safetensors")


def rounded_rows(x):
    """As compressed-tensors rounds dynamic activations, in float32."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True) / 127.5
    codes = (wide / torch.where(scale == 0, 1, scale)).round().clamp(-128, 127)
    return codes.to(x.dtype) * scale.to(x.dtype)


def require_packed(test, packed, name, weight, bits):
    """That codes lie as those of compressed-tensors, and are the nearest to a weight's numbers by their scales."""
    scale = packed[name + "_scale"]
    test.assertEqual(packed[name + "_shape"].tolist(), list(weight.shape))
    codes = unpack_from_int32(packed[name + "_packed"], bits, weight.shape)
    test.assertTrue(torch.equal(pack_to_int32(codes, bits), packed[name + "_packed"]), name)
    spread = scale.repeat_interleave(weight.shape[1] // scale.shape[1], 1)
    limits = (-127, 127) if bits == 8 else (-8, 7)
    test.assertTrue(torch.equal(codes.float(), (weight / spread).round().clamp(*limits)), name)


class Exported(unittest.TestCase):
    def test_packed_bytes_are_those_of_compressed_tensors(self):
        for scheme, bits in BITS.items():
            for part in ("vision", "decoder"):
                plain, packed = tensors_of("plain", part), tensors_of(scheme, part)
                names = [name.removesuffix("_packed") for name in packed if name.endswith("weight_packed")]
                self.assertGreater(len(names), 10)
                for name in names:
                    require_packed(self, packed, name, plain[name], bits)

    def test_what_stays_as_it_is(self):
        packed = tensors_of("int8", "decoder")
        for name in ("model.embed_tokens.weight", "model.norm.weight"):
            self.assertTrue(torch.equal(packed[name], tensors_of("plain", "decoder")[name]))
        connectors = [root / model / "connector.safetensors" for model in ("plain", "int8")]
        self.assertEqual(connectors[0].read_bytes(), connectors[1].read_bytes())

    def test_the_last_layer_stays_as_it_is(self):
        run(engine, "export", root / "plain", "--quantize", "int8", "--skip", "decoder.model.layers.-1.*", "--skip", "connector.*", "--out", root / "last")
        packed = {name.split(".")[2] for name in tensors_of("last", "decoder") if name.endswith("weight_packed")}
        layers = {name.split(".")[2] for name in tensors_of("plain", "decoder") if ".layers." in name}
        self.assertEqual(packed, layers - {max(layers, key=int)})

    def test_group_sizes(self):
        packed = tensors_of("int4", "decoder")
        self.assertEqual(packed["model.layers.0.mlp.up_proj.weight_scale"].shape, (256, 3))    # 96 columns: 32
        self.assertEqual(packed["model.layers.0.mlp.down_proj.weight_scale"].shape, (96, 4))   # 256 columns: 64
        vision = tensors_of("int4", "vision")
        self.assertEqual(vision["encoder.layers.0.mlp.fc1.weight_scale"].shape, (192, 1))      # 48 columns: all
        self.assertEqual(vision["encoder.layers.0.mlp.fc2.weight_scale"].shape, (48, 6))       # 192 columns: 32

    def test_whole_folder_in_transformers(self):
        for scheme in BITS:
            model = AutoModelForImageTextToText.from_pretrained(root / f"{scheme}-hf").eval()
            with torch.no_grad():
                right = model(input_ids=torch.tensor([TOKENS]), pixel_values=frames[None]).logits[0]
            right = right[torch.tensor(TOKENS) != IMAGE]
            mine = traced(scheme)["logits"]
            self.assertLess(relative(mine, right), 2e-5, scheme)
            plain = traced("plain")["logits"]
            self.assertGreater(relative(mine, plain), 1e-3, "nothing was quantized")

    def test_whole_folder_answers_about_pictures(self):
        """As README.md says: transformers unpacks the weights in the first pass, before which it encodes the picture."""
        for scheme in BITS:
            model = AutoModelForImageTextToText.from_pretrained(root / f"{scheme}-hf").eval()
            with torch.no_grad():
                model(input_ids=torch.tensor([[0]]))
            ids = model.generate(input_ids=torch.tensor([TOKENS]), pixel_values=frames[None], max_new_tokens=1, do_sample=False)
            self.assertEqual(ids[0, -1], traced(scheme)["logits"][-1].argmax())

    def test_parts_in_transformers(self):
        ids = torch.tensor([[40, 41, 42, 43]])
        for scheme in BITS:
            whole = AutoModelForImageTextToText.from_pretrained(root / f"{scheme}-hf").eval()
            decoder = AutoModelForCausalLM.from_pretrained(root / scheme / "decoder").eval()
            vision = AutoModel.from_pretrained(root / scheme / "vision").eval()
            with torch.no_grad():
                self.assertLess(relative(decoder(ids).logits, whole(ids).logits), 1e-6)
                self.assertEqual(vision(frames, patch_attention_mask=torch.ones(1, 4, 4, dtype=torch.bool)
                                        if "idefics" in type(vision).__name__.lower() or "smol" in type(vision).__name__.lower()
                                        else None).last_hidden_state.shape[:2], (1, 16))

    def test_ways_of_a_quantized_folder(self):
        for scheme in BITS:
            run(engine, "import", "--model", root / f"{scheme}-hf", "--out", root / f"{scheme}-again")
            run(engine, "export", root / scheme, "--dtype", "bf16", "--out", root / f"{scheme}-half")
            for part in ("vision", "decoder"):
                before, after, half = (tensors_of(model, part) for model in (scheme, f"{scheme}-again", f"{scheme}-half"))
                self.assertEqual(set(before), set(after))
                self.assertTrue(all(torch.equal(tensor, after[name]) for name, tensor in before.items()))
                for name, tensor in before.items():
                    kept = name.endswith(("_packed", "_scale", "_shape"))
                    self.assertTrue(torch.equal(half[name], tensor if kept else tensor.bfloat16()), name)
            self.assertTrue(torch.equal(traced(scheme)["logits"], traced(f"{scheme}-again")["logits"]))

    def test_int8_activations(self):
        run(engine, "export", root / "plain", "--quantize", "int8", "--activations", "int8", "--out", root / "w8a8")
        run(engine, "export", root / "w8a8", "--huggingface", "--out", root / "w8a8-hf")
        read = AutoModelForImageTextToText.from_pretrained(root / "w8a8-hf")
        schemes = [module.quantization_scheme.input_activations for module in read.modules() if hasattr(module, "quantization_scheme")]
        self.assertEqual([(one.num_bits, one.dynamic, one.strategy) for one in schemes], [(8, True, "token")] * 26)
        # A row's largest element lies halfway between two codes where it is negative, so float32 decides here too, in float64 otherwise.
        model = AutoModelForImageTextToText.from_pretrained(root / "int8-hf").eval().double()
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and "lm_head" not in name and "connector" not in name:
                module.register_forward_pre_hook(lambda _, inputs: (rounded_rows(inputs[0]),))
        with torch.no_grad():
            right = model(input_ids=torch.tensor([TOKENS]), pixel_values=frames[None].double()).logits[0]
        right = right[torch.tensor(TOKENS) != IMAGE]
        mine, weights_alone = traced("w8a8")["logits"], traced("int8")["logits"]
        self.assertGreater(relative(mine, weights_alone), 1e-2, "no activations are rounded")
        # A number halfway between two codes goes to either with sums of float32 in another order, which processors decide.
        self.assertLess(relative(traced("w8a8", dtype="fp64")["logits"].double(), right), 1e-5)
        self.assertLess(relative(mine, right), 0.05)
        run(engine, "import", "--model", root / "w8a8-hf", "--out", root / "w8a8-again")
        self.assertTrue(torch.equal(traced("w8a8-again")["logits"], mine))
        for part in ("vision", "decoder"):
            same = tensors_of("int8", part)
            self.assertTrue(all(torch.equal(tensor, same[name]) for name, tensor in tensors_of("w8a8", part).items()))

    def test_bfloat16_activations(self):
        write_batch(root / "batch.safetensors", TOKENS, frames)
        for scheme in BITS:
            right = traced(scheme)["logits"]
            run(engine, "trace", root / scheme, "--batch", root / "batch.safetensors", "--dtype", "bf16", "--out", root / "bf16.safetensors")
            self.assertLess(relative(load_file(root / "bf16.safetensors")["logits"], right), 0.05)


class Head(unittest.TestCase):
    """`--head`: the tied head becomes a matrix of its own in 8 or 4 bits, and the embedding keeps its numbers."""
    CASES = [("int8", "int8"), ("int8", "int4"), ("int4", "int8"), ("int4", "int4")]

    @classmethod
    def setUpClass(cls):
        for scheme, head in cls.CASES:
            run(engine, "export", root / "plain", "--quantize", scheme, "--head", head, "--out", root / f"{scheme}-head-{head}")
            run(engine, "export", root / f"{scheme}-head-{head}", "--huggingface", "--out", root / f"{scheme}-head-{head}-hf")

    def test_head_has_its_bits(self):
        plain = tensors_of("plain", "decoder")["model.embed_tokens.weight"]
        for scheme, head in self.CASES:
            packed, layers = tensors_of(f"{scheme}-head-{head}", "decoder"), tensors_of(scheme, "decoder")
            self.assertTrue(torch.equal(plain, packed["model.embed_tokens.weight"]))
            require_packed(self, packed, "lm_head.weight", plain, BITS[head])
            self.assertEqual(packed["lm_head.weight_scale"].shape, (plain.shape[0], {"int8": 1, "int4": 3}[head]))  # 96 columns: 32
            self.assertEqual(set(packed) - set(layers), {f"lm_head.weight_{suffix}" for suffix in ("packed", "scale", "shape")})
            self.assertTrue(all(torch.equal(tensor, packed[name]) for name, tensor in layers.items()))

    def test_in_transformers(self):
        for scheme, head in self.CASES:
            name = f"{scheme}-head-{head}"
            model = AutoModelForImageTextToText.from_pretrained(root / f"{name}-hf").eval()
            ids = torch.tensor([TOKENS])
            with torch.no_grad():
                right = model(input_ids=ids, pixel_values=frames[None], labels=ids.where(ids != IMAGE, -100))
            mine = traced(name)
            self.assertLess(relative(mine["logits"], right.logits[0][ids[0] != IMAGE]), 2e-5, name)
            self.assertLess(abs(mine["loss"].item() / right.loss.item() - 1), 1e-5)
            self.assertGreater(relative(mine["logits"], traced(scheme)["logits"]), 1e-4, "the head was not quantized")
            decoder = AutoModelForCausalLM.from_pretrained(root / name / "decoder").eval()
            ids = torch.tensor([[40, 41, 42, 43]])
            with torch.no_grad():
                self.assertLess(relative(decoder(ids).logits, model(ids).logits), 1e-6)
            run(engine, "import", "--model", root / f"{name}-hf", "--out", root / f"{name}-again")
            self.assertTrue(torch.equal(traced(f"{name}-again")["logits"], mine["logits"]))

    def test_beside_activations_in_int8(self):
        """It reads them in int8, too."""
        run(engine, "export", root / "plain", "--quantize", "int8", "--activations", "int8", "--head", "int8", "--out", root / "w8a8-head")
        groups = json.loads((root / "w8a8-head" / "decoder" / "config.json").read_text())["quantization_config"]["config_groups"]
        self.assertEqual([one["input_activations"]["num_bits"] for one in groups.values()
                          if any("lm_head" in target for target in one["targets"])], [8])
        self.assertGreater(relative(traced("w8a8-head")["logits"], traced("int8-head-int8")["logits"]), 1e-3, "no activations are rounded")


class Llava(unittest.TestCase):
    def test_whole_folder_in_transformers(self):
        config = LlavaConfig(vision_config=CLIPVisionConfig(**VISION), text_config=LlamaConfig(**TEXT), image_token_index=IMAGE)
        model = AutoModelForImageTextToText.from_config(config).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data = torch.randn_like(parameter) * (1.2 / parameter[0].numel() ** 0.5)
        model.save_pretrained(root / "llava")
        for file, content in FILES.items():
            (root / "llava" / file).write_text(content)
        run(engine, "import", "--model", root / "llava", "--out", root / "llava-plain")
        tokens = [3, *[IMAGE] * 16, 17, 99, 5, 42]
        plain = traced("llava-plain", tokens=tokens)["logits"]
        for scheme in BITS:
            run(engine, "export", root / "llava-plain", "--quantize", scheme, "--out", root / f"llava-{scheme}")
            run(engine, "export", root / f"llava-{scheme}", "--huggingface", "--out", root / f"llava-{scheme}-hf")
            folder = AutoModelForImageTextToText.from_pretrained(root / f"llava-{scheme}-hf").eval()
            with torch.no_grad():
                right = folder(input_ids=torch.tensor([tokens]), pixel_values=frames).logits[0]
            right = right[torch.tensor(tokens) != IMAGE]
            mine = traced(f"llava-{scheme}", tokens=tokens)["logits"]
            self.assertLess(relative(mine, right), 2e-5, scheme)
            self.assertGreater(relative(mine, plain), 1e-3, "nothing was quantized")


class EncodersOfTransformers(unittest.TestCase):
    def export(self, name, *skip):
        """What the export of the whole folder in int8 writes on standard error."""
        run(engine, "export", root / f"{name}-plain", "--quantize", "int8", *skip, "--out", root / f"{name}-int8")
        done = subprocess.run([engine, "export", root / f"{name}-int8", "--huggingface", "--out", root / f"{name}-int8-hf"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def make(self, name, config, files={}):
        model = AutoModelForImageTextToText.from_config(config).eval()
        tiny_smolvlm.draw(model)
        model.save_pretrained(root / name)
        for file, content in (FILES | files).items():
            (root / name / file).write_text(content)
        run(engine, "import", "--model", root / name, "--out", root / f"{name}-plain")
        return model

    def require_loaded(self, name, model):
        folder, said = AutoModelForImageTextToText.from_pretrained(root / f"{name}-int8-hf", output_loading_info=True)
        self.assertEqual({key: keys for key, keys in said.items() if keys}, {})
        ids = torch.tensor([[40, 41, 42, 43]])
        with torch.no_grad():
            error = relative(folder(input_ids=ids).logits, model(input_ids=ids).logits)
        self.assertLess(error, 0.1, name)
        self.assertGreater(error, 1e-4, "nothing was quantized")

    def test_qwen_vl_whose_files_lack_a_level_of_names(self):
        text = TEXT | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 5, 5]}}
        tokens = {"image_token_id": IMAGE, "video_token_id": 257, "vision_start_token_id": 258, "vision_end_token_id": 259}
        for name, config in (("qwen2", Qwen2VLConfig(text_config=text, **tokens, vision_config={
                "depth": 2, "embed_dim": 32, "hidden_size": 96, "mlp_ratio": 2, "num_heads": 2})),
                             ("qwen2_5", Qwen2_5_VLConfig(text_config=text, **tokens, vision_config={
                                 "depth": 2, "hidden_size": 32, "out_hidden_size": 96, "intermediate_size": 40, "num_heads": 2,
                                 "fullatt_block_indexes": [1], "window_size": 56}))):
            model = self.make(name, config, {"preprocessor_config.json": QWEN_IMAGES})
            self.assertEqual(self.export(name), "")
            self.require_loaded(name, model)

    def test_siglip_is_not_loaded_in_few_bits_and_said_so(self):
        config = LlavaConfig(vision_config=SiglipVisionConfig(**VISION), text_config=LlamaConfig(**TEXT), image_token_index=IMAGE,
                             vision_feature_select_strategy="full")
        model = self.make("siglip", config)
        said = self.export("siglip")
        for words in ("warning", "siglip_vision_model", "--skip 'vision.*' --skip 'connector.*'"):
            self.assertIn(words, said)
        with self.assertRaises(AttributeError):
            AutoModelForImageTextToText.from_pretrained(root / "siglip-int8-hf")
        shutil.rmtree(root / "siglip-int8")
        shutil.rmtree(root / "siglip-int8-hf")
        self.assertEqual(self.export("siglip", "--skip", "vision.*", "--skip", "connector.*"), "")
        self.require_loaded("siglip", model)


class Dinov2(unittest.TestCase):
    def test_vision_folder_in_transformers(self):
        config = Dinov2Config(hidden_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=7)
        plain = AutoModel.from_config(config).eval()
        tiny_smolvlm.draw(plain)
        plain.save_pretrained(root / "dinov2")
        AutoModelForCausalLM.from_config(LlamaConfig(**TEXT)).save_pretrained(root / "llama")
        (root / "llama" / "tokenizer.json").write_text(FILES["tokenizer.json"])
        run(engine, "import", "--vision", root / "dinov2", "--decoder", root / "llama", "--out", root / "fvlm-plain")
        for scheme, bits in BITS.items():
            run(engine, "export", root / "fvlm-plain", "--quantize", scheme, "--out", root / f"fvlm-{scheme}")
            packed, weights = tensors_of(f"fvlm-{scheme}", "vision"), tensors_of("fvlm-plain", "vision")
            for name in [name.removesuffix("_packed") for name in packed if name.endswith("_packed")]:
                scale, shape = packed[name + "_scale"], weights[name].shape
                weights[name] = unpack_from_int32(packed[name + "_packed"], bits, shape) * scale.repeat_interleave(shape[1] // scale.shape[1], 1)
            save_file(weights, root / "dinov2" / "model.safetensors", metadata={"format": "pt"})
            right = AutoModel.from_pretrained(root / "dinov2").eval()
            # What keeps transformers 5.23 from loading any quantized DINOv2: it takes the two halves of a SwiGLU that is not there for
            # quantized weights, and initializes weights that are.
            with mock.patch.object(HfQuantizer, "update_weight_conversions", lambda self, conversions, model: conversions), \
                    mock.patch.object(Dinov2PreTrainedModel, "_init_weights", PreTrainedModel._init_weights):
                quantized = AutoModel.from_pretrained(root / f"fvlm-{scheme}" / "vision").eval()
            with torch.no_grad():
                mine, original = (model(frames).last_hidden_state for model in (quantized, plain))
                self.assertLess(relative(mine, right(frames).last_hidden_state), 1e-5, scheme)
                self.assertGreater(relative(mine, original), 1e-3, "nothing was quantized")


class Refused(unittest.TestCase):
    def refused(self, *command, code, words):
        said = run(engine, *command, code=code)
        for word in words:
            self.assertIn(word, said)

    def test_schemes_and_patterns(self):
        out = ["--out", root / "refused"]
        self.refused("export", root / "plain", "--quantize", "int3", *out, code=2, words=["int3", "int8, int4 or w8a8"])
        self.refused("export", root / "plain", "--quantize", "int4", "--activations", "int8", *out, code=2, words=["--activations", "int4"])
        self.refused("export", root / "plain", "--quantize", "int8", "--skip", "*", *out, code=2, words=["every linear weight is skipped", "--skip"])
        self.refused("export", root / "plain", "--quantize", "int8", "--skip", "*.k_proj", *out, code=2,
                     words=["q_proj", "k_proj", "read as one matrix"])
        self.refused("export", root / "plain", "--quantize", "int8", "--skip", "connector.*", "--skip", "visoin.*", *out, code=2,
                     words=["--skip visoin.*: no module of the model matches", "decoder."])
        self.refused("export", root / "plain", "--quantize", "int8", "--skip", "decoder.model.layers.-99.*", *out, code=2,
                     words=["--skip decoder.model.layers.-99.*: no module of the model matches"])
        self.refused("export", root / "plain", "--quantize", "int8", "--head", "w8a8", *out, code=2, words=["--head", "int8 or int4", "w8a8"])
        self.refused("export", root / "plain", "--quantize", "int8", "--activations", "int8", "--head", "int4", *out, code=2,
                     words=["--head int4", "activations", "--head int8"])
        self.refused("export", root / "plain", "--quantize", "int4", "--head", "int8", "--skip", "decoder.lm_*", *out, code=2,
                     words=["--head int8", "--skip"])
        self.refused("export", root / "plain", "--head", "int8", *out, code=2, words=["--head needs --quantize"])
        self.refused("export", root / "int8", "--quantize", "int4", *out, code=4, words=["quantized", "int8"])
        self.refused("export", root / "plain", "--dtype", "bf16", "--skip", "x", *out, code=2, words=["--skip needs --quantize"])

    def damaged(self, name, change):
        """A copy whose decoder's tensors were changed, without checksums."""
        target = root / name
        shutil.copytree(root / "int4", target)
        path = target / "decoder" / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})
        listed = json.loads((target / "fvlm.json").read_text())
        del listed["checksums"]
        (target / "fvlm.json").write_text(json.dumps(listed))
        write_batch(root / "batch.safetensors", TOKENS, frames)
        return ["trace", target, "--batch", root / "batch.safetensors", "--out", root / "refused.safetensors"]

    def test_damaged_weights(self):
        name = "model.layers.1.mlp.up_proj.weight"
        self.refused(*self.damaged("infinite", lambda all: all[name + "_scale"].view(-1)[5:6].fill_(float("inf"))), code=4,
                     words=["scale", "decoder." + name, "not finite"])
        self.refused(*self.damaged("narrow", lambda all: all.update({name + "_scale": all[name + "_scale"][:, :2].contiguous()})),
                     code=4, words=[name + "_scale", "[256, 2]", "[256, 3]"])
        self.refused(*self.damaged("without", lambda all: all.pop(name + "_scale")), code=4, words=[name + "_scale", "missing"])
        self.refused(*self.damaged("shape", lambda all: all.update({name + "_shape": torch.tensor([256, 95])})), code=4,
                     words=[name + "_shape", "[256, 96]"])

    def test_other_quantization(self):
        shutil.copytree(root / "int8-hf", root / "other")
        config = json.loads((root / "other" / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
        (root / "other" / "config.json").write_text(json.dumps(config))
        self.refused("import", "--model", root / "other", "--out", root / "refused", code=4, words=["quantization_config", '"*.qweight" of I32', "got none"])


if __name__ == "__main__":
    unittest.main()
