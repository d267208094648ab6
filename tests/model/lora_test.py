"""LoRA and DoRA beside PEFT: gradients of every adapter in decoders and encoders, merged weights, adapters that go out and come in,
and adapters on a quantized base.

usage: lora_test.py FVLM_ENGINE; exit 77 where the oracle's wheels are missing."""
import copy
import shutil
import sys
import unittest

import tiny_smolvlm
from tiny_smolvlm import FILES, IMAGE, TEXT, TOKENS, VISION, draw, relative, write_batch
from with_transformers import engine, folder as root, run

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import Dinov2Config, Dinov2Model, Glm4Config, Glm4ForCausalLM, Lfm2Config, Lfm2ForCausalLM, Lfm3Config, Lfm3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig

try:
    import peft
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

TARGETS = {"decoder": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
           "vision": ["q_proj", "v_proj", "out_proj", "fc1", "fc2"]}
# Also within q, k and v and within gate and up, which one product reads.
SIZES = {"decoder": {"rank_pattern": {"k_proj": 2, "v_proj": 7, r"layers\.0\..*up_proj": 3}, "alpha_pattern": {"q_proj": 3, "down_proj": 20}},
         "vision": {"rank_pattern": {"v_proj": 7, r"layers\.0\.mlp\.fc[12]": 1}, "alpha_pattern": {"layers.1.mlp.fc1": 2.5}}}


def traced(model, *options, batch="batch"):
    run(engine, "trace", root / model, "--batch", root / f"{batch}.safetensors", "--out", root / "trace.safetensors", *options)
    return load_file(root / "trace.safetensors")


def setUpModule():
    global whole, frames
    whole, frames = tiny_smolvlm.make()
    write_batch(root / "batch.safetensors", TOKENS, frames)


def part_of(model, part):
    return model.model.text_model if part == "decoder" else model.model.vision_model


class CausalLm(torch.nn.Module):
    """A text model under the names of its causal form, which PEFT's names of a decoder come from."""

    def __init__(self, model):
        super().__init__()
        self.model = model


def adapted(model, part, dora=False, **sizes):
    """PEFT's adapters with drawn weights on a part of the whole model, in place; and the folder that PEFT writes."""
    inner = CausalLm(part_of(model, part)) if part == "decoder" else part_of(model, part)
    wrapped = peft.get_peft_model(inner, peft.LoraConfig(r=4, lora_alpha=10, target_modules=TARGETS[part], use_dora=dora, **sizes))
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.1 * torch.randn_like(parameter)
        elif "magnitude" in name:
            parameter.data = parameter.data * (1 + 0.2 * torch.randn_like(parameter))
    out = root / f"peft-{part}-{dora}"
    shutil.rmtree(out, ignore_errors=True)
    wrapped.save_pretrained(out)
    return wrapped, out


def expected_of(model, wrapped, part):
    """Logits, loss and gradients of the adapters, by the engine's names."""
    tokens = torch.tensor(TOKENS)
    rows = model(input_ids=tokens[None], pixel_values=frames[None].to(next(model.parameters()).dtype)).logits[0]
    is_text = tokens != IMAGE
    loss = F.cross_entropy(rows[:-1], tokens[1:], reduction="none")[is_text[1:]].mean()
    loss.backward()
    gradients = {}
    for name, parameter in wrapped.named_parameters():
        if parameter.requires_grad:
            own = name.removeprefix("base_model.model.").replace(".default", "")
            own = own.replace("lora_magnitude_vector.weight", "lora_magnitude_vector")
            gradients[f"grad.{part}.{own}"] = parameter.grad
    return {"logits": rows[is_text].detach(), "loss": loss.detach()} | gradients


