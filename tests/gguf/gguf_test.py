"""GGUF files against the package gguf and transformers: every tensor under the name and with the numbers that gguf's own tables and
quantizers give it, logits and tokens of what transformers loads from the file, and refusals.

usage: gguf_test.py FVLM_ENGINE TOKENIZER_ORACLE; exit 77 where the oracle's wheels are missing."""
import json
import subprocess
import sys
import unittest
from pathlib import Path

tokenizer_oracle = Path(sys.argv.pop(2)).resolve()
sys.path.insert(0, str(Path(__file__).parents[1] / "model"))
from byte_tokenizer import tokenizer
from with_transformers import draw, engine, folder, run, save_small_vision

import torch

try:
    import gguf
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)
from transformers import (AutoModelForCausalLM, AutoTokenizer, Ernie4_5Config, Gemma2Config, Gemma3TextConfig, Gemma4TextConfig, GemmaConfig, Glm4Config,
                          GraniteConfig, Lfm2Config, Lfm3Config, LlamaConfig, Ministral3Config, MistralConfig, NanoChatConfig, Olmo2Config, Qwen2Config, Qwen3_5MoeTextConfig,
                          Qwen3_5TextConfig, Qwen3Config, Qwen3MoeConfig, Lfm2MoeConfig, SmolLM3Config)

SIZES = {"vocab_size": 260, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 258}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.3}
MINISTRAL = YARN | {"attention_factor": None, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
GEMMA = {"sliding_window": 8, "tie_word_embeddings": True}
WINDOWS = ["sliding_attention", "full_attention"]
GEMMA4 = GEMMA | {"num_hidden_layers": 6, "layer_types": 3 * WINDOWS, "head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 32,
                  "vocab_size_per_layer_input": 260, "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "final_logit_softcapping": 20.0}
QWEN3_5 = {"num_hidden_layers": 4, "head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25,
                                                                        "mrope_section": [2, 1, 1], "mrope_interleaved": True},
           "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "tie_word_embeddings": True}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "experts_implementation": "eager"}
QWEN3_MOE = EXPERTS | {"head_dim": 16, "mlp_only_layers": [], "norm_topk_prob": True}
LFM2_MOE = EXPERTS | {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1, "tie_word_embeddings": True}
MODELS = {  # and what llama.cpp calls the architecture
    "llama": (LlamaConfig, {}, "llama"),
    "llama-biases": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}, "llama"),
    "llama3": (LlamaConfig, {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "head_dim": 32}, "llama"),
    "mistral": (MistralConfig, {"sliding_window": None, "rope_parameters": YARN}, "llama"),
    "ministral3": (Ministral3Config, {"head_dim": 16, "rope_parameters": MINISTRAL}, "mistral3"),
    "smollm3": (SmolLM3Config, {"num_hidden_layers": 5, "tie_word_embeddings": True}, "smollm3"),
    "granite": (GraniteConfig, {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2,
                                "logits_scaling": 2.0}, "granite"),
    "olmo2": (Olmo2Config, {"tie_word_embeddings": True}, "olmo2"),
    "gemma": (GemmaConfig, {"head_dim": 24, "tie_word_embeddings": True}, "gemma"),
    "gemma2": (Gemma2Config, GEMMA, "gemma2"),
    "gemma3": (Gemma3TextConfig, GEMMA | {"num_hidden_layers": 7}, "gemma3"),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True}, "qwen2"),
    "qwen3": (Qwen3Config, {}, "qwen3"),
    "ernie4_5": (Ernie4_5Config, {"head_dim": 16, "tie_word_embeddings": True}, "ernie4_5"),
    "glm4": (Glm4Config, {"head_dim": 16, "attention_bias": True}, "glm4"),
    "lfm2": (Lfm2Config, {"layer_types": ["conv", "full_attention", "conv"], "tie_word_embeddings": True}, "lfm2"),
    "gemma4": (Gemma4TextConfig, GEMMA4, "gemma4"),
    "qwen3_5": (Qwen3_5TextConfig, QWEN3_5, "qwen35"),
    "qwen3_moe": (Qwen3MoeConfig, QWEN3_MOE, "qwen3moe"),
    "lfm2_moe": (Lfm2MoeConfig, LFM2_MOE, "lfm2moe"),
    "qwen3_5_moe": (Qwen3_5MoeTextConfig, QWEN3_5 | EXPERTS | {"shared_expert_intermediate_size": 64}, "qwen35moe"),
}
LOADED = ["llama", "qwen2", "qwen3", "gemma2", "gemma3"]  # by transformers, of whose files it knows all keys
REFUSED = {
    "nanochat": (NanoChatConfig, {}, "decoders of the type \"nanochat\" are not written to GGUF"),
    "lfm3": (Lfm3Config, {}, "decoders of the type \"lfm3\" are not written to GGUF"),
    "window": (MistralConfig, {"sliding_window": 8}, "layers have a sliding window"),
    "scale": (Gemma3TextConfig, GEMMA | {"query_pre_attn_scalar": 7}, "'query_pre_attn_scalar' is not 256"),
    "bias": (Qwen3Config, {"head_dim": 16, "attention_bias": True}, "linears of attention outputs or the MLP have biases"),
    "tables": (Gemma4TextConfig, GEMMA4 | {"vocab_size_per_layer_input": 300}, "the layers' tables have 300 tokens, and the embedding 260"),
    "values": (Qwen3_5TextConfig, QWEN3_5 | {"linear_value_head_dim": 16}, "keys of linear attention have 8 features, and values 16"),
    "epsilon": (Qwen3_5TextConfig, QWEN3_5 | {"rms_norm_eps": 1e-5}, "'rms_norm_eps' is 1e-05, and not 1e-06"),
    "sum": (Qwen3MoeConfig, QWEN3_MOE | {"norm_topk_prob": False}, "the weights of a row's experts are not divided by their sum"),
    "dense": (Qwen3MoeConfig, QWEN3_MOE | {"mlp_only_layers": [1]}, "layer 1 has no experts"),
    "unbiased": (Lfm2MoeConfig, LFM2_MOE | {"use_expert_bias": False}, "experts are chosen without a bias"),
    "scaled": (Lfm2MoeConfig, LFM2_MOE | {"routed_scaling_factor": 2.0}, "'routed_scaling_factor' is 2, not 1"),
    "every-second": (SmolLM3Config, {"no_rope_layer_interval": 2}, "other layers than every fourth have no rotary positions"),
}


