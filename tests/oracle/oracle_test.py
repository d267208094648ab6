"""Tests of the oracle: against transformers' own forward, formulas written out again, finite differences, and itself.

usage: oracle_test.py FOLDER_OF_THE_ORACLE [unittest options]; exit 77 where transformers is missing."""
import contextlib
import io
import json
import runpy
import sys
import tempfile
import unittest
from importlib import machinery, util
from pathlib import Path

tools = Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(tools))
if not util.find_spec("transformers"):
    print("Skipped\nthe oracle's wheels are not there: ./scripts/setup --oracles\n")
    sys.exit(77)

import torch
from fvlm_oracle import (Fvlm, PaddedFvlm, cross_entropy, label_losses, load_file, preference, read_batch, read_text,
                         save_file)

torch.set_num_threads(1)
loader = machinery.SourceFileLoader("make_tiny", str(tools / "make-tiny"))
loader.exec_module(make_tiny := util.module_from_spec(util.spec_from_loader("make_tiny", loader)))
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
for name in make_tiny.MODELS:
    make_tiny.make_model(name, folder / name, seed=1)
make_tiny.make_model("gqa", folder / "gqa-reference", seed=2)
ALL, F64 = list(make_tiny.MODELS), torch.float64


def load(name="gqa", dtype=F64, kind=Fvlm, **special):
    model = kind.load(folder / name, dtype)
    for key, value in special.items():
        setattr(model, key, value)
    return model


def batch_of(name="gqa", kind="mix", seed=1, **shape):
    path, shape = folder / "batch.safetensors", shape or make_tiny.KINDS[kind]
    make_tiny.make_batch(path, folder / name, **shape, size=make_tiny.MODELS[name].get("size"), seed=seed)
    return read_batch(path)


def samples_of(batch):
    """The batch as batches of one sample."""
    counts, text = batch["frame_counts"].tolist(), read_text(batch)
    for frames, count, ids, mask, length in zip(batch["frames"].split(counts), counts, text[0].split(text[2]),
                                                text[1].split(text[2]), text[2]):
        yield {"frames": frames, "frame_counts": torch.tensor([count]), "input_ids": ids, "loss_mask": mask,
               "text_lengths": torch.tensor([length])}


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: gradient.clone() for name, gradient in model.named_gradients()}


class OracleTest(unittest.TestCase):
    def assert_near(self, a, b, tolerance, what=""):
        scale = b.abs().max().item() if b.numel() else 0.0
        distance = (a - b).abs().max().item() if b.numel() else 0.0
        self.assertEqual(a.shape, b.shape, what)
        self.assertLessEqual(distance, tolerance * max(scale, 1e-3), f"{what}: off by {distance:.3g} of {scale:.3g}")

    def assert_all_near(self, a, b, tolerance):
        self.assertEqual(a.keys(), b.keys())
        for name in b:
            self.assert_near(a[name].double(), b[name].double(), tolerance, name)


