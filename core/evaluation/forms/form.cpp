#include "evaluation/forms/form.h"

#include "base/error.h"
#include "base/text.h"

#include <vector>

namespace fvlm::evaluation {
namespace {

constexpr Form forms[] = {
    {"mvbench", "a file for each task, its category; an entry has video, question, candidates, answer", read_mvbench},
    {"video-mme", "an entry has videoID, question, options, answer, and duration, its category", read_video_mme},
    {"scienceqa", "an entry has question, choices, answer, hint, image, and subject, its category", read_scienceqa},
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

} // namespace fvlm::evaluation
