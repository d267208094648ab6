#include "evaluation/show.h"

#include "base/file.h"
#include "base/new_file.h"
#include "base/text.h"
#include "data/media/write_image.h"
#include "data/visual_marks.h"
#include "evaluation/answerer.h"
#include "evaluation/result.h"

#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace fvlm::evaluation {
namespace {

using Json = nlohmann::ordered_json;

// The user's last message; the whole prompt if it is no chat.
std::string question_of(const Tokenizer& tokenizer, const std::vector<TokenId>& prompt) {
  constexpr std::string_view user = "<|im_start|>user\n", end = "<|im_end|>";
  const std::string text = decode_with_placeholders(tokenizer, prompt);
  const size_t turn = text.rfind(user);
  if (turn == std::string::npos) return decoded(tokenizer, prompt);
  const size_t begin = turn + user.size();
  return trimmed(text.substr(begin, text.find(end, begin) - begin));
}

// A frame's attention map over its patches, row by row, as the mean over layers and heads of [layers, heads, tokens],
// CLS first.
Json map_of(const at::Tensor& attention) {
  const at::Tensor mean = attention.to(at::kDouble).mean(at::IntArrayRef{0, 1}).cpu();
  Json map = Json::array();
  for (int64_t patch = 1; patch < mean.size(0); ++patch)
    map.push_back(std::round(mean.const_data_ptr<double>()[patch] * 1e6) / 1e6);
  return map;
}

void write_frame(const at::Tensor& frame, const FramePreparation& preparation, const std::filesystem::path& path) {
  Image image{frame.size(2), frame.size(1), std::vector<uint8_t>(static_cast<size_t>(frame.numel()))};
  preparation.denormalise({frame.const_data_ptr<float>(), static_cast<size_t>(frame.numel())}, image.rgb);
  write_file_atomic(path, write_png(image));
}

class SampleWriter {
 public:
  SampleWriter(const SampleSet& set, const model::Model& model, const ShowRequest& request)
      : set_(set), model_(model), request_(request), folder_(request.folder / set.settings().name) {
    make_folders(folder_);
  }

  void add(const PackedSample& packed, const SampleScore& score, const model::Sample& model_sample,
           const std::string& answer, const at::Tensor& attention) {
    const auto& texts = packed.sample->texts;
    const PromptAndAnswer correct(texts.at(static_cast<size_t>(packed.sample->correct_choice.value_or(0))));
    const std::string number = fmt::format("{:03}", shown_++);
    const std::string source(packed.sample->bytes.begin(), packed.sample->bytes.end());
    Json sample{{"set", set_.settings().name},
                {"stage", request_.stage},
                {"step", request_.step},
                {"source", score.source},
                {"question", source.empty() ? question_of(set_.tokenizer(), correct.prompt) : source},
                {"expected", decoded(set_.tokenizer(), correct.answer)},
                {"answer", answer}};
    if (score.texts.size() > 1)
      for (size_t i = 0; i < score.texts.size(); ++i)
        sample["options"].push_back({{"text", decoded(set_.tokenizer(), PromptAndAnswer(texts[i]).answer)},
                                     {"loss", score.texts[i].mean()},
                                     {"right", i == score.correct}});
    sample["frames"] = Json::array();
    const int64_t frames = source.empty() ? packed.sample->frames : 0; // images
    for (int64_t i = 0; i < frames; ++i) {
      const std::string name = fmt::format("{}-{}.png", number, i);
      write_frame(model_sample.frames[i], set_.preparation(), folder_ / name);
      sample["frames"].push_back(name);
    }
    if (attention.defined()) {
      const int64_t side = set_.image_size() / model_.config().vision.patch_size;
      sample["grid"] = {side, side};
      sample["attention"] = Json::array();
      for (int64_t i = 0; i < frames; ++i) sample["attention"].push_back(map_of(attention[i]));
    }
    write_file_atomic(folder_ / (number + ".json"), sample.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }

 private:
  const SampleSet& set_;
  const model::Model& model_;
  const ShowRequest& request_;
  std::filesystem::path folder_;
  int shown_ = 0;
};

} // namespace

void show(const SampleSet& set, const model::Model& model, ops::Operations& ops, const ShowRequest& request) {
  if (set.settings().show == 0) return;
  const c10::InferenceMode without_gradients;
  const std::string& mode = set.settings().modes.front();
  SampleWriter showing(set, model, request);
  const Answerer answerer(set.tokenizer(), model, ops);
  const auto loader = set.loader(set.settings().show);
  while (const auto loaded = loader->next()) {
    const ScoredPack scored_pack =
        score_pack(set, loaded->pack, model, ops, mode, model::EncodeOutputs::tokens_and_attention);
    const auto answers = generate_answers(loaded->pack, scored_pack, answerer, request.tokens);
    for (size_t i = 0; i < scored_pack.samples.size(); ++i) {
      const PackedSample& packed = loaded->pack.samples[i];
      const bool has_attention = packed.sample->frames > 0 && scored_pack.attention.defined();
      showing.add(packed, scored_pack.scores[i], scored_pack.samples[i], answers[i],
                  has_attention ? scored_pack.attention.narrow(0, packed.first_frame, packed.sample->frames)
                                : at::Tensor());
    }
  }
}

} // namespace fvlm::evaluation
