// Video-MME: entries of {"video_id", "duration", "domain", "sub_category", "videoID", "question_id", "task_type",
// "question", "options": ["A. ...", ...], "answer": "A"}, as its parquet file has them; or entries of a video with its
// "questions". The video is called videoID, or video_id where there is none.
#include "base/text.h"
#include "evaluation/forms/form.h"

namespace fvlm::evaluation {
namespace {

// "A. A cat." -> "A cat.", where each option begins with its letter: what is said is the answer, and not its place.
nlohmann::json without_letters(const nlohmann::json& options) {
  nlohmann::json texts = options;
  char letter = 'A';
  for (auto& option : texts) {
    if (!option.is_string()) return options;
    const auto& text = option.get_ref<const std::string&>();
    if (text.size() < 3 || text[0] != letter++ || (text[1] != '.' && text[1] != ')')) return options;
    option = trimmed(text.substr(2));
  }
  return texts;
}

} // namespace

Question read_video_mme(const Entry& entry) {
  const Parts parts = entry.parts();
  Question question;
  question.sample = {{"user", parts.need_text("question")},
                     {"choices", without_letters(parts.need("options"))},
                     {"answer", parts.need_text("answer")},
                     {"source", parts.text("duration").value_or("")}};
  question.media = {{parts.need_text(parts.has("videoID") ? "videoID" : "video_id")}};
  return question;
}

} // namespace fvlm::evaluation
