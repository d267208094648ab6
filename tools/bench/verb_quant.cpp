// fvlm-engine bench quant: sizes, product times and losses of a model before and after quantizing its weights.
#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "bench/quant.h"
#include "bench/verb.h"
#include "bench/verb_numbers.h"
#include "bench/verb_report.h"
#include "cli/execution_options.h"
#include "cli/plugin_options.h"
#include "cli/recipe_options.h"
#include "model/weights/resolve_model.h"
#include "quantize/weight_schemes.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

void print_sizes(const bench::QuantReport& report) {
  TextTable table({"scheme", "weights", "plain", "quantized", "model plain", "model quantized"});
  for (const auto& size : report.sizes)
    table.row({size.scheme, grouped(size.weights), human_bytes(static_cast<uint64_t>(size.plain)),
               human_bytes(static_cast<uint64_t>(size.packed)), human_bytes(static_cast<uint64_t>(size.model_plain)),
               human_bytes(static_cast<uint64_t>(size.model_packed))});
  fmt::print("{}\n", table.text());
}

void print_products(const bench::QuantReport& report) {
  if (report.products.empty()) return;
  std::vector<std::string> header{"product", "rows", "cols", "tokens"};
  for (const auto& [side, microseconds] : report.products.front().microseconds) header.push_back(side + " us");
  TextTable table(header);
  for (const auto& product : report.products) {
    std::vector<std::string> cells{product.weight, grouped(product.rows), grouped(product.cols),
                                   grouped(product.tokens)};
    for (const auto& [side, microseconds] : product.microseconds) cells.push_back(fmt::format("{:.1f}", microseconds));
    table.row(cells);
  }
  fmt::print("{}\n", table.text());
}

void print_speeds(const bench::QuantReport& report) {
  if (report.speeds.empty()) return;
  TextTable table({"weights", "at once", "first token ms", "tokens/s", "after the first", "ratio"});
  for (const auto& speed : report.speeds)
    table.row({speed.side, grouped(speed.batch), fmt::format("{:.2f}", speed.first_seconds * 1e3),
               fmt::format("{:.0f}", speed.tokens_per_second), fmt::format("{:.0f}", speed.decoded_per_second),
               fmt::format("{:.2f}", speed.ratio)});
  fmt::print("{}\n", table.text());
}

void print_losses(const bench::QuantReport& report) {
  if (report.losses.empty()) return;
  TextTable table({"scheme", "quantized", "set", "mode", "values"});
  for (const auto& loss : report.losses) {
    std::vector<std::string> values;
    for (const auto& [name, value] : loss.values)
      if (name != "samples" && name.find('.') == name.npos) values.push_back(fmt::format("{} {:.5g}", name, value));
    table.row({loss.scheme, loss.module, loss.set, loss.mode, join(values, ", ")});
  }
  fmt::print("{}", table.text());
}

void print_quant(const bench::QuantReport& report) {
  print_sizes(report);
  print_products(report);
  print_speeds(report);
  print_losses(report);
}

} // namespace

int bench_quant(Arguments arguments) {
  Options options(
      "bench quant MODEL | --shape NAME [--recipe RECIPE] [--skip GLOB...] [--tokens LIST] [--answer N] [--json]",
      "Compare a model with its quantized forms: bytes, times of the decoder's products for a few tokens, tokens per\n"
      "second of its greedy answers, and, on the evaluation sets of a recipe, losses and accuracies with the\n"
      "weights of each module quantized alone, and of all.",
      "bench quant runs/quickstart --recipe recipes/quickstart.lua");
  with_execution_options(options)
      .positional("MODEL", "a model directory, a checkpoint, or a run folder (its newest checkpoint)", false)
      .value("shape", "NAME", "a synthetic model in place of MODEL: 135m, 1.7b and other shapes of `bench cpu-step`")
      .value("recipe", "RECIPE", "the recipe whose evaluation sets are read; default: no losses")
      .repeated_value("set", "PATH=VALUE", "change a value of the recipe's plan (repeatable)")
      .repeated_value("arg", "NAME=VALUE", "set what fvlm.arg(\"NAME\") returns in the recipe (repeatable)")
      .repeated_value("skip", "GLOB", "a module that stays as it is (repeatable); default connector.*")
      .value("head", "int8|int4",
             "the output head as well, as `export --quantize --head` stores it; int4 not with w8a8")
      .value("schemes", "LIST", "default: int8,int4,w8a8")
      .value("tokens", "LIST", "rows of a product, and prompts that are answered at once; default 1,8,32")
      .value("prompt", "N", "tokens of each prompt; default 72")
      .value("answer", "N", "tokens of each answer; default 128; 0: no answers are timed")
      .value("repeat", "N", "products in each of five measurements; default 50")
      .flag("json", "print one JSON document on standard output");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  bench::QuantRequest request;
  request.shape = parsed->value_or("shape", "");
  if (parsed->value("MODEL").has_value() == !request.shape.empty())
    throw Error(ErrorKind::usage, "expected a MODEL or --shape").advise("bench quant --shape 135m");
  if (const auto model = parsed->value("MODEL")) request.model = resolve_model(*model);
  request.prompt = parsed->integer_or("prompt", request.prompt);
  request.answer = parsed->integer_or("answer", request.answer);
  if (request.prompt < 1 || request.answer < 0 || request.answer == 1)
    throw Error(ErrorKind::usage, "--prompt and --answer: expected 1 or more, and 0 or at least 2");
  request.repeat = parsed->integer_or("repeat", request.repeat, 1);
  if (const auto words = parsed->value("tokens")) {
    request.tokens = numbers_in("tokens", *words, "1,8,32");
    for (const int64_t tokens : request.tokens)
      if (tokens < 1) throw Error(ErrorKind::usage, "--tokens: expected numbers above 0, got '{}'", tokens);
  }
  if (const auto names = parsed->value("schemes")) {
    request.schemes.clear();
    for (const std::string& name : split(*names, ',')) request.schemes.push_back(packed_scheme(name));
  }
  if (const auto skip = parsed->values("skip"); !skip.empty()) request.skip = skip;
  if (const auto head = parsed->value("head")) request.head = quantize::head_scheme(*head);
  if (const auto recipe = parsed->value("recipe"))
    request.plan = recipe::resolve(recipe_request(*parsed, *recipe)).plan;
  request.execution = execution_of(*parsed);

  const auto registry = open_registry(*parsed);
  const auto report =
      with_progress([&](const auto& progress) { return bench::measure_quant(request, *registry, progress); });
  return show(*parsed,
              {{"bench", "quant"},
               {"model", request.model.empty() ? request.shape : request.model.string()},
               {"device", request.execution.device}},
              report, print_quant);
}

} // namespace fvlm::cli
