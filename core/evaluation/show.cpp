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
#include <optional>

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

// A frame's attention map over its `patches`, row by row: the last of its tokens, behind CLS. weights [tokens].
Json map_of(const at::Tensor& weights, int64_t patches) {
  const at::Tensor cells = weights.narrow(0, weights.size(0) - patches, patches).to(at::kDouble).contiguous().cpu();
  Json map = Json::array();
  for (int64_t patch = 0; patch < patches; ++patch)
    map.push_back(std::round(cells.const_data_ptr<double>()[patch] * 1e6) / 1e6);
  return map;
}

// Attention of a sample's frames.
struct FrameMaps {
  at::Tensor mean;     // [frames, tokens], over queries, layers and heads
  at::Tensor by_query; // [frames, queries, tokens]; undefined where there is one
};

void write_frame(const at::Tensor& frame, const FramePreparation& preparation, const std::filesystem::path& path) {
  Image image{frame.size(2), frame.size(1), std::vector<uint8_t>(static_cast<size_t>(frame.numel()))};
  preparation.denormalise({frame.const_data_ptr<float>(), static_cast<size_t>(frame.numel())}, image.rgb);
  write_file_atomic(path, write_png(image));
}

// What is shown of a sample: its frames, or the images and frames of videos whose cells they are.
std::vector<at::Tensor> pictures_of(const model::Sample& sample) {
  std::vector<at::Tensor> pictures;
  int64_t first = 0;
  for (const ImageGrid& image : sample.grids)
    for (int64_t picture = 0; picture < image.steps * image.step_frames; ++picture, first += image.step_cells()) {
      const at::Tensor cells = sample.frames.narrow(0, first, image.step_cells());
      const int64_t height = image.rows * cells.size(2), width = image.columns * cells.size(3);
      pictures.push_back(
          cells.unflatten(0, {image.rows, image.columns}).permute({2, 0, 3, 1, 4}).reshape({3, height, width}));
    }
  if (sample.grids.empty())
    for (int64_t i = 0; i < model::frames_of(sample); ++i) pictures.push_back(sample.frames[i / sample.copies]);
  return pictures;
}

class SampleWriter {
 public:
  SampleWriter(const SampleSet& set, size_t decoder, const model::Model& model, const ShowRequest& request)
      : set_(set), decoder_(decoder), model_(model), request_(request), folder_(request.folder / set.name(decoder)) {
    make_folders(folder_);
  }

