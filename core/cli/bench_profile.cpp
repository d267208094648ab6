// fvlm-engine bench profile: whole training steps on a device.
#include "base/table.h"
#include "base/text.h"
#include "bench/profile.h"
#include "cli/bench_training.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"
#include "cli/tensor_module.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

constexpr const char* all_configurations =
    "135m:8:checkpointing,135m:8,135m:16,135m:32,135m:64,135m:96,1.7b:8:checkpointing,1.7b:8,1.7b:32";

void print_table(const bench::ProfileReport& report) {
  TextTable table(
      {"configuration", "samples/s", "median ms", "least ms", "peak", "kernels", "MFU", "first step s", "loss"});
  for (const auto& row : report.rows) {
    if (!row.problem.empty()) {
      table.row({row.configuration, row.problem, "", "", "", "", "", "", ""});
      continue;
    }
    table.row({row.configuration, fmt::format("{:.1f}", static_cast<double>(row.samples) / row.times.median() * 1e3),
               fmt::format("{:.2f}", row.times.median()), fmt::format("{:.2f}", row.times.least()),
               human_bytes(static_cast<uint64_t>(row.peak_bytes)),
               row.kernels > 0 ? fmt::format("{}", row.kernels) : "-",
               row.utilisation ? fmt::format("{:.1f} %", *row.utilisation * 100) : "-",
               fmt::format("{:.2f}", row.ready_after), fmt::format("{:.4f} -> {:.4f}", row.first_loss, row.last_loss)});
  }
  fmt::print("{}", table.text());
}

constexpr size_t kernels_shown = 30, name_shown = 100;

void print_anatomy(const bench::ProfileReport::Row& row) {
  const bench::StepAnatomy& anatomy = *row.anatomy;
  fmt::print("\n{}: a step takes {:.2f} ms; operation by operation, the device is busy for {:.2f} ms of one\n",
             row.configuration, row.times.median(), anatomy.milliseconds());
  for (const auto* shares : {&anatomy.parts, &anatomy.kernels}) {
    TextTable table({shares == &anatomy.parts ? "part" : "kernel", "ms", "launches"});
    for (size_t i = 0; i < std::min(shares->size(), kernels_shown); ++i) {
      const auto& share = (*shares)[i];
      table.row({share.name.substr(0, name_shown), fmt::format("{:.3f}", share.milliseconds),
                 fmt::format("{}", share.launches)});
    }
    fmt::print("{}", table.text());
  }
}

int profile(Arguments arguments, Options options, const char* configurations, bool watch) {
  with_training_options(options)
      .value("configurations", "LIST",
             fmt::format("SHAPE:SAMPLES or SHAPE:SAMPLES:checkpointing; default {}", configurations))
      .value("frames", "N", "of each sample; default 8")
      .value("text", "N", "tokens of each sample; default 128")
      .value("repeat", "N", "measured steps; default 10")
      .value("warmup", "N", "steps before that; default 3");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  bench::ProfileRequest request;
  request.watch = watch;
  request.configurations = split(parsed->value_or("configurations", configurations), ',');
  request.frames = parsed->integer_or("frames", request.frames);
  request.text = parsed->integer_or("text", request.text);
  request.warmup = parsed->integer_or("warmup", request.warmup);
  request.repeat = parsed->integer_or("repeat", request.repeat);
  read_training_options(*parsed, request);

  const auto registry = open_registry(*parsed);
  Progress progress("measuring");
  const auto report =
      bench::measure_profile(request, *registry, [&](const std::string& configuration, int64_t done, int64_t total) {
        progress.steps(configuration, static_cast<uint64_t>(done), static_cast<uint64_t>(total));
      });
  progress.finish();
  if (!parsed->flag("json")) {
    print_table(report);
    for (const auto& row : report.rows)
      if (row.anatomy) print_anatomy(row);
    return 0;
  }
  Json document{{"bench", watch ? "step" : "profile"},
                {"device", request.device},
                {"frames", request.frames},
                {"text", request.text}};
  document.update(report.json());
  fmt::print("{}", dump(document));
  return 0;
}

} // namespace

int bench_profile(Arguments arguments) {
  return profile(
      arguments,
      Options("bench profile [--device D] [--configurations LIST] [--json]",
              "Times whole training steps, forward, backward, clip and AdamW, on made samples that lie on the\n"
              "device. Where steps are recorded, kernels counts what one of them launches.",
              "bench profile --device cuda --configurations 135m:8,135m:64"),
      all_configurations, false);
}

int bench_step(Arguments arguments) {
  return profile(
      arguments,
      Options("bench step [--configurations LIST] [--json]",
              "What the GPU does in a training step: its time by part and by kernel. The steps of bench profile.",
              "bench step --configurations 135m:8"),
      "135m:8", true);
}

} // namespace fvlm::cli
