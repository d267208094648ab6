"""fVLM in PyTorch on transformers' towers: the reference of the engine's parity tests and its baseline in benchmarks.

`Fvlm` computes one sample at a time, without padding: slow, plain, the ground truth. `PaddedFvlm` computes the same
numbers for a whole batch at once, as a good PyTorch user writes it. Where the description of the family leaves a choice,
this is the contract, for the engine too:

Batch      Samples do not attend to each other. A sample's decoder sequence is [its visual tokens][its text], positions from 0.
           A text-only sample has no visual tokens; neither the connector nor the tower takes part in it.
Loss       Text token i >= 1 is a label where its loss mask is not 0, predicted from position i - 1. Token 0 never is.
           `loss` is the mean over all labels of the batch (0 if there are none). `loss_per_sample` is the mean over a
           sample's own labels (0 if none), `label_count` their number: sum(per_sample * count) / sum(count) = loss.
lambda     loss = CE(fine) + lambda_coarse * CE(coarse), both means over the same labels; CE(coarse) is of the
           sequence [coarse visual tokens][text]. A text-only sample counts in both. `loss_per_sample` holds both terms.
           It is defined for coarse_fine and shallow with the objective ce, and refused elsewhere.
Gradients  Flow through everything: the queries are not detached, so the fine loss reaches q_static, the coarse pass,
           and the tower through both uses of its K and V. No token is padding: `pad_token_id` of the decoder's
           config stops no gradient (torch's Embedding would). The gradient of an unused parameter is 0.
Refined    As coarse_fine, then once more: queries from the fine visual tokens, without gradient, attend to the frames
           again. `queries` and `visual_tokens` are those of the last pass.
Shallow    attend() runs over the last layer alone: norm1, query, its K and V, output, layer_scale1, norm2, MLP,
           layer_scale2; then the final LayerNorm and output_proj. `attend = shallow` in fvlm.json makes every mode shallow;
           the mode `shallow` is coarse_fine that way, whatever fvlm.json says.
Queries    `queries` [N, query_dim] are those that attended to each frame last: q_static (coarse_only), q_init then shifted
           queries (coarse_fine, shallow), or the recurrence (autoregressive). `visual_tokens` [N, width] are the
           decoder's inputs, `logits` those of every text position, a sample's last one too.
Attention  On request `attention` [N, layers, heads, tokens of a frame]: the softmax weights of the query of `queries` on
           the tokens of its frame (CLS first), in every layer of attend(), which is one if it is shallow. Rows sum
           to 1.
DPO        The visual prefix is computed once, for chosen and rejected. A response's log-probability is the sum over its
           labels (as above). Reward = beta * (policy - reference). loss = mean over pairs of -log sigmoid(reward of
           chosen - reward of rejected); `accuracy` counts chosen > rejected, strictly. The reference runs in the
           policy's mode, on its own queries, without gradients.
Recurrence Autoregressive is inference: it has no gradients (`trace --grads` refuses it).
Precision  bf16: weights and activations in bf16; log-softmax and loss in float32. fp64: RMSNorm and the interpolation
           of positions in float64 too. Rotary tables are float32 in every precision, as transformers makes them.
Names      A gradient is `grad.` + folder + the name in that folder's safetensors: `grad.vision.embeddings.cls_token`,
           `grad.vision.encoder.layer.0.attention.attention.query.weight`, `grad.decoder.model.norm.weight`; those of
           connector.safetensors have no folder: `grad.q_static`. A tied head has no name.
fvlm.json  the connector's: {"kind": "fvlm", "query_dim": 384, "visual_scale": 0.14, "attend": "deep" or "shallow"}
"""
import functools
import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # weights come from folders, never from the network

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, DynamicCache, LlamaForCausalLM
from transformers import __version__ as transformers_version
from transformers.utils import logging

