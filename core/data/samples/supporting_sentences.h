// The context of a multi-hop question, as HotpotQA has it: paragraphs with titles, cut into sentences, of which a few
// support the answer.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include <string>

namespace fvlm {

// Joins the sentences that `facts` names and their neighbours, at most 6 in their order in `context`. Fewer than 3 are
// followed by the first 4 sentences of the first 3 paragraphs. At most 2,000 bytes are kept. Both arguments are as in
// HotpotQA's own files ([[title, ...], ...]) or as in Hugging Face's ({"title": [...], ...}); `facts` may be null.
// Throws Error(data) that starts with `name`, the field of the context.
std::string supporting_sentences(const nlohmann::json& context, const nlohmann::json* facts, const std::string& name);

} // namespace fvlm
