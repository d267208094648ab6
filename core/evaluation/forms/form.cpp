#include "evaluation/forms/form.h"

#include "base/error.h"
#include "base/text.h"

#include <vector>

namespace fvlm::evaluation {
namespace {

constexpr std::string_view columns =
    "an entry has question, image, and answers, or answer with options, choices or columns A, B, ...";

constexpr Form forms[] = {
    {"mvbench", "a file for each task, its category; an entry has video, question, candidates, answer", read_mvbench},
    {"video-mme", "an entry has videoID, question, options, answer, and duration, its category", read_video_mme},
    {"scienceqa", "an entry has question, choices, answer, hint, image, and subject, its category", read_scienceqa},
    {"columns", columns, read_columns},
    {"docvqa", columns, read_columns, "anls"},
    {"textvqa", columns, read_columns, "vqa_accuracy"},
    {"chartqa", columns, read_columns, "relaxed_accuracy"},
    {"ocrbench", columns, read_ocrbench, "ocr_accuracy"},
    {"pope", columns, read_columns, "yes_no_accuracy"},
};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Form& form : forms) all.emplace_back(form.name);
  return all;
}

} // namespace

const Form& form_named(std::string_view name) {
  for (const Form& form : forms)
    if (form.name == name) return form;
  throw Error(ErrorKind::usage, "there is no form '{}'", name).advise("it is " + forms_text());
}

std::string forms_text() {
  return join_or(names());
}

const nlohmann::json* value_at(const nlohmann::json& object, std::string_view path) {
  const nlohmann::json* at = &object;
  for (const std::string& key : split(path, '.')) {
    if (!at->is_object()) return nullptr;
    const auto found = at->find(key);
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at->is_null() ? nullptr : at;
}

} // namespace fvlm::evaluation
