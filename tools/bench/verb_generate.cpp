// fvlm-engine bench generate: measures the generation of answers.
#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "bench/generation.h"
#include "bench/verb.h"
#include "bench/verb_numbers.h"
#include "bench/verb_peer.h"
#include "bench/verb_report.h"
#include "bench/videos.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

void print_answers(const bench::GenerationReport& report) {
  fmt::print("prompts of {} tokens, answers of {}\n\n", report.prompt, report.answer);
  TextTable table({"shape", "at once", "side", "first token ms", "tokens/s", "after the first", "memory", "ratio"});
  for (const auto& row : report.rows) {
    const auto line = [&](const char* name, const bench::GenerationReport::Side& side, const std::string& ratio) {
      const bool is_first = &side == &row.engine;
      std::vector<std::string> cells{is_first ? row.shape : "", is_first ? fmt::format("{}", row.batch) : "", name};
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
    if (row.drafted)
      line("drafts", *row.drafted, fmt::format("{:.2f}, {:.0f} % right", *row.draft_ratio(), 100 * row.accepted));
    if (row.peer) line("peer", *row.peer, ratio ? fmt::format("{:.2f}", *ratio) : "");
  }
  fmt::print("{}", table.text());
}

void print_videos(const bench::VideosReport& report) {
  fmt::print("{} videos of {} frames, questions of {} tokens, answers of {}\n\n", report.videos, report.frames,
             report.prompt, report.answer);
  TextTable table({"shape", "together s", "one after another s", "ratio", "tokens/s together"});
  for (const auto& row : report.rows)
    table.row({row.shape, fmt::format("{:.3f}", row.together), fmt::format("{:.3f}", row.one_by_one),
               fmt::format("{:.2f}", row.ratio()),
               fmt::format("{:.0f}", static_cast<double>(report.videos * report.answer) / row.together)});
  fmt::print("{}", table.text());
}

int time_videos(const ParsedOptions& parsed, const model::Execution& execution, Registry& registry) {
  for (const char* other : {"batches", "peer", "model", "draft", "speculate"})
    if (parsed.value(other))
      throw Error(ErrorKind::usage, "--{} does not go with --videos", other)
          .advise("--videos compares many videos at once with one after another");
  bench::VideosRequest request;
  request.execution = execution;
  if (const auto names = parsed.value("shapes")) request.shapes = split(*names, ',');
  request.videos = parsed.integer_or("videos", request.videos);
  request.frames = parsed.integer_or("frames", request.frames);
  request.prompt = parsed.integer_or("prompt", request.prompt);
  request.answer = parsed.integer_or("answer", request.answer);
  request.repeat = parsed.integer_or("repeat", request.repeat);
  const auto report =
      with_progress([&](const auto& progress) { return bench::measure_videos(request, registry, progress); });
  return show(parsed, {{"bench", "generate"}, {"device", execution.device}, {"dtype", execution.dtype}}, report,
              print_videos);
}

} // namespace

int bench_generate(Arguments arguments) {
  Options options(
      "bench generate [--shapes NAMES] [--batches LIST] [--prompt N] [--answer N] [--device D] [--peer HOW] [--json]",
      "Time greedy answers of a synthetic decoder, many at once: the time until every prompt has its first token,\n"
      "and tokens per second, with that time and without it. The fastest of the measured runs counts. Prompts\n"
      "share nothing, and all answers have the full length. The peer is generate() of transformers with a static\n"
      "cache. ratio: its time over the engine's; above 1 the engine is faster. Random weights are stored in bf16, as\n"
      "published ones are, whatever --dtype computes in, and both sides read the same files.\n"
      "--draft times speculative decoding too: the time without drafts over that with them, and how many were right.\n"
      "Random models of different shapes agree on nothing, and one drafts for itself without a mistake, so that both\n"
      "bounds can be seen. --videos times answers of a synthetic fVLM about many videos at once, from frames to the\n"
      "last token, and the same one after another.",
      "bench generate --shapes 135m --batches 1,32 --peer eager");
  with_peer_option(with_plugin_options(options), generation_peer)
      .value("shapes", "NAMES", "tiny, 135m (default), 360m, 1.7b, experts and other shapes of `bench cpu-step`")
      .value("batches", "LIST", "prompts that are answered at once; default 1,8,32")
      .value("prompt", "N", "tokens of each prompt; default 72, with --videos 16")
      .value("answer", "N", "tokens of each answer; default 128, with --videos 32")
      .value("model", "DIR", "a model directory, in place of --shapes")
      .value("draft", "NAME", "a shape or a model directory that proposes tokens")
      .value("speculate", "N", "tokens that it proposes a step; default 4")
      .value("videos", "N", "time N videos at once against one after another")
      .value("frames", "N", "frames of each video; default 8")
      .value("repeat", "N", "measured runs, after two to warm up; default 3")
      .value("device", "cpu|cuda", "cpu or cuda; default: cuda where there is one")
      .value("dtype", "fp32|bf16", "fp32 or bf16; default: bf16 on a GPU, else fp32")
      .value("kernels", "NAMES", "plugins to use, in order of preference; OPERATION=NAME for one operation alone")
      .flag("json", "print one JSON document on standard output");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  model::Execution execution;
  execution.device = parsed->value_or("device", default_device());
  execution.dtype = parsed->value_or("dtype", execution.device == "cpu" ? "fp32" : "bf16");
  if (const auto names = parsed->value("kernels")) execution.kernels = split(*names, ',');
  if (parsed->value("frames") && !parsed->value("videos")) throw Error(ErrorKind::usage, "--frames needs --videos");
  if (parsed->value("speculate") && !parsed->value("draft")) throw Error(ErrorKind::usage, "--speculate needs --draft");
  if (parsed->value("model") && parsed->value("shapes"))
    throw Error(ErrorKind::usage, "--model and --shapes are mutually exclusive");
  if (parsed->value("videos")) {
    initialize_device(execution.device);
    return time_videos(*parsed, execution, *open_registry(*parsed));
  }
  bench::GenerationRequest request;
  request.execution = execution;
  if (const auto names = parsed->value("shapes")) request.shapes = split(*names, ',');
  if (const auto list = parsed->value("batches")) request.batches = numbers_in("batches", *list, "1,8,32");
  request.prompt = parsed->integer_or("prompt", request.prompt);
  request.answer = parsed->integer_or("answer", request.answer);
  request.repeat = parsed->integer_or("repeat", request.repeat);
  request.model = parsed->value_or("model", "");
  request.draft = parsed->value_or("draft", "");
  request.draft_tokens = parsed->integer_or("speculate", request.draft_tokens);
  request.peer = peer_of(*parsed, generation_peer);
  initialize_device(request.execution.device);

  const auto registry = open_registry(*parsed);
  const auto report =
      with_progress([&](const auto& progress) { return bench::measure_generation(request, *registry, progress); });
  return show(*parsed,
              {{"bench", "generate"},
               {"device", request.execution.device},
               {"dtype", request.execution.dtype},
               {"peer", request.peer}},
              report, print_answers);
}

} // namespace fvlm::cli
