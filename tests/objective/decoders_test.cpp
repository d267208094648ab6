// Two decoders on the same latents, beside two models of one decoder each: the loss is the mean of theirs, and what
// both leave in the encoder and the latents that they share is the mean of theirs, too.
#include "../model/tiny.h"
#include "model/connector/byte_latents/settings.h"
#include "objective/kl/settings.h"
#include "objective/manifold/settings.h"
#include "objective/next_token/settings.h"
#include "recorded_reduction.h"
#include "train/gradient_computer.h"

namespace fvlm::train {
namespace {

using at::Tensor;
using model::Dice, model::ModelConfig, model::Tiny;

ModelConfig bytes_config() {
  ModelConfig config = model::tiny_config();
  config.vision = read_vision_config({{"model_type", "bytes"},
                                      {"hidden_size", 16},
                                      {"num_hidden_layers", 2},
                                      {"num_attention_heads", 2},
                                      {"intermediate_size", 24},
                                      {"max_bytes", 32}},
                                     "here");
  connector::ByteLatents latents;
  latents.latents = 3;
  latents.private_latents = 2;
  latents.heads = 2;
  config.connector = latents;
  return config;
}

ModelConfig two_decoders() {
  ModelConfig config = bytes_config();
  DecoderConfig& other = config.further.emplace_back(config.decoder);
  other.vocab_size = 41;
  other.hidden_size = 20;
  other.num_attention_heads = 2;
  other.num_key_value_heads = 1;
  other.head_dim = 10;
  return config;
}

// The model of one of them, with the other's weights.
ModelConfig alone(size_t decoder) {
  ModelConfig config = two_decoders();
  if (decoder == 1) config.decoder = config.further[0];
  config.further.clear();
  return config;
}

// "adapter.decoder2.skip.weight" of both is "adapter.decoder.skip.weight" of the second alone. Empty: the first's own.
std::string name_alone(std::string name, size_t decoder) {
  for (const char* part : {"decoder", "adapter.decoder", "private_poolers.decoder"}) {
    const std::string first = std::string(part) + ".", second = std::string(part) + "2.";
    if (name.starts_with(second)) return decoder == 1 ? first + name.substr(second.size()) : "";
    if (name.starts_with(first)) return decoder == 0 ? name : "";
  }
  return name;
}

SampleText text_of(Dice& dice, int64_t question, int64_t answer, int64_t vocabulary) {
  SampleText text;
  text.ids.assign(5, visual_placeholder);
  text.placeholders = 5;
  for (int64_t i = 0; i < question + answer; ++i)
    text.ids.push_back(static_cast<TokenId>(dice.upto(0, vocabulary - 1)));
  text.answer_mask.assign(text.ids.size(), 0);
  std::fill(text.answer_mask.end() - answer, text.answer_mask.end(), 1);
  return text;
}

// The answer behind another prompt, without latents.
SampleText teacher_of(Dice& dice, const SampleText& text) {
  SampleText teacher;
  for (int64_t i = 0; i < 7; ++i) teacher.ids.push_back(static_cast<TokenId>(dice.upto(0, 40)));
  for (size_t i = 0; i < text.ids.size(); ++i)
    if (text.answer_mask[i]) teacher.ids.push_back(text.ids[i]);
  teacher.answer_mask.assign(teacher.ids.size(), 0);
  std::fill(teacher.answer_mask.begin() + 7, teacher.answer_mask.end(), 1);
  return teacher;
}

class TwoDecoders : public testing::Test {
 protected:
  TwoDecoders() {
    plan_.speed.graphs = false;
    stage_.mode = "latents";
    stage_.data.max_text_tokens = 32;
    stage_.data.teacher_prompt = "unused: the texts are here";
    objective::NextToken all, first;
    all.on = first.on = plan::LossOn::answer;
    first.first = plan::Curve{{1}};
    first.weight = plan::Curve{{0.5}};
    objective::Kl kl;
    kl.reads = objective::Kl::Reads::teacher_prompt;
    kl.on = plan::LossOn::answer;
    kl.temperature = 1.5;
    objective::Manifold manifold;
    manifold.weight = plan::Curve{{0.1}};
    stage_.objective = {all, first, kl, manifold};
    Dice dice(3);
    for (const auto& [bytes, question, answer, other] :
         std::vector<std::array<int64_t, 4>>{{9, 2, 3, 5}, {32, 1, 1, 2}, {4, 4, 6, 1}}) {
      auto sample = std::make_shared<Sample>();
      sample->frames = 1;
      sample->rows_per_frame = 5;
      for (int64_t i = 0; i < bytes; ++i) sample->bytes.push_back(static_cast<uint8_t>(dice.upto(0, 255)));
      auto second = std::make_shared<Sample>(*sample);
      sample->texts = {text_of(dice, question, answer, 53)};
      second->texts = {text_of(dice, question + 1, other, 41)}; // another tokenizer gives other lengths
      for (auto* one : {sample.get(), second.get()}) one->teacher_texts = {teacher_of(dice, one->texts[0])};
      sample->further = {second};
      samples_.push_back(sample);
    }
  }

