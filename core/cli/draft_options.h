// The options of verbs that generate answers: speculative decoding.
#pragma once
#include "cli/options.h"
#include "data/tokenizer.h"
#include "infer/generator.h"

#include <filesystem>
#include <optional>

namespace fvlm::cli {

// Adds --speculate and --draft.
Options& with_draft_options(Options& options);

// Tokens that are proposed a step: of --speculate, or by default 0, with --draft 4. Throws Error(usage).
int64_t draft_tokens_of(const ParsedOptions& parsed);

// The tokenizer of a model directory, or nothing where it has none.
std::optional<Tokenizer> tokenizer_of(const std::filesystem::path& model);

// Loads the model of --draft, if there is one. Throws Error(data) unless its tokenizer is that of `model`, and
// Error(usage) for drafts that the models cannot take back.
void use_draft_model(const ParsedOptions& parsed, const std::filesystem::path& model, infer::Generator& generator);

} // namespace fvlm::cli