if tuple(int(part) for part in transformers_version.split(".")[:2]) < (5, 23):  # older versions name their modules differently
    raise ImportError(f"transformers {transformers_version} is too old for the oracle: ./scripts/setup --oracles installs 5.23")
logging.disable_progress_bar()

# Letters in shapes: N frames of the batch, T frames of a sample, S text tokens, D tower width, W decoder width.
MODES = ("coarse_fine", "refined", "coarse_only", "autoregressive", "shallow")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
FILE_NAMES = {"q_proj": "attention.query", "k_proj": "attention.key", "v_proj": "attention.value",
              "o_proj": "output.dense"}  # of the tower's attention: in transformers' modules, in the files


class Fvlm(nn.Module):
    def __init__(self, vision, decoder, query_dim, visual_scale, shallow=False):
        super().__init__()
        tower, width = vision.config.hidden_size, decoder.config.hidden_size
        self.vision, self.decoder = vision, decoder
        self.visual_scale, self.shallow = visual_scale, shallow
        self.q_static = nn.Parameter(torch.randn(1, query_dim))
        self.q_init = nn.Parameter(torch.randn(1, query_dim))
        self.query_input_proj = nn.Linear(query_dim, tower, bias=False)
        self.output_proj = nn.Linear(tower, tower)
        self.dino_to_llm = nn.Linear(tower, width)
        self.llm_to_query = nn.Linear(width, query_dim)
        decoder.model.embed_tokens.padding_idx = None
        self.eval()

    @classmethod
    def load(cls, folder, dtype=torch.float32, device="cpu"):
        folder = Path(folder)
        described = json.loads((folder / "fvlm.json").read_text())
        connector = described.get("connector") or next(  # format 1 has no list of parts
            part["config"] for part in described["parts"] if part["role"] == "connector")
        vision = AutoModel.from_pretrained(folder / "vision", dtype=torch.float32)
        decoder = LlamaForCausalLM.from_pretrained(folder / "decoder", dtype=torch.float32)
        shallow = connector.get("attend", "deep") == "shallow"
        model = cls(vision, decoder, connector["query_dim"], connector["visual_scale"], shallow)
        weights, expected = load_file(folder / "connector.safetensors"), model.connector_state()
        if weights.keys() != expected.keys():
            raise ValueError(f"{folder}/connector.safetensors holds {sorted(weights)}, not {sorted(expected)}")
        model.load_state_dict(weights, strict=False)
        return model.convert(dtype).to(device)

    def save(self, folder, shard_size="1GB"):
        folder = Path(folder)
        self.vision.save_pretrained(folder / "vision")
        self.decoder.save_pretrained(folder / "decoder", max_shard_size=shard_size)
        save_file(self.connector_state(), folder / "connector.safetensors")
        connector = {"kind": "fvlm", "query_dim": self.q_init.shape[1], "visual_scale": self.visual_scale,
                     "attend": "shallow" if self.shallow else "deep"}
        (folder / "fvlm.json").write_text(json.dumps({"format_version": 1, "connector": connector}, indent=2) + "\n")

    def convert(self, dtype):
        """Only the parameters: Module.to(dtype) would round the rotary frequencies too."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)
        if dtype == torch.float64:  # transformers computes these two in float32 whatever the weights are
            for norm in (m for m in self.decoder.modules() if type(m).__name__ == "LlamaRMSNorm"):
                norm.forward = functools.partial(
                    F.rms_norm, normalized_shape=norm.weight.shape, weight=norm.weight, eps=norm.variance_epsilon)
            self.vision.embeddings.interpolate_pos_encoding = self._positions
        return self

    def _positions(self, embeddings, height, width):
        """[1, 1 + patches, D]: the position embedding, resampled to the grid of frames of this size."""
        table, patch = self.vision.embeddings.position_embeddings, self.vision.embeddings.patch_embeddings.patch_size
        rows, columns = height // patch[0], width // patch[1]
        side = round((table.shape[1] - 1) ** 0.5)
        if (rows, columns) == (side, side):
            return table
        grid = table[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2)
        antialias = hasattr(self.vision.embeddings, "register_tokens")
        grid = F.interpolate(grid, size=(rows, columns), mode="bicubic", align_corners=False, antialias=antialias)
        return torch.cat([table[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)

    def connector_state(self):
        return {name: p.data for name, p in self.named_parameters() if not name.startswith(("vision.", "decoder."))}

    def named_gradients(self):
        for name, parameter in self.named_parameters():
            if name.startswith("vision."):
                for ours, theirs in FILE_NAMES.items():
                    name = name.replace(f"attention.{ours}.", f"attention.{theirs}.")
            yield name, torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

    # The connector: frames -> keys and values, once; query -> one visual token, any number of times.

    def encode(self, frames):
        """[n, 3, H, W] -> per layer K and V of all tokens, [n, heads, 1 + patches, head_dim]."""
        hidden, cache, layers = self.vision.embeddings(frames.to(self.q_init.dtype)), [], self.vision.encoder.layer
        for layer in layers:
            normed = layer.norm1(hidden)
            keys, values = layer.attention.k_proj(normed), layer.attention.v_proj(normed)
            cache.append((split_heads(layer, keys), split_heads(layer, values)))
            if layer is not layers[-1]:
                hidden = vision_layer(layer, hidden, normed, *cache[-1])
        return cache

    def attend(self, query, cache, maps=None):
        """[n, query_dim] -> [n, D]: each query passes through the tower's layers as one more token, to which the patches do
        not attend. `maps` collects its attention weights: per layer [n, heads, 1 + patches]."""
        x = self.query_input_proj(query)[:, None]
        layers = list(zip(self.vision.encoder.layer, cache))
        for layer, (keys, values) in layers[-1:] if self.shallow else layers:
            normed = layer.norm1(x)
            if maps is not None:
                scores = split_heads(layer, layer.attention.q_proj(normed)) @ keys.mT / keys.shape[-1] ** 0.5
                maps.append(scores.softmax(-1)[:, :, 0])
            x = vision_layer(layer, x, normed, keys, values)
        return self.output_proj(self.vision.layernorm(x))[:, 0]

    @torch.no_grad()
    def attention(self, frames, queries):
        """The attention weights of the frames' queries: [N, layers, heads, 1 + patches]."""
        maps = []
        self.attend(queries, self.encode(frames), maps)
        return torch.stack(maps, 1)

    def attend_frames(self, query, cache):
        """[n, query_dim] -> [n, W]: the visual tokens."""
        return self.dino_to_llm(self.attend(query, cache)) * self.visual_scale

    # One sample at a time, without padding.

    def decode(self, sequences):
        """A list of embeddings [length, W] -> a list of hidden states [length, W]."""
        return [self.decoder.model(inputs_embeds=one[None], use_cache=False).last_hidden_state[0] for one in sequences]

    def visual(self, frames, counts, mode):
        """-> queries [N, query_dim], visual tokens [N, W], coarse visual tokens [N, W] (or None)."""
        parts = [self._visual_of_sample(one, mode) for one in frames.split(counts) if len(one)]
        if not parts:
            none = self.q_init.new_zeros(0, self.dino_to_llm.out_features)
            return self.q_init[:0], none, none
        return [None if part[0] is None else torch.cat(part) for part in zip(*parts)]

    def _visual_of_sample(self, frames, mode):
        cache = self.encode(frames)
        if mode == "autoregressive":
            return *self.decode_frames_autoregressive(cache)[:2], None
        queries = self.q_static.expand(len(frames), -1)
        coarse = self.attend_frames(queries, cache)
        if mode == "coarse_only":
            return queries, coarse, coarse
        queries = self.queries_from([coarse])
        if mode == "refined":
            with torch.no_grad():
                fine = self.attend_frames(queries, cache)
            queries = self.queries_from([fine])
        return queries, self.attend_frames(queries, cache), coarse

    def queries_from(self, tokens):
        """The query of each frame, from the visual tokens of the previous ones. `tokens` has one tensor per sample."""
        following = [self.llm_to_query(hidden[:-1]) for hidden in self.decode(tokens)]
        return torch.cat([part for rest in following for part in (self.q_init, rest)])

    def decode_frames_autoregressive(self, cache):
        """The frames of one sample in order, each with the query that the decoder makes from the previous ones.
        -> queries [T, query_dim], visual tokens [T, W], the decoder's KV cache."""
        kv_cache, query, queries, tokens = DynamicCache(config=self.decoder.config), self.q_init, [], []
        for t in range(len(cache[0][0])):
            queries.append(query)
            tokens.append(self.attend_frames(query, [(keys[t : t + 1], values[t : t + 1]) for keys, values in cache]))
            out = self.decoder.model(inputs_embeds=tokens[-1][None], past_key_values=kv_cache, use_cache=True)
            query = self.llm_to_query(out.last_hidden_state[0])
        return torch.cat(queries), torch.cat(tokens), kv_cache

    def text_hidden(self, visual, counts, ids, lengths):
        """Visual tokens [N, W] and text of all samples, each packed -> hidden states of the text, [sum S, W]."""
        text = self.decoder.model.embed_tokens(ids).split(lengths)
        hidden = self.decode([torch.cat(pair) for pair in zip(visual.split(counts), text)])
        return torch.cat([one[count:] for one, count in zip(hidden, counts)])

    @torch.no_grad()
    def generate(self, frames, prompt, limit, stop=()):
        """Greedy decoding. -> new ids (including a stop id), the smallest lead of a chosen logit over the next best."""
        kv_cache = DynamicCache(config=self.decoder.config)
        if len(frames):
            kv_cache = self.decode_frames_autoregressive(self.encode(frames))[2]
        ids, lead, step = [], float("inf"), prompt
        while len(ids) < limit and not (ids and ids[-1] in stop):
            logits = self.decoder(input_ids=step[None], past_key_values=kv_cache, use_cache=True).logits[0, -1]
            best = logits.topk(2).values
            lead = min(lead, (best[0] - best[1]).item())
            step = logits.argmax()[None]
            ids.append(step.item())
        return ids, lead


