"""Folders of whole models (LLaVA, LLaVA-NeXT, LLaVA-OneVision, InternVL, Ovis2, Granite Docling, Idefics3, SmolVLM) against transformers: logits, loss and every
gradient on texts with images inside, folders that go through the engine and back, training, and new vision towers.

usage: whole_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import io
import json
import shutil
import tarfile
import unittest

from byte_tokenizer import tokenizer
from with_transformers import changed_copy, engine, folder as root, run
from whole_models import (ATTENTION, FILES, IMAGE, OF_THE_ENCODER, TEXT, VISION, VOCABULARY, Comparison, frames_of, is_text, logits_of, make_models,
                          models, pixels_for, texts_of, write_batch)

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, AutoModelForImageTextToText, CLIPVisionConfig, CLIPVisionModel, LlamaConfig, LlamaForCausalLM,
                          Qwen2ForCausalLM, Qwen3ForCausalLM, SiglipVisionConfig, SiglipVisionModel, SmolVLMConfig)


def setUpModule():
    make_models()


class WholeModels(Comparison, unittest.TestCase):
    def test_logits_loss_and_every_gradient(self):
        for name, model in models.items():
            with self.subTest(name):
                self.compare(name, model)

    def check_same(self, source, exported):
        """Equal tensors under equal names, an equal config, and the other files as they were."""
        before, after = (load_file(path / "model.safetensors") for path in (source, exported))
        self.assertEqual(set(before), set(after))
        for key, tensor in before.items():
            self.assertEqual(tensor.dtype, after[key].dtype, key)
            self.assertTrue(torch.equal(tensor.view(torch.uint8), after[key].view(torch.uint8)), key)
        self.assertEqual(json.loads((source / "config.json").read_text()), json.loads((exported / "config.json").read_text()))
        for file in FILES:
            self.assertEqual((source / file).read_bytes(), (exported / file).read_bytes(), file)

    def test_folders_come_back_with_equal_bytes(self):
        for name, model in models.items():
            with self.subTest(name):
                out = root / f"{name}.back"
                run(engine, "export", root / f"{name}.model", "--huggingface", "--out", out)
                self.check_same(root / name, out)
                again = AutoModelForImageTextToText.from_pretrained(out, **ATTENTION.get(name, {})).eval()
                with torch.no_grad():
                    for mine, right in zip(logits_of(again, name), logits_of(model, name)):
                        self.assertTrue(torch.equal(mine, right))

    def test_parts_are_folders_of_their_own(self):
        for name, model in models.items():
            with self.subTest(name):
                parts = root / f"{name}.model"
                decoder = AutoModelForCausalLM.from_pretrained(parts / "decoder", **ATTENTION.get(name, {})).eval()
                ids = torch.tensor([[40, 41, 42, 43]])
                if name.startswith("paligemma"):  # whose positions begin at 1; of an answer
                    torch.testing.assert_close(decoder(ids).logits, model(ids, token_type_ids=torch.ones_like(ids)).logits)
                else:
                    self.assertTrue(torch.equal(decoder(ids).logits, model(ids).logits))
                for file in FILES:
                    self.assertEqual((parts / "vision" / file).exists(), file in OF_THE_ENCODER, file)
                    self.assertEqual((parts / "decoder" / file).exists(), file not in OF_THE_ENCODER, file)
        vision = CLIPVisionModel.from_pretrained(root / "llava-clip-llama.model" / "vision").eval()
        theirs = models["llava-clip-llama"].model.vision_tower
        self.assertTrue(torch.equal(vision(frames_of(2)).last_hidden_state, theirs(frames_of(2)).last_hidden_state))

    def renamed(self, name, rename, target):
        """A copy of a folder whose tensors have other names, in two shards."""
        shutil.copytree(root / name, root / target)
        tensors = {rename(key): tensor for key, tensor in load_file(root / name / "model.safetensors").items()}
        (root / target / "model.safetensors").unlink()
        keys = list(tensors)
        index = {}
        for number, part in enumerate((keys[::2], keys[1::2]), 1):
            file = f"model-0000{number}-of-00002.safetensors"
            save_file({key: tensors[key] for key in part}, root / target / file, metadata={"format": "pt"})
            index |= {key: file for key in part}
        (root / target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
        return tensors

    def test_other_names_of_llava_and_shards(self):
        def older(name):
            return name.replace("vision_tower.", "vision_tower.vision_model.")

        def newer(name):
            if name.startswith("language_model.lm_head."):
                return name.removeprefix("language_model.")
            return "model." + name.replace("language_model.model.", "language_model.")

        for number, rename in enumerate((older, newer)):
            for name in ("llava-clip-llama", "llava-siglip-llama", "llava-next-clip-llama", "internvl-qwen3")[:4 - (rename is older)]:
                with self.subTest(name, rename=rename.__name__):
                    target = f"{name}-{number}"
                    tensors = self.renamed(name, rename, target)
                    run(engine, "import", "--model", root / target, "--out", root / f"{target}.model")
                    for part in ("vision/model", "connector", "decoder/model"):
                        files = [root / f"{one}.model" / f"{part}.safetensors" for one in (name, target)]
                        self.assertEqual(files[0].read_bytes(), files[1].read_bytes(), part)
                    run(engine, "export", root / f"{target}.model", "--huggingface", "--out", root / f"{target}.back")
                    after = load_file(root / f"{target}.back" / "model.safetensors")
                    self.assertEqual(set(tensors), set(after))
                    self.assertTrue(all(torch.equal(after[key], tensor) for key, tensor in tensors.items()))

    def test_the_published_names_of_qianfan_ocr(self):
        """transformers writes other ones for the decoder's layers than it was published with, and reads both."""
        tensors = self.renamed("qianfan-ocr", lambda name: name.replace("language_model.model.encoder.", "language_model.model."), "qianfan-published")
        self.assertIn("vision_model.encoder.layers.0.attn.qkv.weight", tensors)
        self.assertIn("language_model.model.layers.0.mlp.up_proj.weight", tensors)
        run(engine, "import", "--model", root / "qianfan-published", "--out", root / "qianfan-published.model")
        for part in ("vision/model", "connector", "decoder/model"):
            files = [root / f"{one}.model" / f"{part}.safetensors" for one in ("qianfan-ocr", "qianfan-published")]
            self.assertEqual(files[0].read_bytes(), files[1].read_bytes(), part)
        run(engine, "export", root / "qianfan-published.model", "--huggingface", "--out", root / "qianfan-published.back")
        after = load_file(root / "qianfan-published.back" / "model.safetensors")
        self.assertEqual(set(tensors), set(after))
        self.assertTrue(all(torch.equal(after[key], tensor) for key, tensor in tensors.items()))

    def test_the_quantized_queries_keys_and_values_of_qianfan_ocr_stay_apart(self):
        run(engine, "export", root / "qianfan-ocr.model", "--quantize", "int8", "--out", root / "qianfan-int8")
        run(engine, "export", root / "qianfan-int8", "--huggingface", "--out", root / "qianfan-int8.back")
        names = set(load_file(root / "qianfan-int8.back" / "model.safetensors"))
        layer = "vision_model.encoder.layers.0."
        self.assertTrue({f"{layer}attention.{part}_proj.weight_packed" for part in "qkv"} | {f"{layer}attn.qkv.bias"} <= names)
        self.assertNotIn(f"{layer}attn.qkv.weight", names)

    def test_a_tied_head_that_the_file_has_comes_back(self):
        shutil.copytree(root / "smolvlm", root / "tied")
        tensors = load_file(root / "tied" / "model.safetensors")
        tensors["lm_head.weight"] = tensors["model.text_model.embed_tokens.weight"].clone()
        save_file(tensors, root / "tied" / "model.safetensors", metadata={"format": "pt"})
        run(engine, "import", "--model", root / "tied", "--out", root / "tied.model")
        run(engine, "export", root / "tied.model", "--huggingface", "--out", root / "tied.back")
        self.check_same(root / "tied", root / "tied.back")

    def test_what_drafts_tokens_of_granite_docling_is_left_out(self):
        def change(tensors):
            tensors["mtp.layers.0.weight"] = torch.ones(3)
        run(engine, "import", "--model", changed_copy(root / "granite-docling", tensors=change), "--out", root / "drafting.model")
        run(engine, "export", root / "drafting.model", "--huggingface", "--out", root / "drafting.back")
        self.check_same(root / "granite-docling", root / "drafting.back")

    def test_export_in_another_dtype(self):
        run(engine, "export", root / "smolvlm.model", "--huggingface", "--dtype", "bf16", "--out", root / "half")
        before, after = (load_file(root / folder / "model.safetensors") for folder in ("smolvlm", "half"))
        for key, tensor in before.items():
            self.assertTrue(torch.equal(tensor.bfloat16(), after[key]), key)
        self.assertEqual(json.loads((root / "half" / "config.json").read_text())["dtype"], "bfloat16")
        self.assertEqual(AutoModelForImageTextToText.from_pretrained(root / "half").dtype, torch.bfloat16)

    def test_missing_keys_mean_the_defaults_of_transformers(self):
        name = "llava-clip-llama"
        shutil.copytree(root / name, root / "sparse")
        config = json.loads((root / name / "config.json").read_text())
        for key in ("vision_feature_layer", "vision_feature_select_strategy", "projector_hidden_act", "multimodal_projector_bias",
                    "tie_word_embeddings"):
            del config[key]
        for part, keys in (("vision_config", ["model_type", "hidden_act", "layer_norm_eps"]),
                           ("text_config", ["model_type", "rms_norm_eps", "rope_parameters", "attention_bias"])):
            for key in keys:
                del config[part][key]
        (root / "sparse" / "config.json").write_text(json.dumps(config))
        run(engine, "import", "--model", root / "sparse", "--out", root / "sparse.model")
        write_batch(name, root / "batch.safetensors")
        losses = {run(engine, "trace", root / f"{one}.model", "--batch", root / "batch.safetensors", "--out", root / "trace.safetensors")
                  for one in (name, "sparse")}
        self.assertEqual(len(losses), 1)


