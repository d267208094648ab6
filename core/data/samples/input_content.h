// Parses a retrieval sample: a query, what it is to find, and what it is not, each as /v1/embeddings would be sent it.
#pragma once
#include "data/samples/named_media.h"
#include "data/samples/parts.h"
#include "data/samples/sample_content.h"

#include <optional>
#include <string>
#include <vector>

namespace fvlm {

struct InputContent {
  Sample::Role role = Sample::Role::query;
  std::string name;                // for messages: "'query'", "number 1 of 'negatives'"
  std::optional<std::string> text; // read alone, as `input`; nothing: the conversation is read, as `messages`
  Conversation conversation;
  std::vector<NamedValue> media; // that its own fields name
  bool is_missing = false;       // of a positive without any field: it is the pictures of the sample itself
};

// Whether the fields are those of a retrieval sample: `query` or `anchor`, and what it is to find, or the recipe says
// which key the query is.
bool has_inputs(const Parts& parts);

// `query` (or `anchor`), `positive`, and at most Mix::negatives of `negative`, `negative_1`, ... and `negatives`, in
// this order. Each is a text, a list of turns, the bytes or path of a picture as Hugging Face has them, or an object
// with `text` and `image`, `images` or `video`; `query_image`, `positive_image` and `negative_image` are pictures that
// stand before a text. <image> and <video> in what a user says are kept where visual rows are in place. Throws
// Error(data) without a location.
std::vector<InputContent> parse_inputs(const Parts& parts, const plan::Mix& mix, const plan::VisualRows& visual_rows);

} // namespace fvlm
