#include "data/boxes.h"

#include "base/error.h"
#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace fvlm {
namespace {

namespace fs = std::filesystem;
using plan::BoxForm;

constexpr uint64_t max_config_bytes = 16 << 20;

// A row for each BoxForm: what a coordinate of 1, the far side of the image, is written as (0: in pixels), and what
// stands around a place and around a name.
struct Writing {
  double far = 0;
  bool is_y_first = false;
  std::array<std::string_view, 4> tokens = {}; // before and behind a place, before and behind a name
};

constexpr Writing pixels{.far = 0}, norm1000{.far = 1000}, norm1000_yx{.far = 1000, .is_y_first = true},
    norm1{.far = 1}, loc{.far = 1023, .is_y_first = true},
    qwen2_vl{.far = 1000, .tokens = {"<|box_start|>", "<|box_end|>", "<|object_ref_start|>", "<|object_ref_end|>"}},
    internvl{.far = 1000, .tokens = {"<box>", "</box>", "<ref>", "</ref>"}};
constexpr std::array<const Writing*, plan::box_forms.size()> writings{&pixels, &norm1000, &norm1000_yx, &norm1,
                                                                      &loc,    &qwen2_vl, &internvl};

const Writing& writing_of(BoxForm form) {
  return *writings[static_cast<size_t>(form)];
}

// By the model_type of the whole model's config.json. Where each is documented: Qwen's process_bbox.ipynb and the
// cookbooks of Qwen3-VL, InternVL's format of chat data, Z.ai's glmv-grounding, and PaliGemma's README. Gemma 4 answers
// with Gemini's "box_2d".
struct Family {
  std::string_view model_type;
  BoxForm form;
};
constexpr Family families[]{
    {"qwen2_vl", BoxForm::qwen2_vl}, {"qwen2_5_vl", BoxForm::pixels},     {"qwen3_vl", BoxForm::norm1000},
    {"qwen3_5", BoxForm::norm1000},  {"qwen3_vl_moe", BoxForm::norm1000}, {"qwen3_5_moe", BoxForm::norm1000},
    {"internvl", BoxForm::internvl}, {"glm4v", BoxForm::norm1000},        {"glm46v", BoxForm::norm1000},
    {"paligemma", BoxForm::loc},     {"gemma4", BoxForm::norm1000_yx}};

// Of the whole model that the decoder is of, else as its own config says it: "qwen3_vl_text".
std::string model_type_in(const fs::path& folder) {
  constexpr const char *whole = "whole_model.json", *own = "config.json";
  if (folder.empty()) return "";
  const bool is_of_whole = fs::exists(folder / whole);
  if (!is_of_whole && !fs::exists(folder / own)) return "";
  const nlohmann::json config = read_json_object(folder / (is_of_whole ? whole : own), max_config_bytes);
  const auto found = nlohmann::json::json_pointer(is_of_whole ? "/config/model_type" : "/model_type");
  if (!config.contains(found) || !config[found].is_string()) return "";
  std::string type = config[found].get<std::string>();
  if (type.ends_with("_text")) type.resize(type.size() - 5);
  return type;
}

double written(const Writing& writing, double value, const BoxSide& side) {
  if (writing.far == 1) return value / side.own;
  if (writing.far > 0) return std::nearbyint(value / side.own * writing.far);
  return std::min(std::nearbyint(value * (side.resized / side.own)), side.resized - 1);
}

} // namespace

std::optional<BoxForm> box_form_of(const fs::path& folder) {
  const std::string type = model_type_in(folder);
  const auto found = std::ranges::find(families, type, &Family::model_type);
  return found == std::end(families) ? std::nullopt : std::optional(found->form);
}

std::span<const std::string_view> box_tokens(BoxForm form) {
  const auto& tokens = writing_of(form).tokens;
  return tokens.front().empty() ? std::span<const std::string_view>() : tokens;
}

void require_box_tokens(const Tokenizer& tokenizer, BoxForm form) {
  std::vector<std::string_view> tokens(box_tokens(form).begin(), box_tokens(form).end());
  if (form == BoxForm::loc) tokens = {"<loc0000>", "<loc1023>"};
  for (const std::string_view token : tokens)
    if (!tokenizer.added_id(token))
      throw Error(ErrorKind::data, "the tokenizer has no token '{}', which boxes = \"{}\" writes", token,
                  plan::name_of(form))
          .advise("set `boxes` of the mix to the form of the decoder's family; \"norm1000\" needs no tokens");
}

std::string box_text(BoxForm form, std::span<const double> place, const std::array<BoxSide, 2>& sides) {
  const Writing& writing = writing_of(form);
  std::vector<double> numbers;
  for (size_t i = 0; i < place.size(); ++i) {
    const size_t axis = i % 2, from = writing.is_y_first ? i - axis + (1 - axis) : i;
    numbers.push_back(written(writing, place[from], sides[from % 2]));
  }
  if (form == BoxForm::norm1) return fmt::format("[{:.3f}]", fmt::join(numbers, ", "));
  if (form == BoxForm::loc) return fmt::format("<loc{:04.0f}>", fmt::join(numbers, "><loc"));
  const auto& [before, behind, before_name, behind_name] = writing.tokens;
  if (form == BoxForm::internvl) return fmt::format("{}[[{:.0f}]]{}", before, fmt::join(numbers, ", "), behind);
  if (form != BoxForm::qwen2_vl) return fmt::format("[{:.0f}]", fmt::join(numbers, ", "));
  std::vector<std::string> corners;
  for (size_t i = 0; i < numbers.size(); i += 2)
    corners.push_back(fmt::format("({:.0f},{:.0f})", numbers[i], numbers[i + 1]));
  return fmt::format("{}{}{}", before, fmt::join(corners, ","), behind);
}

std::string box_name_text(BoxForm form, const std::string& name) {
  const auto& tokens = writing_of(form).tokens;
  return fmt::format("{}{}{}", tokens[2], name, tokens[3]);
}

} // namespace fvlm
