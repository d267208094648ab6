// Captured, batched passes over pages in bf16 on a GPU beside one sequence at a time without a cache. Needs
// FVLM_TEST_GPU.
#include "../model/tiny.h"
#include "device/runtime.h"
#include "infer/generation_batch.h"
#include "model/objectives.h"
#include "plugin/trust.h"

#include <ATen/ops/log_softmax.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>

namespace fvlm::infer {

using namespace model;

namespace {

const at::Device gpu_device(at::kCUDA, 0);
constexpr int64_t vocabulary = 500, answer_length = 40;

// Wide enough for the kernels of the models that people use.
ModelConfig decoder_config() {
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

void* open_library(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) throw std::runtime_error(dlerror());
  return library;
}

RegistryOptions bundled_plugins() {
  RegistryOptions options;
  options.bundled = std::filesystem::canonical(FVLM_LIBRARIES "/plugins");
  options.load.bundled = read_bundled_hashes(options.bundled.parent_path() / "bundled", options.load.trust);
  return options;
}

// The weights of `tiny`, in bf16 on the GPU.
struct OnGpu {
  explicit OnGpu(Tiny& tiny)
      : registry(bundled_plugins()), model(decoder_config(), {gpu_device, at::kBFloat16, at::kBFloat16,
                                                              [](const ParameterSpec&) { return false; }}) {
    registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
    operations.emplace(registry, ops::OperationsOptions{.device = gpu_device, .dtype = at::kBFloat16});
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
at::Tensor plain_logprobs(const Model& model, ops::Operations& ops, const std::vector<int64_t>& text) {
  const std::vector<int64_t> lengths{std::ssize(text)};
  const at::Tensor embedding = model.decoder().embedding().value(),
                   x = embedding.index_select(0, at::tensor(text, at::kLong).to(embedding.device()));
  ops::Tape none(ops::Tape::Mode::forward_only);
  const Value hidden =
      model.decoder().forward(none, ops, Value(x), segments_of(lengths, 1, lengths[0], lengths[0], embedding.device()));
  return at::log_softmax(model.decoder().logits(none, ops, hidden).data.to(at::kDouble).cpu(), 1);
}

std::vector<Prompt> prompts_of(int64_t count) {
  Dice dice(7);
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < count; ++i) {
    Prompt& prompt = prompts.emplace_back();
    for (int64_t token = dice.upto(5, 90); token > 0; --token) prompt.tokens.push_back(dice.upto(0, vocabulary - 1));
    prompt.max_tokens = answer_length;
  }
  return prompts;
}

std::vector<GeneratedAnswer> answers_of(OnGpu& gpu, const std::vector<Prompt>& prompts,
                                        const std::vector<int64_t>& ends = {}) {
  GenerationBatch batch(gpu.model, *gpu.operations, ends);
  for (const Prompt& prompt : prompts) batch.add(prompt);
  return batch.finish();
}

at::Tensor logprobs_of(const GeneratedAnswer& answer) {
  at::Tensor all = at::empty({answer_length, vocabulary}, at::kDouble);
  for (int64_t i = 0; i < answer_length; ++i)
    for (const auto& [token, logprob] : answer.logprobs.at(static_cast<size_t>(i)).top) all[i][token] = logprob;
  return all;
}

class GenerationOnGpu : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    const char* asked = std::getenv("FVLM_TEST_GPU"); // empty: no
    if (!asked || !*asked) GTEST_SKIP() << "needs a GPU: ./scripts/test --gpu";
    if (device::runtime()) return;
    open_library("libtorch_cuda.so");
    void* library = open_library(FVLM_LIBRARIES "/libfvlm_cuda.so");
    device::use_runtime(reinterpret_cast<device::Runtime* (*)()>(dlsym(library, "fvlm_cuda_runtime"))());
  }
};

// Rounding is what it changes in the plain pass, which is computed in float32 as well.
TEST_P(GenerationOnGpu, LogitsOfBatchesAreThoseOfOneAtATimeWithinRounding) {
  const c10::InferenceMode without_autograd;
  Tiny tiny(decoder_config(), at::kFloat, [](const ParameterSpec&) { return false; });
  OnGpu gpu(tiny);
  auto prompts = prompts_of(GetParam());
  for (Prompt& prompt : prompts) prompt.top_logprobs = vocabulary;
  const auto answers = answers_of(gpu, prompts);
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
    plain.push_back(behind_prompt(plain_logprobs(gpu.model, *gpu.operations, text)));
    const at::Tensor plain_error = plain.back() - exact, batch_error = logprobs_of(answers[i]) - exact;
    of_plain = std::max(of_plain, plain_error.abs().max().item<double>());
    of_batch = std::max(of_batch, batch_error.abs().max().item<double>());
    square_of_plain += plain_error.square().mean().item<double>();
    square_of_batch += batch_error.square().mean().item<double>();
  }
  RecordProperty("rounding", std::to_string(of_plain));
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

// Where logits are not asked for, the device computes a pass before the host knows the tokens of the last one.
TEST_P(GenerationOnGpu, AnswersAreTheSameWhereTheHostIsAPassBehind) {
  const c10::InferenceMode without_autograd;
  Tiny tiny(decoder_config(), at::kFloat, [](const ParameterSpec&) { return false; });
  OnGpu gpu(tiny);
  auto prompts = prompts_of(GetParam());
  for (size_t i = 0; i < prompts.size(); ++i) prompts[i].max_tokens = 3 + static_cast<int64_t>(i * 7) % answer_length;
  auto waiting = prompts;
  for (Prompt& prompt : waiting) prompt.top_logprobs = 2;
  const auto expected = answers_of(gpu, waiting);
  const int64_t end = expected.back().tokens[expected.back().tokens.size() / 2];
  const auto with_ends = answers_of(gpu, waiting, {end}), found = answers_of(gpu, prompts, {end});
  ASSERT_EQ(found.size(), prompts.size());
  bool any_ended = false;
  int64_t equal = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const auto &tokens = found[i].tokens, &right = with_ends[i].tokens;
    const auto at = static_cast<size_t>(std::mismatch(tokens.begin(), tokens.end(), right.begin(), right.end()).first -
                                        tokens.begin());
    if (at < std::min(tokens.size(), right.size())) { // other sizes of passes round otherwise
      const auto& top = with_ends[i].logprobs[at].top;
      EXPECT_LT(top[0].second - top[1].second, 0.1) << "prompt " << i << ", token " << at;
      continue;
    }
    EXPECT_EQ(tokens.size(), right.size()) << "prompt " << i;
    EXPECT_EQ(found[i].ended, with_ends[i].ended) << "prompt " << i;
    ++equal;
    any_ended = any_ended || found[i].ended;
  }
  EXPECT_TRUE(any_ended);
  EXPECT_GE(10 * equal, 9 * std::ssize(found));
}

INSTANTIATE_TEST_SUITE_P(Prompts, GenerationOnGpu, testing::Values(1, 7, 24, 70));

} // namespace
} // namespace fvlm::infer
