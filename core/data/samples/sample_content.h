// Parses the text of a sample, in any of the supported JSON formats, to conversations that are not tokenized yet.
#pragma once
#include "data/chat.h"
#include "data/samples/parts.h"
#include "data/samples/question.h"
#include "data/samples/sample.h"
#include "recipe/plan.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

struct Conversation {
  std::string system; // empty for none
  std::vector<Turn> turns;
  std::shared_ptr<const nlohmann::ordered_json> tools = nullptr; // that the assistant may call; null: none
};

// A box of an image, or a point.
struct Box {
  std::vector<double> place; // x1, y1, x2, y2; or x, y
  int64_t image = 0;         // among those of the sample
};

// What stands in a sample's texts for <ref-object> and <bbox>, see objects.h.
struct Objects {
  enum class Unit { pixels, norm1000, norm1 }; // of coordinates: pixels of the image, or 1000 or 1 across it
  Unit unit = Unit::pixels;
  std::vector<std::string> names;
  std::vector<Box> boxes;
};

struct SampleContent {
  std::string source;
  std::vector<Conversation> conversations; // one; chosen and rejected; or one for each choice
  std::optional<std::string> document;     // set instead of `conversations` in a mix of documents
  std::vector<SampleText> tokens;          // set instead of `conversations` when the sample is tokenized already
  std::optional<Question> question;        // set instead of both; its answer is empty where the sample has none
  std::optional<int64_t> correct_choice;
  std::optional<bool> is_desirable; // see Sample
  std::vector<std::string> answers; // see Sample
  std::optional<int64_t> frame_count;
  std::optional<Objects> objects; // which its conversations do not have in them yet
};

// The format is the first of these whose fields are present, where fields that the source maps take precedence:
// token_ids and loss_mask (one list, or one for each text), choices, a preference pair, messages, conversations,
// texts, prompt with completion, assistant, context with a question and answers, answers, caption; otherwise KEY.txt is
// the caption. What the user says is user_text(), behind the turns of `history`. In a mix of documents `text` and
// KEY.txt are one. <image> and <video> in what a user says are kept where visual rows are in
// place; a list of token_ids may have visual_placeholder then. Throws Error(data) without a location.
SampleContent parse_sample_content(const Parts& parts, const std::optional<std::string>& caption_file,
                                   const plan::Source& source, const plan::Mix& mix,
                                   const plan::VisualRows& visual_rows);

// By parts, the keys under which the JSON of a sample without any of these formats, or with a caption alone, has texts
// by names of other data sets, as a source's `fields` take them. Nothing where there are none.
std::map<std::string, std::string> suggested_fields(const nlohmann::json& sample);

} // namespace fvlm