RECIPE = """
local fvlm = require "fvlm"
return fvlm.recipe {
  name = "sft", precision = "fp32", model = MODEL,
  checkpoint = { every = 2 },
  fvlm.stage "sft" {
    data = fvlm.mix { { SHARD }, max_frames = 3, max_text_tokens = 64, system = "" },
    objective = fvlm.next_token { on = "answer" }, optimizer = fvlm.adamw { lr = 1e-2 }, schedule = fvlm.constant {},
    batch = 4, samples = 12, freeze = { "vision" },
  },
}
"""


def write_recipe(model):
    """A recipe that trains `model`, Lua, on four coloured images."""
    shard = root / "shard.tar"
    with tarfile.open(shard, "w") as tar:
        for number in range(4):
            image = io.BytesIO()
            Image.new("RGB", (28, 28), (60 * number, 10, 200 - 40 * number)).save(image, "png")
            text = json.dumps({"user": "<image>Which?", "assistant": "abcd"[number]}).encode()
            for suffix, content in (("png", image.getvalue()), ("json", text)):
                entry = tarfile.TarInfo(f"{number:03}.{suffix}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    text = RECIPE.replace("SHARD", json.dumps(str(shard))).replace("MODEL", model)
    (root / "recipe.lua").write_text(text)
    return root / "recipe.lua"


class Training(unittest.TestCase):
    def test_an_imported_model_trains_and_goes_back(self):
        for name in ("llava-siglip-qwen2", "llava-next-clip-llama", "llava-onevision", "granite-vision", "smolvlm", "internvl-qwen2", "qianfan-ocr", "ovis2", "granite-docling", "gemma3", "paligemma"):
            with self.subTest(name):
                recipe = write_recipe(json.dumps(str(root / f"{name}.model")))
                run(engine, "check", recipe, "--files")
                run(engine, "train", recipe, "--run-dir", root / f"{name}.run")
                run(engine, "export", root / f"{name}.run", "--huggingface", "--out", root / f"{name}.trained")
                before, after = (load_file(root / folder / "model.safetensors") for folder in (name, f"{name}.trained"))
                self.assertEqual(set(before), set(after))
                for key, tensor in before.items():
                    # Ovis2's head is of its connector, and Granite Docling's tower has the connector inside, with a route that is not read.
                    is_frozen = "vision" in key and not any(part in key for part in (".head_", ".connector.")) or any(part in key for part in (".fine.", "density_router"))
                    self.assertEqual(torch.equal(tensor, after[key]), is_frozen, key)
                trained = AutoModelForImageTextToText.from_pretrained(root / f"{name}.trained").eval()
                write_batch(name, root / "batch.safetensors")
                run(engine, "trace", root / f"{name}.run", "--batch", root / "batch.safetensors", "--out", root / "trace.safetensors")
                ours = load_file(root / "trace.safetensors")["logits"]
                right = torch.cat([row[is_text(text)] for row, text in zip(logits_of(trained, name), texts_of(name)[0])])
                self.assertLessEqual(((ours - right).abs().max() / right.abs().max()).item(), 1e-5)
                self.check_generated(name, trained)

    def test_generate_takes_images_of_the_encoders_size(self):
        torch.manual_seed(1)
        config = SmolVLMConfig(vision_config=VISION | {"image_size": 240, "patch_size": 60}, text_config=LlamaConfig(**TEXT),
                               image_token_id=IMAGE)
        AutoModelForImageTextToText.from_config(config).save_pretrained(root / "large")
        (root / "large" / "tokenizer.json").write_text(tokenizer())
        run(engine, "import", "--model", root / "large", "--out", root / "large.model")
        Image.new("RGB", (50, 30), (200, 10, 80)).save(root / "image.png")
        answers = {run(engine, "generate", root / "large.model", "--image", root / "image.png", "--prompt", "<image>Which?", "--limit",
                       "8", "--ignore-eos", *options) for options in ((), ("--image-size", "240"))}
        self.assertEqual(len(answers), 1)

    def check_generated(self, name, trained):
        """The engine's checkpoint and transformers' model generate the same tokens."""
        answers = json.loads(run(engine, "generate", root / f"{name}.run", "--batch", root / "batch.safetensors", "--limit", "12",
                                 "--ignore-eos", "--json"))
        texts, counts = texts_of(name)
        images = iter(frames_of(sum(counts)).split(counts))
        for text, sample in zip(texts, answers["samples"], strict=True):
            ids = torch.tensor([text])
            rows = trained.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, min_new_tokens=12, do_sample=False,
                                    eos_token_id=VOCABULARY + 1, pad_token_id=0, **pixels_for(name, text, next(images), len(text)))
            self.assertEqual(sample["ids"], rows[0, len(text):].tolist())

    def test_the_first_step_starts_from_the_imported_weights(self):
        recipe = write_recipe(json.dumps(str(root / "smolvlm.model")))
        plan = json.loads(run(engine, "plan", recipe, "--json"))["plan"]
        self.assertEqual(plan["stages"][0]["from"], str(root / "smolvlm.model"))
        self.assertEqual(plan["model"]["connector"], {"kind": "pixel_shuffle", "factor": 4})
        self.assertEqual(plan["model"]["image_size"], 28)
        directory = json.dumps(str(root / "smolvlm.model"))
        longer = f"fvlm.model {{ directory = {directory}, image_size = 56, groups = {{ head = 'decoder.*norm*' }} }}"
        plan = json.loads(run(engine, "plan", write_recipe(longer), "--set", "stages.sft.freeze=[\"head\"]", "--json"))["plan"]
        self.assertEqual((plan["model"]["image_size"], plan["stages"][0]["freeze"]), (56, ["head"]))
        (root / "plan.json").write_text(run(engine, "plan", write_recipe(longer), "--json"))
        again = json.loads(run(engine, "plan", root / "plan.json", "--json"))["plan"]
        self.assertEqual(again["model"], plan["model"])

    def test_new_towers_are_initialized_as_in_transformers(self):
        sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 28,
                 "patch_size": 7}
        for lua, connector, kind, config in (
                ("fvlm.clip { SIZES, drop_class_token = true }", "fvlm.mlp {}", CLIPVisionModel, CLIPVisionConfig(**sizes)),
                ("fvlm.siglip { SIZES }", "fvlm.pixel_shuffle { factor = 2 }", SiglipVisionModel,
                 SiglipVisionConfig(**sizes, vision_use_head=False))):
            with self.subTest(lua):
                vision = lua.replace("SIZES", "width = 64, layers = 2, heads = 4, mlp = 160, patch_size = 7")
                decoder = f"fvlm.llama {{ width = 48, layers = 1, heads = 2, tokenizer = {json.dumps(str(root / 'smolvlm'))} }}"
                recipe = write_recipe(
                    f"fvlm.model {{ image_size = 28, vision = {vision}, decoder = {decoder}, connector = {connector} }}")
                run(engine, "train", recipe, "--run-dir", root / f"new-{kind.__name__}")
                ours = kind.from_pretrained(root / f"new-{kind.__name__}" / "sft" / "step-000003" / "vision")
                torch.manual_seed(4)
                theirs = dict(kind(config).named_parameters())
                self.assertEqual(set(theirs), set(dict(ours.named_parameters())))
                for key, tensor in ours.named_parameters():
                    spread, right = (each.detach().pow(2).mean().sqrt().item() for each in (tensor, theirs[key]))
                    self.assertAlmostEqual(spread, right, delta=7 * right / tensor.numel() ** 0.5, msg=key)

    def test_new_decoders_of_each_family_load_in_transformers(self):
        for family, kind, special in (("llama", LlamaForCausalLM, {}), ("qwen2", Qwen2ForCausalLM, {}),
                                      ("qwen3", Qwen3ForCausalLM, {"head_width": 10})):
            with self.subTest(family):
                sizes = {"width": 48, "layers": 2, "heads": 4, "kv_heads": 2, "mlp": 80} | special
                decoder = ", ".join(f"{key} = {value}" for key, value in sizes.items())
                recipe = write_recipe(
                    "fvlm.model { image_size = 28, vision = fvlm.siglip { width = 64, layers = 1, heads = 4, patch_size = 14 }, "
                    f"decoder = fvlm.llama {{ family = '{family}', {decoder}, tokenizer = {json.dumps(str(root / 'smolvlm'))} }}, "
                    "connector = fvlm.mlp {} }")
                out = root / f"new-{family}"
                run(engine, "train", recipe, "--run-dir", out)
                model, report = kind.from_pretrained(out / "sft" / "step-000003" / "decoder", output_loading_info=True)
                self.assertEqual([list(report[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")], [[], [], []])
                self.assertEqual(getattr(model.config, "head_dim", 12), special.get("head_width", 12))
                ids = torch.tensor([4, 9, 2, 30, 7])
                save_file({"frames": torch.zeros(0, 3, 28, 28), "frame_counts": torch.zeros(1, dtype=torch.long), "input_ids": ids,
                           "loss_mask": torch.ones(5, dtype=torch.uint8), "text_lengths": torch.tensor([5])},
                          root / "text.safetensors")
                run(engine, "trace", out, "--batch", root / "text.safetensors", "--out", root / "trace.safetensors")
                ours, right = load_file(root / "trace.safetensors")["logits"], model.eval()(ids[None]).logits[0].detach()
                self.assertLessEqual(((ours - right).abs().max() / right.abs().max()).item(), 1e-5)

    def test_mistakes_in_a_recipe_are_named(self):
        directory = json.dumps(str(root / "smolvlm.model"))
        for model, words in ((json.dumps(str(root / "nowhere")), ["no such folder", "nowhere", "recipe.lua:4"]),
                             (json.dumps(str(root / "smolvlm")), ["no model directory", "import"]),
                             (f"fvlm.model {{ directory = {directory}, decoder = {directory} }}", ["excludes `decoder`", "recipe.lua:4"]),
                             ("fvlm.model { decoder = 'x' }", ["vision"])):
            said = run(engine, "check", write_recipe(model), code=3)
            for word in words:
                self.assertIn(word, said)


if __name__ == "__main__":
    unittest.main()