class PaddedFvlm(Fvlm):
    """The same model over whole batches. Frames need no padding; decoder sequences are padded at their ends, which a
    causal decoder needs no mask for."""

    def decode(self, sequences):
        padded = pad_sequence(sequences, batch_first=True)
        hidden = self.decoder.model(inputs_embeds=padded, use_cache=False).last_hidden_state
        return [row[: len(one)] for row, one in zip(hidden, sequences)]

    def visual(self, frames, counts, mode):
        if mode == "autoregressive" or not sum(counts):
            return super().visual(frames, counts, mode)
        cache, counts = self.encode(frames), [count for count in counts if count]
        queries = self.q_static.expand(len(frames), -1)
        coarse = self.attend_frames(queries, cache)
        if mode == "coarse_only":
            return queries, coarse, coarse
        queries = self.queries_from(coarse.split(counts))
        if mode == "refined":
            with torch.no_grad():
                fine = self.attend_frames(queries, cache)
            queries = self.queries_from(fine.split(counts))
        return queries, self.attend_frames(queries, cache), coarse


def split_heads(layer, x):
    return x.unflatten(-1, (layer.attention.num_attention_heads, -1)).transpose(1, 2)


def vision_layer(layer, x, normed, keys, values):
    """One Dinov2 layer for tokens x (normed: norm1 of x) that attend to these keys and values."""
    read = F.scaled_dot_product_attention(split_heads(layer, layer.attention.q_proj(normed)), keys, values)
    x = x + layer.layer_scale1(layer.attention.o_proj(read.transpose(1, 2).flatten(2)))
    return x + layer.layer_scale2(layer.mlp(layer.norm2(x)))


