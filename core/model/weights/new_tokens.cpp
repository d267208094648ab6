#include "model/weights/new_tokens.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "model/weights/convert.h"
#include "model/weights/weight_reader.h"
#include "model/weights/whole_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

namespace fvlm {
namespace {

using Ordered = nlohmann::ordered_json; // files keep their order

constexpr int64_t row_multiple = 64; // that kernels like the rows of an output head to be of
constexpr std::array rows_of_tokens = {"decoder.model.embed_tokens.weight", "decoder.lm_head.weight"};
constexpr const char *tokenizer_file = "tokenizer.json", *settings_file = "tokenizer_config.json";

// The rows of a weight, of which those from `first` to `last`, and those behind its own, are the mean of the ones
// before `first`.
class GrownRows final : public WeightReader {
 public:
  GrownRows(const TensorView& base, int64_t rows, int64_t first, int64_t last)
      : WeightReader(rows, base.shape[1]), base_(base), first_(first), last_(last),
        row_bytes_(static_cast<size_t>(base.shape[1]) * size_of(type())) {
    std::vector<double> sum(static_cast<size_t>(cols()));
    std::vector<float> numbers(sum.size());
    std::vector<std::byte> row(row_bytes_);
    for (int64_t i = 0; i < first; ++i) {
      read_own(i, row);
      convert(row, type(), std::as_writable_bytes(std::span(numbers)), DType::f32);
      for (size_t c = 0; c < sum.size(); ++c) sum[c] += static_cast<double>(numbers[c]);
    }
    for (size_t c = 0; c < sum.size(); ++c) numbers[c] = static_cast<float>(sum[c] / static_cast<double>(first));
    mean_.resize(row_bytes_);
    convert(std::as_bytes(std::span(numbers)), DType::f32, mean_, type());
  }

  DType type() const override { return base_.reader ? base_.reader->type() : base_.dtype; }
  void read(int64_t first, std::span<std::byte> rows) const override {
    for (; !rows.empty(); rows = rows.subspan(row_bytes_), ++first)
      if (first < first_ || (first >= last_ && first < base_.shape[0]))
        read_own(first, rows.first(row_bytes_));
      else
        std::ranges::copy(mean_, rows.begin());
  }
  std::span<const std::byte> stored() const override { return base_.reader ? base_.reader->stored() : base_.data; }

 private:
  void read_own(int64_t row, std::span<std::byte> into) const {
    if (base_.reader)
      base_.reader->read(row, into);
    else
      std::ranges::copy(base_.data.subspan(static_cast<size_t>(row) * row_bytes_, row_bytes_), into.begin());
  }

  TensorView base_;
  int64_t first_, last_;
  size_t row_bytes_;
  std::vector<std::byte> mean_;
};

Ordered json_in(const HuggingFaceFolder& folder, const char* name) {
  const auto file = std::ranges::find_if(folder.carried, [&](const auto& each) { return each.name == name; });
  return file == folder.carried.end() ? Ordered() : Ordered::parse(file->text(), nullptr, false);
}

// Ids of all tokens, by their contents.
std::map<std::string, int64_t> ids_of(const Ordered& tokenizer) {
  std::map<std::string, int64_t> ids;
  for (const auto& [content, id] : tokenizer.at("model").at("vocab").items()) ids.emplace(content, id.get<int64_t>());
  for (const Ordered& token : tokenizer.value("added_tokens", Ordered::array()))
    ids[token.at("content").get<std::string>()] = token.at("id").get<int64_t>();
  return ids;
}

Ordered added_token(const std::string& content) {
  return {{"content", content}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false},    {"normalized", false},  {"special", false}};
}

// In the config of a whole model, which may have it twice.
void set_vocabulary(nlohmann::json& config, int64_t size) {
  const auto text = config.find("text_config");
  const bool is_nested = text != config.end() && text->is_object();
  if (is_nested) (*text)["vocab_size"] = size;
  if (!is_nested || config.contains("vocab_size")) config["vocab_size"] = size;
}

} // namespace