class Lora(unittest.TestCase):
    def imported(self, adapter, base="plain", part="decoder"):
        shutil.rmtree(root / "adapted", ignore_errors=True)
        run(engine, "lora", "import", adapter, "--base", root / base, "--part", part, "--out", root / "adapted")
        return "adapted"

    def test_gradients_are_those_of_peft(self):
        for part, own in SIZES.items():
            for dora, sizes in ((False, {}), (True, {}), (False, own), (True, own)):
                with self.subTest(part=part, dora=dora, sizes=sizes):
                    model = copy.deepcopy(whole).double()
                    wrapped, saved = adapted(model, part, dora, **sizes)
                    expected = expected_of(model, wrapped, part)
                    self.assertGreater(len(expected), 2 * len(TARGETS[part]))
                    trace = traced(self.imported(saved, part=part), "--grads", "--dtype", "fp64")
                    worst = 0
                    for name, right in expected.items():
                        self.assertGreater(right.abs().max().item(), 0, name)
                        worst = max(worst, relative(trace[name].reshape(right.shape), right))
                        self.assertLess(relative(trace[name].reshape(right.shape), right), 1e-5, name)
                    ranks = {tensor.shape[0] for name, tensor in expected.items() if "lora_A" in name}
                    self.assertEqual(len(ranks), 1 if not sizes else 4 if part == "decoder" else 3)
                    print(f"{part}, DoRA {dora}, ranks {ranks}: {len(expected) - 2} gradients, {worst:.1e}")
                    frozen = {key for key in trace if key.startswith(f"grad.{part}.") and key not in expected}
                    self.assertEqual(frozen, set(), "frozen weights have no gradients")

    def check_decoder(self, name, decoder, targets, adapted, saved):
        """Beside a DINOv2, which is returned with the text. `adapted`: the number of linears with adapters."""
        draw(decoder)
        decoder.save_pretrained(root / name)
        (root / name / "tokenizer.json").write_text(FILES["tokenizer.json"])
        vision = Dinov2Model(Dinov2Config(**VISION | {"mlp_ratio": 2})).eval()
        draw(vision)
        vision.save_pretrained(root / "dinov2")
        run(engine, "import", "--vision", root / "dinov2", "--decoder", root / name, "--out", root / f"with-{name}")
        tokens = torch.tensor([5, 9, 77, 3, 250, 14, 14, 8])
        write_batch(root / "text.safetensors", tokens.tolist(), torch.zeros(0, 3, 28, 28))
        for dora in (False, True):
            model = copy.deepcopy(decoder).double()
            wrapped = peft.get_peft_model(model, peft.LoraConfig(r=3, lora_alpha=5, target_modules=targets,
                                                                 use_dora=dora, modules_to_save=[saved]))
            for parameter_name, parameter in wrapped.named_parameters():
                if "lora_B" in parameter_name:
                    parameter.data = 0.1 * torch.randn_like(parameter)
            wrapped.save_pretrained(root / f"{name}-{dora}")
            rows = wrapped(input_ids=tokens[None]).logits[0]
            F.cross_entropy(rows[:-1], tokens[1:]).backward()
            trace = traced(self.imported(root / f"{name}-{dora}", f"with-{name}"), "--grads", "--dtype", "fp64", batch="text")
            self.assertLess(relative(trace["logits"], rows.detach()), 1e-5)
            seen = 0
            for parameter_name, parameter in wrapped.named_parameters():
                if not parameter.requires_grad:
                    continue
                own = parameter_name.removeprefix("base_model.model.").replace(".default", "").replace("modules_to_save.", "")
                own = own.replace("lora_magnitude_vector.weight", "lora_magnitude_vector").replace("self_attn.g_proj.", "self_attn.gate_proj.")
                self.assertLess(relative(trace[f"grad.decoder.{own}"].reshape(parameter.shape), parameter.grad), 1e-5, own)
                seen += 1
            self.assertEqual(seen, adapted * (3 if dora else 2) + 1)
        return vision, tokens

    def test_a_qwen2_and_a_dinov2(self):
        torch.manual_seed(3)
        decoder = Qwen2ForCausalLM(Qwen2Config(**TEXT | {"tie_word_embeddings": True})).eval()
        vision, tokens = self.check_decoder("qwen2", decoder, ["q_proj", "v_proj", "down_proj"], 2 * 3, "model.norm")
        # The encoder's LayerScale is not folded into linears that have adapters: merged and unmerged agree.
        wrapped = peft.get_peft_model(copy.deepcopy(vision), peft.LoraConfig(r=2, target_modules=["q_proj", "o_proj", "fc2"]))
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.data = 0.3 * torch.randn_like(parameter)
        wrapped.save_pretrained(root / "dinov2-peft")
        wrapped_before = [(name, parameter.clone()) for name, parameter in wrapped.named_parameters()]
        write_batch(root / "one.safetensors", tokens.tolist(), frames)
        ours = traced(self.imported(root / "dinov2-peft", "with-qwen2", "vision"), batch="one")
        shutil.rmtree(root / "merged", ignore_errors=True)
        run(engine, "lora", "merge", root / "adapted", "--out", root / "merged")
        merged = traced("merged", batch="one")
        self.assertGreater(relative(traced("with-qwen2", batch="one")["visual_tokens"], merged["visual_tokens"]), 1e-2)
        self.assertLess(relative(ours["visual_tokens"], merged["visual_tokens"]), 1e-5)
        wrapped.merge_and_unload().save_pretrained(root / "dinov2-merged")
        theirs = load_file(root / "dinov2-merged" / "model.safetensors")
        for name, tensor in load_file(root / "merged" / "vision" / "model.safetensors").items():
            self.assertLess((tensor - theirs[name]).abs().max().item(), 1e-6, name)
        # And back, under the names that transformers has for its modules.
        shutil.rmtree(root / "out", ignore_errors=True)
        run(engine, "lora", "export", root / "adapted", "--out", root / "out")
        loaded = peft.PeftModel.from_pretrained(copy.deepcopy(vision), root / "out")
        for name, parameter in loaded.named_parameters():
            if "lora_" in name:
                self.assertTrue(torch.equal(parameter, dict(wrapped_before)[name]), name)

    def test_a_qwen3_5(self):
        torch.manual_seed(5)
        decoder = Qwen3_5ForCausalLM(Qwen3_5TextConfig(
            **TEXT | {"full_attention_interval": 2, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                      "linear_key_head_dim": 8, "linear_value_head_dim": 8,
                      "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}})).eval()
        self.assertEqual(decoder.config.layer_types, ["linear_attention", "full_attention"] * (TEXT["num_hidden_layers"] // 2))
        pairs = TEXT["num_hidden_layers"] // 2  # of layers
        self.check_decoder("qwen3_5", decoder, ["q_proj", "o_proj", "in_proj_qkv", "in_proj_z", "out_proj", "down_proj"], 7 * pairs,
                           "model.norm")

    def test_a_glm4(self):
        """Whose rows of queries and keys have another order in memory than in files."""
        torch.manual_seed(6)
        decoder = Glm4ForCausalLM(Glm4Config(**TEXT | {"head_dim": 16, "pad_token_id": None, "eos_token_id": 2, "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}})).eval()
        self.check_decoder("glm4", decoder, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"], 6 * TEXT["num_hidden_layers"],
                           "model.norm")

    def test_an_lfm2(self):
        torch.manual_seed(4)
        decoder = Lfm2ForCausalLM(Lfm2Config(**TEXT | {"full_attn_idxs": [1], "block_multiple_of": 16})).eval()
        of_all, of_convolutions, of_attention = 3, TEXT["num_hidden_layers"] * 2 - 2, 2
        self.check_decoder("lfm2", decoder, ["q_proj", "in_proj", "out_proj", "w1", "w2", "w3"],
                           TEXT["num_hidden_layers"] * of_all + of_convolutions + of_attention, "model.embedding_norm")

    def test_an_lfm3(self):
        torch.manual_seed(4)
        layers = TEXT["num_hidden_layers"]
        decoder = Lfm3ForCausalLM(Lfm3Config(**TEXT | {"head_dim": 16, "layer_types": ["conv"] * (layers - 1) + ["full_attention"]})).eval()
        self.check_decoder("lfm3", decoder, ["q_proj", "g_proj", "o_proj", "in_proj", "w2"], layers + (layers - 1) + 3,
                           "model.embedding_norm")

    def test_merged_weights_and_adapters_that_go_out_and_in(self):
        for dora, sizes in ((False, {}), (True, {}), (False, SIZES["decoder"])):
            model = copy.deepcopy(whole)
            wrapped, saved = adapted(model, "decoder", dora, **sizes)
            with torch.no_grad():
                rows = model(input_ids=torch.tensor([TOKENS]), pixel_values=frames[None]).logits[0]
            right = rows[torch.tensor(TOKENS) != IMAGE]
            unmerged = traced(self.imported(saved))["logits"]
            self.assertLess(relative(unmerged, right), 1e-5, "an adapter of PEFT's")
            self.assertGreater(relative(traced("plain")["logits"], right), 0.05, "the adapter does something")
            shutil.rmtree(root / "merged", ignore_errors=True)
            run(engine, "lora", "merge", root / "adapted", "--out", root / "merged")
            self.assertFalse((root / "merged" / "decoder" / "adapter_config.json").exists())
            self.assertLess(relative(traced("merged")["logits"], unmerged), 1e-5, "merged")
            if not dora:  # over pages of keys and values, too
                answers = [run(engine, "generate", root / model, "--prompt", "what is this?", "--max-tokens", 24, "--ignore-eos")
                           for model in ("adapted", "merged", "plain")]
                self.assertEqual(answers[0], answers[1])
                self.assertNotEqual(answers[0], answers[2])
            # The folder is PEFT's own form: what it loads gives the same logits.
            shutil.rmtree(root / "out", ignore_errors=True)
            run(engine, "lora", "export", root / "adapted", "--part", "decoder", "--out", root / "out")
            again = copy.deepcopy(whole)
            loaded = peft.PeftModel.from_pretrained(CausalLm(part_of(again, "decoder")), root / "out")
            self.assertEqual(set(loaded.targeted_module_names),
                             {name for name, _ in CausalLm(part_of(again, "decoder")).named_modules() if name.endswith("_proj")})
            # On the whole model, whose modules have other names, its weights would be left out.
            with self.assertRaisesRegex(ValueError, "Target modules .* not found in the base model"):
                peft.PeftModel.from_pretrained(copy.deepcopy(whole), root / "out")
            with torch.no_grad():
                rows = again(input_ids=torch.tensor([TOKENS]), pixel_values=frames[None]).logits[0]
            self.assertLess(relative(rows[torch.tensor(TOKENS) != IMAGE], right), 1e-6, "loaded by PEFT")

    def test_a_quantized_base_has_the_gradients_of_its_numbers(self):
        for scheme in ("int8", "int4"):
            shutil.rmtree(root / scheme, ignore_errors=True)
            run(engine, "export", root / "plain", "--quantize", scheme, "--skip", "vision.*", "--skip", "connector.*",
                "--out", root / scheme)
            for dora in (False, True):
                wrapped, saved = adapted(copy.deepcopy(whole), "decoder", dora)
                on_codes = traced(self.imported(saved, scheme), "--grads")
                # What the codes stand for: the base with an adapter that adds nothing, merged.
                shutil.rmtree(root / "empty", ignore_errors=True)
                peft.get_peft_model(CausalLm(part_of(copy.deepcopy(whole), "decoder")),
                                    peft.LoraConfig(r=1, target_modules=["q_proj"])).save_pretrained(root / "empty")
                shutil.rmtree(root / "numbers", ignore_errors=True)
                run(engine, "lora", "merge", root / self.imported(root / "empty", scheme), "--out", root / "numbers")
                on_numbers = traced(self.imported(saved, "numbers"), "--grads")
                names = [name for name in on_numbers if ".lora_" in name]
                self.assertEqual(len(names), 2 * 7 * (3 if dora else 2))
                for name in [*names, "logits"]:
                    self.assertLess(relative(on_codes[name], on_numbers[name]), 2e-4, f"{scheme}: {name}")

    def test_what_is_said_of_adapters_that_do_not_fit(self):
        wrapped, saved = adapted(copy.deepcopy(whole), "decoder")
        self.imported(saved)
        base = root / "plain" / "decoder" / "model.safetensors"
        before = base.read_bytes()
        try:
            base.write_bytes(before[:-4] + bytes(4))
            self.assertIn('are not those that the adapters of the part "decoder" were trained on',
                          run(engine, "trace", root / "adapted", "--batch", root / "batch.safetensors", "--out", root / "x", code=4))
            (root / "plain" / "decoder").rename(root / "plain" / "away")
            self.assertIn("the weights that they were trained on are not in",
                          run(engine, "trace", root / "adapted", "--batch", root / "batch.safetensors", "--out", root / "x", code=4))
        finally:
            if (root / "plain" / "away").exists():
                (root / "plain" / "away").rename(root / "plain" / "decoder")
            base.write_bytes(before)
        self.assertIn("names one of vision, decoder",
                      run(engine, "lora", "import", saved, "--base", root / "plain", "--part", "decoder2", "--out", root / "x", code=2))
        self.assertIn("which the base does not have as a linear",
                      run(engine, "lora", "import", saved, "--base", root / "plain", "--part", "vision", "--out", root / "x", code=4))
        wider = Qwen2ForCausalLM(Qwen2Config(**TEXT | {"intermediate_size": 288}))
        shutil.rmtree(root / "wider", ignore_errors=True)
        wider.save_pretrained(root / "wider")
        (root / "wider" / "tokenizer.json").write_text(FILES["tokenizer.json"])
        Dinov2Model(Dinov2Config(**VISION | {"mlp_ratio": 2})).save_pretrained(root / "wider-vision")
        run(engine, "import", "--vision", root / "wider-vision", "--decoder", root / "wider", "--out", root / "wider-model")
        said = run(engine, "lora", "import", saved, "--base", root / "wider-model", "--out", root / "x", code=4)
        self.assertIn("must have [288, 4]", said)
        self.assertIn("name the base that it was trained on", said)
        for verb in (["export", root / "adapted", "--dtype", "bf16"], ["export", root / "adapted", "--quantize", "int8"]):
            self.assertIn("lora merge", run(engine, *verb, "--out", root / "x", code=4))
        self.assertIn("no adapters to merge", run(engine, "lora", "merge", root / "plain", "--out", root / "x", code=4))
        config = saved / "adapter_config.json"
        config.write_text(config.read_text().replace('"rank_pattern": {}', '"rank_pattern": {"q_proj": 8}'))
        self.assertIn("rank_pattern",
                      run(engine, "lora", "import", saved, "--base", root / "plain", "--out", root / "x", code=4))


if __name__ == "__main__":
    unittest.main()