class Towers(OracleTest):
    def test_encode_keeps_the_keys_and_values_of_transformers_own_forward(self):
        for name in ALL:
            frames, model = batch_of(name)["frames"], load(name, torch.float32)
            seen = []
            for layer in model.vision.encoder.layer:
                for part in (layer.attention.k_proj, layer.attention.v_proj):
                    part.register_forward_hook(lambda module, inputs, output: seen.append(output))
            model.vision(frames)
            expected, seen[:] = list(seen), []
            for i, pair in enumerate(model.encode(frames)):
                for j, kept in enumerate(pair):
                    self.assert_near(kept.transpose(1, 2).flatten(2), expected[2 * i + j], 1e-5, f"{name} layer {i}")

    def test_look_written_out_again_from_the_files(self):
        files = [load_file(folder / "gqa" / file) for file in ("vision/model.safetensors", "connector.safetensors")]
        weights = {name: tensor.double() for file in files for name, tensor in file.items()}

        def linear(x, name):
            return x @ weights[name + ".weight"].T + weights.get(name + ".bias", 0)

        def norm(x, name):
            x = x - x.mean(-1, keepdim=True)
            x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
            return x * weights[name + ".weight"] + weights[name + ".bias"]

        def layer(x, i, memory):
            """x reads a layer's keys and values of `memory`, the hidden states that enter it."""
            def heads(rows, part):
                rows = linear(norm(rows, f"{i}.norm1"), f"{i}.attention.attention.{part}")
                return rows.view(-1, 4, 8).transpose(0, 1)
            weight = (heads(x, "query") @ heads(memory, "key").transpose(1, 2) / 8**0.5).exp()
            read = (weight / weight.sum(-1, keepdim=True) @ heads(memory, "value")).transpose(0, 1).flatten(1)
            x = x + weights[f"{i}.layer_scale1.lambda1"] * linear(read, f"{i}.attention.output.dense")
            inner = linear(norm(x, f"{i}.norm2"), f"{i}.mlp.fc1")
            inner = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
            return x + weights[f"{i}.layer_scale2.lambda1"] * linear(inner, f"{i}.mlp.fc2")

        frame, model = batch_of()["frames"][0].double(), load()
        patches = frame.unfold(1, 7, 7).unfold(2, 7, 7).permute(1, 2, 0, 3, 4).reshape(16, -1)
        kernel = weights["embeddings.patch_embeddings.projection.weight"].flatten(1)
        patches = patches @ kernel.T + weights["embeddings.patch_embeddings.projection.bias"]
        memory = torch.cat([weights["embeddings.cls_token"][0], patches]) + weights["embeddings.position_embeddings"][0]
        x = weights["q_init"] @ weights["query_input_proj.weight"].T
        for i in range(3):
            x, memory = (layer(one, f"encoder.layer.{i}", memory) for one in (x, memory))
        expected = linear(linear(norm(x, "layernorm"), "output_proj"), "dino_to_llm") * 0.14
        self.assert_near(model.attend_frames(model.q_init, model.encode(frame[None])), expected, 1e-12)

    def test_a_query_that_starts_as_a_patch_ends_as_that_patch(self):
        # Dinov2 treats all its tokens alike: the CLS embedding, sent through attend(), ends as the tower's own.
        model, frames = load(), batch_of()["frames"].double()
        start = model.vision.embeddings(frames)[:, 0]
        model.query_input_proj = model.output_proj = torch.nn.Identity()
        self.assert_near(model.attend(start, model.encode(frames)), model.vision(frames).last_hidden_state[:, 0], 1e-12)

    def test_float64_is_float64(self):
        for name in ALL:
            batch = batch_of(name)
            narrow, wide = (cross_entropy(load(name, dtype), batch, "coarse_fine") for dtype in (torch.float32, F64))
            self.assert_all_near(narrow, wide, 1e-5)
        for name, height, width in (("published", 28, 28), ("mqa-odd", 28, 42), ("gqa", 28, 28)):
            narrow, wide = (load(name, dtype).vision.embeddings for dtype in (torch.float32, F64))
            patches = torch.zeros(1, height * width // 49 + 1, narrow.config.hidden_size)
            self.assert_near(wide.interpolate_pos_encoding(patches, height, width),
                             narrow.interpolate_pos_encoding(patches, height, width).double(), 1e-6, name)
        model = load("published")
        loss = cross_entropy(model, batch_of("published"), "coarse_fine")["loss"].item()
        with torch.no_grad():
            model.decoder.model.norm.weight[0] += 1e-10
        moved = cross_entropy(model, batch_of("published"), "coarse_fine")["loss"].item()
        self.assertTrue(0 < abs(moved - loss) < 1e-8, f"moved by {moved - loss}")

    def test_rotary_frequencies_survive_bf16(self):
        self.assertTrue(torch.equal(load(dtype=torch.bfloat16).decoder.model.rotary_emb.inv_freq,
                                    load(dtype=torch.float32).decoder.model.rotary_emb.inv_freq))

    def test_the_old_form_of_a_config_is_understood(self):
        self.assertIn("rope_theta", json.loads((folder / "published" / "decoder" / "config.json").read_text()))
        rotary = load("published").decoder.model.rotary_emb.inv_freq
        self.assert_near(rotary, 1e5 ** -(torch.arange(0, 16, 2) / 16), 1e-6)

    def test_names_are_those_of_the_files(self):
        for name in ALL:
            on_disk = set(load_file(folder / name / "connector.safetensors"))
            for part in ("vision", "decoder"):
                for file in (folder / name / part).glob("*.safetensors"):
                    on_disk |= {f"{part}.{key}" for key in load_file(file)}
            self.assertEqual({key for key, _ in load(name).named_gradients()}, on_disk)

    def test_tiny_weights_are_not_degenerate(self):
        for name in ALL:
            model, frames = load(name), batch_of(name)["frames"].double()
            keys = model.encode(frames)[0][0]
            layer = model.vision.encoder.layer[0]
            x = layer.norm1(model.query_input_proj(model.q_static))
            query = layer.attention.q_proj(x).view(1, layer.attention.num_attention_heads, 1, -1)
            weights = (query @ keys.transpose(2, 3) / query.shape[-1] ** 0.5).softmax(-1)
            entropy = -(weights * weights.log()).sum(-1).mean().item() / torch.tensor(float(keys.shape[2])).log().item()
            self.assertTrue(0.3 < entropy < 0.99, f"{name}: attention entropy is {entropy:.3f} of uniform")
            found = gradients(model, cross_entropy(model, batch_of(name), "coarse_fine")["loss"])
            largest = max(gradient.abs().max().item() for gradient in found.values())
            # A key's bias shifts all scores of a query alike, which softmax does not see.
            for key, gradient in found.items():
                if not key.endswith(("mask_token", "key.bias")):
                    self.assertGreater(gradient.abs().max().item(), 1e-3 * largest, f"{name} {key}")


class Losses(OracleTest):
    def test_written_out_again_for_one_sample(self):
        """coarse_fine once more, by transformers' whole models and plain sums."""
        model = load()
        for one in samples_of(batch_of()):
            frames, ids, mask = one["frames"], one["input_ids"], one["loss_mask"]
            embedded, tokens = model.decoder.model.embed_tokens(ids), model.q_init.new_zeros(0, 64)
            if len(frames):
                coarse = torch.cat([model.attend_frames(model.q_static, model.encode(frame[None])) for frame in frames])
                hidden = model.decoder.model(inputs_embeds=torch.cat([coarse, embedded])[None]).last_hidden_state[0]
                queries = [model.q_init] + [model.llm_to_query(h)[None] for h in hidden[: len(frames) - 1]]
                tokens = torch.cat([model.attend_frames(q, model.encode(frame[None])) for q, frame in zip(queries, frames)])
            logits = model.decoder(inputs_embeds=torch.cat([tokens, embedded])[None]).logits[0, len(frames):]
            terms = [-logits[i].log_softmax(-1)[ids[i + 1]] for i in range(len(ids) - 1) if mask[i + 1]]
            expected = sum(terms) / max(1, len(terms)) + torch.zeros((), dtype=F64)
            out = cross_entropy(model, one, "coarse_fine")
            self.assertEqual(out["label_count"].item(), len(terms))
            self.assert_near(out["loss"], expected, 1e-12)
            self.assert_near(out["logits"], logits, 1e-12)

    def test_the_mask_of_the_label_counts_and_the_first_token_is_none(self):
        logits = torch.randn(5, 7, dtype=F64)
        ids, log_probs = torch.tensor([3, 1, 4, 2, 6]), logits.log_softmax(-1)
        sums, counts = label_losses(logits, torch.nn.Identity(), ids, torch.tensor([1, 0, 1, 1, 1]), [3, 0, 2])
        self.assertEqual(counts.tolist(), [1, 0, 1])
        self.assert_near(sums, -torch.stack([log_probs[1, 4], torch.tensor(0.0), log_probs[3, 6]]), 1e-14)

    def test_batch_loss_is_the_mean_over_labels(self):
        out = cross_entropy(load(), batch_of(), "coarse_fine", lambda_coarse=0.5)
        self.assertIn(0, out["label_count"].tolist())
        counts = out["label_count"]
        self.assert_near((out["loss_per_sample"] * counts).sum() / counts.sum(), out["loss"], 1e-14)

    def test_lambda_coarse_adds_the_coarse_sequence(self):
        model, batch = load(), batch_of()
        fine, coarse, both = (cross_entropy(model, batch, *how)["loss"]
                              for how in (("coarse_fine",), ("coarse_only",), ("coarse_fine", 0.3)))
        self.assert_near(both, fine + 0.3 * coarse, 1e-14)

    def test_dpo_is_its_formula(self):
        model, reference, batch = load(), load("gqa-reference"), batch_of(kind="dpo")
        out = preference(model, reference, batch, "coarse_fine", beta=0.1)
        def log_prob(judge, side):
            one = {**batch, **{key: batch[f"{side}_{key}"] for key in ("input_ids", "loss_mask", "text_lengths")}}
            result = cross_entropy(judge, one, "coarse_fine")
            return -result["loss_per_sample"] * result["label_count"]
        chosen = 0.1 * (log_prob(model, "chosen") - log_prob(reference, "chosen"))
        rejected = 0.1 * (log_prob(model, "rejected") - log_prob(reference, "rejected"))
        self.assert_near(out["chosen_rewards"], chosen, 1e-12)
        self.assert_near(out["rejected_rewards"], rejected, 1e-12)
        self.assert_near(out["loss"], torch.log(1 + torch.exp(rejected - chosen)).mean(), 1e-12)
        self.assert_near(out["margin"], (chosen - rejected).mean(), 1e-12)
        self.assertEqual(out["accuracy"].item(), sum(c > r for c, r in zip(chosen, rejected)) / 3)
        own = preference(model, model, batch, "coarse_fine", beta=0.1)
        self.assert_near(own["loss"], torch.tensor(2.0, dtype=F64).log(), 1e-14)
        self.assertEqual(own["accuracy"].item(), 0)

    def test_dpo_gradient_is_that_of_its_log_probabilities(self):
        """d loss = -beta * sigmoid(-margin) * (d chosen - d rejected) / pairs, with the reference held."""
        model, reference, batch = load(), load("gqa-reference"), batch_of(kind="dpo")
        out = preference(model, reference, batch, "coarse_fine", beta=0.5)
        weight = -0.5 * torch.sigmoid(out["rejected_rewards"] - out["chosen_rewards"]).detach() / 3
        found = gradients(model, out["loss"])
        again = preference(model, reference, batch, "coarse_fine", beta=0.5)
        total = (weight * (again["chosen_log_probs"] - again["rejected_log_probs"])).sum()
        self.assert_all_near(found, gradients(model, total), 1e-12)


class Batches(OracleTest):
    def test_padded_equals_sample_by_sample(self):
        for name in ALL:
            plain, padded = load(name), load(name, kind=PaddedFvlm)
            for mode in ("coarse_fine", "coarse_only") + ("autoregressive",) * (name == "gqa"):
                for kind in ("mix",) + ("text", "equal") * (name == "gqa"):
                    batch = batch_of(name, kind)
                    self.assert_all_near(cross_entropy(padded, batch, mode), cross_entropy(plain, batch, mode), 1e-11)

    def test_padded_gradients_equal_sample_by_sample(self):
        for name in ("gqa", "mqa-odd", "shallow"):
            batch, models = batch_of(name), (load(name), load(name, kind=PaddedFvlm))
            plain, padded = (gradients(m, cross_entropy(m, batch, "coarse_fine", 0.3)["loss"]) for m in models)
            self.assert_all_near(padded, plain, 1e-11)
        batch, reference, models = batch_of(kind="dpo"), load("gqa-reference"), (load(), load(kind=PaddedFvlm))
        plain, padded = (gradients(m, preference(m, reference, batch, "coarse_fine", 0.1)["loss"]) for m in models)
        self.assert_all_near(padded, plain, 1e-11)

    def test_splitting_a_batch_changes_no_sample_and_no_gradient(self):
        model, batch = load(kind=PaddedFvlm), batch_of()
        whole = cross_entropy(model, batch, "coarse_fine")
        parts = [cross_entropy(model, one, "coarse_fine") for one in samples_of(batch)]
        for key in ("loss_per_sample", "logits", "visual_tokens", "queries"):
            self.assert_near(torch.cat([part[key] for part in parts]), whole[key], 1e-12, key)
        total = whole["label_count"].sum()
        self.assert_all_near(gradients(model, sum(part["loss"] * part["label_count"].sum() for part in parts) / total),
                             gradients(model, whole["loss"]), 1e-12)

    def test_the_decoders_pad_token_learns_as_any_other(self):
        model, batch = load("untied"), batch_of("untied")
        batch["input_ids"][8] = 2  # pad_token_id, inside a sample with labels behind it
        found = gradients(model, cross_entropy(model, batch, "coarse_fine")["loss"])
        self.assertGreater(found["decoder.model.embed_tokens.weight"][2].abs().max().item(), 1e-4)


class Foveation(OracleTest):
    def test_text_never_changes_queries_or_visual_tokens(self):
        model, batch = load(), batch_of()
        before = cross_entropy(model, batch, "coarse_fine")
        batch["input_ids"] = (batch["input_ids"] + 17) % 300
        after = cross_entropy(model, batch, "coarse_fine")
        self.assertTrue(torch.equal(before["queries"], after["queries"]))
        self.assertTrue(torch.equal(before["visual_tokens"], after["visual_tokens"]))
        self.assertNotEqual(before["loss"].item(), after["loss"].item())

    def test_a_frame_changes_no_earlier_token_and_the_query_of_the_next(self):
        model, one = load(), batch_of(frames=(5,), text=(4,))
        for mode in ("coarse_fine", "autoregressive"):
            before = cross_entropy(model, one, mode)
            one["frames"][2] += 1
            after = cross_entropy(model, one, mode)
            moved = (before["queries"] != after["queries"]).any(1).tolist()
            self.assertEqual(moved, [False, False, False, True, True], mode)

    def test_autoregressive_equals_a_recomputation_without_cache(self):
        model = load()
        frames, ids = batch_of(frames=(6,), text=(5,))["frames"].double(), torch.tensor([7, 9, 11, 13])
        queries, tokens = [model.q_init], []
        for frame in frames:
            tokens.append(model.attend_frames(queries[-1], model.encode(frame[None])))
            hidden = model.decoder.model(inputs_embeds=torch.cat(tokens)[None], use_cache=False).last_hidden_state[0]
            queries.append(model.llm_to_query(hidden[-1:]))
        out = model.visual(frames, [6], "autoregressive")
        self.assert_near(out[0], torch.cat(queries[:-1]), 1e-12)
        self.assert_near(out[1], torch.cat(tokens), 1e-12)
        answer, lead = model.generate(frames, ids, 8)
        for token in answer:
            logits = model.decoder.lm_head(model.text_hidden(torch.cat(tokens), [6], ids, [len(ids)])[-1])
            best = logits.topk(2)
            self.assertEqual(best.indices[0].item(), token)
            self.assertGreaterEqual((best.values[0] - best.values[1]).item(), lead - 1e-9)
            ids = torch.cat([ids, torch.tensor([token])])
        self.assertGreater(len(set(answer)), 1)
        self.assertEqual(model.generate(frames, torch.tensor([7, 9, 11, 13]), 8, stop=answer[1:2])[0], answer[:2])
        self.assertEqual(len(model.generate(frames[:0], ids, 3)[0]), 3)

    def test_one_frame_or_equal_first_queries_make_the_modes_agree(self):
        model = load()
        def both(batch):
            return [cross_entropy(model, batch, mode) for mode in ("autoregressive", "coarse_fine")]
        two = batch_of(frames=(2,), text=(4,))
        self.assert_all_near(*both(batch_of(frames=(1,), text=(4,))), 1e-12)
        self.assertNotEqual(*(out["loss"].item() for out in both(two)))
        model.q_static.data.copy_(model.q_init.data)
        self.assert_all_near(*both(two), 1e-12)

    def test_shallow_reads_the_last_layer_alone(self):
        deep, shallow, batch = load(), load(shallow=True), batch_of()
        self.assertNotEqual(*(cross_entropy(model, batch, "coarse_fine")["loss"].item() for model in (deep, shallow)))
        cache = shallow.encode(batch["frames"])
        token = shallow.attend(shallow.q_init.expand(11, -1), cache)
        for keys, values in cache[:-1]:
            keys.data.zero_(), values.data.zero_()
        self.assertTrue(torch.equal(token, shallow.attend(shallow.q_init.expand(11, -1), cache)))
        cache[-1][1].data.mul_(1.1)
        self.assertFalse(torch.equal(token, shallow.attend(shallow.q_init.expand(11, -1), cache)))


class Gradients(OracleTest):
    def test_finite_differences_of_attend_and_the_connector(self):
        for name in ("gqa", "mqa-odd", "shallow"):
            model = load(name).requires_grad_(False)
            frames = batch_of(name)["frames"][:2].double()
            cache = model.encode(frames)
            inputs = [model.q_init.repeat(2, 1), *(part for pair in cache for part in pair)]
            def attend(query, *parts):
                return model.attend_frames(query, list(zip(parts[::2], parts[1::2])))
            inputs = [one.clone().requires_grad_() for one in inputs]
            self.assertTrue(torch.autograd.gradcheck(attend, inputs, fast_mode=True, rtol=1e-6), name)

    def test_finite_differences_of_every_parameter(self):
        """The slope of the loss along a random direction of each tensor."""
        torch.manual_seed(3)
        model, batch = load("mha"), batch_of("mha", frames=(3,), text=(5,))
        def loss():
            return cross_entropy(model, batch, "coarse_fine", 0.3)["loss"]
        found, step = gradients(model, loss()), 1e-5
        named = dict(zip(found, model.parameters()))
        with torch.no_grad():
            for name in named:
                direction = torch.randn_like(named[name])
                named[name] += step * direction
                above = loss()
                named[name] -= 2 * step * direction
                slope = (above - loss()) / (2 * step)
                named[name] += step * direction
                expected = (found[name] * direction).sum()
                self.assertLess(abs(slope - expected).item(), 1e-7 + 1e-6 * abs(expected).item(), name)


class Programs(OracleTest):
    def run_tool(self, tool, *arguments, code=0):
        """Runs it inside this process, which has imported transformers already."""
        printed, known = io.StringIO(), sys.argv
        sys.argv = [tool, *map(str, arguments)]
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), contextlib.chdir(folder):
                runpy.run_path(str(tools / tool), run_name="__main__")
            status = 0
        except SystemExit as exit:
            status = int(exit.code)
        finally:
            sys.argv = known
        self.assertEqual(status, code, printed.getvalue())
        return printed.getvalue()

    def test_trace_writes_what_the_module_computes_and_compare_sees_it(self):
        batch_of(kind="dpo")
        (folder / "batch.safetensors").rename(folder / "dpo.safetensors")
        batch = batch_of()
        (folder / "jobs").write_text(
            "gqa --batch batch.safetensors --out a --grads --lambda-coarse 0.3 --dtype fp64\n"
            "gqa --batch batch.safetensors --out b --grads --lambda-coarse 0.3 --padded\n"
            "gqa --batch batch.safetensors --out c --mode shallow\n"
            "gqa --batch dpo.safetensors --out d --objective dpo --reference gqa-reference --grads --dtype bf16\n")
        self.run_tool("trace", "--jobs", "jobs")
        a, c, d = (load_file(folder / name) for name in "acd")
        model = load()
        expected = cross_entropy(model, batch, "coarse_fine", 0.3)
        expected |= {f"grad.{name}": gradient for name, gradient in gradients(model, expected["loss"]).items()}
        self.assert_all_near(a, expected, 1e-12)
        shallow = cross_entropy(load("gqa", torch.float32, shallow=True), batch, "coarse_fine")
        self.assert_near(c["loss"], shallow["loss"], 1e-5)
        self.assertEqual({t.dtype for t in d.values()}, {torch.float32})
        self.assertEqual(d["loss_per_sample"].shape, (3,))
        self.assertIn("0 beyond 2e-05", self.run_tool("compare", "b", "a", "--rtol", 2e-5))
        a["grad.q_init"] += 1e-3
        save_file(a, folder / "e")
        self.assertRegex(self.run_tool("compare", "b", "e", "--rtol", 2e-5, code=1), r"grad\.q_init .*TOO FAR")

    def test_what_is_not_defined_is_refused(self):
        for wrong in (["--mode", "autoregressive", "--grads"], ["--mode", "coarse_only", "--lambda-coarse", "1"],
                      ["--objective", "dpo"], ["--reference", "gqa"]):
            self.run_tool("trace", "gqa", "--batch", "no file", "--out", "none", *wrong, code=2)

    def test_compare_measures_a_gradient_that_is_zero_but_for_rounding_against_the_others(self):
        a = {"loss": torch.tensor(2.0), "grad.weight": torch.tensor([1.0, -4.0]), "grad.key.bias": torch.tensor([3e-8])}
        def differs(**changed):
            save_file(a, folder / "a"), save_file(a | changed, folder / "b")
            return self.run_tool("compare", "a", "b", code=1 if changed else 0)
        self.assertIn("3 tensors, 0 beyond 1e-05", differs())
        save_file({key: tensor for key, tensor in a.items() if key != "grad.key.bias"}, folder / "c")
        self.run_tool("compare", "a", "c")
        self.assertRegex(differs(**{"grad.key.bias": torch.tensor([1e-6])}), "key.bias .*TOO FAR")
        self.assertRegex(differs(loss=torch.tensor(2.001)), "loss .* 5.00e-04 .*TOO FAR")
        self.assertRegex(differs(loss=torch.tensor(float("nan"))), "loss .* nan .*TOO FAR")
        self.assertIn("error: loss: shape [] and [1]", differs(loss=torch.tensor([2.0])))
        self.assertIn("error: more: only in b", differs(more=torch.tensor(1.0)))

    def test_bench_step_times_the_batch_it_is_given(self):
        batch = batch_of()
        found = json.loads(self.run_tool("bench-step", "--model", "gqa", "--batch", "batch.safetensors", "--repeat", 3))
        self.assertEqual(found["frame_counts"], batch["frame_counts"].tolist())
        loss = cross_entropy(load(dtype=torch.float32), batch, "coarse_fine")["loss"].item()
        self.assertAlmostEqual(found["loss"], loss, places=4)
        self.assertTrue(0 < found["fastest_ms"] <= found["median_ms"] <= found["slowest_ms"], found)
        self.assertAlmostEqual(found["samples_per_second"] * found["median_ms"], 6000, delta=10)

    def test_generate_prints_ids_of_each_sample(self):
        batch = batch_of(frames=(2, 0), text=(4, 5))
        printed = self.run_tool("generate", "gqa", "--batch", "batch.safetensors", "--limit", 6)
        for line, one in zip(printed.splitlines(), samples_of(batch), strict=True):
            answer = json.loads(line)
            ids, lead = load(dtype=torch.float32).generate(one["frames"], one["input_ids"], 6, stop=(2,))
            self.assertEqual(answer["ids"], ids)
            self.assertAlmostEqual(answer["lead"], lead, places=6)

    def test_the_same_seed_gives_the_same_bytes_and_another_other_ones(self):
        make_tiny.make_model("gqa", folder / "again", seed=1)
        for path in (folder / "gqa").rglob("*.*"):
            again = folder / "again" / path.relative_to(folder / "gqa")
            self.assertEqual(path.read_bytes(), again.read_bytes(), path)
        self.assertNotEqual((folder / "gqa" / "connector.safetensors").read_bytes(),
                            (folder / "gqa-reference" / "connector.safetensors").read_bytes())
        self.assertEqual(json.loads((folder / "gqa" / "fvlm.json").read_text())["connector"]["query_dim"], 24)


if __name__ == "__main__":
    unittest.main()
