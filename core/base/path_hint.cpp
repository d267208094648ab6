#include "base/path_hint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>

namespace fvlm {
namespace {

namespace fs = std::filesystem;

bool is_hub_word(const std::string& word) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; };
  return !word.empty() && std::isalnum(static_cast<unsigned char>(word[0])) &&
         std::all_of(word.begin(), word.end(), allowed);
}

} // namespace

std::string hint_on_home(const fs::path& path) {
  const std::string text = path.string();
  if (text != "~" && !text.starts_with("~/")) return "";
  return fmt::format("a shell expands ~ only outside quotes: write $HOME{0} there, and the whole path in a recipe",
                     text.substr(1));
}

std::string hint_on_model(const fs::path& path) {
  if (auto hint = hint_on_home(path); !hint.empty()) return hint;
  std::error_code ignored;
  const bool is_two_words = path.is_relative() && std::distance(path.begin(), path.end()) == 2 &&
                            is_hub_word(path.begin()->string()) && is_hub_word(std::next(path.begin())->string());
  if (!is_two_words || fs::exists(path.parent_path(), ignored)) return "";
  return fmt::format("if this is a model of the Hugging Face Hub, download it and pass its folder: "
                     "`hf download {} --local-dir weights/{}`",
                     path.string(), path.filename().string());
}

} // namespace fvlm
