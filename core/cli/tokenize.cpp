// fvlm-engine tokenize: lines of text to lines of ids, and back.
#include "base/error.h"
#include "cli/options.h"
#include "data/tokenizer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iostream>

namespace fvlm::cli {
namespace {

// A tokenizer.json, a Hugging Face folder, or a model directory (whose decoder folder holds it).
std::filesystem::path tokenizer_file(const std::filesystem::path& model) {
  for (const auto& path : {model, model / "tokenizer.json", model / "decoder" / "tokenizer.json"})
    if (std::filesystem::is_regular_file(path)) return path;
  throw Error(ErrorKind::data, "there is no tokenizer.json here, nor in its folder 'decoder'")
      .at(model.string())
      .advise("name a model directory, a Hugging Face folder or a tokenizer.json");
}

std::vector<TokenId> parse_ids(const std::string& line, int64_t number) {
  auto json = nlohmann::json::parse(line, nullptr, false);
  bool good = json.is_array();
  std::vector<TokenId> ids;
  for (const auto& entry : good ? json : nlohmann::json::array()) {
    good = good && entry.is_number_integer() && entry >= 0 && entry <= INT32_MAX;
    if (good) ids.push_back(entry.get<TokenId>());
  }
  if (!good)
    throw Error(ErrorKind::data, "a JSON array of token ids was expected")
        .at(fmt::format("standard input, line {}", number))
        .advise("one array a line, as `fvlm-engine tokenize` writes them: [12, 7, 301]");
  return ids;
}

} // namespace

int run_tokenize(Arguments arguments) {
  Options options(
      "tokenize MODEL [--decode] [--special]",
      "Reads lines from standard input. Text becomes a JSON array of ids a line; with --decode an array of\n"
      "ids becomes a JSON string a line.",
      "tokenize weights/SmolLM2-135M-Instruct < questions.txt");
  options.positional("MODEL", "a model directory, a Hugging Face folder or a tokenizer.json")
      .flag("decode", "ids to text")
      .flag("special", "text like <|im_end|> becomes the special token; by default it is spelled out");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  Tokenizer tokenizer = Tokenizer::from_file(tokenizer_file(*parsed->value("MODEL")));
  Tokenizer::Encoder encoder(tokenizer);
  auto special = parsed->flag("special") ? SpecialTokens::parse : SpecialTokens::as_text;
  bool decode = parsed->flag("decode");
  std::ios::sync_with_stdio(false);
  int64_t number = 0;
  std::vector<TokenId> ids;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    if (decode) {
      std::cout << nlohmann::json(tokenizer.decode(parse_ids(line, number))).dump() << '\n';
    } else {
      ids.clear();
      encoder.append(line, special, ids);
      std::cout << fmt::format("[{}]\n", fmt::join(ids, ","));
    }
  }
  return 0;
}

} // namespace fvlm::cli
