// A stream of documents, cut into rows.
#include "../samples/sample_maker.h"
#include "data/document.h"
#include "data/stream/composer.h"
#include "data/stream/loader.h"
#include "data/stream/mix_samples.h"
#include "data/stream/prefetcher.h"
#include "synthetic_source.h"

#include <gmock/gmock.h>

namespace fvlm {
namespace {

using plan::Documents;

// Documents of 2 to 60 tokens, each from a token 1000 on.
class MadeDocuments : public SyntheticSource {
 public:
  using SyntheticSource::SyntheticSource;
  Sample measure(const DrawnSample& drawn) const override {
    Sample sample = SyntheticSource::measure(drawn);
    sample.frames = 0;
    if (!sample.dropped.empty()) return sample;
    sample.texts[0].ids[0] = 1000;
    sample.texts[0].answer_mask.assign(sample.texts[0].ids.size(), 1);
    return sample;
  }
};

BatchPlan rows_of(Documents documents, int64_t tokens, int64_t samples = 0) {
  return {.batch = {.samples = 3},
          .capacity = {0, 2 * tokens},
          .samples = samples,
          .documents = documents,
          .row_tokens = tokens};
}

Order order_of(const MadeDocuments& source) {
  return Order::shuffled(mix_of({1}, 1), source.sizes(), 42, "base", 0);
}

std::vector<LoadedPack> loaded(const MadeDocuments& source, const BatchPlan& plan, std::optional<Cursor> from = {}) {
  const Order order = order_of(source);
  DataLoaderOptions options;
  options.workers = 2;
  DataLoader loader(source, order, plan, first_fit, options, from.value_or(Composer::start(plan, order)));
  std::vector<LoadedPack> packs;
  while (auto pack = loader.next()) packs.push_back(std::move(*pack));
  return packs;
}

std::vector<SampleText> texts(const std::vector<LoadedPack>& packs) {
  std::vector<SampleText> all;
  for (const LoadedPack& pack : packs)
    for (const PackedSample& row : pack.pack.samples)
      all.insert(all.end(), row.sample->texts.begin(), row.sample->texts.end());
  return all;
}

// The documents in the order of the stage.
std::vector<std::vector<TokenId>> documents(const MadeDocuments& source) {
  const Order order = order_of(source);
  auto state = order.begin();
  std::vector<std::vector<TokenId>> all;
  while (const auto drawn = order.next(state))
    if (!source.broken(*drawn)) all.push_back(source.measure(*drawn).texts[0].ids);
  return all;
}

TEST(Documents, JoinedRowsAreOneStreamInWhichEveryTokenIsALabelOnce) {
  const MadeDocuments source({150});
  std::vector<TokenId> stream;
  for (const auto& document : documents(source)) stream.insert(stream.end(), document.begin(), document.end());
  for (const int64_t tokens : {2, 17, 64, 500}) {
    const auto rows = texts(loaded(source, rows_of(Documents::joined, tokens)));
    std::vector<TokenId> read{rows.at(0).ids.at(0)};
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i + 1 < rows.size()) {
        ASSERT_EQ(std::ssize(rows[i].ids), tokens);
      }
      ASSERT_EQ(rows[i].answer_mask.size(), rows[i].ids.size());
      ASSERT_EQ(rows[i].ids.front(), read.back()) << "a row goes on from the last token of the one before";
      read.insert(read.end(), rows[i].ids.begin() + 1, rows[i].ids.end());
    }
    EXPECT_TRUE(read == stream) << "rows of " << tokens;
  }
}

TEST(Documents, IsolatedRowsHoldEveryLabelOfADocumentOnce) {
  const MadeDocuments source({150});
  for (const int64_t tokens : {2, 17, 64, 500}) {
    const auto packs = loaded(source, rows_of(Documents::isolated, tokens));
    for (const LoadedPack& pack : packs)
      for (const PackedSample& row : pack.pack.samples) ASSERT_LE(row.sample->rows(), tokens);
    std::vector<std::vector<TokenId>> read;
    for (const SampleText& text : texts(packs)) {
      ASSERT_GE(text.ids.size(), 2U) << "a text without a label";
      if (text.ids[0] == 1000 || read.empty())
        read.push_back(text.ids);
      else
        read.back().insert(read.back().end(), text.ids.begin() + 1, text.ids.end());
    }
    EXPECT_TRUE(read == documents(source)) << "rows of " << tokens;
  }
}

