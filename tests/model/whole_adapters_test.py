"""PEFT adapters of whole vision-language models, in and out: logits of adapters that PEFT made on a model of transformers, under the names of
transformers before and after 4.52, and of what `lora export` makes of them, which PEFT has to load without a key too few or too many.

usage: whole_adapters_test.py FVLM_ENGINE; exit 77 where the oracle's wheels are missing."""
import json
import re
import shutil
import sys
import unittest
import warnings

import qwen2_vl_test
import whole_models
from with_transformers import changed_copy, engine, folder as root, run

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

try:
    import peft
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

QWEN, OTHERS = ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), ("smolvlm", "llava-clip-llama", "internvl-qwen2", "qianfan-ocr", "ovis2", "granite-docling-untied", "gemma3")
CONNECTORS = {"qwen2_5_vl": ["visual.merger"], "qwen3_vl": ["visual.merger", "deepstack_merger_list.0", "deepstack_merger_list.1"], "smolvlm": ["modality_projection"]}
# What transformers before 4.52 calls modules, by what it calls them since.
OLDER = {
    "qwen2_5_vl": {r"^model\.visual\.": "visual.", r"^model\.language_model\.": "model."},
    "llava-clip-llama": {r"^model\.vision_tower\.": "vision_tower.vision_model.", r"^model\.multi_modal_projector\.": "multi_modal_projector.",
                         r"^model\.language_model\.": "language_model.model."},
}


def setUpModule():
    whole_models.make_models(OTHERS)
    qwen2_vl_test.models = {name: qwen2_vl_test.make(name) for name in QWEN}


def expected_of(model, name):
    """Logits of the tokens that are no image."""
    if name in QWEN:
        logits = [model(**given).logits[0] for given in qwen2_vl_test.inputs(model, "images")]
        is_text = [torch.tensor(text) != qwen2_vl_test.IMAGE for text in qwen2_vl_test.texts(model, "images")]
    else:
        logits, is_text = whole_models.logits_of(model, name), [whole_models.is_text(text) for text in whole_models.texts_of(name)[0]]
    return torch.cat([row[mask] for row, mask in zip(logits, is_text)])


def loaded(name):
    return AutoModelForImageTextToText.from_pretrained(root / name).eval()


def new_adapter(name, **options):
    """PEFT's adapter with drawn weights where they matter, its folder, and the logits."""
    base = loaded(name)
    torch.manual_seed(4)
    model = peft.get_peft_model(base, peft.LoraConfig(**{"r": 4, "lora_alpha": 6} | options)).eval()
    expected_of(base, name).square().mean().backward()
    for key, parameter in model.named_parameters():
        if parameter.grad is None:  # frozen, or in a layer that nobody reads
            continue
        if "lora_B" in key:
            parameter.data = 0.2 * torch.randn_like(parameter)
        elif "magnitude" in key or "modules_to_save" in key:
            parameter.data = parameter.data * (1 + 0.2 * torch.randn_like(parameter))
    out = fresh("peft")
    model.save_pretrained(out)
    with torch.no_grad():
        return model, out, expected_of(base, name)


def fresh(name):
    shutil.rmtree(root / name, ignore_errors=True)
    return root / name


def trace(name, model):
    if name in QWEN:
        batch = qwen2_vl_test.batch_for(qwen2_vl_test.models[name])
    else:
        batch = root / "batch.safetensors"
        whole_models.write_batch(name, batch)
    run(engine, "trace", model, "--batch", batch, "--out", root / "trace.safetensors")
    return load_file(root / "trace.safetensors")["logits"]


def relative(mine, right):
    return ((mine - right).abs().max() / right.abs().max()).item()


def imported(name, adapter, **options):
    run(engine, "lora", "import", adapter, "--base", root / f"{name}.model", "--out", fresh("adapted"), **options)
    return root / "adapted"


def changed(folder, config=None, tensors=None):
    return changed_copy(folder, config, tensors, ("adapter_config.json", "adapter_model.safetensors"))


