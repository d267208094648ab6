// Prompts and answers that are longer than the cache: it grows for them, where there is memory.
#include "batches.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <new>

namespace fvlm::infer {
namespace {

// LibTorch's memory on the CPU while it lives, of which no tensor may take more than so many bytes.
class LimitedMemory : public c10::Allocator {
 public:
  explicit LimitedMemory(size_t most) : most_(most) { c10::SetCPUAllocator(this, priority); }
  ~LimitedMemory() override { c10::SetCPUAllocator(all_, priority); }
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > most_) throw std::bad_alloc();
    return all_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return all_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static constexpr uint8_t priority = 100;
  c10::Allocator* all_ = c10::GetCPUAllocator();
  size_t most_;
};

TEST(GenerationBatch, APromptThatMemoryDoesNotHoldEndsAloneAndOthersGoOn) {
  Tiny tiny(tiny_config(), at::kFloat);
  auto prompts = mixed_prompts(4, 3);
  const auto expected = one_by_one(tiny, prompts, {});
  Prompt longer = prompts[1];
  longer.tokens.assign(5000, 11);
  for (const bool outlives : {true, false}) {
    GenerationBatch batch(tiny.model, *tiny.operations, {}, {.reserved_rows = 512, .outlives_long_prompts = outlives});
    batch.add(prompts[0]);
    EXPECT_EQ(tokens_of(batch.finish()).front(), expected[0]) << "now there are pages";
    const LimitedMemory limited(static_cast<size_t>(batch.cache_bytes()));
    batch.add(longer);
    for (const size_t next : {1, 2, 3}) batch.add(prompts[next]);
    if (!outlives) {
      EXPECT_ANY_THROW(batch.finish());
      continue;
    }
    const auto answers = batch.finish();
    ASSERT_EQ(answers.size(), 4);
    for (size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(answers[i].lacks_memory, i == 0);
    for (const size_t next : {1, 2, 3}) EXPECT_EQ(answers[next].tokens, expected[next]);
  }
}

// Prompts behind it are answered beside it, and it has more pages once it needs them.
TEST(GenerationBatch, AnAnswerThatMayOutgrowTheCacheHoldsUpNobody) {
  Tiny tiny(tiny_config(), at::kFloat);
  auto prompts = mixed_prompts(5, 3);
  prompts[0].max_tokens = 60, prompts[1].max_tokens = 500;
  for (const size_t next : {2, 3, 4}) prompts[next].max_tokens = 3;
  prompts[1].sampling = {.temperature = 1, .seed = 3};
  prompts[1].top_logprobs = 1;
  const auto expected = one_by_one(tiny, prompts, {});
  std::vector<int64_t> streamed;
  prompts[1].on_token = [&](const GeneratedToken& token) {
    streamed.push_back(token.id);
    return true;
  };
  for (const bool is_ahead : {false, true}) { // of the tokens of the last pass
    streamed.clear();
    std::optional<train::FakeRuntime> device;
    if (is_ahead) device.emplace();
    GenerationBatch batch(tiny.model, *tiny.operations, {},
                          {.cache_rows = 256, .reserved_rows = 256, .outlives_long_prompts = true});
    std::vector<GeneratedAnswer> answers;
    std::vector<int64_t> order;
    for (size_t next = 0; batch.step() || next < prompts.size();) {
      if (next < prompts.size()) batch.add(prompts[next++]);
      for (GeneratedAnswer& answer : batch.take_finished()) order.push_back(answer.number), answers.push_back(answer);
    }
    EXPECT_EQ(order, (std::vector<int64_t>{2, 3, 4, 0, 1}));
    std::ranges::sort(answers, {}, &GeneratedAnswer::number);
    EXPECT_EQ(tokens_of(answers), expected);
    EXPECT_EQ(streamed, expected[1]);
    EXPECT_EQ(answers[1].logprobs.size(), expected[1].size());
    EXPECT_GT(batch.counts().pages * 16, 500);
    EXPECT_EQ(batch.counts().preemptions, 2) << "of this answer alone, each time before the cache doubled";
  }
}

TEST(GenerationBatch, AnAnswerThatMemoryDoesNotHoldEndsWithWhatItHas) {
  Tiny tiny(tiny_config(), at::kFloat);
  auto prompts = mixed_prompts(3, 3);
  prompts[1].max_tokens = 500;
  const auto expected = one_by_one(tiny, prompts, {});
  GenerationBatch batch(tiny.model, *tiny.operations, {},
                        {.cache_rows = 256, .reserved_rows = 256, .outlives_long_prompts = true});
  batch.add(prompts[0]);
  EXPECT_EQ(tokens_of(batch.finish()).front(), expected[0]) << "now there are pages";
  std::optional<LimitedMemory> limited;
  prompts[1].on_token = [&, count = 0](const GeneratedToken&) mutable {
    if (++count == 200) limited.emplace(static_cast<size_t>(batch.cache_bytes() * 3 / 4)); // a half is a layer's
    return true;
  };
  batch.add(prompts[1]);
  batch.add(prompts[2]);
  const auto answers = batch.finish();
  ASSERT_EQ(answers.size(), 2);
  EXPECT_FALSE(answers[0].lacks_memory || answers[0].ended);
  const int64_t visual = prompts[1].visual.defined() ? prompts[1].visual.size(0) : 0;
  ASSERT_EQ(std::ssize(answers[0].tokens), 256 - std::ssize(prompts[1].tokens) - visual + 1);
  EXPECT_TRUE(std::ranges::equal(answers[0].tokens, std::span(expected[1]).first(answers[0].tokens.size())));
  EXPECT_EQ(answers[1].tokens, expected[2]);
  EXPECT_EQ(batch.counts().pages * 16, 256);
}

} // namespace
} // namespace fvlm::infer
