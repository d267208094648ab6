// rounded_generation.h: batches of answers in bf16 through the bundled plugins, beside one sequence at a time without a
// cache.
#pragma once

#include "../model/tiny.h"
#include "infer/generation_batch.h"
#include "model/objectives.h"
#include "plugin/trust.h"

#include <ATen/ops/log_softmax.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace fvlm::infer {

using namespace model;

inline constexpr int64_t vocabulary = 500, answer_length = 40;

// Wide enough for the kernels of the models that people use.
inline ModelConfig decoder_config() {
  ModelConfig config = tiny_config();
  config.decoder.vocab_size = vocabulary;
  config.decoder.hidden_size = 576;
  config.decoder.intermediate_size = 1536;
  config.decoder.num_hidden_layers = 4;
  config.decoder.num_attention_heads = 9;
  config.decoder.num_key_value_heads = 3;
  config.decoder.head_dim = 64;
  return config;
}

inline RegistryOptions bundled_plugins() {
  RegistryOptions options;
  options.bundled = std::filesystem::canonical(FVLM_LIBRARIES "/plugins");
  options.load.bundled = read_bundled_hashes(options.bundled.parent_path() / "bundled", options.load.trust);
  return options;
}

inline ModelConfig convolving_decoder_config() {
  ModelConfig config = convolving_config(decoder_config());
  config.decoder.conv_bias = true;
  return config;
}

// Its norms have factors of about 1, as those of the other decoders here, and change small rows little: otherwise they
// would enlarge rounding.
inline ModelConfig recurrent_decoder_config() {
  ModelConfig config = recurrent_config(decoder_config());
  config.decoder.unit_offset = false;
  config.decoder.rms_norm_eps = 0.1;
  return config;
}

// The weights of `tiny`, in bf16 and with the bundled plugins.
struct Rounded {
  Rounded(Tiny& tiny, at::Device device)
      : registry(bundled_plugins()),
        model(tiny.model.config(), {device, at::kBFloat16, at::kBFloat16, [](const ParameterSpec&) { return false; }}) {
    registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
    operations.emplace(registry, ops::OperationsOptions{.device = device, .dtype = at::kBFloat16});
    auto& all = model.parameters().all();
    for (size_t i = 0; i < all.size(); ++i) {
      at::Tensor& exact = tiny.model.parameters().all()[i].value;
      all[i].value.copy_(exact);
      exact.copy_(all[i].value); // as it was rounded
    }
  }
  Registry registry;
  std::optional<ops::Operations> operations;
  Model model;
};

// log_softmax of the logits behind each token of a text, which one pass without a cache reads.
inline at::Tensor plain_logprobs(const Model& model, ops::Operations& ops, const std::vector<int64_t>& text) {
  const std::vector<int64_t> lengths{std::ssize(text)};
  const at::Tensor embedding = model.decoder().embedding().value(),
                   x = embedding.index_select(0, at::tensor(text, at::kLong).to(embedding.device()));
  ops::Tape none(ops::Tape::Mode::forward_only);
  const Value hidden =
      model.decoder().forward(none, ops, Value(x), segments_of(lengths, 1, lengths[0], lengths[0], embedding.device()));
  return at::log_softmax(model.decoder().logits(none, ops, hidden).data.to(at::kDouble).cpu(), 1);
}

inline std::vector<Prompt> prompts_of(int64_t count, uint64_t seed = 7) {
  Dice dice(seed);
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < count; ++i) {
    Prompt& prompt = prompts.emplace_back();
    for (int64_t token = dice.upto(5, 90); token > 0; --token) prompt.tokens.push_back(dice.upto(0, vocabulary - 1));
    prompt.max_tokens = answer_length;
  }
  return prompts;
}

inline std::vector<GeneratedAnswer> answers_of(Rounded& rounded, const std::vector<Prompt>& prompts,
                                               const std::vector<int64_t>& ends = {}) {
  GenerationBatch batch(rounded.model, *rounded.operations, ends);
  for (const Prompt& prompt : prompts) batch.add(prompt);
  return batch.finish();
}

inline at::Tensor logprobs_of(const GeneratedAnswer& answer) {
  at::Tensor all = at::empty({answer_length, vocabulary}, at::kDouble);
  for (int64_t i = 0; i < answer_length; ++i)
    for (const auto& [token, logprob] : answer.logprobs.at(static_cast<size_t>(i)).top) all[i][token] = logprob;
  return all;
}

// Expects the logits of all prompts at once to be those of each by itself. Rounding is what it changes in the plain
// pass, computed in float32 as well.
inline void expect_logits_of_one_at_a_time(at::Device device, int64_t count,
                                           const ModelConfig& config = decoder_config()) {
  const c10::InferenceMode without_autograd;
  Tiny tiny(config, at::kFloat, [](const ParameterSpec&) { return false; });
  Rounded rounded(tiny, device);
  auto prompts = prompts_of(count);
  for (Prompt& prompt : prompts) prompt.top_logprobs = vocabulary;
  const auto answers = answers_of(rounded, prompts);
  ASSERT_EQ(answers.size(), prompts.size());
  double of_plain = 0, of_batch = 0, square_of_plain = 0, square_of_batch = 0;
  std::vector<at::Tensor> plain;
  for (size_t i = 0; i < answers.size(); ++i) {
    std::vector<int64_t> text = prompts[i].tokens;
    text.insert(text.end(), answers[i].tokens.begin(), answers[i].tokens.end());
    const auto behind_prompt = [&](const at::Tensor& all) {
      return all.narrow(0, std::ssize(prompts[i].tokens) - 1, answer_length);
    };
    const at::Tensor exact = behind_prompt(plain_logprobs(tiny.model, *tiny.operations, text));
    plain.push_back(behind_prompt(plain_logprobs(rounded.model, *rounded.operations, text)));
    const at::Tensor plain_error = plain.back() - exact, batch_error = logprobs_of(answers[i]) - exact;
    of_plain = std::max(of_plain, plain_error.abs().max().item<double>());
    of_batch = std::max(of_batch, batch_error.abs().max().item<double>());
    square_of_plain += plain_error.square().mean().item<double>();
    square_of_batch += batch_error.square().mean().item<double>();
  }
  std::printf("rounding: at most %.4f one at a time, %.4f in batches; rms %.5f, %.5f\n", of_plain, of_batch,
              std::sqrt(square_of_plain / static_cast<double>(answers.size())),
              std::sqrt(square_of_batch / static_cast<double>(answers.size())));
  EXPECT_GT(of_plain, 0);
  EXPECT_LT(of_batch, 1.5 * of_plain);
  EXPECT_LT(square_of_batch, 1.5 * square_of_plain);

  int64_t clear = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    const auto [values, tokens] = plain[i].topk(2, 1);
    for (int64_t at = 0; at < answer_length; ++at) {
      if (values[at][0].item<double>() - values[at][1].item<double>() < 2 * of_plain) continue;
      ++clear;
      EXPECT_EQ(answers[i].tokens[static_cast<size_t>(at)], tokens[at][0].item<int64_t>())
          << "prompt " << i << ", token " << at;
    }
  }
  EXPECT_GT(2 * clear, std::ssize(answers) * answer_length) << "most tokens should be clear";
}

} // namespace fvlm::infer
