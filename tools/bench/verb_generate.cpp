// fvlm-engine bench generate: measures the generation of answers.
#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "bench/generation.h"
#include "bench/verb.h"
#include "bench/verb_peer.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"
#include "cli/tensor_module.h"

#include <fmt/format.h>

#include <charconv>

namespace fvlm::cli {
namespace {

std::vector<int64_t> numbers_in(const std::string& list) {
  std::vector<int64_t> numbers;
  for (const std::string& text : split(list, ',')) {
    int64_t number = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
    if (end.ec != std::errc() || end.ptr != text.data() + text.size())
      throw Error(ErrorKind::usage, fmt::format("--batches: '{}' is no number", text)).advise("--batches 1,8,32");
    numbers.push_back(number);
  }
  return numbers;
}

void print(const bench::GenerationReport& report) {
  fmt::print("prompts of {} tokens, answers of {}\n\n", report.prompt, report.answer);
  TextTable table({"shape", "at once", "side", "first token ms", "tokens/s", "after the first", "memory", "ratio"});
  for (const auto& row : report.rows) {
    const auto line = [&](const char* name, const bench::GenerationReport::Side& side, const std::string& ratio) {
      std::vector<std::string> cells{name == std::string("peer") ? "" : row.shape,
                                     name == std::string("peer") ? "" : fmt::format("{}", row.batch), name};
      if (!side.problem.empty()) {
        cells.insert(cells.end(), {side.problem, "", "", "", ""});
      } else {
        cells.insert(cells.end(),
                     {fmt::format("{:.2f}", side.first_seconds * 1e3),
                      fmt::format("{:.0f}", report.tokens_a_second(row, side)),
                      fmt::format("{:.0f}", report.decoded_a_second(row, side)),
                      side.peak_bytes > 0 ? human_bytes(static_cast<uint64_t>(side.peak_bytes)) : "-", ratio});
      }
      table.row(cells);
    };
    line("engine", row.engine, "");
    const auto ratio = row.ratio();
    if (row.peer) line("peer", *row.peer, ratio ? fmt::format("{:.2f}", *ratio) : "");
  }
  fmt::print("{}", table.text());
}

} // namespace

int bench_generate(Arguments arguments) {
  Options options(
      "bench generate [--shapes NAMES] [--batches LIST] [--prompt N] [--answer N] [--device D] [--peer HOW] [--json]",
      "Time greedy answers of a synthetic decoder, many at once: the time until every prompt has its first token,\n"
      "and tokens per second, with that time and without it. The fastest of the measured runs counts. Prompts\n"
      "share nothing, and all answers have the full length. The peer is generate() of transformers with a static\n"
      "cache. ratio: its time over the engine's; above 1 the engine is faster.",
      "bench generate --shapes 135m --batches 1,32 --peer eager");
  with_generation_peer_option(with_plugin_options(options))
      .value("shapes", "NAMES", "tiny, 135m (default), 360m, 1.7b and other shapes of `bench cpu-step`")
      .value("batches", "LIST", "prompts that are answered at once; default 1,8,32")
      .value("prompt", "N", "tokens of each prompt; default 72")
      .value("answer", "N", "tokens of each answer; default 128")
      .value("repeat", "N", "measured runs, after two to warm up; default 3")
      .value("device", "NAME", "cpu or cuda; default: cuda where there is one")
      .value("dtype", "TYPE", "fp32 or bf16; default: bf16 on a GPU, else fp32")
      .value("kernels", "NAMES", "plugins to use, in order of preference")
      .flag("json", "print one JSON document on standard output");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  bench::GenerationRequest request;
  request.execution.device = parsed->value_or("device", default_device());
  request.execution.dtype = parsed->value_or("dtype", request.execution.device == "cpu" ? "fp32" : "bf16");
  if (const auto names = parsed->value("kernels")) request.execution.kernels = split(*names, ',');
  if (const auto names = parsed->value("shapes")) request.shapes = split(*names, ',');
  if (const auto list = parsed->value("batches")) request.batches = numbers_in(*list);
  request.prompt = parsed->integer_or("prompt", request.prompt);
  request.answer = parsed->integer_or("answer", request.answer);
  request.repeat = parsed->integer_or("repeat", request.repeat);
  request.peer = generation_peer_of(*parsed);
  initialize_device(request.execution.device);

  const auto registry = open_registry(*parsed);
  Progress progress("measuring");
  const auto report =
      bench::measure_generation(request, *registry, [&](const auto&... step) { progress.steps(step...); });
  progress.finish();
  if (!parsed->flag("json")) {
    print(report);
    return 0;
  }
  Json document{{"bench", "generate"},
                {"device", request.execution.device},
                {"dtype", request.execution.dtype},
                {"peer", request.peer}};
  document.update(report.json());
  fmt::print("{}", dump(document));
  return 0;
}

} // namespace fvlm::cli
