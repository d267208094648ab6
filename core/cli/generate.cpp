// fvlm-engine generate: a model's answers to the prompts of a batch.
#include "model/generate.h"

#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/execution_options.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"
#include "data/tokenizer.h"
#include "plugin/untrusted.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace fvlm::cli {
namespace {

// Of the model directory; none where it has none.
std::optional<Tokenizer> tokenizer_of(const std::filesystem::path& model) {
  const auto file = model / "decoder" / "tokenizer.json";
  if (!std::filesystem::exists(file)) return std::nullopt;
  return Tokenizer::from_file(file);
}

// Without special tokens; none where there is no tokenizer, or where the model made an id that it does not have.
std::optional<std::string> text_of(const std::optional<Tokenizer>& tokenizer, const std::vector<int64_t>& ids) {
  if (!tokenizer) return std::nullopt;
  try {
    return tokenizer->decode(std::vector<TokenId>(ids.begin(), ids.end()), true);
  } catch (const Error& error) {
    log_warning("{}", error.text());
    return std::nullopt;
  }
}

// Control characters would be the terminal's commands; lines stay lines.
std::string shown(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  for (std::string& line : lines) line = printable(line);
  return join(lines, "\n");
}

double a_second(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

} // namespace

int generate_answers(Arguments arguments) {
  Options options(
      "generate MODEL --batch B.safetensors [--limit N] [--ignore-eos] [--json]",
      "Answers each prompt of a batch, frame by frame and token by token, always with the likeliest token. The batch\n"
      "is one as `trace` reads it: each sample's text is its prompt; it needs no loss_mask. Prints the text, or ids\n"
      "where the model directory has no tokenizer.json. Times include frames and prompts.",
      "generate models/fresh --batch questions.safetensors --limit 64");
  with_execution_options(options)
      .positional("MODEL", "a model directory")
      .needed("batch", "FILE", "the prompts, safetensors")
      .value("limit", "N", "at most N new tokens each (32), and no more than the decoder has positions for")
      .flag("ignore-eos", "do not stop at the tokens that end an answer")
      .flag("json", "one JSON document on standard output");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  model::GenerateRequest request;
  request.model = *parsed->value("MODEL");
  request.batch = *parsed->value("batch");
  request.limit = parsed->integer_or("limit", request.limit);
  request.ignore_ends = parsed->flag("ignore-eos");
  request.execution = execution_of(*parsed);
  const auto registry = open_registry(*parsed);
  const auto tokenizer = tokenizer_of(request.model);

  Json samples = Json::array();
  int64_t tokens = 0;
  double seconds = 0;
  model::generate(request, *registry, [&](const model::Answer& answer) {
    const auto text = text_of(tokenizer, answer.ids);
    const auto made = static_cast<int64_t>(answer.ids.size());
    tokens += made;
    seconds += answer.seconds;
    if (!parsed->flag("json"))
      fmt::print("{}\n{}\n\n",
                 styled(fmt::format("sample {}: {} frames, a prompt of {}, {} new tokens{}", samples.size(),
                                    answer.frames, answer.prompt, made, answer.ended ? "" : ", not ended"),
                        Style::dim),
                 text ? shown(*text) : fmt::format("[{}]", fmt::join(answer.ids, ", ")));
    samples.push_back({{"frames", answer.frames},
                       {"prompt", answer.prompt},
                       {"ids", answer.ids},
                       {"text", text ? Json(*text) : Json()},
                       {"ended", answer.ended},
                       {"seconds", answer.seconds},
                       {"tokens_per_second", a_second(made, answer.seconds)}});
  });
  if (parsed->flag("json"))
    fmt::print("{}", dump({{"samples", samples},
                           {"tokens", tokens},
                           {"seconds", seconds},
                           {"tokens_per_second", a_second(tokens, seconds)}}));
  else
    log_info("{} tokens in {:.2f} s: {:.1f} a second", tokens, seconds, a_second(tokens, seconds));
  return 0;
}

} // namespace fvlm::cli
