"""The towers by themselves against transformers: hidden states and every gradient; the folders that `import` writes load there.

usage: towers_test.py FVLM_ENGINE TOWER_PROBE; exit 77 where transformers is missing."""
import sys
import unittest
from pathlib import Path

from with_transformers import engine, folder, run

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, Dinov2Config, Dinov2WithRegistersConfig, LlamaConfig, LlamaForCausalLM

probe = Path(sys.argv.pop(1)).resolve()
VISION = {  # config, and the frames it is shown; with registers where it has num_register_tokens
    "square": ({}, (2, 3, 28, 28)),
    "resampled": ({"image_size": 70, "num_attention_heads": 4}, (3, 3, 42, 28)),
    "odd": ({"hidden_size": 30, "num_attention_heads": 3, "mlp_ratio": 3, "image_size": 35, "patch_size": 7}, (1, 3, 33, 47)),
    "registers": ({"num_register_tokens": 4}, (2, 3, 28, 28)),
    "registers-enlarged": ({"num_register_tokens": 1, "num_attention_heads": 4}, (3, 3, 42, 30)),
    "registers-reduced": ({"num_register_tokens": 2, "image_size": 70, "patch_size": 7}, (1, 3, 35, 21)),
}
DECODERS = {
    "gqa-tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "mha-untied": {"num_key_value_heads": 4, "tie_word_embeddings": False, "rope_theta": 1e5},
    "mqa-head-dim": {"num_key_value_heads": 1, "head_dim": 24, "tie_word_embeddings": False, "rms_norm_eps": 1e-6},
}

TOKENIZER = """{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"}}"""


def make_vision(name):
    config, shape = VISION[name]
    base = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
            "layerscale_value": 0.5, "initializer_range": 0.2}
    torch.manual_seed(1)
    kind = Dinov2WithRegistersConfig if "num_register_tokens" in config else Dinov2Config
    model = AutoModel.from_config(kind(**(base | config))).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder / f"vision-{name}")
    return model, torch.randn(shape)


def make_decoder(name):
    base = {"vocab_size": 61, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
            "max_position_embeddings": 128, "initializer_range": 0.2, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 2}
    torch.manual_seed(2)
    model = LlamaForCausalLM(LlamaConfig(**(base | DECODERS[name]))).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder / f"decoder-{name}")
    (folder / f"decoder-{name}" / "tokenizer.json").write_text(TOKENIZER)
    return model


class Towers(unittest.TestCase):
    def check(self, kind, name, inputs, hidden, model):
        torch.manual_seed(3)
        d_hidden = torch.randn_like(hidden)
        hidden.backward(d_hidden)
        expected = {n.replace("lm_head.", "LM."): p.grad for n, p in model.named_parameters() if p.grad is not None}
        expected = {n: g for n, g in expected.items() if not n.startswith("LM.")} | {"hidden": hidden.detach()}
        save_file(inputs | {"d_hidden": d_hidden.reshape(-1, hidden.shape[-1]).contiguous()}, folder / "in.safetensors")
        run(probe, kind, folder / f"{kind}-{name}", folder / "in.safetensors", folder / "out.safetensors")
        ours = load_file(folder / "out.safetensors")
        names = load_file(folder / f"{kind}-{name}" / "model.safetensors")
        floor = 0.01 * max(g.abs().max().item() for n, g in expected.items() if n != "hidden")
        for theirs_name, right in expected.items():
            file_name = theirs_name
            if theirs_name != "hidden" and theirs_name not in names:  # transformers renames modules as it loads
                for module, file in {"q_proj": "attention.query", "k_proj": "attention.key", "v_proj": "attention.value",
                                     "o_proj": "output.dense"}.items():
                    file_name = file_name.replace(f"attention.{module}.", f"attention.{file}.")
            right = right.reshape(ours[file_name].shape)
            scale = max(right.abs().max().item(), 0.0 if theirs_name == "hidden" else floor)
            off = (ours[file_name] - right).abs().max().item() / scale
            self.assertLessEqual(off, 1e-5, f"{kind} {name}: {file_name}")
        self.assertGreater(len(expected), 20)

    def test_dinov2(self):
        for name in VISION:
            with self.subTest(name):
                model, frames = make_vision(name)
                self.check("vision", name, {"frames": frames}, model(frames).last_hidden_state, model)

    def test_llama_over_packed_sequences(self):
        for name in DECODERS:
            with self.subTest(name):
                model, lengths = make_decoder(name), [5, 1, 9]
                ids = torch.randint(0, 61, (sum(lengths),), generator=torch.Generator().manual_seed(4))
                hidden = torch.cat([model.model(input_ids=part[None]).last_hidden_state[0] for part in ids.split(lengths)])
                self.check("decoder", name, {"ids": ids, "lengths": torch.tensor(lengths)}, hidden, model)

    def test_what_import_writes_loads_in_transformers(self):
        for name, tower in zip(DECODERS, ("square", "registers", "registers-enlarged"), strict=True):
            with self.subTest(name):
                vision, frames = make_vision(tower)
                decoder, ids, out = make_decoder(name), torch.arange(12)[None], folder / f"model-{name}"
                run(engine, "import", "--vision", folder / f"vision-{tower}", "--decoder", folder / f"decoder-{name}", "--out", out)
                again = LlamaForCausalLM.from_pretrained(out / "decoder").eval()
                self.assertTrue(torch.equal(again(ids).logits, decoder(ids).logits))
                self.assertTrue(torch.equal(AutoModel.from_pretrained(out / "vision").eval()(frames).last_hidden_state,
                                            vision(frames).last_hidden_state))


if __name__ == "__main__":
    unittest.main()