def label_losses(hidden, head, ids, mask, lengths):
    """-> per sample the sum of the cross-entropies of its labels, and their number. The text is packed, [sum S]."""
    sizes = torch.tensor(lengths, device=ids.device)
    is_label = mask != 0
    is_label[(sizes.cumsum(0) - sizes)[sizes > 0]] = False
    label = is_label.nonzero().squeeze(1)
    sample = torch.arange(len(lengths), device=ids.device).repeat_interleave(sizes)[label]
    logits = head(hidden[label - 1])
    losses = F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), ids[label], reduction="none")
    return losses.new_zeros(len(lengths)).index_add(0, sample, losses), torch.bincount(sample, minlength=len(lengths))


def cross_entropy(model, batch, mode, lambda_coarse=0.0, logits=True):
    """-> every number of a trace, optionally with `logits`; `loss` is differentiable."""
    counts, text, head = batch["frame_counts"].tolist(), read_text(batch), model.decoder.lm_head
    queries, tokens, coarse = model.visual(batch["frames"], counts, mode)
    hidden = model.text_hidden(tokens, counts, text[0], text[2])
    sums, labels = label_losses(hidden, head, *text)
    if lambda_coarse:
        sums = sums + lambda_coarse * label_losses(model.text_hidden(coarse, counts, text[0], text[2]), head, *text)[0]
    out = {"loss": sums.sum() / labels.sum().clamp(min=1), "loss_per_sample": sums / labels.clamp(min=1),
           "label_count": labels, "visual_tokens": tokens, "queries": queries}
    return out | {"logits": head(hidden.detach())} if logits else out