TEST(Documents, RowsAreTheSamplesOfStepsAndPacks) {
  const MadeDocuments source({150});
  for (auto batch : {plan::Batch{.samples = 3}, plan::Batch{.tokens = 3 * 17 + 5}}) {
    BatchPlan plan = rows_of(Documents::joined, 17, 20);
    plan.batch = batch;
    const auto packs = loaded(source, plan);
    int64_t rows = 0;
    std::vector<int64_t> of_step(7);
    for (const LoadedPack& pack : packs) {
      ASSERT_LE(pack.pack.samples.size(), 2U);
      of_step.at(static_cast<size_t>(pack.step)) += std::ssize(pack.pack.samples);
      for (const PackedSample& row : pack.pack.samples) EXPECT_EQ(row.position, rows++);
    }
    EXPECT_THAT(of_step, testing::ElementsAre(3, 3, 3, 3, 3, 3, 2));
  }
}

TEST(Documents, ResumeAtAnyStepIsExact) {
  MadeDocuments source({90});
  source.broken = [](const DrawnSample& drawn) { return drawn.sample % 20 == 3; };
  for (const Documents how : {Documents::joined, Documents::isolated}) {
    const BatchPlan plan = rows_of(how, 23);
    const auto whole = loaded(source, plan);
    for (size_t i = 0; i < whole.size(); ++i) {
      if (!whole[i].last) continue;
      const auto rest = loaded(source, plan, Cursor::parse(whole[i].after.text(), "cursor"));
      ASSERT_EQ(rest.size(), whole.size() - i - 1);
      for (size_t j = 0; j < rest.size(); ++j) {
        ASSERT_EQ(rest[j].pack.hash(), whole[i + 1 + j].pack.hash()) << "pack " << j << " after " << i;
        if (rest[j].last) {
          ASSERT_EQ(rest[j].after, whole[i + 1 + j].after);
        }
      }
    }
  }
}

TEST(Documents, OtherRowsAreOtherData) {
  const MadeDocuments source({90});
  const Order order = order_of(source);
  const BatchPlan plan = rows_of(Documents::joined, 23);
  const Cursor cursor = Composer::start(plan, order);
  EXPECT_TRUE(Composer::matches(cursor, plan, order));
  EXPECT_FALSE(Composer::matches(cursor, rows_of(Documents::isolated, 23), order));
  EXPECT_FALSE(Composer::matches(cursor, rows_of(Documents::joined, 24), order));
}

TEST(Documents, AConversationThatIsNotLearntIsLeftOutOfEvaluations) {
  const test::Folder folder;
  test::write_bytes(folder / "tokenizer.json", test::small_tokenizer().dump());
  test::write_bytes(folder / "tokenizer_config.json", R"({"bos_token": "<|im_start|>"})");
  test::write_bytes(folder / "a.jsonl",
                    R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","train":false}]})"
                    "\n{\"text\":\"a document\"}\n");
  plan::Mix mix = mix_of({1});
  mix.sources[0].text = {(folder / "a.jsonl").string()};
  mix.sources[0].shards.clear();
  mix.documents = Documents::joined;
  mix.max_text_tokens = 4;
  const Tokenizer tokenizer = Tokenizer::from_file(folder / "tokenizer.json");
  const MixSamples samples(mix, tokenizer, 8, nullptr, plan::VisualRows{}, {.cache = folder / "cache"});
  const MeasuredSample flagged = measure(samples, {.source = 0, .sample = 0});
  EXPECT_EQ(flagged.sample, nullptr);
  EXPECT_EQ(flagged.skipped.skip, SkipReason::no_answer) << flagged.skipped.reason;
  EXPECT_GT(measure(samples, {.source = 0, .sample = 1}).sample->texts.size(), 1U);
}

TEST(Documents, CutTextsOverlapByOneToken) {
  SampleText document{{1000, 1, 2, 3, 4, 5, 6}, {1, 1, 0, 1, 1, 1, 1}, 0};
  std::vector<std::vector<TokenId>> parts;
  for (const SampleText& text : cut(document, 3)) parts.push_back(text.ids);
  EXPECT_THAT(parts, testing::ElementsAre(testing::ElementsAre(1000, 1, 2), testing::ElementsAre(2, 3, 4),
                                          testing::ElementsAre(4, 5, 6)));
  EXPECT_EQ(cut(document, 7).size(), 1U);
  EXPECT_THAT(cut(document, 6).back().ids, testing::ElementsAre(5, 6));
}

} // namespace
} // namespace fvlm
