"""Folders whose weights others have quantized (fp8, compressed-tensors, GPTQ, AWQ, bitsandbytes): what import makes of them beside transformers,
compressed-tensors and their definitions, and what it says of folders that are damaged or of other forms.

usage: quantized_folders_test.py FVLM_ENGINE; exit 77 where the oracle's wheels are missing."""
import json
import shutil
import sys
import unittest

from byte_tokenizer import tokenizer
from quantized_folders import AWQ, FORMS, GPTQ, fp8, quantize_folder
from with_transformers import changed_copy, draw, engine, folder as root, run, save_small_vision

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, AutoModelForImageTextToText, FineGrainedFP8Config, Ministral3Config, Mistral3Config,
                          PixtralVisionConfig, Qwen3Config)
from transformers.utils.quantization_config import CompressedTensorsConfig

try:
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.entrypoints.convert.converters import AutoAWQConverter, FP8BlockDequantizer
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

TEXT = {"vocab_size": 262, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 2}
IMAGE = 256
IDS = torch.arange(30, 61)
RECIPE = """local fvlm = require "fvlm"
return fvlm.recipe {
  name = "refused", precision = "fp32", model = fvlm.model { image_size = 28, vision = "ROOT/vision", decoder = "ROOT/awq", connector = fvlm.mlp {} },
  fvlm.stage "sft" { data = fvlm.mix { { text = "ROOT/none.jsonl" }, max_frames = 1, max_text_tokens = 64, system = "" }, batch = 1, samples = 1,
                     objective = fvlm.next_token { on = "answer" }, optimizer = fvlm.adamw { lr = 1e-2 }, schedule = fvlm.constant {} },
}
"""
UP = "model.layers.1.mlp.up_proj"  # 80 x 48


def is_linear(name, weight):
    return weight.dim() == 2 and "proj" in name


def setUpModule():
    global numbers
    save_small_vision(root / "vision")
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(Qwen3Config(**TEXT, tie_word_embeddings=False)).eval()
    draw(model)
    model.save_pretrained(root / "plain")
    (root / "plain" / "tokenizer.json").write_text(tokenizer())
    numbers = {form: quantize_folder(root / "plain", root / form, form, is_linear) for form in FORMS}
    save_file({"frames": torch.zeros(0, 3, 28, 28), "frame_counts": torch.zeros(1, dtype=torch.long), "input_ids": IDS,
               "loss_mask": torch.ones(len(IDS), dtype=torch.uint8), "text_lengths": torch.tensor([len(IDS)])}, root / "batch.safetensors")


def imported(form, *options):
    """What import says of a decoder's folder; the model directory is FORM.model."""
    shutil.rmtree(root / f"{form}.model", ignore_errors=True)
    return json.loads(run(engine, "import", "--vision", root / "vision", "--decoder", root / form, "--out", root / f"{form}.model", "--json",
                          *options))


def weights_of(form):
    return load_file(root / f"{form}.model" / "decoder" / "model.safetensors")