def save(model, out, tokens=tokenizer):
    model.save_pretrained(out)
    (out / "tokenizer.json").write_text(tokens())


def make(name, table):
    kind, special = table[name][:2]
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(kind(**(SIZES | special)), attn_implementation="eager").eval()
    draw(model)
    for key, buffer in model.named_buffers():
        if key.endswith("layer_scalar"):
            buffer.fill_(0.7)
    save(model, folder / f"decoder-{name}")
    run(engine, "import", "--vision", folder / "vision", "--decoder", folder / f"decoder-{name}", "--out", folder / name)
    return model


def setUpModule():
    global models
    save_small_vision(folder / "vision")
    models = {name: make(name, MODELS) for name in MODELS}


def exported(name, kind):
    """The folder, made once."""
    out = folder / f"{name}.{kind}"
    if not out.exists():
        run(engine, "export", folder / name, "--gguf", kind, "--decoder-only", "--out", out)
    return out


def value(reader, key):
    return reader.get_field(key).contents()


def in_turns(tensor, heads, dim=0):
    """Value heads key by key, `heads` of them, become those of all keys in turns."""
    return tensor.unflatten(dim, (heads, 2, -1)).transpose(dim, dim + 1).reshape(tensor.shape)


def of_qwen3_5(own, tensor):
    part = own.rpartition("linear_attn.")[2]
    if part == own:
        return tensor + 1 if own.endswith("norm.weight") else tensor
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        return torch.cat([tensor[:32], in_turns(tensor[32:], 2)]).squeeze(1)
    if part == "out_proj.weight":
        return in_turns(tensor, 2, 1)
    if part == "norm.weight":
        return tensor
    return -in_turns(tensor, 2).exp() if part == "A_log" else in_turns(tensor, 2)


