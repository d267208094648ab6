// What generation_config.json says of sampling.
#include "model/weights/generation_config.h"
#include "weights/workshop.h"

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::testing_weights;
using testing::AllOf;
using testing::HasSubstr;

namespace {

RecommendedSampling read(const std::string& json) {
  const Folder folder;
  put_file(folder.path() / "generation_config.json", json);
  return recommended_sampling(folder.path());
}

TEST(GenerationConfig, SaysHowAnswersAreDrawn) {
  const auto all = read(R"({"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.1,
                            "repetition_penalty": 1.05, "max_length": 20})");
  EXPECT_EQ(all.temperature, 0.7);
  EXPECT_EQ(all.top_p, 0.8);
  EXPECT_EQ(all.top_k, 20);
  EXPECT_EQ(all.min_p, 0.1);
  EXPECT_EQ(all.repetition_penalty, 1.05);
}

TEST(GenerationConfig, SaysNothingOfWhatItLeavesOut) {
  for (const char* json : {"{}", R"({"do_sample": null, "temperature": 0.7})", R"({"do_sample": false, "top_k": 5})",
                           R"({"do_sample": true, "temperature": null, "repetition_penalty": null})"}) {
    const auto none = read(json);
    EXPECT_FALSE(none.temperature || none.top_p || none.top_k || none.min_p || none.repetition_penalty) << json;
  }
  EXPECT_EQ(read(R"({"repetition_penalty": 1.2})").repetition_penalty, 1.2) << "it needs no do_sample";
}

TEST(GenerationConfig, IsRefusedWhereASettingIsOutOfRange) {
  EXPECT_THAT(data_error_of([&] { read(R"({"do_sample": true, "top_p": 90})"); }),
              AllOf(HasSubstr("generation_config.json"), HasSubstr("'top_p'")));
}

} // namespace
