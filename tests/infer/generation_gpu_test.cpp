// Captured, batched passes over pages in bf16 on a GPU beside one sequence at a time without a cache. Needs
// FVLM_TEST_GPU.
#include "device/runtime.h"
#include "ops/experts.h"
#include "rounded_generation.h"

#include <ATen/ops/argsort.h>
#include <ATen/ops/equal.h>

#include <cstdlib>
#include <dlfcn.h>

namespace fvlm::infer {

namespace {

const at::Device gpu_device(at::kCUDA, 0);
void* open_library(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) throw std::runtime_error(dlerror());
  return library;
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

TEST_P(GenerationOnGpu, LogitsOfBatchesAreThoseOfOneAtATimeWithinRounding) {
  expect_logits_of_one_at_a_time(gpu_device, GetParam());
}

TEST_P(GenerationOnGpu, LogitsOfConvolutionsAreThoseOfOneAtATimeWithinRounding) {
  expect_logits_of_one_at_a_time(gpu_device, GetParam(), convolving_decoder_config());
}

TEST_P(GenerationOnGpu, LogitsOfDeltaRulesAreThoseOfOneAtATimeWithinRounding) {
  expect_logits_of_one_at_a_time(gpu_device, GetParam(), recurrent_decoder_config());
}

// Where logits are not asked for, the device computes a pass before the host knows the tokens of the last one.
TEST_P(GenerationOnGpu, AnswersAreTheSameWhereTheHostIsAPassBehind) {
  const c10::InferenceMode without_autograd;
  Tiny tiny(decoder_config(), at::kFloat, [](const ParameterSpec&) { return false; });
  Rounded gpu(tiny, gpu_device);
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

// Passes that read prompts are run eagerly the first time that their sizes occur, then captured, then replayed. They
// are padded otherwise than the passes beside them, so tokens may differ where two are equally likely but for rounding.
void expect_captured_to_be_eager(const ModelConfig& config, int64_t count) {
  const c10::InferenceMode without_autograd;
  Tiny tiny(config, at::kFloat, [](const ParameterSpec&) { return false; });
  Rounded gpu(tiny, gpu_device);
  GenerationBatch batch(gpu.model, *gpu.operations, {}, {.reserved_rows = 16384});
  int64_t equal = 0, all = 0;
  for (uint64_t round = 0; round < 6; ++round) {
    auto prompts = prompts_of(count, round);
    for (Prompt& prompt : prompts) prompt.max_tokens = 3;
    for (const Prompt& prompt : prompts) batch.add(prompt);
    const auto found = batch.finish();
    for (Prompt& prompt : prompts) prompt.top_logprobs = 2;
    const auto expected = answers_of(gpu, prompts);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i, ++all) {
      const auto &tokens = found[i].tokens, &right = expected[i].tokens;
      ASSERT_EQ(tokens.size(), right.size());
      const auto at =
          static_cast<size_t>(std::mismatch(tokens.begin(), tokens.end(), right.begin()).first - tokens.begin());
      equal += at == tokens.size();
      if (at == tokens.size()) continue;
      const auto& top = expected[i].logprobs[at].top;
      EXPECT_LT(top[0].second - top[1].second, 0.1) << "round " << round << ", prompt " << i << ", token " << at;
    }
  }
  EXPECT_GE(10 * equal, 9 * all);
}

TEST_P(GenerationOnGpu, CapturedPassesReadPromptsAsEagerOnesDo) {
  expect_captured_to_be_eager(decoder_config(), GetParam());
}

TEST_P(GenerationOnGpu, CapturedConvolutionsReadPromptsAsEagerOnesDo) {
  expect_captured_to_be_eager(convolving_decoder_config(), GetParam());
}

TEST_P(GenerationOnGpu, CapturedDeltaRulesReadPromptsAsEagerOnesDo) {
  expect_captured_to_be_eager(recurrent_decoder_config(), GetParam());
}

// A weight of small random numbers, or the codes of those that a scheme makes of them.
ops::Parameter on_gpu_as(const char* scheme, Registry& registry, const at::Tensor& numbers) {
  ops::Parameter parameter;
  parameter.value = numbers.to(at::kBFloat16).to(gpu_device);
  if (!*scheme) return parameter;
  const fvlm_quantizer_query query = {.struct_size = sizeof query,
                                      .device = ops::abi_device(gpu_device),
                                      .dtype = ops::abi_dtype(at::kBFloat16),
                                      .rows = numbers.size(0),
                                      .cols = numbers.size(1)};
  const ops::Quantizer quantizer(
      ops::Backend<fvlm_quantizer_v1>(
          select<fvlm_quantizer_v1>(registry, BackendPreference::of({"auto"}), query, scheme), gpu_device),
      query);
  parameter.packed = quantizer.pack(parameter.value);
  parameter.scheme = scheme;
  parameter.value = at::empty({1, 1}, at::TensorOptions().device(at::kMeta)).expand(numbers.sizes());
  return parameter;
}

// Of few rows by a plugin, whose results are the same in any company; of more as in training.
void expect_experts_of_few_rows(const char* scheme, int64_t rows, int64_t inner) {
  SCOPED_TRACE(fmt::format("{} of {}", *scheme ? scheme : "numbers", inner));
  const c10::InferenceMode without_autograd;
  constexpr int64_t experts = 64, chosen = 4, width = 576;
  Registry registry(bundled_plugins());
  registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
  ops::Operations operations(registry, {.device = gpu_device, .dtype = at::kBFloat16});
  const auto on_gpu = [](const at::Tensor& x) { return x.to(at::kBFloat16).to(gpu_device); };
  ops::Parameter gate_up = on_gpu_as(scheme, registry, ops::random({experts * 2 * inner, width}, 1) * 0.1),
                 down = on_gpu_as(scheme, registry, ops::random({experts * width, inner}, 2) * 0.2);
  const ops::ExpertWeights weights{experts, ops::Weight(gate_up), ops::Weight(down)};
  // No two logits of a row are alike, so that which experts are chosen is clear.
  const at::Tensor order = at::argsort(ops::random({rows, experts}, 3), int64_t{1});
  const Value x(on_gpu(ops::random({rows, width}, 4))), logits(on_gpu((order - experts / 2) * 0.25));
  const ops::Routing routing{chosen, false, true, 0, 1.5, {}};
  const uint32_t codes = *scheme == 0 ? 0 : std::string(scheme) == "int8" ? FVLM_INT8_WEIGHTS : FVLM_INT4_WEIGHTS;
  const bool are_few = operations.few_rows_experts({rows, width, inner, experts, chosen},
                                                   codes | FVLM_NORMALIZED_ROUTER, 0, 1.5) != nullptr;
  EXPECT_EQ(are_few, rows <= 64 && (codes == 0 || inner % 32 == 0));
  ops::Tape none(ops::Tape::Mode::forward_only);
  const auto products = ops::expert_products(gpu_device, at::kBFloat16, experts, width, inner);
  const at::Tensor y = ops::mixture(none, operations, x, logits, routing, weights, products).data,
                   again = ops::mixture(none, operations, x, logits, routing, weights, products).data,
                   plain =
                       ops::mix_experts(none, operations, x, ops::route(none, logits, routing), weights, products).data;
  EXPECT_TRUE(at::equal(y, again));
  const double largest = plain.abs().max().item<double>(), apart = (y - plain).abs().max().item<double>();
  EXPECT_GT(largest, 0);
  EXPECT_LT(apart, 0.02 * largest) << "of at most " << largest;
  for (int64_t row = 0; are_few && row < rows; ++row) { // whichever other rows there are
    const Value alone(x.data.narrow(0, row, 1)), own(logits.data.narrow(0, row, 1));
    EXPECT_TRUE(at::equal(ops::mixture(none, operations, alone, own, routing, weights, products).data[0], y[row]))
        << row;
  }
}

TEST_P(GenerationOnGpu, ExpertsOfFewRowsAreThoseOfMany) {
  for (const char* scheme : {"", "int8", "int4"})
    for (const int64_t inner : {200, 256}) expect_experts_of_few_rows(scheme, GetParam(), inner);
}

INSTANTIATE_TEST_SUITE_P(Prompts, GenerationOnGpu, testing::Values(1, 7, 24, 70));

} // namespace
} // namespace fvlm::infer
