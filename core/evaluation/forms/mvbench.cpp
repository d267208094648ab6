// MVBench: json/TASK.json, a list of {"video", "question", "candidates", "answer"}; some with "start" and "end", the
// seconds that are meant. The answer is the text of a candidate, the task the file's name.
#include "base/json.h"
#include "evaluation/forms/form.h"

namespace fvlm::evaluation {
namespace {

std::optional<double> seconds(const Parts& parts, const char* name) {
  const auto* found = parts.find(name);
  if (!found) return {};
  if (!found->is_number()) wrong_type(parts.name(name), *found, "a number of seconds");
  return found->get<double>();
}

} // namespace

Question read_mvbench(const Entry& entry) {
  const Parts parts = entry.parts();
  Question question;
  question.sample = {{"user", parts.need_text("question")},
                     {"choices", parts.need("candidates")},
                     {"answer", parts.need("answer")},
                     {"source", parts.text("task_type").value_or(entry.file)}};
  question.media = {{parts.need_text("video")}};
  const auto start = seconds(parts, "start"), end = seconds(parts, "end");
  if (start.has_value() != end.has_value()) broken("'start' and 'end' go together");
  if (start) question.span = TimeSpan{*start, *end};
  return question;
}

} // namespace fvlm::evaluation