NewTokens::NewTokens(std::vector<std::string> texts) : texts_(std::move(texts)) {
  std::set<std::string> seen;
  for (const std::string& text : texts_)
    if (trimmed(text).empty() || !seen.insert(text).second)
      throw Error(ErrorKind::usage, "new tokens: '{}' is {}", text, trimmed(text).empty() ? "empty" : "there twice");
}

void NewTokens::add_to_tokenizer(HuggingFaceFolder& folder) {
  const std::string where = (folder.path / tokenizer_file).string();
  Ordered tokenizer = json_in(folder, tokenizer_file), settings = json_in(folder, settings_file);
  try {
    const std::map<std::string, int64_t> ids = ids_of(tokenizer);
    for (const auto& [content, id] : ids) first_ = std::max(first_, id + 1);
    int64_t id = first_;
    for (const std::string& text : texts_) {
      if (const auto found = ids.find(text); found != ids.end())
        throw Error(ErrorKind::data, "the tokenizer has '{}' already: it is the token {}", text, found->second)
            .at(where);
      Ordered token = {{"id", id}};
      token.update(added_token(text));
      tokenizer["added_tokens"].push_back(std::move(token));
      if (settings.contains("added_tokens_decoder"))
        settings["added_tokens_decoder"][std::to_string(id)] = added_token(text);
      ++id;
    }
  } catch (const Ordered::exception&) {
    throw Error(ErrorKind::data, "it has no vocabulary that could get further tokens").at(where);
  }
  folder.change(tokenizer_file, tokenizer.dump(2) + "\n");
  if (settings.is_object()) folder.change(settings_file, settings.dump(2) + "\n");
}

void NewTokens::add_to(ModelPart& decoder, const WeightSchemes& schemes) {
  auto& config = std::get<DecoderConfig>(decoder.config);
  for (const char* weight : rows_of_tokens)
    if (schemes.contains(weight))
      throw Error(ErrorKind::data, "{} is stored in codes, and gets no rows for new tokens", weight)
          .at(decoder.folder.path.string())
          .advise("take the model in 16 bits");
  if (config.vocab_size_per_layer_input > 0)
    throw Error(ErrorKind::data, "its layers have tables of tokens of their own, which get no rows for new tokens")
        .at(decoder.folder.path.string());
  add_to_tokenizer(decoder.folder);
  const int64_t last = first_ + std::ssize(texts_), before = config.vocab_size;
  vocabulary_ = last <= before ? before : (last + row_multiple - 1) / row_multiple * row_multiple;
  log_info("{} new tokens, {} to {}; the decoder's embedding {}", texts_.size(), first_, last - 1,
           last <= before ? fmt::format("has room for them among its {} rows", before)
                          : fmt::format("grows from {} rows to {}", before, vocabulary_));
  config.vocab_size = vocabulary_;
  decoder.folder.config["vocab_size"] = vocabulary_;
  nlohmann::json& whole = decoder.folder.whole_model;
  if (whole.is_null()) return;
  set_vocabulary(whole["config"], vocabulary_);
  for (const ModelPart& part : read_whole_config(whole["config"], decoder.folder.path.string()).parts)
    if (part.role() == Role::decoder && std::get<DecoderConfig>(part.config).vocab_size != vocabulary_)
      throw Error(ErrorKind::internal, "config.json keeps its vocab_size elsewhere").at(decoder.folder.path.string());
}

const TensorView* NewTokens::grown(const std::string& name, const TensorView* tensor) {
  if (empty() || std::ranges::find(rows_of_tokens, name) == rows_of_tokens.end()) return tensor;
  TensorView& view = grown_.emplace_back(*tensor);
  view.reader = std::make_shared<const GrownRows>(*tensor, vocabulary_, first_, first_ + std::ssize(texts_));
  view.shape[0] = vocabulary_;
  view.data = {};
  return &view;
}

} // namespace fvlm
