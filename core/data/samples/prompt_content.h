// A sample as a prompt: what a model is asked, and what the sample says the answer is.
#pragma once
#include "data/samples/sample_content.h"
#include "data/shards/shard.h"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>

namespace fvlm {

struct PromptContent {
  Conversation conversation;           // whose last turn is the user's, or what a tool returned
  std::optional<std::string> expected; // the sample's last answer, which is no part of the prompt
  std::optional<Objects> objects;      // which both do not have in them yet
};

// Of the formats of parse_sample_content(), but for token ids and questions about a context; of two answers the chosen
// one is expected, of choices the right one. An answer may be missing: `messages` or `conversations` may end with the
// user's turn, and a question stand alone. It is `user`, else `question`, `prompt`, `instruction` or `query`, with its
// answer in `assistant`, else `answer`, `response`, `output` or `completion`. A sample without any text is asked what
// the mix's prompts say, unless they are the usual ones. Throws Error(data) without a location.
PromptContent parse_prompt_content(nlohmann::json sample, const std::optional<std::string>& caption_file,
                                   plan::Source source, const plan::Mix& mix, const plan::VisualRows& visual_rows);

// The text of KEY.txt; nothing: the sample has none. Throws Error(data) without a location.
std::optional<std::string> caption_file_of(const Shard& shard, const ShardSample& sample);

} // namespace fvlm
