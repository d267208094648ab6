"""LatentWire's byte encoder, poolers and adapter against torch.nn: rows, every gradient, and how many parameters there are;
and `fvlm-engine trace` and `generate` of a whole model.

usage: bytes_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE TOWER_PROBE CONNECTOR_PROBE; exit 77 where PyTorch is missing."""
import json
import sys
import unittest
from pathlib import Path

import forked_program

tower_probe, connector_probe = (Path(sys.argv.pop(3)).resolve() for _ in range(2))
from against_oracle import engine, folder, load_file, save_file, tokenizers, tool, torch
from byte_models import Adapter, ByteEncoder, Latents, Pooler

nn = torch.nn


def padded(rows, lengths):
    """[all rows, ...] -> [texts, longest, ...], and which of its rows are padding."""
    parts = rows[: sum(lengths)].split(lengths)
    mask = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    return nn.utils.rnn.pad_sequence(parts, batch_first=True), mask


def run(*command, code=0):
    """What it prints, or what it says of an error."""
    result = forked_program.run(command)
    assert result.returncode == code, f"{command}\n{result.stderr}"
    return result.stderr if code else result.stdout


class Bytes(unittest.TestCase):
    def compare(self, ours, expected, floor):
        for name, right in expected.items():
            off = (ours[name] - right).abs().max().item() / max(right.abs().max().item(), floor)
            self.assertLessEqual(off, 1e-5, name)

    def test_encoder_is_pytorchs_transformer_encoder_without_attention_to_padding(self):
        for sizes, lengths in (((32, 2, 4, 64, 20), [7, 1, 20]), ((64, 3, 2, 48, 9), [9, 9]), ((32, 1, 1, 16, 64), [33])):
            torch.manual_seed(7)
            module = ByteEncoder(*sizes)
            for parameter in module.parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)
            width, layers, heads, mlp, max_bytes = sizes
            config = {"model_type": "bytes", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
                      "intermediate_size": mlp, "max_bytes": max_bytes}
            (folder / "config.json").write_text(json.dumps(config))
            save_file(module.state_dict(), folder / "model.safetensors")
            used, rows = sum(lengths), sum(lengths) + 5
            ids = torch.randint(0, 256, (rows,))
            texts, padding = padded(ids, lengths)
            hidden = module(texts, padding)[~padding]
            d_hidden = torch.randn(rows, width)
            d_hidden[used:] = 0  # as nobody reads padding
            hidden.backward(d_hidden[:used])
            save_file({"ids": ids, "lengths": torch.tensor(lengths), "d_hidden": d_hidden}, folder / "in.safetensors")
            run(tower_probe, "bytes", folder, folder / "in.safetensors", folder / "out.safetensors")
            ours = load_file(folder / "out.safetensors")
            ours["hidden"] = ours["hidden"][:used]
            expected = {name: parameter.grad for name, parameter in module.named_parameters()}
            floor = 0.01 * max(g.abs().max().item() for g in expected.values())
            self.compare(ours, expected | {"hidden": hidden.detach()}, floor)

    def test_latents_and_adapter_are_those_of_torch_nn(self):
        width, decoder, lengths = 32, 24, [5, 1, 12]
        for latents, private, heads, color in ((8, 0, 4, False), (3, 2, 8, False), (1, 0, 1, True), (2, 5, 2, True)):
            torch.manual_seed(8)
            embedding = 0.3 * torch.randn(50, decoder)
            rms = embedding.square().mean().sqrt()
            module = Latents(width, decoder, latents, private, heads, color)
            for parameter in module.parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)
            hidden = torch.randn(sum(lengths) + 4, width, requires_grad=True)
            features, padding = padded(hidden, lengths)
            rows = module(features, rms, padding)
            d_rows = torch.randn_like(rows)
            rows.backward(d_rows)
            save_file(module.state_dict() | {"adapter.decoder.scale": torch.ones(1)}, folder / "weights.safetensors")
            save_file({"hidden": hidden.detach(), "lengths": torch.tensor(lengths), "embedding": embedding,
                       "d_rows": d_rows.reshape(-1, decoder)}, folder / "in.safetensors")
            config = {"kind": "byte_latents", "latents": latents, "private_latents": private, "heads": heads, "color": color}
            run(connector_probe, json.dumps({"connector": config, "decoder_width": decoder}), folder / "weights.safetensors",
                folder / "in.safetensors", folder / "out.safetensors")
            expected = {name: parameter.grad for name, parameter in module.named_parameters()}
            floor = 0.01 * max(g.abs().max().item() for g in expected.values())
            expected |= {"rows": rows.detach().reshape(-1, decoder), "d_hidden": hidden.grad}
            self.compare(load_file(folder / "out.safetensors"), expected, floor)

    def test_latents_on_the_wire_are_rounded_in_groups_of_32(self):
        width, decoder, lengths = 32, 24, [6, 3]
        torch.manual_seed(9)
        embedding = torch.randn(50, decoder)
        rms = embedding.square().mean().sqrt()
        module = Latents(width, decoder, 4, 0, 4, False)
        hidden = torch.randn(sum(lengths), width)
        save_file(module.state_dict() | {"adapter.decoder.scale": torch.ones(1)}, folder / "weights.safetensors")
        save_file({"hidden": hidden, "lengths": torch.tensor(lengths), "embedding": embedding, "d_rows": torch.zeros(8, decoder)},
                  folder / "in.safetensors")
        config = {"kind": "byte_latents", "latents": 4, "private_latents": 0, "heads": 4, "color": False}
        features, padding = padded(hidden, lengths)
        whole = module(features, rms, padding).detach()
        last = 0.0
        for mode in ("fp16", "int8", "int6", "int4"):
            run(connector_probe, json.dumps({"connector": config, "decoder_width": decoder, "mode": mode}),
                folder / "weights.safetensors", folder / "in.safetensors", folder / "out.safetensors")
            rows = load_file(folder / "out.safetensors")["rows"]
            right = module(features, rms, padding, mode).detach()
            self.compare({"rows": rows}, {"rows": right.reshape(-1, decoder)}, 0)
            off = (right - whole).abs().mean().item()
            self.assertGreater(off, last)
            last = off

    def test_there_are_as_many_parameters_as_in_the_public_code(self):
        count = lambda module: sum(parameter.numel() for parameter in module.parameters())
        encoder = ByteEncoder(256, 6, 8, 1024, 512)
        self.assertEqual(count(encoder) + count(Pooler(256, 8, 8)), 5_399_552)
        self.assertEqual(count(Adapter(256, 4096, False)) + 1, 5_662_209)

    def make_batch(self):
        """A tiny model, and a batch whose latents stand before the text in some samples, and inside it in others."""
        tool("make-tiny", "model", "bytes-latents", folder / "tiny")
        tool("make-tiny", "batch", folder / "batch.safetensors", "--model", folder / "tiny", "--frames", "0,9,40,0,1,23", "--text",
             "7,4,12,1,9,6")
        batch = load_file(folder / "batch.safetensors")
        ids, mask = (list(batch[name].split(batch["text_lengths"].tolist())) for name in ("input_ids", "loss_mask"))
        for sample in (2, 5):
            place = torch.full((5,), -1)
            ids[sample] = torch.cat([ids[sample][:1], place, ids[sample][1:]])
            mask[sample] = torch.cat([mask[sample][:1], 0 * place.byte(), mask[sample][1:]])
        batch |= {"input_ids": torch.cat(ids), "loss_mask": torch.cat(mask), "text_lengths": torch.tensor([len(one) for one in ids])}
        save_file(batch, folder / "batch.safetensors")
        return batch

    def test_a_trace_is_the_oracles(self):
        self.make_batch()
        given = (folder / "tiny", "--batch", folder / "batch.safetensors", "--out")
        for options in (("--grads",), ("--grads", "--kernels", "reference"), ("--mode", "fp16"), ("--mode", "int8"), ("--mode", "int4")):
            with self.subTest(options=options):
                tool("trace", *given, folder / "theirs", *options[:1 if options[0] == "--grads" else 2])
                run(engine, "trace", *given, folder / "ours", *options)
                expected, trace = load_file(folder / "theirs"), load_file(folder / "ours")
                self.assertEqual(set(trace), set(expected))
                self.assertEqual(list(trace["visual_tokens"].shape), [4 * 5, 64])
                floor = 0.01 * max([g.abs().max().item() for name, g in expected.items() if name.startswith("grad.")], default=0)
                self.compare(trace, expected, floor)

    def test_a_trace_of_two_decoders_is_the_oracles(self):
        """A Llama and a Qwen2 read the same latents; what both leave in the encoder and the shared latents is summed."""
        self.make_batch()
        tool("make-tiny", "model", "bytes-latents-two", folder / "two")
        given = (folder / "two", "--batch", folder / "batch.safetensors", "--out")
        for options in (("--grads",), ("--mode", "int8")):
            with self.subTest(options=options):
                tool("trace", *given, folder / "theirs", *options)
                run(engine, "trace", *given, folder / "ours", *options)
                expected, trace = load_file(folder / "theirs"), load_file(folder / "ours")
                self.assertEqual(set(trace), set(expected))
                self.assertEqual(list(trace["visual_tokens.decoder2"].shape), [4 * 5, 48])
                self.compare({"loss": trace["loss"]}, {"loss": expected["loss"]}, 0)
                floor = 0.01 * max([g.abs().max().item() for name, g in expected.items() if name.startswith("grad.")], default=0)
                self.compare(trace, expected, floor)
                if "--grads" in options:
                    for name in ("decoder", "decoder2", "adapter.decoder2", "private_poolers.decoder2", "shared_pooler", "vision"):
                        self.assertTrue(any(key.startswith(f"grad.{name}.") for key in trace), name)
        self.assertIn("the model has 2 decoders", run(engine, "generate", folder / "two", "--prompt", "who?", code=4))

    def test_a_batch_is_answered_as_by_the_oracle(self):
        self.make_batch()
        given = (folder / "tiny", "--batch", folder / "batch.safetensors", "--limit", "8")
        theirs = [json.loads(line) for line in tool("generate", *given).splitlines()]
        answers = json.loads(run(engine, "generate", *given, "--json"))["samples"]
        self.assertEqual([answer["ids"] for answer in answers], [answer["ids"] for answer in theirs])
        self.assertGreater(min(answer["lead"] for answer in theirs), 1e-4, "too near to call")

    def test_a_question_about_a_text_is_answered_as_the_batch_that_it_makes(self):
        self.make_batch()
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tiny" / "decoder" / "tokenizer.json"))
        anchor = tokenizer.encode("Answer:").ids
        for context, source in (("a cat", "Context: a cat\nQuestion: who?\n"), ("a" * 50, "Context: " + "a" * 14 + "\nQuestion: who?\n"),
                                (None, "Context: \nQuestion: who?\n")):
            ids = torch.tensor([-1] * 5 + anchor)
            save_file({"source_bytes": torch.tensor(list(source.encode())).byte(), "source_lengths": torch.tensor([len(source)]),
                       "input_ids": ids, "text_lengths": torch.tensor([len(ids)])}, folder / "asked")
            ask = (engine, "generate", folder / "tiny", "--max-tokens", 8, "--json")
            expected = json.loads(run(*ask, "--batch", folder / "asked"))["samples"][0]
            answer = json.loads(run(*ask, "--prompt", "who?", *(["--context", context] if context else [])))
            self.assertEqual((answer["ids"], answer["frames"], answer["prompt"]), (expected["ids"], 1, len(anchor)))

    # As where an anchor of spaces alone becomes part of the answer: a row of the encoder predicts its first token.
    def test_an_answer_may_begin_right_behind_the_latents(self):
        batch = self.make_batch()
        source = batch["source_bytes"][:9]
        latents = {"source_bytes": source, "source_lengths": torch.tensor([9]), "input_ids": torch.tensor([-1] * 5),
                   "loss_mask": torch.zeros(5).byte(), "text_lengths": torch.tensor([5])}
        save_file(latents, folder / "asked")
        given = (folder / "tiny", "--batch", folder / "asked", "--limit", "8")
        theirs = json.loads(tool("generate", *given).splitlines()[0])
        answer = json.loads(run(engine, "generate", *given, "--json"))["samples"][0]
        self.assertEqual((answer["ids"], answer["prompt"]), (theirs["ids"], 0))
        self.assertGreater(theirs["lead"], 1e-4, "too near to call")

    def test_bad_input_is_refused_with_its_reason(self):
        batch = self.make_batch()

        def refused(code, words, *command):
            self.assertIn(words, run(engine, *command, code=code))

        def changed(**tensors):
            save_file({name: tensor for name, tensor in (batch | tensors).items() if tensor is not None}, folder / "changed")
            return folder / "tiny", "--batch", folder / "changed"

        out = ("--out", folder / "none")
        refused(4, "source_bytes: there is no such tensor", "trace", *changed(source_bytes=None), *out)
        refused(4, "source_bytes: expected uint8 of one dimension", "trace", *changed(source_bytes=batch["source_bytes"].int()), *out)
        refused(4, "source_lengths: do not sum to the 73 bytes", "trace", *changed(source_lengths=torch.tensor([0, 9, 40, 0, 1, 22])), *out)
        longer = changed(source_lengths=torch.tensor([0, 9, 41, 0, 0, 23]))
        refused(4, "its text for the encoder has 41 bytes, and 1 to 40 were expected", "trace", *longer, *out)
        refused(4, "sample 2: its text for the encoder has 41 bytes", "generate", *longer)
        refused(2, "has no mode 'int5'", "trace", *changed(), *out, "--mode", "int5")
        refused(2, "int8 is inference: it has no gradients", "trace", *changed(), *out, "--mode", "int8", "--grads")
        refused(2, "--image goes with an encoder of images", "generate", folder / "tiny", "--prompt", "x", "--image", "y")
        refused(2, "--system goes with an encoder of images", "generate", folder / "tiny", "--prompt", "x", "--system", "y")
        refused(2, "leaves nothing of the encoder's 40 bytes", "generate", folder / "tiny", "--prompt", "x" * 30)
        refused(2, "--context needs --prompt", "generate", *changed(), "--context", "x")


if __name__ == "__main__":
    unittest.main()
