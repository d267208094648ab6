// fvlm-engine tokenize: lines of text to lines of ids, and back.
#include "base/error.h"
#include "base/terminal.h"
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

// A line of JSON, so that the text can have line breaks.
std::string parse_text(const std::string& line, int64_t number) {
  auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_string()) return json.get<std::string>();
  throw Error(ErrorKind::data, "a JSON string was expected")
      .at(fmt::format("standard input, line {}", number))
      .advise(
          "one string a line, its line breaks as \\n: \"one\\ntwo\"; without --json-lines a line is the text itself");
}

} // namespace

int run_tokenize(Arguments arguments) {
  Options options("tokenize MODEL [--json-lines | --decode] [--special]",
                  "Reads lines from standard input. Text becomes a JSON array of ids a line; with --json-lines each "
                  "line is a JSON\n"
                  "string, for text with line breaks; with --decode an array of ids becomes a JSON string a line.",
                  "tokenize weights/SmolLM2-135M-Instruct < questions.txt");
  options.positional("MODEL", "a model directory, a Hugging Face folder or a tokenizer.json")
      .flag("decode", "ids to text")
      .flag("json-lines", "text to ids, each line a JSON string: \"one\\ntwo\"")
      .flag("special", "text like <|im_end|> becomes the special token; by default it is spelled out");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  Tokenizer tokenizer = Tokenizer::from_file(tokenizer_file(*parsed->value("MODEL")));
  Tokenizer::Encoder encoder(tokenizer);
  auto special = parsed->flag("special") ? SpecialTokens::parse : SpecialTokens::as_text;
  const bool decode = parsed->flag("decode"), json_lines = parsed->flag("json-lines");
  if (decode && json_lines)
    throw Error(ErrorKind::usage, "--decode writes JSON strings already, and --json-lines reads them")
        .advise("leave out one of them");
  std::ios::sync_with_stdio(false);
  int64_t number = 0;
  std::vector<TokenId> ids;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    if (decode) {
      fmt::print("{}\n", escape_commands(nlohmann::json(tokenizer.decode(parse_ids(line, number))).dump()));
    } else {
      ids.clear();
      encoder.append(json_lines ? parse_text(line, number) : line, special, ids);
      fmt::print("[{}]\n", fmt::join(ids, ","));
    }
  }
  return 0;
}

} // namespace fvlm::cli
