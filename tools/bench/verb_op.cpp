// fvlm-engine bench op: times single operations of every plugin.
#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "bench/op.h"
#include "bench/verb.h"
#include "bench/verb_peer.h"
#include "bench/verb_report.h"
#include "bench/verb_training.h"
#include "cli/plugin_options.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

constexpr const char* default_configurations = "135m:8";

std::vector<std::string> cells_of(const bench::OpReport& report, const std::optional<double>& seconds,
                                  const bench::MinimalWork& work) {
  if (!seconds) return {"", ""};
  return {fmt::format("{:.1f}", *seconds * 1e6), fmt::format("{:.0f} %", report.ceiling.share(work, *seconds) * 100)};
}

void print_operations(const bench::OpReport& report) {
  fmt::print("{}\n\n", report.ceiling.text());
  std::string configuration;
  for (const auto& row : report.rows) {
    const bench::MinimalWork both = row.minimal.forward + row.minimal.backward;
    if (row.configuration != configuration) fmt::print("{}\n\n", row.configuration);
    configuration = row.configuration;
    fmt::print("{}: {}; {:.2f} MB and {:.3f} GFLOP at least\n", row.operation, row.shape, both.bytes / 1e6,
               both.flops / 1e9);
    TextTable table({"plugin", "forward us", "of ceiling", "backward us", "of ceiling", "both us", "of ceiling", ""});
    for (const auto& side : row.sides) {
      std::vector<std::string> cells{side.plugin};
      for (const auto& [seconds, work] : {std::pair(side.forward, row.minimal.forward),
                                          std::pair(side.backward, row.minimal.backward), std::pair(side.both, both)})
        for (std::string& cell : cells_of(report, seconds, work)) cells.push_back(std::move(cell));
      std::vector<std::string> notes;
      if (side.plugin == row.chosen) notes.emplace_back("chosen");
      if (report.on_gpu && !side.captured && side.problem.empty()) notes.emplace_back("includes host time");
      notes.push_back(side.problem.empty() ? side.reason : side.problem);
      cells.push_back(join(notes, "; "));
      table.row(cells);
    }
    fmt::print("{}\n", table.text());
  }
}

} // namespace

int bench_op(Arguments arguments) {
  Options options(
      "bench op [--device D] [--configurations LIST | --shapes LIST] [--operations NAMES] [--json]",
      "Time single operations, forward and backward, in every plugin that has them and in the reference. By\n"
      "default those of a training step; --shapes selects others. of ceiling: the roofline time (bytes at the\n"
      "speed of a copy, or FLOPs at the speed of one large matrix product, both measured here) over the measured\n"
      "time; above 100 % where a cache holds the tensors. On a GPU, calls are captured as a CUDA graph where\n"
      "possible, to exclude host time. PyTorch's gradients, moments and weights all have the given precision.",
      "bench op --configurations 135m:8 --operations attention,linear");
  with_peer_option(with_training_options(options), op_peer)
      .value("configurations", "LIST", fmt::format("SHAPE:SAMPLES; default {}", default_configurations))
      .value("shapes", "LIST",
             "shapes of operations, in place of configurations:\n                    " +
                 join(split(bench::shapes_help(), '\n'), "\n                    "))
      .value("operations", "NAMES", "time only these operations")
      .value("frames", "N", "frames per sample; default 8")
      .value("text", "N", "tokens per text; default 128");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  bench::OpRequest request;
  if (parsed->value("shapes") && parsed->value("configurations"))
    throw Error(ErrorKind::usage, "--configurations and --shapes are mutually exclusive");
  if (const auto shapes = parsed->value("shapes"))
    request.shapes = split(*shapes, ',');
  else
    request.configurations = split(parsed->value_or("configurations", default_configurations), ',');
  if (const auto names = parsed->value("operations")) request.operations = split(*names, ',');
  request.frames = parsed->integer_or("frames", request.frames);
  request.text = parsed->integer_or("text", request.text);
  request.peer = peer_of(*parsed, op_peer);
  read_training_options(*parsed, request);

  const auto registry = open_registry(*parsed);
  const auto report =
      with_progress([&](const auto& progress) { return bench::measure_ops(request, *registry, progress); });
  return show(*parsed, {{"bench", "op"}, {"device", request.device}}, report, print_operations);
}

} // namespace fvlm::cli
