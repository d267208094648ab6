#include "base/path_hint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>

namespace fvlm {
namespace {

namespace fs = std::filesystem;

// Models of the Hugging Face Hub that this engine reads.
constexpr std::string_view published[] = {"facebook/dinov2-small",
                                          "facebook/dinov2-base",
                                          "facebook/dinov2-large",
                                          "HuggingFaceTB/SmolLM2-135M",
                                          "HuggingFaceTB/SmolLM2-135M-Instruct",
                                          "HuggingFaceTB/SmolLM2-360M",
                                          "HuggingFaceTB/SmolLM2-360M-Instruct",
                                          "HuggingFaceTB/SmolLM2-1.7B",
                                          "HuggingFaceTB/SmolLM2-1.7B-Instruct",
                                          "HuggingFaceTB/SmolVLM-256M-Instruct",
                                          "llava-hf/llava-1.5-7b-hf",
                                          "llava-hf/llava-v1.6-vicuna-7b-hf",
                                          "llava-hf/llava-onevision-qwen2-0.5b-ov-hf",
                                          "OpenGVLab/InternVL3-1B-hf"};

// Folders of what the engine makes, as the documentation names them: no organisations of the Hub.
constexpr std::string_view own_folders[] = {"models", "runs"};

bool is_hub_word(const std::string& word) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; };
  return !word.empty() && std::isalnum(static_cast<unsigned char>(word[0])) &&
         std::all_of(word.begin(), word.end(), allowed);
}

// How to download the model that a path names by its id in the Hub or by its folder's name; empty: it names none.
std::string hint_on_download(const fs::path& path) {
  std::error_code ignored;
  const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  const auto known = std::find_if(std::begin(published), std::end(published),
                                  [&](std::string_view id) { return id.substr(id.find('/') + 1) == name; });
  if (known != std::end(published))
    return fmt::format("download the model: `hf download {} --local-dir {}`", *known,
                       path == *known ? "weights/" + name : path.string());
  const bool is_two_words = path.is_relative() && std::distance(path.begin(), path.end()) == 2 &&
                            is_hub_word(path.begin()->string()) && is_hub_word(name);
  const std::string first = path.begin()->string();
  if (!is_two_words || fs::exists(path.parent_path(), ignored) ||
      std::find(std::begin(own_folders), std::end(own_folders), first) != std::end(own_folders))
    return "";
  const std::string id(first == "weights" ? published[0] : path.string());
  return fmt::format("a model is a folder on this machine; one of the Hugging Face Hub has to be downloaded, as by "
                     "`hf download {} --local-dir weights/{}`",
                     id, id.substr(id.find('/') + 1));
}

} // namespace

std::string hint_on_home(const fs::path& path) {
  const std::string text = path.string();
  if (text != "~" && !text.starts_with("~/")) return "";
  return fmt::format("a shell expands ~ only outside quotes: write $HOME{0} there, and the whole path in a recipe",
                     text.substr(1));
}

std::string with_start_of(const fs::path& path, std::string advice) {
  std::error_code failed;
  const fs::path here = fs::current_path(failed);
  if (failed || path.empty() || path.is_absolute()) return advice;
  return fmt::format("{}{}the path is relative to the folder that the program was started in, {}", advice,
                     advice.empty() ? "" : "; ", here.string());
}

std::string hint_on_model(const fs::path& path) {
  if (auto hint = hint_on_home(path); !hint.empty()) return hint;
  const bool is_known_id = std::find(std::begin(published), std::end(published), path.string()) != std::end(published);
  return hint_on_download(path) + (is_known_id ? ", and pass that folder" : "");
}

std::string hint_on_model_directory(const fs::path& path) {
  if (auto hint = hint_on_home(path); !hint.empty()) return hint;
  const std::string download = hint_on_download(path);
  return download.empty() ? "" : download + "; `fvlm-engine import` makes a model directory of it";
}

} // namespace fvlm