def expected_tensors(name):
    """What the file is to have of a model: by the names of gguf's table, and with rows as llama.cpp has them."""
    model, architecture = models[name], MODELS[name][2]
    config = model.config
    key = {word: which for which, word in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(key, config.num_hidden_layers)
    state = model.state_dict()
    out = {}
    for own, tensor in state.items():
        if own == "lm_head.weight" and config.tie_word_embeddings and architecture != "olmo2":
            continue
        if architecture in ("llama", "mistral3", "granite", "smollm3") and (".q_proj." in own or ".k_proj." in own):
            heads = config.num_attention_heads if ".q_proj." in own else config.num_key_value_heads
            tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(tensor.shape)
        if architecture in ("gemma", "gemma2", "gemma3") and own.endswith("norm.weight"):
            tensor = tensor + 1
        if architecture in ("qwen35", "qwen35moe"):
            tensor = of_qwen3_5(own, tensor)
        if own.endswith("conv.conv.weight"):
            tensor = tensor.squeeze(1)
        if ".experts." in own:
            gate, up, down = ("w1", "w3", "w2") if architecture == "lfm2moe" else ("gate_proj", "up_proj", "down_proj")
            layer = own.rpartition(".")[0].removeprefix("model." if architecture == "lfm2moe" else "")  # as the converter calls them
            for part, numbers in zip((gate, up), tensor.chunk(2, 1)) if own.endswith("gate_up_proj") else [(down, tensor)]:
                out[names.get_name(f"{layer}.{part}.weight", (".weight",))] = numbers.contiguous()
            continue
        if own.endswith("shared_expert_gate.weight"):
            tensor = tensor.squeeze(0)
        # As llama.cpp's converter calls them.
        own = own.replace("layer_scalar", "layer_scalar.weight").replace(".dt_bias", ".dt_proj.bias").replace("expert_bias", "expert_bias.bias")
        out[names.get_name(own, (".weight", ".bias"))] = tensor
    return out


class Files(unittest.TestCase):
    def test_every_tensor_and_its_bytes(self):
        types = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16,
                 "q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}
        for name in MODELS:
            expected = expected_tensors(name)
            for kind, chosen in types.items():
                with self.subTest(f"{name} as {kind}"):
                    reader = gguf.GGUFReader(exported(name, kind) / "model.gguf")
                    tensors = {tensor.name: tensor for tensor in reader.tensors}
                    self.assertEqual(set(tensors) - {"rope_freqs.weight"}, set(expected))
                    for key, right in expected.items():
                        of_tokens = key in ("token_embd.weight", "output.weight", "per_layer_token_embd.weight")
                        wanted = gguf.GGMLQuantizationType.Q8_0 if kind == "q4_0" and of_tokens else chosen
                        if right.dim() == 1 or key.endswith(("conv.weight", "conv1d.weight", "ffn_gate_inp.weight")):
                            wanted = gguf.GGMLQuantizationType.F32
                        self.assertEqual(tensors[key].tensor_type, wanted, key)
                        self.assertEqual(list(reversed(tensors[key].shape.tolist())), list(right.shape), key)
                        if key.endswith("ssm_a"):  # an exponential, by another library
                            torch.testing.assert_close(torch.tensor(tensors[key].data), right, rtol=1e-6, atol=0)
                            continue
                        bytes_of = gguf.quants.quantize(right.numpy(), wanted).tobytes()
                        self.assertEqual(tensors[key].data.tobytes(), bytes_of, key)

    def test_rows_that_are_no_whole_blocks_are_f16(self):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(LlamaConfig(**(SIZES | {"hidden_size": 48, "intermediate_size": 64})))
        save(model, folder / "decoder-odd")
        run(engine, "import", "--vision", folder / "vision", "--decoder", folder / "decoder-odd", "--out", folder / "odd")
        report = json.loads(run(engine, "export", folder / "odd", "--gguf", "q8_0", "--decoder-only", "--out", folder / "odd.q8_0", "--json"))
        self.assertEqual(report["files"]["model.gguf"]["tensors"], {"f16": 2 + 3 * 6, "f32": 1 + 3 * 2, "q8_0": 3})

    def test_llama3_divides_frequencies(self):
        reader = gguf.GGUFReader(exported("llama3", "f32") / "model.gguf")
        divisors = torch.tensor(next(tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight"))
        plain = 1e4 ** -(torch.arange(0, 32, 2) / 32)
        scaled = models["llama3"].model.rotary_emb.inv_freq
        self.assertLess((plain / scaled / divisors - 1).abs().max().item(), 1e-6)
        self.assertEqual(divisors.max().item(), 4)

    def test_keys(self):
        reader = gguf.GGUFReader(exported("gemma3", "bf16") / "model.gguf")
        expected = {"general.architecture": "gemma3", "general.file_type": 32, "gemma3.block_count": 7, "gemma3.context_length": 128,
                    "gemma3.embedding_length": 64, "gemma3.feed_forward_length": 96, "gemma3.attention.head_count": 4,
                    "gemma3.attention.head_count_kv": 2, "gemma3.attention.key_length": 256, "gemma3.attention.value_length": 256,
                    "gemma3.attention.sliding_window": 8, "gemma3.rope.freq_base": 1e6, "gemma3.rope.freq_base_swa": 1e4,
                    "gemma3.vocab_size": 260, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
                    "tokenizer.ggml.eos_token_id": 258, "tokenizer.ggml.add_bos_token": False}
        self.assertEqual({key: value(reader, key) for key in expected}, expected)
        self.assertIsNone(reader.get_field("gemma3.attention.sliding_window_pattern"))  # every sixth layer has none, as llama.cpp expects
        gemma2 = gguf.GGUFReader(exported("gemma2", "f32") / "model.gguf")
        self.assertEqual([value(gemma2, f"gemma2.{key}_logit_softcapping") for key in ("attn", "final")], [50, 30])
        granite = gguf.GGUFReader(exported("granite", "f32") / "model.gguf")
        scales = [value(granite, f"granite.{key}") for key in ("embedding_scale", "residual_scale", "attention.scale", "logit_scale")]
        self.assertEqual([round(scale, 6) for scale in scales], [3, 0.5, 0.2, 2])
        mistral = gguf.GGUFReader(exported("mistral", "f32") / "model.gguf")
        self.assertEqual(value(mistral, "llama.rope.scaling.type"), "yarn")
        own = 1 + 0.1 * torch.log(torch.tensor(4.0)).item()  # llama.cpp's factor of rotated queries and keys
        self.assertAlmostEqual(value(mistral, "llama.rope.scaling.attn_factor") * own, 1.3, 6)
        ministral = gguf.GGUFReader(exported("ministral3", "f32") / "model.gguf")
        self.assertAlmostEqual(value(ministral, "mistral3.rope.scaling.attn_factor") * own, 1, 6)
        self.assertAlmostEqual(value(ministral, gguf.Keys.Attention.TEMPERATURE_SCALE.format(arch="mistral3")), 0.1, 6)
        self.assertEqual(value(ministral, "mistral3.rope.scaling.original_context_length"), 16)
        lfm2 = gguf.GGUFReader(exported("lfm2_moe", "f32") / "model.gguf")
        of_experts = {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 32, "feed_forward_length": 96}
        leading = {"leading_dense_block_count": 1, "expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID}
        self.assertEqual({key: value(lfm2, f"lfm2moe.{key}") for key in of_experts | leading}, of_experts | leading)
        qwen3_5 = gguf.GGUFReader(exported("qwen3_5_moe", "f32") / "model.gguf")
        self.assertEqual(value(qwen3_5, "qwen35moe.expert_shared_feed_forward_length"), 64)

    def test_transformers_loads_them_with_equal_logits(self):
        ids = torch.arange(40)[None]
        for name in LOADED:
            with self.subTest(name):
                out = exported(name, "f32")
                again = AutoModelForCausalLM.from_pretrained(out, gguf_file="model.gguf", attn_implementation="eager").eval()
                right = models[name](ids).logits
                self.assertLess((again(ids).logits - right).abs().max().item() / right.abs().max().item(), 1e-5)


class Tokens(unittest.TestCase):
    def export(self, family, config=None):
        decoder = folder / f"tokens-{family}"
        decoder.mkdir()
        subprocess.run([sys.executable, tokenizer_oracle, family, decoder, "0"], check=True)
        tokens = json.loads((decoder / "tokenizer.json").read_text())
        ids = {**tokens["model"]["vocab"], **{token["content"]: token["id"] for token in tokens["added_tokens"]}}
        torch.manual_seed(1)
        AutoModelForCausalLM.from_config(LlamaConfig(**(SIZES | {"vocab_size": len(ids) + 2}))).save_pretrained(decoder)
        (decoder / "tokenizer_config.json").write_text(json.dumps(config or {}))
        run(engine, "import", "--vision", folder / "vision", "--decoder", decoder, "--out", folder / f"model-{family}")
        run(engine, "export", folder / f"model-{family}", "--gguf", "f16", "--decoder-only", "--out", folder / f"{family}.gguf")
        reader = gguf.GGUFReader(folder / f"{family}.gguf" / "model.gguf")
        return tokens, ids, {key: value(reader, f"tokenizer.{key}") for key in
                             (name.removeprefix("tokenizer.") for name in reader.fields if name.startswith("tokenizer."))}

    def test_byte_level(self):
        for family, pre in {"smollm2": "smollm", "gpt2": "gpt-2", "llama3": "llama-bpe", "qwen2": "qwen2", "qwen3_5": "qwen35", "tekken": "tekken",
                            "deepseek3": "deepseek-v3", "deepseek_llm": "deepseek-llm"}.items():
            with self.subTest(family):
                tokens, ids, keys = self.export(family, {"chat_template": "{{ messages }}", "bos_token": "<|im_start|>", "add_bos_token": True,
                                                         "eos_token": {"content": "<|im_end|>"}})
                self.assertEqual((keys["ggml.model"], keys["ggml.pre"], keys["chat_template"]), ("gpt2", pre, "{{ messages }}"))
                self.assertEqual(keys["ggml.merges"], [" ".join(merge) for merge in tokens["model"]["merges"]])
                self.assertEqual((keys["ggml.bos_token_id"], keys["ggml.eos_token_id"], keys["ggml.eot_token_id"]),
                                 (ids["<|im_start|>"], ids["<|im_end|>"], 258))
                self.assertEqual((keys["ggml.add_bos_token"], keys["ggml.add_eos_token"]), (True, False))
                self.assertEqual(len(keys["ggml.tokens"]), len(ids) + 2)
                self.assertEqual({text: keys["ggml.tokens"].index(text) for text in ids}, ids)
                kinds = {text: keys["ggml.token_type"][place] for text, place in ids.items()}
                self.assertEqual((kinds["<|im_end|>"], kinds["zig"], kinds["e"]), (3, 4, 1))
                self.assertEqual(keys["ggml.token_type"][-2:], [5, 5])

    def test_sentencepiece(self):
        for family, begins in {"llama2": True, "gemma": False}.items():
            with self.subTest(family):
                tokens, ids, keys = self.export(family)
                self.assertEqual((keys["ggml.model"], keys["ggml.pre"], keys["ggml.add_space_prefix"]), ("llama", "default", begins))
                scores, kinds = keys["ggml.scores"], keys["ggml.token_type"]
                merged = [ids["".join(merge)] for merge in tokens["model"]["merges"] if "\0" not in "".join(merge)]
                self.assertEqual(sorted(set(merged), key=merged.index), sorted(set(merged), key=lambda one: -scores[one]))
                self.assertEqual([kinds[ids[text]] for text in ("<0x0A>", "<unk>", "<|im_end|>", "zig", "▁")], [6, 2, 3, 4, 1])
                self.assertFalse([text for text in keys["ggml.tokens"] if "\0" in text], "llama.cpp would end such a text")

    def test_transformers_encodes_with_them(self):
        _, ids, _ = self.export("mistral", {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
        text = "the circle moves left"
        again = AutoTokenizer.from_pretrained(folder / "mistral.gguf", gguf_file="model.gguf")
        right = AutoTokenizer.from_pretrained(folder / "tokens-mistral")
        self.assertEqual(again.encode(text, add_special_tokens=False), right.encode(text, add_special_tokens=False))


class Refusals(unittest.TestCase):
    def test_what_llama_cpp_does_not_have(self):
        for name, (_, _, message) in REFUSED.items():
            with self.subTest(name):
                make(name, REFUSED)
                said = run(engine, "export", folder / name, "--gguf", "f16", "--decoder-only", "--out", folder / "none", code=4)
                self.assertIn(message, said)
                self.assertIn(str(folder / name / "decoder" / "config.json"), said)
                self.assertFalse((folder / "none").exists())

    def test_a_connector_that_llama_cpp_does_not_know(self):
        said = run(engine, "export", folder / "llama", "--gguf", "f16", "--out", folder / "none", code=4)
        self.assertIn("the connector foveated", said)
        self.assertIn("--decoder-only", said)
        self.assertFalse((folder / "none").exists())

    def test_a_pattern_of_words(self):
        decoder = folder / "decoder-pattern"
        decoder.mkdir()
        subprocess.run([sys.executable, tokenizer_oracle, "nanochat", decoder, "0"], check=True)
        AutoModelForCausalLM.from_config(LlamaConfig(**(SIZES | {"vocab_size": 2000}))).save_pretrained(decoder)
        run(engine, "import", "--vision", folder / "vision", "--decoder", decoder, "--out", folder / "pattern")
        said = run(engine, "export", folder / "pattern", "--gguf", "f16", "--decoder-only", "--out", folder / "none", code=4)
        self.assertIn("how this tokenizer splits a text into words", said)

    def test_options(self):
        for options, message in {
                ("--gguf", "q5_k"): "--gguf: expected f32, f16, bf16, q8_0 or q4_0, got 'q5_k'",
                ("--gguf", "f16", "--dtype", "bf16"): "--gguf excludes --dtype and --huggingface",
                ("--gguf", "f16", "--huggingface"): "--gguf excludes --dtype and --huggingface",
                ("--gguf", "f16", "--quantize", "int8"): "--gguf excludes --quantize",
                ("--decoder-only", "--dtype", "bf16"): "--decoder-only needs --gguf"}.items():
            with self.subTest(" ".join(options)):
                self.assertIn(message, run(engine, "export", folder / "llama", *options, "--out", folder / "none", code=2))

    def test_numbers_that_overflow_are_told(self):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))
        model.model.layers[0].mlp.up_proj.weight.data[0, 0] = 1e5
        save(model, folder / "decoder-large")
        run(engine, "import", "--vision", folder / "vision", "--decoder", folder / "decoder-large", "--out", folder / "large")
        report = json.loads(run(engine, "export", folder / "large", "--gguf", "f16", "--decoder-only", "--out", folder / "large.f16", "--json"))
        self.assertEqual(report["overflowed"], {"blk.0.ffn_up.weight": 1})

    def test_numbers_that_are_not_finite(self):
        """`import` and `export` in another type say which they are; GGUF is not written, as llama-quantize would not."""
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))
        model.model.layers[0].mlp.up_proj.weight.data[0, :2] = torch.tensor([float("nan"), float("-inf")])
        save(model, folder / "decoder-broken")
        name = "decoder.model.layers.0.mlp.up_proj.weight"
        report = json.loads(run(engine, "import", "--vision", folder / "vision", "--decoder", folder / "decoder-broken", "--out", folder / "broken", "--json"))
        self.assertEqual((report["not_finite"], report["overflowed"]), ({name: 2}, {}))
        said = subprocess.run([engine, "export", folder / "broken", "--dtype", "bf16", "--out", folder / "broken-bf16"], capture_output=True, text=True).stderr
        self.assertIn(f"{name}: 2 of its values are NaN or infinite", said)
        for kind in ("q4_0", "f32"):
            said = run(engine, "export", folder / "broken", "--gguf", kind, "--decoder-only", "--out", folder / "none", code=4)
            self.assertIn('"blk.0.ffn_up.weight" has 2 values that are not finite', said)
            self.assertFalse((folder / "none").exists())


if __name__ == "__main__":
    unittest.main()
