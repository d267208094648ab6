// ScienceQA: problems.json, an object of entries by their number: {"question", "choices", "answer": 0, "hint", "image":
// "image.png" or null, "split", "subject", ...}; its images lie at SPLIT/NUMBER/image.png. Where entries come as a
// list, "image" is the path itself.
#include "evaluation/forms/form.h"

namespace fvlm::evaluation {

Question read_scienceqa(const Entry& entry) {
  const Parts parts = entry.parts();
  const std::string asked = parts.need_text("question"), hint = parts.text("hint").value_or("");
  Question question;
  question.sample = {{"user", hint.empty() ? asked : hint + "\n" + asked},
                     {"choices", parts.need("choices")},
                     {"answer", parts.need("answer")},
                     {"source", parts.text("subject").value_or("")}};
  std::string image = parts.text("image").value_or("");
  const bool by_number = image == "image.png" || image == "choice.png";
  if (by_number) image = parts.need_text("split") + "/" + entry.id + "/" + image;
  if (!image.empty()) question.media = {{image}};
  return question;
}

} // namespace fvlm::evaluation
