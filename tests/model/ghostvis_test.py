"""A tiny GhostVis as a whole, from its public checkpoint, against torch: CLIP's vision tower and nanochat of transformers
(with Llama's MLP), the resampler of torch.nn. Logits, loss and every gradient, with two images in one text.

usage: ghostvis_test.py FVLM_ENGINE TOOLS; exit 77 where transformers is missing."""
import json
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

import forked_program

tools = Path(sys.argv.pop(2)).resolve()
from with_transformers import engine, folder

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, CLIPVisionConfig, CLIPVisionModel, NanoChatConfig
from transformers.models.llama.modeling_llama import LlamaMLP

WIDTH, DECODER, INNER, QUERIES, HEADS, VOCABULARY, IMAGE = 32, 48, 40, 5, 4, 61, 28
TOKENIZER = {"added_tokens": [{"id": 3, "content": "<|bos|>", "special": True}, {"id": 4, "content": "<|assistant_end|>", "special": True}],
             "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"}}
PUBLIC = {"self_attn.q_proj": "attn.c_q", "self_attn.k_proj": "attn.c_k", "self_attn.v_proj": "attn.c_v", "self_attn.o_proj": "attn.c_proj",
          "mlp.gate_proj": "mlp.swiglu.gate", "mlp.up_proj": "mlp.swiglu.up", "mlp.down_proj": "mlp.c_proj", "mlp.fc1": "mlp.c_fc",
          "mlp.fc2": "mlp.c_proj"}


class ResamplerLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.cross_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, tokens):
        x = x + self.cross_attn(self.norm1(x), tokens, tokens, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Connector(nn.Module):
    """As the public code names it."""

    def __init__(self):
        super().__init__()
        self.vision_resampler, self.vision_projector = nn.Module(), nn.Module()
        self.vision_resampler.queries = nn.Parameter(torch.zeros(1, QUERIES, WIDTH))
        self.vision_resampler.layers = nn.ModuleList(ResamplerLayer() for _ in range(2))
        self.vision_projector.mlp = nn.Sequential(
            nn.Linear(WIDTH, INNER), nn.GELU(), nn.Dropout(0), nn.Linear(INNER, DECODER), nn.LayerNorm(DECODER))

    def forward(self, tokens):
        x = self.vision_resampler.queries.expand(tokens.shape[0], -1, -1)
        for layer in self.vision_resampler.layers:
            x = layer(x, tokens)
        return self.vision_projector.mlp(x)


def run(*command, code=0):
    result = forked_program.run(command, env={**os.environ, "FVLM_CACHE": str(folder / "cache")})
    assert result.returncode == code, f"{command}\n{result.stdout}{result.stderr}"
    return result.stderr


def draw(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() < 2:
            parameter.data = (0 if name.endswith("bias") else 1) + 0.3 * noise
        else:
            parameter.data = noise if "embed" in name or "queries" in name else noise * (1.3 / parameter[0].numel() ** 0.5)


def make_decoder(is_gated):
    model = AutoModelForCausalLM.from_config(NanoChatConfig(
        vocab_size=VOCABULARY, hidden_size=DECODER, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, pad_token_id=None, bos_token_id=None, eos_token_id=2, attention_bias=is_gated, rms_norm_eps=2.0**-23,
        hidden_act="silu" if is_gated else "relu2")).eval()
    if is_gated:
        model.config.mlp_bias = False
        for layer in model.model.layers:
            layer.mlp = LlamaMLP(model.config)
    draw(model, 2)
    if is_gated:
        for layer in model.model.layers:
            layer.self_attn.o_proj.bias.data.zero_()
    return model


def public_name(name):
    name = name.replace("model.embed_tokens", "transformer.wte").replace("model.layers.", "transformer.h.")
    for ours, theirs in PUBLIC.items():
        name = name.replace(ours, theirs)
    return name


def save_public(where, decoder, parts=(), rename=lambda name: name):
    where.mkdir()
    state = {public_name(name): tensor for name, tensor in decoder.state_dict().items() if not name.endswith("o_proj.bias")}
    for part in parts:
        state |= part.state_dict()
    torch.save({rename(name): tensor for name, tensor in state.items()}, where / "model_000012.pt")
    sizes = {"sequence_len": 128, "vocab_size": VOCABULARY, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "n_embd": DECODER}
    (where / "meta_000012.json").write_text(json.dumps({"step": 12, "model_config": sizes}))


class GhostVis(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        cls.tower = CLIPVisionModel(CLIPVisionConfig(
            hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=IMAGE, patch_size=7)).eval()
        draw(cls.tower, 1)
        cls.tower.save_pretrained(folder / "tower")
        cls.connector, cls.decoder = Connector(), make_decoder(True)
        draw(cls.connector, 3)
        save_public(folder / "public", cls.decoder, [cls.connector])
        run(sys.executable, tools / "convert-ghostvis", folder / "public", "--tokenizer", folder / "tokenizer", "--vision", folder / "tower",
            "--heads", HEADS, "--out", folder / "model")

    def expected(self, samples):
        """Logits of tokens, loss and gradients by the names of the model directory."""
        logits, losses = [], []
        for frames, ids, mask in samples:
            placed, is_row = ids.clamp(min=0), ids < 0
            embedded = self.decoder.model.embed_tokens(placed)
            if len(frames):
                rows = self.connector(self.tower(frames).last_hidden_state).flatten(0, 1)
                embedded = embedded.masked_scatter(is_row[:, None], rows)
            row = self.decoder(inputs_embeds=embedded[None]).logits[0]
            logits.append(row[~is_row])
            losses.append(F.cross_entropy(row[:-1], placed[1:], reduction="none")[mask[1:] & ~is_row[1:]])
        loss = torch.cat(losses).mean()
        loss.backward()
        gradients = {f"grad.vision.{name}": parameter.grad for name, parameter in self.tower.named_parameters()}
        gradients |= {f"grad.{name}": parameter.grad for name, parameter in self.connector.named_parameters()}
        gradients |= {f"grad.decoder.{name}": parameter.grad for name, parameter in self.decoder.named_parameters()}
        return {"loss": loss.detach()} | {name: gradient for name, gradient in gradients.items() if gradient is not None}, logits

    def test_logits_loss_and_every_gradient(self):
        generator = torch.Generator().manual_seed(4)
        samples = []
        for images, length in ((2, 23), (1, 12), (0, 9)):
            ids = torch.randint(0, VOCABULARY, (length,), generator=generator)
            for image in range(images):
                at = 3 + 9 * image
                ids = torch.cat([ids[:at], torch.full((QUERIES,), -1), ids[at:]])
            samples.append((torch.randn(images, 3, IMAGE, IMAGE, generator=generator), ids,
                            torch.rand(len(ids), generator=generator) < 0.6))
        save_file({"frames": torch.cat([frames for frames, _, _ in samples]),
                   "frame_counts": torch.tensor([len(frames) for frames, _, _ in samples]),
                   "input_ids": torch.cat([ids for _, ids, _ in samples]),
                   "loss_mask": torch.cat([mask for _, _, mask in samples]).to(torch.uint8),
                   "text_lengths": torch.tensor([len(ids) for _, ids, _ in samples])}, folder / "batch.safetensors")
        for model in (self.tower, self.connector, self.decoder):
            model.zero_grad()
        expected, logits = self.expected(samples)
        floor = 0.01 * max(tensor.abs().max().item() for name, tensor in expected.items() if name.startswith("grad."))
        for options in ((), ("--kernels", "reference")):
            run(engine, "trace", folder / "model", "--batch", folder / "batch.safetensors", "--grads", "--out", folder / "trace.safetensors",
                *options)
            trace = load_file(folder / "trace.safetensors")
            for name, right in expected.items():
                if name.endswith("o_proj.bias") or "post_layernorm" in name:
                    continue
                scale = max(right.abs().max().item(), floor if name.startswith("grad.") else 0.0)
                off = (trace[name].reshape(right.shape) - right).abs().max().item() / scale
                self.assertLessEqual(off, 1e-5, f"{options}: {name}")
            self.assertEqual({name for name in trace if name.startswith("grad.")} - set(expected), set())
            right = torch.cat(logits).detach()
            self.assertLessEqual((trace["logits"] - right).abs().max().item() / right.abs().max().item(), 1e-5)

    def test_public_decoders_become_folders(self):
        for is_gated, rename in ((True, lambda name: "_orig_mod." + name), (True, lambda name: name.replace("swiglu.", "c_")),
                                 (False, lambda name: name)):
            decoder = make_decoder(is_gated)
            public, out = (Path(tempfile.mkdtemp(dir=folder)) / name for name in ("public", "out"))
            save_public(public, decoder, [self.connector] if is_gated else [], rename)
            run(sys.executable, tools / "convert-ghostvis", public / "model_000012.pt", "--tokenizer", folder / "tokenizer", "--out", out)
            config = json.loads((out / "config.json").read_text())
            self.assertEqual(config["model_type"], "ghostvis" if is_gated else "nanochat")
            self.assertEqual(config["eos_token_id"], [4, 3])
            made = load_file(out / "model.safetensors")
            expected = {name: tensor for name, tensor in decoder.state_dict().items() if not name.endswith("o_proj.bias")}
            self.assertEqual(set(made), set(expected))
            for name, tensor in expected.items():
                self.assertTrue(torch.equal(made[name], tensor), name)
            if not is_gated:
                again = AutoModelForCausalLM.from_pretrained(out).eval()
                ids = torch.arange(20)[None]
                self.assertTrue(torch.equal(again(ids).logits, decoder(ids).logits))

    def test_what_is_wrong_with_a_checkpoint_is_said(self):
        def refusal(where, *more):
            out = Path(tempfile.mkdtemp(dir=folder)) / "out"
            said = run(sys.executable, tools / "convert-ghostvis", where, "--tokenizer", folder / "tokenizer", "--out", out, *more, code=1)
            self.assertFalse(out.exists())
            self.assertNotIn("Traceback", said)
            return said

        decoder = make_decoder(False)
        save_public(folder / "text", decoder)
        self.assertIn("has no connector", refusal(folder / "text", "--vision", folder / "tower"))
        self.assertIn("has no model_NNNNNN.pt", refusal(folder / "tower"))
        save_public(folder / "strange", decoder, rename=lambda name: name.replace("lm_head", "lora"))
        self.assertRegex(refusal(folder / "strange"), re.compile("unknown: lora.weight.*missing: lm_head.weight", re.S))
        name = "model.layers.0.mlp.fc2.weight"
        for edit, words in ((lambda state: state.pop("transformer.h.0.mlp.c_proj.weight"), f"missing: {name}"),
                            (lambda state: state.update({"transformer.h.9.attn.c_q.weight": torch.zeros(2, 2)}),
                             "unknown: model.layers.9.self_attn.q_proj.weight"),
                            (lambda state: state.update({"transformer.h.0.mlp.c_proj.weight": torch.zeros(3, 2)}),
                             f"{name} has the shape [3, 2], and must have"),
                            (lambda state: state.update({"lm_head.weight": state["lm_head.weight"].int()}), "lm_head.weight holds torch.int32")):
            state = torch.load(folder / "text" / "model_000012.pt", weights_only=True)
            edit(state)
            torch.save(state, folder / "strange" / "model_000012.pt")
            self.assertIn(words, refusal(folder / "strange"))
        (folder / "strange" / "model_000012.pt").write_bytes(b"PK\x03\x04 cut")
        self.assertIn("model_000012.pt is damaged", refusal(folder / "strange"))
        (folder / "text" / "meta_000012.json").write_text("{}")
        self.assertIn("no model_config", refusal(folder / "text"))


if __name__ == "__main__":
    unittest.main()
