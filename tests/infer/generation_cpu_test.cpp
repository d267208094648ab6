// Batched passes over pages in bf16 on a CPU beside one sequence at a time without a cache: as many answers at once as
// the CPU's kernels have forms for.
#include "rounded_generation.h"

namespace fvlm::infer {
namespace {

class GenerationOnCpu : public testing::TestWithParam<int64_t> {};

TEST_P(GenerationOnCpu, LogitsOfBatchesAreThoseOfOneAtATimeWithinRounding) {
  expect_logits_of_one_at_a_time(at::kCPU, GetParam());
}

TEST_P(GenerationOnCpu, LogitsOfConvolutionsAreThoseOfOneAtATimeWithinRounding) {
  expect_logits_of_one_at_a_time(at::kCPU, GetParam(), convolving_decoder_config());
}

TEST_P(GenerationOnCpu, LogitsOfDeltaRulesAreThoseOfOneAtATimeWithinRounding) {
  expect_logits_of_one_at_a_time(at::kCPU, GetParam(), recurrent_decoder_config());
}

INSTANTIATE_TEST_SUITE_P(Prompts, GenerationOnCpu, testing::Values(1, 7, 30));

} // namespace
} // namespace fvlm::infer
