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

// What the user said last; of a prompt that is no chat, all of it.
std::string question_of(const Tokenizer& tokenizer, const std::vector<TokenId>& prompt) {
  constexpr std::string_view user = "<|im_start|>user\n", end = "<|im_end|>";
  const std::string text = decode_with_placeholders(tokenizer, prompt);
  const size_t turn = text.rfind(user);
  if (turn == std::string::npos) return decoded(tokenizer, prompt);
  const size_t begin = turn + user.size();
  return trimmed(text.substr(begin, text.find(end, begin) - begin));
}

// Where a frame's query looked, row by row, the mean over layers and heads; [layers, heads, tokens], CLS first.
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

class Showing {
 public:
  Showing(const SampleSet& set, const model::Model& vlm, ops::Operations& ops, const ShowRequest& request)
      : set_(set), vlm_(vlm), request_(request), folder_(request.folder / set.wanted().name),
        answerer_(set.tokenizer(), vlm, ops) {
    make_folders(folder_);
  }

  void add(const PackedSample& packed, const SampleScore& score, const model::Sample& asked,
           const at::Tensor& attention) {
    const auto& texts = packed.sample->texts;
    const PromptAndAnswer right(texts.at(static_cast<size_t>(packed.sample->correct_choice.value_or(0))));
    const std::string number = fmt::format("{:03}", shown_++);
    Json sample{{"set", set_.wanted().name},
                {"stage", request_.stage},
                {"step", request_.step},
                {"source", score.source},
                {"question", question_of(set_.tokenizer(), right.prompt)},
                {"expected", decoded(set_.tokenizer(), right.answer)},
                {"answer", answerer_.answer(right.prompt, *packed.sample, asked.frames, request_.tokens)}};
    if (score.texts.size() > 1)
      for (size_t i = 0; i < score.texts.size(); ++i)
        sample["options"].push_back({{"text", decoded(set_.tokenizer(), PromptAndAnswer(texts[i]).answer)},
                                     {"loss", score.texts[i].mean()},
                                     {"right", i == score.right}});
    sample["frames"] = Json::array();
    const int64_t frames = packed.sample->frames;
    for (int64_t i = 0; i < frames; ++i) {
      const std::string name = fmt::format("{}-{}.png", number, i);
      write_frame(asked.frames[i], set_.preparation(), folder_ / name);
      sample["frames"].push_back(name);
    }
    if (attention.defined()) {
      const int64_t side = set_.image_size() / vlm_.config().vision.patch_size;
      sample["grid"] = {side, side};
      sample["attention"] = Json::array();
      for (int64_t i = 0; i < frames; ++i) sample["attention"].push_back(map_of(attention[i]));
    }
    write_file_atomic(folder_ / (number + ".json"), sample.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }

 private:
  const SampleSet& set_;
  const model::Model& vlm_;
  const ShowRequest& request_;
  std::filesystem::path folder_;
  Answerer answerer_;
  int shown_ = 0;
};

} // namespace

void show(const SampleSet& set, const model::Model& vlm, ops::Operations& ops, const ShowRequest& request) {
  if (set.wanted().show == 0) return;
  const c10::InferenceMode without_gradients;
  const std::string& mode = set.wanted().modes.front();
  Showing showing(set, vlm, ops, request);
  const auto loader = set.loader(set.wanted().show);
  while (const auto loaded = loader->next()) {
    const JudgedPack judged = judge(set, loaded->pack, vlm, ops, mode, model::EncodeOutputs::tokens_and_attention);
    for (size_t i = 0; i < judged.samples.size(); ++i) {
      const PackedSample& packed = loaded->pack.samples[i];
      const bool seen = packed.sample->frames > 0 && judged.attention.defined();
      showing.add(packed, judged.scores[i], judged.samples[i],
                  seen ? judged.attention.narrow(0, packed.first_frame, packed.sample->frames) : at::Tensor());
    }
  }
}

} // namespace fvlm::evaluation