def preference(model, reference, batch, mode, beta, logits=True):
    """-> every number of a DPO trace, optionally with logits; `loss` is differentiable."""
    counts = batch["frame_counts"].tolist()
    chosen, rejected = read_text(batch, "chosen_"), read_text(batch, "rejected_")
    ids, mask = torch.cat([chosen[0], rejected[0]]), torch.cat([chosen[1], rejected[1]])
    lengths = chosen[2] + rejected[2]

    def log_probs_of(which):
        queries, tokens, _ = which.visual(batch["frames"], counts, mode)
        hidden = which.text_hidden(torch.cat([tokens, tokens]), counts * 2, ids, lengths)
        losses = label_losses(hidden, which.decoder.lm_head, ids, mask, lengths)[0]
        return queries, tokens, hidden, (-losses).chunk(2)

    queries, tokens, hidden, log_probs = log_probs_of(model)
    with torch.no_grad():
        base = log_probs_of(reference)[3]
    rewards = [beta * (own - other) for own, other in zip(log_probs, base)]
    margins = rewards[0] - rewards[1]
    losses = -F.logsigmoid(margins)
    out = {"loss": losses.mean(), "loss_per_sample": losses, "margin": margins.mean(),
           "accuracy": (margins > 0).to(margins.dtype).mean(), "visual_tokens": tokens, "queries": queries}
    texts = hidden.detach().split([len(chosen[0]), len(rejected[0])])
    for i, side in enumerate(("chosen", "rejected")):
        out |= {f"{side}_log_probs": log_probs[i], f"reference_{side}_log_probs": base[i]}
        out |= {f"{side}_rewards": rewards[i]}
        if logits:
            out[f"{side}_logits"] = model.decoder.lm_head(texts[i])
    return out


def read_text(batch, prefix=""):
    return batch[prefix + "input_ids"], batch[prefix + "loss_mask"], batch[prefix + "text_lengths"].tolist()


def read_batch(path, device="cpu"):
    """The tensors of a batch file; ids and lengths may be of any integer type, the mask of any."""
    batch = load_file(path)
    return {name: (t if t.is_floating_point() else t.long()).to(device) for name, t in batch.items()}