  // `maps`: nothing where the connector attends to nothing.
  void add(const PackedSample& packed, const SampleScore& score, const model::Sample& model_sample,
           const std::vector<std::string>& answers, const std::optional<FrameMaps>& maps) {
    const auto& texts = packed.sample->texts;
    const SampleText& text = texts.at(static_cast<size_t>(packed.sample->correct_choice.value_or(0)));
    const PromptAndAnswer correct(text);
    const std::string number = fmt::format("{:03}", shown_++);
    const std::string source(packed.sample->bytes.begin(), packed.sample->bytes.end());
    Json sample{{"set", set_.name(decoder_)},
                {"stage", request_.stage},
                {"step", request_.step},
                {"key", packed.sample->key},
                {"source", score.source},
                {"question", source.empty() ? question_of(tokenizer(), correct.prompt) : source},
                {"expected", decoded(tokenizer(), correct.answer)},
                {"answer", answers.front()}};
    if (!source.empty()) sample["read_as_bytes"] = true;
    if (set_.settings().measure == plan::Measure::answer) add_modes(packed, text, answers, sample);
    if (score.texts.size() > 1)
      for (size_t i = 0; i < score.texts.size(); ++i)
        sample["options"].push_back({{"text", decoded(tokenizer(), PromptAndAnswer(texts[i]).answer)},
                                     {"loss", score.texts[i].mean()},
                                     {"right", i == score.correct}});
    sample["frames"] = Json::array();
    const auto pictures = source.empty() ? pictures_of(model_sample) : std::vector<at::Tensor>();
    const int64_t frames = std::ssize(pictures);
    for (int64_t i = 0; i < frames; ++i) {
      const std::string name = fmt::format("{}-{}.png", number, i);
      write_frame(pictures[static_cast<size_t>(i)], set_.preparation(), folder_ / name);
      sample["frames"].push_back(name);
    }
    for (const TileGrid& grid : packed.sample->media.tiles)
      if (!grid.is_of_cells) sample["tiles"].push_back({grid.rows, grid.columns});
    if (maps) add_maps(*maps, frames, sample);
    write_file_atomic(folder_ / (number + ".json"), sample.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }

 private:
  const Tokenizer& tokenizer() const { return set_.tokenizer(decoder_); }

  // The answer of each of the set's modes, which measures answers.
  void add_modes(const PackedSample& packed, const SampleText& text, const std::vector<std::string>& answers,
                 Json& sample) const {
    const Answers expected = set_.answers(decoder_).expected(*packed.sample, text);
    for (size_t i = 0; i < answers.size(); ++i)
      sample["answers"].push_back({{"mode", set_.settings().modes[i]},
                                   {"text", answers[i]},
                                   {"right", exact_match(answers[i], expected) == 1}});
  }

  void add_maps(const FrameMaps& maps, int64_t frames, Json& sample) const {
    const int64_t side = set_.image_size() / model_.config().vision.patch_size, patches = side * side;
    sample["grid"] = {side, side};
    sample["attention"] = Json::array();
    for (int64_t i = 0; i < frames; ++i) {
      sample["attention"].push_back(map_of(maps.mean[i], patches));
      if (!maps.by_query.defined()) continue;
      Json& queries = sample["query_attention"].emplace_back(Json::array());
      for (int64_t query = 0; query < maps.by_query.size(1); ++query)
        queries.push_back(map_of(maps.by_query[i][query], patches));
    }
  }

  const SampleSet& set_;
  size_t decoder_;
  const model::Model& model_;
  const ShowRequest& request_;
  std::filesystem::path folder_;
  int shown_ = 0;
};

void show_decoder(const SampleSet& set, size_t decoder, const model::Model& model, ops::Operations& ops,
                  const ShowRequest& request) {
  const plan::EvaluationSet& settings = set.settings();
  const bool measures_answers = settings.measure == plan::Measure::answer;
  const int64_t tokens = settings.generates() ? settings.max_new_tokens.value_or(request.tokens) : request.tokens;
  SampleWriter showing(set, decoder, model, request);
  Answerer answerer(set.answers(decoder), model.with_decoder(decoder), ops, {.captures = model.speed.graphs});
  const auto loader = set.loader(set.settings().show);
  while (const auto loaded = loader->next()) {
    const HostPack own = loaded->pack.for_decoder(decoder);
    const ScoredPack scored_pack = score_pack(set, loaded->pack, model, ops, settings.modes.front(),
                                              model::EncodeOutputs::tokens_and_attention, decoder);
    std::vector<std::vector<std::string>> answers; // by mode
    answers.push_back(generate_answers(own, scored_pack, answerer, tokens));
    for (size_t i = 1; measures_answers && i < settings.modes.size(); ++i) {
      const ScoredPack in_mode =
          score_pack(set, loaded->pack, model, ops, settings.modes[i], model::EncodeOutputs::tokens, decoder);
      answers.push_back(generate_answers(own, in_mode, answerer, tokens));
    }
    int64_t end = 0; // of the sample's frames, among those of all
    for (size_t i = 0; i < scored_pack.samples.size(); ++i) {
      const PackedSample& packed = own.samples[i];
      const int64_t first = end, frames = packed.sample->frames;
      end += frames;
      std::optional<FrameMaps> maps;
      if (frames > 0 && scored_pack.attention.defined()) {
        maps = {scored_pack.attention.narrow(0, first, frames).mean(at::IntArrayRef{1, 2}), {}};
        if (scored_pack.query_attention.defined())
          maps->by_query = scored_pack.query_attention.narrow(0, first, frames);
      }
      std::vector<std::string> of_sample;
      for (std::vector<std::string>& mode_answers : answers) of_sample.push_back(std::move(mode_answers[i]));
      showing.add(packed, scored_pack.scores[i], scored_pack.samples[i], of_sample, maps);
    }
  }
}

} // namespace

void show(const SampleSet& set, const model::Model& model, ops::Operations& ops, const ShowRequest& request) {
  if (set.settings().show == 0) return;
  const c10::InferenceMode without_gradients;
  for (size_t decoder = 0; decoder < set.decoders(); ++decoder) show_decoder(set, decoder, model, ops, request);
}

} // namespace fvlm::evaluation