class Decoders(unittest.TestCase):
    def same(self, ours, right):
        self.assertEqual(set(ours), set(right))
        for name, tensor in right.items():
            self.assertEqual(ours[name].dtype, tensor.dtype, name)
            self.assertTrue(torch.equal(ours[name], tensor), f"{name}: {(ours[name].float() - tensor.float()).abs().max()}")

    def test_weights_are_what_their_codes_stand_for(self):
        for form in FORMS:
            with self.subTest(form):
                imported(form)
                self.same(weights_of(form), numbers[form])
                self.assertNotIn("quantization_config", json.loads((root / f"{form}.model" / "decoder" / "config.json").read_text()))

    def test_logits_are_those_of_transformers(self):
        for form in FORMS:
            config = {"fp8": FineGrainedFP8Config(dequantize=True), "compressed-tensors": CompressedTensorsConfig(dequantize=True)}.get(
                FORMS[form][0]["quant_method"])
            is_read = config and form != "fp8-partial"  # transformers wants whole blocks
            with self.subTest(form):
                imported(form)
                model = AutoModelForCausalLM.from_pretrained(root / (form if is_read else "plain"), dtype=torch.float32,
                                                             **({"quantization_config": config} if is_read else {})).eval()
                if not is_read:
                    model.load_state_dict(numbers[form])
                self.same(dict(model.named_parameters()), numbers[form])
                run(engine, "trace", root / f"{form}.model", "--batch", root / "batch.safetensors", "--out", root / "trace.safetensors")
                with torch.no_grad():
                    right = model(input_ids=IDS[None]).logits[0]
                off = (load_file(root / "trace.safetensors")["logits"] - right).abs().max() / right.abs().max()
                self.assertLess(off, 1e-5)

    def test_compressed_tensors_reads_the_same(self):
        """Blocks that are cut off, and AWQ, which transformers reads with packages of GPUs alone."""
        converter = FP8BlockDequantizer(targets=["re:.*proj"], weight_block_size=(20, 32), dtype=torch.float32)
        self.same(converter.process(load_file(root / "fp8-partial" / "model.safetensors")), numbers["fp8-partial"])
        tensors = AutoAWQConverter(group_size=16).process(load_file(root / "awq" / "model.safetensors"))
        for name, right in numbers["awq"].items():
            if name in tensors:
                continue
            codes = unpack_from_int32(tensors[name + "_packed"], 4, right.shape)
            scales = tensors[name + "_scale"]
            zeros = unpack_from_int32(tensors[name + "_zero_point"], 4, scales.shape, packed_dim=0)
            self.assertTrue(torch.equal((codes - zeros.repeat_interleave(16, 1)) * scales.float().repeat_interleave(16, 1), right), name)

    def test_the_dtype_is_that_of_the_config_or_the_option(self):
        quantized = {name for name, weight in numbers["fp8-blocks"].items() if is_linear(name, weight)}
        for form in ("fp8-blocks", "gptq-order"):
            for key, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16), (None, torch.bfloat16)):
                changed = changed_copy(root / form, config=lambda one: (one.pop("dtype", None), one.update({"dtype": key} if key else {})))
                imported(changed.name)
                ours = weights_of(changed.name)
                for name in quantized:
                    self.assertTrue(torch.equal(ours[name], numbers[form][name].to(dtype)), name)
                imported(changed.name, "--dtype", "fp32")
                self.same(weights_of(changed.name), numbers[form])

    def test_it_says_what_it_made_of_them(self):
        weights = sum(is_linear(*item) for item in numbers["gptq"].items())
        elements = sum(weight.numel() for name, weight in numbers["gptq"].items() if is_linear(name, weight))
        for form, words, bits in (("fp8-tensor", "e4m3 with a scale for each tensor (scales of activations are ignored)", 8), ("fp8-blocks", "e4m3 with a scale for each 8 x 16", 8),
                                  ("int-channel", "int8 with a scale for each row", 8), ("gptq", "GPTQ's int4 with a scale for each 16 columns of a row", 4),
                                  ("awq", "AWQ's int4 with a scale for each 16 columns of a row", 4)):
            self.assertEqual(imported(form)["dequantized"],
                             {words: {"weights": weights, "bytes_before": elements * bits // 8, "bytes": 4 * elements}})
        shutil.rmtree(root / "awq.model")
        said = run(engine, "import", "--vision", root / "vision", "--decoder", root / "awq", "--out", root / "awq.model")
        self.assertIn(f"{weights} weights were AWQ's int4", said)

    def test_configs_as_they_are_published(self):
        """With nulls for defaults, and with quantization_config in that of the decoder, beside that of the model or alone."""
        def move(keep):
            def change(config):
                config["text_config"] = {"quantization_config": config["quantization_config"]}
                if not keep:
                    del config["quantization_config"]
            return change
        for form, change in (("gptq", lambda config: config["quantization_config"].update(checkpoint_format=None, dynamic=None)),
                             ("float-tensor", lambda config: config["quantization_config"].update(quantization_status=None)),
                             ("nf4", lambda config: config["quantization_config"].update(bnb_4bit_quant_storage=None)),
                             ("awq", move(keep=True)), ("fp8-blocks", move(keep=False))):
            with self.subTest(form):
                imported(changed_copy(root / form, config=change).name)
                self.same(weights_of("changed"), numbers[form])

    def test_shards(self):
        target = root / "shards"
        shutil.copytree(root / "gptq", target)
        tensors = load_file(target / "model.safetensors")
        (target / "model.safetensors").unlink()
        files = [{}, {}]
        for place, (name, tensor) in enumerate(tensors.items()):
            files[place % 2][name] = tensor
        for number, content in enumerate(files):
            save_file(content, target / f"{number}.safetensors")
        (target / "model.safetensors.index.json").write_text(json.dumps(
            {"weight_map": {name: f"{number}.safetensors" for number, content in enumerate(files) for name in content}}))
        imported("shards")
        self.same(weights_of("shards"), numbers["gptq"])

    def refused(self, form, *words, **changes):
        changed = changed_copy(root / form, **changes)
        said = run(engine, "import", "--vision", root / "vision", "--decoder", changed, "--out", root / "refused", code=4)
        for word in words:
            self.assertIn(word, said)
        self.assertFalse((root / "refused").exists())

    def test_wrong_tensors(self):
        def put(**tensors):
            return lambda content: content.update({UP + "." + key: tensor for key, tensor in tensors.items()})

        def drop(suffix):
            return lambda content: content.pop(f"{UP}.{suffix}")

        def state(**fields):
            name = UP + ".weight.quant_state.bitsandbytes__nf4"

            def change(content):
                changed = json.loads(bytes(content[name].tolist())) | fields
                content[name] = torch.tensor(list(json.dumps(changed).encode()), dtype=torch.uint8)
            return change
        infinite = torch.ones(80, 1)
        infinite[7] = float("nan")
        for form, change, *words in (
                ("fp8-blocks", drop("weight_scale_inv"), f'"{UP}.weight_scale_inv" is missing', f'"{UP}.weight"'),
                ("fp8-blocks", put(weight_scale_inv=torch.ones(9, 3)), f'"{UP}.weight_scale_inv" has the shape [9, 3]: expected [10, 3]',
                 "[80, 48]"),
                ("fp8-blocks", put(weight_scale_inv=torch.ones(10, 3, dtype=torch.uint8)), "holds U8: expected BF16, F16 or F32"),
                ("fp8-blocks", put(weight=torch.ones(80, 48)), f'"{UP}.weight_scale_inv" is there', "holds F32: expected F8_E4M3"),
                ("fp8-blocks", put(weight=torch.ones(80, 48, 1).to(torch.float8_e4m3fn)), "[80, 48, 1]: expected a matrix"),
                ("fp8-blocks", put(weight=torch.ones(80, 40).to(torch.float8_e4m3fn)), "[80, 40], and must have [80, 48]"),
                ("fp8-blocks", lambda content: content[UP + ".weight"].view(torch.uint8)[79, 47:].fill_(0xff),
                 f'the quantized weight "{UP}.weight" has numbers that are not finite'),
                ("fp8-tensor", put(weight_scale_inv=torch.tensor(float("inf"))), f'"{UP}.weight_scale_inv"', "not finite"),
                ("fp8-tensor", put(weight_scale_inv=torch.ones(80)), "has the shape [80]: expected [] or [1]"),
                ("float-channel", put(weight_scale=infinite), f'"{UP}.weight_scale"', "not finite"),
                ("float-channel", put(weight_scale=torch.ones(1)), "has the shape [1]: expected [80, 1] or [80]"),
                ("int-zeros", put(weight_zero_point=torch.ones(1, dtype=torch.int8)), f'"{UP}.weight_zero_point" has the shape [1]: expected [80, 1]'),
                ("int-channel", put(weight_g_idx=torch.arange(48)), f'"{UP}.weight_g_idx" is not one of this model'),
                ("gptq", drop("qzeros"), f'"{UP}.qzeros" is missing'),
                ("gptq", drop("qweight"), f'"{UP}.qzeros" is there', f'"{UP}.qweight" is missing: expected I32'),
                ("gptq", put(scales=torch.ones(2, 80).half()), "has the shape [2, 80]: expected [3, 80]"),
                ("gptq", put(g_idx=torch.full((48,), 3, dtype=torch.int32)), "groups 0 to 2", "got 3"),
                ("gptq", put(g_idx=torch.full((48,), -1, dtype=torch.int32)), "groups 0 to 2", "got -1"),
                ("gptq", put(g_idx=torch.zeros(47, dtype=torch.int32)), f'"{UP}.g_idx" has the shape [47]: expected [48]'),
                ("gptq", put(qzeros=torch.zeros(3, 10)), f'"{UP}.qzeros" holds F32: expected I32'),
                ("gptq", put(qweight=torch.zeros(6, 79, dtype=torch.int32)), "[6, 79]: expected a number of outputs that 8 divides"),
                ("gptq", put(qweight=torch.zeros(5, 80, dtype=torch.int32), g_idx=torch.zeros(40, dtype=torch.int32)),
                 f'"{UP}.weight" has the shape [80, 40], and must have [80, 48]'),
                ("gptq-biases", put(bias=torch.full((80,), 2.0 ** -24).half()), f'"{UP}.bias" is not one of this model'),
                ("nf4", drop("weight.absmax"), f'"{UP}.weight.absmax" is missing'),
                ("nf4", drop("weight.quant_state.bitsandbytes__nf4"), 'bitsandbytes__nf4" is missing'),
                ("nf4", put(**{"weight.quant_state.bitsandbytes__nf4": torch.zeros(9, dtype=torch.uint8)}), "a quant_state for it that is a JSON object"),
                ("nf4", state(shape=[80, 49]), f'"{UP}.weight" has the shape [1920, 1]: expected [1960, 1] for the weight\'s shape [80, 49]'),
                ("nf4", state(shape=[40, 96]), f'"{UP}.weight" has the shape [40, 96], and must have [80, 48]'),
                ("nf4", state(shape=[1 << 30, 1 << 30]), "'shape' = [1073741824,1073741824] is not supported"),
                ("nf4", state(shape=[]), "'shape' = [] is not supported"),
                ("nf4", state(blocksize=0), "'blocksize' is 0"),
                ("nf4", state(blocksize=128), '"weight.absmax" has the shape [60]: expected [30]'.replace('"weight', f'"{UP}.weight')),
                ("nf4", state(quant_type="fp4"), "'quant_type' = \"fp4\""),
                ("nf4", put(**{"weight.quant_map": torch.ones(8)}), "[8]: expected [16]"),
                ("nf4-nested", put(**{"weight.nested_absmax": torch.ones(3)}), "[3]: expected [4]"),
                ("nf4-nested", drop("weight.nested_quant_map"), f'"{UP}.weight.nested_quant_map" is missing'),
                ("bitsandbytes-8", drop("SCB"), f'"{UP}.SCB" is missing'),
                ("awq", put(scales=torch.full((3, 80), float("nan")).half()), f'"{UP}.scales"', "not finite"),
                ("awq", put(qzeros=torch.zeros(3, 80, dtype=torch.int32)), "[3, 80]: expected [3, 10]"),
                ("awq", put(qweight=torch.zeros(0, 10, dtype=torch.int32)), "[0, 10]: expected a matrix")):
            with self.subTest((form, words[0])):
                self.refused(form, "model.safetensors", *words, tensors=change)

    def test_wrong_configs(self):
        def quantization(**fields):
            return lambda config: config["quantization_config"].update(fields)

        def group(**fields):
            return lambda config: config["quantization_config"]["config_groups"]["group_0"]["weights"].update(fields)
        for form, change, *words in (
                ("fp8-blocks", quantization(quant_method="mxfp4"), "'quant_method' = \"mxfp4\" is not supported: fp8, gptq, awq"),
                ("fp8-blocks", quantization(quant_method=None), "'quant_method'"),
                ("fp8-blocks", quantization(dequantize="yes"), "'dequantize' is \"yes\", and must be true or false"),
                ("fp8-blocks", quantization(activation_scheme="block"), "'activation_scheme' = \"block\" is not supported"),
                ("fp8-blocks", quantization(weight_block_size=[8]), "'weight_block_size' = [8] is not supported"),
                ("fp8-blocks", quantization(weight_block_size=[0, 16]), "'weight_block_size' = [0,16] is not supported"),
                ("fp8-blocks", quantization(weight_block_size=[16, 16]), "weight_scale_inv\" has the shape [10, 3]: expected [5, 3]"),
                ("fp8-blocks", quantization(weight_block_size=None), "expected [] or [1]"),
                ("fp8-blocks", quantization(modules_to_not_convert=["model.layers.1.mlp"]), f'"{UP}.weight" holds F8_E4M3',
                 '"model.layers.1.mlp" is not quantized'),
                ("fp8-blocks", quantization(modules_to_not_convert="lm_head"), "'modules_to_not_convert' is \"lm_head\""),
                ("plain", lambda config: config.update(quantization_config=fp8(None)), "expected quantized weights", "F8_E4M3", "got none"),
                ("plain", lambda config: config.update(quantization_config=GPTQ), '"*.qweight" of I32', "got none"),
                ("float-block", quantization(kv_cache_scheme={"num_bits": 8}), "'kv_cache_scheme' = {\"num_bits\":8} is not supported", "null"),
                ("float-block", quantization(format="nvfp4-pack-quantized"), "'format' = \"nvfp4-pack-quantized\" is not supported"),
                ("float-block", quantization(quantization_status="frozen"), "'quantization_status' = \"frozen\""),
                ("float-block", quantization(transform_config={"config_groups": {"u": {}}}), "'transform_config'"),
                ("float-block", quantization(sparsity_config={"format": "sparse-24-bitmask"}), "'sparsity_config'"),
                ("float-block", quantization(config_groups={}), "config_groups has to say of what"),
                ("float-block", quantization(ignore=["lm_head", UP]), f'"{UP}.weight" holds F8_E4M3', "is not quantized"),
                ("float-block", group(num_bits=4), "config_groups.group_0.weights", "'num_bits' = 4"),
                ("float-block", group(strategy="token"), "'strategy' = \"token\""),
                ("float-block", group(type="int"), f'"{UP}.weight_scale" is there', "holds F8_E4M3: expected I8"),
                ("gptq", quantization(bits=3), "'bits' = 3 is not supported: 4 and 8 are"),
                ("gptq", quantization(group_size=0), "'group_size' = 0 is not supported"),
                ("gptq", quantization(group_size=8), 'scales" has the shape [3, 80]: expected [6, 80]'),
                ("gptq", quantization(checkpoint_format="marlin"), "'checkpoint_format' = \"marlin\""),
                ("gptq", quantization(format="marlin"), "'format' = \"marlin\""),
                ("gptq", quantization(dynamic={"+:.*down.*": {"bits": 8}}), "'dynamic'"),
                ("awq", quantization(version="gemv"), "'version' = \"gemv\" is not supported: only gemm is"),
                ("awq", quantization(version=None, format="gemv"), "'format' = \"gemv\" is not supported: only gemm is"),
                ("awq", quantization(zero_point=False), "'zero_point' = false"),
                ("awq", quantization(bits=3), "'bits' = 3"),
                ("nf4", quantization(load_in_4bit=False), "'load_in_4bit' = false", "load_in_8bit has to be true"),
                ("nf4", quantization(bnb_4bit_quant_type="int4"), "'bnb_4bit_quant_type' = \"int4\""),
                ("nf4", quantization(bnb_4bit_quant_storage="bfloat16"), "'bnb_4bit_quant_storage' = \"bfloat16\""),
                ("nf4", quantization(llm_int8_skip_modules=["model.layers.1"]), '"model.layers.1" is not quantized')):
            with self.subTest((form, words[0])):
                self.refused(form, "changed", *words, config=change)

    def test_cut_files(self):
        for kept in (5, 400, 20000):
            changed = changed_copy(root / "gptq")
            content = (changed / "model.safetensors").read_bytes()
            (changed / "model.safetensors").write_bytes(content[:kept])
            said = run(engine, "import", "--vision", root / "vision", "--decoder", changed, "--out", root / "refused", code=4)
            self.assertIn("model.safetensors", said)

    def test_recipes_say_that_import_reads_them(self):
        recipe = root / "recipe.lua"
        recipe.write_text(RECIPE.replace("ROOT", str(root)))
        (root / "none.jsonl").write_text("")
        said = run(engine, "train", recipe, "--run-dir", root / "refused.run", code=4)
        self.assertIn("`fvlm-engine import` makes plain ones of fp8, gptq, awq", said)


class WholeModels(unittest.TestCase):
    def test_ministral_3(self):
        """As published: a tower and a projector of plain weights, a decoder of FP8 with static scales of activations."""
        vision = PixtralVisionConfig(hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, hidden_act="silu",
                                     image_size=64, patch_size=7)
        rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 16, "mscale": 1.0,
                "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
        torch.manual_seed(1)
        model = AutoModelForImageTextToText.from_config(Mistral3Config(
            vision_config=vision, text_config=Ministral3Config(**TEXT, rope_parameters=rope), image_token_index=IMAGE,
            tie_word_embeddings=True)).eval()
        draw(model)
        source = root / "ministral3"
        model.save_pretrained(source)
        (source / "tokenizer.json").write_text(tokenizer(further=["[IMG_BREAK]", "[IMG_END]"]))
        (source / "preprocessor_config.json").write_text(json.dumps(
            {"image_processor_type": "PixtralImageProcessor", "patch_size": 7, "size": {"longest_edge": 64}}))
        (source / "processor_config.json").write_text(json.dumps({"processor_class": "PixtralProcessor", "patch_size": 7, "spatial_merge_size": 2}))
        quantized = root / "ministral3-fp8"
        right = quantize_folder(source, quantized, "fp8-tensor", lambda name, weight: is_linear(name, weight) and "language_model" in name)
        config = json.loads((quantized / "config.json").read_text())
        config["quantization_config"]["modules_to_not_convert"] = ["model.vision_tower", "model.multi_modal_projector", "lm_head"]
        (quantized / "config.json").write_text(json.dumps(config))

        said = json.loads(run(engine, "import", "--model", quantized, "--out", root / "ministral3.model", "--json"))
        self.assertEqual([each["weights"] for each in said["dequantized"].values()], [14])
        run(engine, "export", root / "ministral3.model", "--huggingface", "--out", root / "ministral3-back")
        back = load_file(root / "ministral3-back" / "model.safetensors")
        self.assertEqual(set(back), set(right))
        self.assertTrue(all(torch.equal(back[name], tensor) for name, tensor in right.items()))

        dequantized = AutoModelForImageTextToText.from_pretrained(quantized, quantization_config=FineGrainedFP8Config(dequantize=True),
                                                                  dtype=torch.float32).eval()
        cells = torch.randn(6, 3, 14, 14, generator=torch.Generator().manual_seed(6))
        text = [5, 9, *([IMAGE] * 3 + [257]), *([IMAGE] * 3 + [258]), 7, 8, 1, 30]
        save_file({"frames": cells, "frame_counts": torch.tensor([6]), "image_grids": torch.tensor([[2, 3]]), "image_counts": torch.tensor([1]),
                   "input_ids": torch.tensor([-1 if token == IMAGE else token for token in text]),
                   "loss_mask": torch.tensor([token < IMAGE for token in text]).to(torch.uint8), "text_lengths": torch.tensor([len(text)])},
                  root / "pictures.safetensors")
        run(engine, "trace", root / "ministral3.model", "--batch", root / "pictures.safetensors", "--out", root / "trace.safetensors")
        with torch.no_grad():
            pixels = cells.unflatten(0, (2, 3)).permute(2, 0, 3, 1, 4).reshape(1, 3, 28, 42)
            logits = dequantized(input_ids=torch.tensor([text]), pixel_values=pixels, image_sizes=torch.tensor([[28, 42]])).logits[0]
        logits = logits[[token != IMAGE for token in text]]
        off = (load_file(root / "trace.safetensors")["logits"] - logits).abs().max() / logits.abs().max()
        self.assertLess(off, 1e-5)


if __name__ == "__main__":
    unittest.main()
