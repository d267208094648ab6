// adapter_config.json of PEFT: ranks and alphas by module, and what is refused. The expected numbers are PEFT's, of
// re.match(rf"(.*\.)?({key})$", module) and alpha / rank.
#include "model/weights/peft_folder.h"
#include "workshop.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <gmock/gmock.h>

namespace fvlm {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Json = nlohmann::json;

class PeftConfiguration : public testing::Test {
 protected:
  PeftSettings read(const Json& changes) const {
    Json config{{"peft_type", "LORA"}, {"r", 8}, {"lora_alpha", 16}, {"target_modules", {"q_proj"}}};
    config.update(changes);
    const fs::path file = folder_ / "adapter_config.json";
    testing_weights::put_file(file, config.dump());
    return PeftSettings::read(file);
  }

  std::string refusal(const Json& changes, const std::string& module = "model.layers.0.self_attn.q_proj") const {
    return testing_weights::data_error_of([&] { (void)read(changes).module(module); });
  }

  testing_weights::Folder folder_;
};

TEST_F(PeftConfiguration, PatternsAreNamesEndsOfNamesAndExpressions) {
  const PeftSettings settings =
      read({{"rank_pattern",
             {{"q_proj", 4}, {R"(layers\.[13]\.mlp\.(up|down)_proj)", 2}, {"model.layers.2.mlp.up_proj", 32}}},
            {"alpha_pattern", {{"self_attn.q_proj", 6}}}});
  const auto expect = [&](const char* module, int64_t rank, double alpha) {
    EXPECT_EQ(settings.module(module), (AdaptedModule{module, rank, alpha}));
  };
  expect("model.layers.0.self_attn.q_proj", 4, 6);
  expect("q_proj", 4, 16);
  expect("model.layers.0.self_attn.wq_proj", 8, 16); // no end of a name
  expect("model.layers.1.mlp.up_proj", 2, 16);
  expect("model.layers.2.mlp.up_proj", 32, 16);
  expect("model.layers.13.mlp.down_proj", 8, 16);
  expect("model.layers.3.mlp.down_proj.more", 8, 16);
}

TEST_F(PeftConfiguration, RankStabilizedScalesAreByTheRootOfTheModulesRank) {
  const PeftSettings settings = read({{"use_rslora", true}, {"rank_pattern", {{"v_proj", 25}}}});
  EXPECT_DOUBLE_EQ(settings.module("v_proj").scale(), 16 / 5.0);
  EXPECT_DOUBLE_EQ(settings.module("q_proj").scale(), 16 / std::sqrt(8.0));
}

TEST_F(PeftConfiguration, KeysThatChangeTheNumbersAreRefusedByName) {
  EXPECT_THAT(refusal({{"bias", "lora_only"}}), HasSubstr("'bias'"));
  EXPECT_THAT(refusal({{"init_lora_weights", "pissa_niter_4"}}), HasSubstr("'init_lora_weights'"));
  EXPECT_THAT(refusal({{"use_qalora", true}}), HasSubstr("'use_qalora'"));
  EXPECT_THAT(refusal({{"arrow_config", {{"top_k", 3}}}}), HasSubstr("'arrow_config'"));
  EXPECT_THAT(refusal({{"of_a_later_peft", 1}}), HasSubstr("'of_a_later_peft'"));
  EXPECT_THAT(refusal({{"rank_pattern", {{"q_proj", "four"}}}}), HasSubstr("'rank_pattern'"));
  EXPECT_NO_THROW(
      read({{"of_a_later_peft", nullptr}, {"init_lora_weights", "gaussian"}, {"target_modules", "all-linear"}}));
}

TEST_F(PeftConfiguration, PatternsThatNoOneModuleCanFollowAreRefused) {
  EXPECT_THAT(refusal({{"alpha_pattern", {{"q_proj", 3}, {".*0.self_attn.q_proj", 4}}}}), HasSubstr("both match"));
  EXPECT_EQ(read({{"alpha_pattern", {{"q_proj", 3}, {".*0.self_attn.q_proj", 3}}}}).module("0.self_attn.q_proj").alpha,
            3);
  EXPECT_THAT(refusal({{"rank_pattern", {{"(q_proj", 3}}}}), HasSubstr("'rank_pattern' cannot be matched"));
  EXPECT_THAT(refusal({{"rank_pattern", {{"((a|aa)+)+b", 3}}}}, std::string(4000, 'a')),
              HasSubstr("cannot be matched"));
}

} // namespace
} // namespace fvlm
