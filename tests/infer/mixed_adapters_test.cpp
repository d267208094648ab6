// Adapters whose rows stand in one pass: answers are those of each adapter alone, in as many passes as those of one.
#include "batches.h"

#include <ATen/ops/concat.h>

#include <array>
#include <map>
#include <string>

using namespace fvlm;
using namespace fvlm::infer;

namespace {

// Linears of the decoder and ranks, which differ from adapter to adapter.
using Ranks = std::map<std::string, int64_t>;
const std::array<Ranks, 2> ranks{Ranks{{"model.layers.0.self_attn.q_proj", 2},
                                       {"model.layers.0.self_attn.v_proj", 3},
                                       {"model.layers.1.mlp.up_proj", 4}},
                                 Ranks{{"model.layers.0.self_attn.q_proj", 5},
                                       {"model.layers.0.self_attn.k_proj", 1},
                                       {"model.layers.1.mlp.down_proj", 2}}};

ModelConfig with_linears(const Ranks& linears, double scale) {
  ModelConfig config = tiny_config();
  PartAdapter& adapter = config.adapters["decoder"];
  for (const auto& [name, rank] : linears) adapter.modules.push_back({name, rank, scale * static_cast<double>(rank)});
  return config;
}

at::Tensor& of(Tiny& tiny, const std::string& name) {
  return tiny.model.parameters().at("decoder." + name).value;
}

// A model, two adapters beside it, and both of them in one model.
struct Mixture {
  Mixture() {
    Ranks all;
    for (const Ranks& each : ranks)
      for (const auto& [name, rank] : each) all[name] += rank;
    mixed.emplace(with_linears(all, 1), at::kFloat);
    for (size_t i = 0; i < ranks.size(); ++i) adapted.emplace_back(with_linears(ranks[i], scales[i]), at::kFloat);
    for (Tiny* each : {&adapted[0], &adapted[1], &*mixed})
      for (ops::Parameter& parameter : each->model.parameters().all())
        if (!is_of_adapter(parameter.name)) parameter.value.copy_(base.model.parameters().at(parameter.name).value);
    std::map<std::string, std::vector<int32_t>> owners;
    for (const auto& [name, rank] : all) {
      std::vector<at::Tensor> a, b;
      for (size_t i = 0; i < ranks.size(); ++i) {
        const auto found = ranks[i].find(name);
        if (found == ranks[i].end()) continue;
        a.push_back(of(adapted[i], lora_a_of(name)));
        b.push_back(of(adapted[i], lora_b_of(name)) * scales[i]);
        owners[name].insert(owners[name].end(), static_cast<size_t>(found->second), static_cast<int32_t>(i) + 1);
      }
      of(*mixed, lora_a_of(name)).copy_(at::concat(a, 0));
      of(*mixed, lora_b_of(name)).copy_(at::concat(b, 1));
    }
    mixed->model.mix_adapters(owners);
  }

  BatchOptions options(bool is_mixed) const {
    return {.adapted = {{&adapted[0].model, is_mixed}, {&adapted[1].model, is_mixed}},
            .mixed = is_mixed ? &mixed->model : nullptr};
  }

  static constexpr std::array scales{2.0, 0.75};
  Tiny base{tiny_config(), at::kFloat};
  std::deque<Tiny> adapted;
  std::optional<Tiny> mixed;
};

TEST(MixedAdapters, AnswerAsEachAloneInPassesTogether) {
  Mixture mixture;
  int64_t changed = 0, steps[2] = {0, 0};
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Dice dice(seed);
    auto prompts = mixed_prompts(9, seed);
    std::vector<std::vector<int64_t>> expected;
    for (Prompt& prompt : prompts) {
      const auto adapter = static_cast<size_t>(dice.upto(0, 2));
      expected.push_back(one_by_one(adapter == 0 ? mixture.base : mixture.adapted[adapter - 1], {prompt}, {}).front());
      changed += adapter > 0 && expected.back() != one_by_one(mixture.base, {prompt}, {}).front();
      prompt.adapter = adapter;
    }
    const int64_t prefill_rows = dice.upto(5, 60), draft_tokens = dice.upto(0, 1) * 3;
    for (const bool is_mixed : {false, true}) {
      BatchOptions options = mixture.options(is_mixed);
      options.prefill_rows = prefill_rows;
      options.draft_tokens = draft_tokens;
      GenerationBatch batch(mixture.base.model, *mixture.base.operations, {}, options);
      for (const Prompt& prompt : prompts) batch.add(prompt);
      while (batch.step()) ++steps[is_mixed];
      for (const GeneratedAnswer& answer : batch.take_finished())
        EXPECT_EQ(answer.tokens, expected[static_cast<size_t>(answer.number)])
            << "prompt " << answer.number << " of seed " << seed << (is_mixed ? ", mixed" : ", in turns");
    }
  }
  EXPECT_GT(changed, 20) << "adapters do something";
  EXPECT_LT(steps[1] * 3, steps[0] * 2);
}

// A turn of those that are mixed, then one of each other adapter.
TEST(MixedAdapters, TakeTurnsWithThoseThatCannotBeMixed) {
  Mixture mixture;
  Tiny other(tiny_config(), at::kFloat);
  for (ops::Parameter& parameter : other.model.parameters().all())
    if (parameter.value.dim() > 1) parameter.value.copy_(parameter.value.flip({0}));
  BatchOptions options = mixture.options(true);
  options.adapted.push_back({&other.model});
  GenerationBatch batch(mixture.base.model, *mixture.base.operations, {}, options);
  auto prompts = mixed_prompts(8, 7);
  std::vector<std::vector<int64_t>> expected;
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::array<Tiny*, 4> models{&mixture.base, &mixture.adapted[0], &mixture.adapted[1], &other};
    expected.push_back(one_by_one(*models.at(i % 4), {prompts[i]}, {}).front());
    prompts[i].adapter = i % 4;
    batch.add(prompts[i]);
  }
  EXPECT_EQ(tokens_of(batch.finish()), expected);
}

} // namespace