class WholeAdapters(unittest.TestCase):
    def check_exported(self, name, model, right):
        """PEFT finds in the exported folder what it needs and nothing else, and computes the same."""
        run(engine, "lora", "export", model, "--base", "some/base", "--out", fresh("out"))
        self.assertEqual(json.loads((root / "out" / "adapter_config.json").read_text())["base_model_name_or_path"], "some/base")
        base = loaded(name)
        with warnings.catch_warnings(record=True) as warned:
            wrapped = peft.PeftModel.from_pretrained(base, root / "out").eval()
        self.assertEqual([str(each.message) for each in warned if "keys" in str(each.message)], [])
        found = peft.set_peft_model_state_dict(wrapped, load_file(root / "out" / "adapter_model.safetensors"))
        self.assertEqual(found.unexpected_keys, [])
        with torch.no_grad():
            self.assertLess(relative(expected_of(base, name), right), 1e-5, name)
        return wrapped

    def check(self, name, **options):
        """In, merged, and out."""
        _, folder, right = new_adapter(name, **options)
        with torch.no_grad():
            self.assertGreater(relative(expected_of(loaded(name), name), right), 1e-2, "the adapter does something")
        model = imported(name, folder)
        self.assertLess(relative(trace(name, model), right), 2e-5, f"{name}: imported")
        self.check_exported(name, model, right)
        return folder, right

    def test_ranks_and_alphas_by_module(self):
        for name in ("qwen2_5_vl", "smolvlm", "gemma3"):
            with self.subTest(name):
                self.check(name, target_modules=["q_proj", "v_proj", "down_proj", "fc1", "qkv"], use_rslora=True,
                           rank_pattern={"v_proj": 2, r"layers\.0\..*down_proj": 7}, alpha_pattern={"q_proj": 9, "layers.[01].mlp.fc1": 3})

    def test_all_linears_of_every_part(self):
        for name in ("qwen3_vl", "qwen3_vl_moe", "llava-clip-llama", "internvl-qwen2", "qianfan-ocr", "ovis2", "granite-docling-untied"):
            with self.subTest(name):
                self.check(name, target_modules="all-linear")

    def test_dora_by_a_regular_expression_with_a_connector_that_trains_whole(self):
        for name in ("qwen3_vl", "smolvlm", "llava-clip-llama", "internvl-qwen2"):
            with self.subTest(name):
                self.check(name, target_modules=r".*(visual|vision|language_model|text_model).*\.(q_proj|qkv|up_proj|fc2)", use_dora=True,
                           modules_to_save=CONNECTORS.get(name, ["multi_modal_projector"]) + ["text_model.norm", "language_model.norm"])

    def test_dora_of_a_connector(self):
        self.check("llava-clip-llama", target_modules=["q_proj", "linear_1"], use_dora=True)

    def test_the_head_and_the_embedding(self):
        for name in ("llava-clip-llama", "qwen2_5_vl", "smolvlm"):  # tied in the last two
            with self.subTest(name):
                saved = ["embed_tokens"] if name != "llava-clip-llama" else ["embed_tokens", "lm_head"]
                self.check(name, target_modules=["q_proj"], modules_to_save=saved, ensure_weight_tying=name != "llava-clip-llama")

    def test_older_names(self):
        for name, names in OLDER.items():
            with self.subTest(name):
                _, folder, right = new_adapter(name, target_modules="all-linear", alpha_pattern={"layers.0.self_attn.q_proj": 12})

                def rename(tensors):
                    for key in list(tensors):
                        own = key.removeprefix("base_model.model.")
                        for now, before in names.items():
                            own = re.sub(now, before, own)
                        tensors[f"base_model.model.{own}"] = tensors.pop(key)

                older = changed(folder, tensors=rename)
                self.assertTrue(any("base_model.model.model.layers" in key or "language_model.model.layers" in key
                                    for key in load_file(older / "adapter_model.safetensors")))
                self.assertLess(relative(trace(name, imported(name, older)), right), 2e-5, name)

    def test_an_adapter_of_the_decoder_alone(self):
        for name in ("smolvlm", "llava-clip-llama"):
            _, folder, right = new_adapter(name, target_modules=r".*(language_model|text_model).*\.(q_proj|up_proj)")

            def rename(tensors):
                for key in list(tensors):
                    tensors[re.sub(r"model\.(language_model|text_model)\.", "model.", key)] = tensors.pop(key)

            self.assertLess(relative(trace(name, imported(name, changed(folder, tensors=rename))), right), 2e-5, name)

    def test_a_merged_adapter(self):
        _, folder, right = new_adapter("qwen2_5_vl", target_modules="all-linear", rank_pattern={"q_proj": 7})
        run(engine, "lora", "merge", imported("qwen2_5_vl", folder), "--out", fresh("merged"))
        self.assertLess(relative(trace("qwen2_5_vl", root / "merged"), right), 2e-5)
        run(engine, "export", root / "merged", "--huggingface", "--out", fresh("merged.hf"))
        with torch.no_grad():
            self.assertLess(relative(expected_of(loaded("merged.hf"), "qwen2_5_vl"), right), 1e-5)

    def refused(self, name, folder):
        return run(engine, "lora", "import", folder, "--base", root / f"{name}.model", "--out", root / "x", code=4)

    def test_what_the_engine_cannot_take_is_named(self):
        name = "llava-clip-llama"
        _, folder, _ = new_adapter(name, target_modules=["q_proj", "lm_head"])
        said = self.refused(name, folder)
        self.assertIn('"lm_head", which is no linear of this model that can have one', said)
        self.assertIn("merge_and_unload", said)
        _, folder, _ = new_adapter(name, target_modules=["q_proj", "embed_tokens"])
        self.assertIn("embed_tokens", self.refused(name, folder))
        _, folder, _ = new_adapter(name, target_modules=["q_proj"])
        one = "base_model.model.model.vision_tower.pre_layrnorm.scale"
        self.assertIn("vision_tower.pre_layrnorm.scale", self.refused(name, changed(folder, tensors=lambda all: all.update({one: torch.ones(3)}))))
        unused = "base_model.model.model.vision_tower.encoder.layers.9.mlp.fc1.lora_B.weight"
        self.assertIn("encoder.layers.9.mlp.fc1",
                      self.refused(name, changed(folder, tensors=lambda all: all.update({unused: torch.ones(80, 4)}))))
        lost = "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_B.weight"
        self.assertIn("layers.0.self_attn.q_proj.lora_B.weight", self.refused(name, changed(folder, tensors=lambda all: all.pop(lost))))
        for key, value in (("bias", "all"), ("init_lora_weights", "pissa"), ("lora_bias", True), ("trainable_token_indices", [3]),
                           ("layer_replication", [[0, 1]]), ("target_parameters", ["weight"]), ("a_new_key", {"of": "PEFT"}),
                           ("peft_type", "LOHA")):
            self.assertIn(f"'{key}'", self.refused(name, changed(folder, lambda config: config.update({key: value}))))
        said = self.refused(name, changed(folder, lambda config: config.update(rank_pattern={"q_proj": 8})))
        self.assertIn("has rank 4, and by r and rank_pattern of adapter_config.json its rank is 8", said)
        said = self.refused(name, changed(folder, lambda config: config.update(alpha_pattern={"q_proj": 8, "layers.0.self_attn.q_proj": 9})))
        self.assertIn("both match", said)
        said = self.refused(name, changed(folder, lambda config: config.update(alpha_pattern={"(?P<part>q)_proj[": 8})))
        self.assertIn("'alpha_pattern' cannot be matched", said)
        self.assertIn("no linear of this model", self.refused("smolvlm", folder))

    def test_a_tied_head_that_was_trained_apart_is_refused(self):
        _, folder, _ = new_adapter("smolvlm", target_modules=["q_proj"], modules_to_save=["embed_tokens"])
        head = "base_model.model.lm_head.weight"
        apart = changed(folder, tensors=lambda all: all.update({head: torch.zeros(260, 48)}))
        self.assertIn('"lm_head.weight", and the model has no such parameter', self.refused("smolvlm", apart))


if __name__ == "__main__":
    unittest.main()