  struct StepResult {
    std::vector<GradientComputer::TermSums> terms;
    StepCounts counts;
    std::map<std::string, Tensor> gradients;
  };
  // One step over packs of so many samples. `decoder`: the samples as it alone reads them.
  StepResult step(Tiny& tiny, size_t samples_of_a_pack, std::optional<size_t> decoder) {
    std::vector<std::shared_ptr<const Sample>> samples;
    for (const auto& sample : samples_) {
      const auto own = std::make_shared<Sample>(*for_decoder(sample, decoder.value_or(0)));
      if (decoder) own->further.clear();
      samples.push_back(own);
    }
    GradientComputer computer(plan_, stage_, tiny.model, *tiny.operations,
                              {.frames = 4,
                               .rows = 128,
                               .sequences = 4,
                               .labels = 64,
                               .longest_sequence = 64,
                               .longest_video = 1,
                               .bytes = 128},
                              {});
    StepResult result;
    RecordedReduction recorded(tiny.model.parameters());
    result.counts = counts_of(stage_, samples);
    PartTimes times;
    computer.begin_step();
    for (size_t first = 0; first < samples.size(); first += samples_of_a_pack) {
      HostPack pack;
      for (size_t i = first; i < std::min(samples.size(), first + samples_of_a_pack); ++i)
        pack.samples.push_back({static_cast<int64_t>(i), samples[i], pack.frame_count++});
      const bool is_last = first + samples_of_a_pack >= samples.size();
      computer.forward_backward(pack, result.counts, 1, times, false, is_last ? &recorded.reduction : nullptr);
    }
    recorded.expect_final();
    result.terms = GradientComputer::read_sums(computer.sums(), stage_);
    result.gradients = tiny.take_gradients();
    return result;
  }

  static double loss_of(const StepResult& step) {
    double loss = 0;
    for (size_t i = 0; i < step.terms.size(); ++i)
      loss += step.counts.weights[i] * step.terms[i].loss / step.terms[i].count;
    return loss;
  }

  plan::Plan plan_;
  plan::Stage stage_;
  std::vector<std::shared_ptr<const Sample>> samples_;
};

TEST_F(TwoDecoders, LossAndGradientsAreTheMeanOfThoseOfEachAlone) {
  Tiny both(two_decoders());
  std::map<std::string, Tensor> expected;
  double loss = 0;
  for (const size_t decoder : {0, 1}) {
    Tiny one(alone(decoder));
    for (auto& parameter : both.model.parameters().all())
      if (const std::string name = name_alone(parameter.name, decoder); !name.empty())
        one.model.parameters().at(name).value.copy_(parameter.value);
    const StepResult own = step(one, 3, decoder);
    loss += loss_of(own) / 2;
    for (auto& parameter : both.model.parameters().all())
      if (const std::string name = name_alone(parameter.name, decoder); !name.empty()) {
        Tensor& sum = expected[parameter.name];
        const Tensor half = own.gradients.at(name) / 2;
        sum = sum.defined() ? sum + half : half;
      }
  }
  for (const size_t samples_of_a_pack : {3, 1}) {
    const StepResult together = step(both, samples_of_a_pack, std::nullopt);
    ASSERT_EQ(together.terms.size(), 8u);
    EXPECT_NEAR(loss_of(together), loss, 1e-6); // log-probabilities of teachers are float32
    ASSERT_EQ(together.gradients.size(), expected.size());
    for (const auto& [name, gradient] : together.gradients)
      EXPECT_LE((gradient - expected.at(name)).abs().max().item<double>(), 1e-10)
          << name << " in packs of " << samples_of_a_pack;
    EXPECT_GT(together.gradients.at("vision.byte_emb.weight").abs().max().item<double>(), 1e-4);
  }
}

TEST_F(TwoDecoders, TermsOfTheSecondHaveItsName) {
  EXPECT_EQ(objective::term_names(stage_.objective, 2),
            (std::vector<std::string>{"next_token", "next_token_2", "kl", "manifold", "next_token.decoder2",
                                      "next_token_2.decoder2", "kl.decoder2", "manifold.decoder2"}));
}

TEST(SeveralDecoders, NeedAConnectorThatGoesWithThem) {
  ModelConfig config = model::tiny_config();
  config.further.push_back(config.decoder);
  try {
    const Tiny tiny(config);
    FAIL() << "the foveated connector took two decoders";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_NE(std::string(error.what()).find("goes with one decoder, and there are 2"), std::string::npos)
        << error.what();
  }
}

} // namespace
} // namespace fvlm::train
