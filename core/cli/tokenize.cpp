// fvlm-engine tokenize: converts lines of text to token ids, and back.
#include "base/error.h"
#include "base/terminal.h"
#include "cli/options.h"
#include "data/tokenizer.h"
#include "data/visual_marks.h"
#include "model/weights/model_file.h"
#include "recipe/placeholders.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iostream>

namespace fvlm::cli {
namespace {

// Accepts a tokenizer.json, a Hugging Face folder, or a model directory, which has it in its decoder's folder.
std::filesystem::path tokenizer_file(const std::filesystem::path& model) {
  const bool is_model = std::filesystem::exists(model / ModelFile::name);
  for (const auto& path : {model, (is_model ? decoder_folder(model) : model) / "tokenizer.json"})
    if (std::filesystem::is_regular_file(path)) return path;
  throw Error(ErrorKind::data, "there is no tokenizer.json here, nor in its decoder's folder")
      .at(model.string())
      .advise("name a model directory, a Hugging Face folder or a tokenizer.json");
}

std::vector<TokenId> parse_ids(const std::string& line, int64_t number) {
  auto json = nlohmann::json::parse(line, nullptr, false);
  bool good = json.is_array();
  std::vector<TokenId> ids;
  for (const auto& entry : good ? json : nlohmann::json::array()) {
    good = good && entry.is_number_integer() && entry >= INT32_MIN && entry <= INT32_MAX &&
           (entry >= 0 || is_placeholder(entry));
    if (good) ids.push_back(entry.get<TokenId>());
  }
  if (!good)
    throw Error(ErrorKind::data, "expected a JSON array of token ids")
        .at("standard input, line {}", number)
        .advise("write one array per line, as `fvlm-engine tokenize` prints them: [12, 7, 301]");
  return ids;
}

// Each line is a JSON string, so that a text can contain line breaks.
std::string parse_text(const std::string& line, int64_t number) {
  auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_string()) return json.get<std::string>();
  throw Error(ErrorKind::data, "expected a JSON string")
      .at("standard input, line {}", number)
      .advise("write one string per line, with line breaks as \\n: \"one\\ntwo\"; without --json-lines a line is the "
              "text itself");
}

} // namespace

int run_tokenize(Arguments arguments) {
  Options options(
      "tokenize MODEL [--json-lines | --decode] [--special]",
      "Convert lines of standard input: text to a JSON array of token ids per line; with --json-lines from\n"
      "JSON strings, for text with line breaks; with --decode from arrays of ids to JSON strings.",
      "tokenize weights/SmolLM2-135M-Instruct < questions.txt");
  options.positional("MODEL", "a model directory, a Hugging Face folder or a tokenizer.json")
      .flag("decode", "convert ids to text")
      .flag("json-lines", "convert text to ids, reading each line as a JSON string: \"one\\ntwo\"")
      .flag("special", "encode text like <|im_end|> as the special token; by default it is ordinary text");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  Tokenizer tokenizer = Tokenizer::from_file(tokenizer_file(*parsed->value("MODEL")));
  Tokenizer::Encoder encoder(tokenizer);
  auto special = parsed->flag("special") ? SpecialTokens::parse : SpecialTokens::as_text;
  const bool decode = parsed->flag("decode"), json_lines = parsed->flag("json-lines");
  if (decode && json_lines)
    throw Error(ErrorKind::usage,
                "--decode and --json-lines are mutually exclusive: one writes JSON strings, the other reads them")
        .advise("leave out one of them");
  std::ios::sync_with_stdio(false);
  int64_t number = 0;
  std::vector<TokenId> ids;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    if (decode) {
      fmt::print("{}\n", escape_control_characters(
                             nlohmann::json(decode_with_placeholders(tokenizer, parse_ids(line, number))).dump()));
    } else {
      ids.clear();
      encoder.append(json_lines ? parse_text(line, number) : line, special, ids);
      fmt::print("[{}]\n", fmt::join(ids, ","));
    }
  }
  return 0;
}

} // namespace fvlm::cli
