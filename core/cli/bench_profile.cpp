// fvlm-engine bench profile: whole training steps on a device.
#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "bench/profile.h"
#include "cli/bench_peer.h"
#include "cli/bench_training.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"
#include "cli/tensor_module.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::cli {
namespace {

constexpr const char* all_configurations =
    "135m:8:checkpointing,135m:8,135m:16,135m:32,135m:64,135m:96,1.7b:8:checkpointing,1.7b:8,1.7b:32";

std::string rate_of(const bench::Times& times, int64_t samples) {
  return fmt::format("{:.1f}", static_cast<double>(samples) / times.median() * 1e3);
}

void print_table(const bench::ProfileReport& report, bool pairs) {
  std::vector<std::string> header{"configuration"};
  if (pairs) header.insert(header.end(), {"reference", "asking ms", "pairs/s, all"});
  header.insert(header.end(), {pairs ? "pairs/s" : "samples/s", "median ms", "least ms", "peak", "kernels", "MFU",
                               "first step s", "loss"});
  const bool beside_peer =
      std::any_of(report.rows.begin(), report.rows.end(), [](const auto& row) { return row.peer.has_value(); });
  if (beside_peer) header.insert(header.end(), {"peer's ms", "ratio", "peer's peak"});
  TextTable table(header);
  for (const auto& row : report.rows) {
    std::vector<std::string> cells{row.configuration};
    if (!row.problem.empty()) {
      cells.push_back(row.problem);
    } else {
      if (pairs) {
        const bool remembered = row.asked.count() > 0;
        const double all = row.times.median() + (remembered ? row.asked.median() : 0);
        cells.insert(cells.end(), {row.reference, remembered ? fmt::format("{:.2f}", row.asked.median()) : "",
                                   fmt::format("{:.1f}", static_cast<double>(row.samples) / all * 1e3)});
      }
      cells.insert(cells.end(),
                   {rate_of(row.times, row.samples), fmt::format("{:.2f}", row.times.median()),
                    fmt::format("{:.2f}", row.times.least()), human_bytes(static_cast<uint64_t>(row.peak_bytes)),
                    row.kernels > 0 ? fmt::format("{}", row.kernels) : "-",
                    row.utilisation ? fmt::format("{:.1f} %", *row.utilisation * 100) : "-",
                    fmt::format("{:.2f}", row.ready_after),
                    fmt::format("{:.4f} -> {:.4f}", row.first_loss, row.last_loss)});
      if (row.peer)
        cells.insert(cells.end(), {fmt::format("{:.2f}", row.peer->times.median()), fmt::format("{:.2f}", row.ratio()),
                                   human_bytes(static_cast<uint64_t>(row.peer->peak_bytes))});
    }
    cells.resize(header.size());
    table.row(cells);
  }
  fmt::print("{}", table.text());
}

constexpr size_t rows_shown = 30, name_shown = 100;

void print_shares(const char* what, const std::vector<bench::StepAnatomy::Share>& shares) {
  TextTable table({what, "ms", "launches"});
  for (size_t i = 0; i < std::min(shares.size(), rows_shown); ++i)
    table.row({shares[i].name.substr(0, name_shown), fmt::format("{:.3f}", shares[i].milliseconds),
               fmt::format("{}", shares[i].launches)});
  fmt::print("{}\n", table.text());
}

void print_anatomy(const bench::ProfileReport::Row& row) {
  const bench::StepAnatomy& anatomy = *row.anatomy;
  const auto& flow = anatomy.flow;
  fmt::print(
      "\n{}: a step takes {:.2f} ms, watched {:.2f}; the device is at work for {:.2f} ms of these, for {:.2f} ms at "
      "more than one kernel, and waits for {:.2f} ms; {} launches\n\n",
      row.configuration, row.times.median(), flow.span, flow.busy, flow.beside, flow.gaps(), flow.launches);
  fmt::print("the same operation by operation, each by itself: {:.2f} ms\n\n", anatomy.milliseconds());
  print_shares("part", anatomy.parts);
  fmt::print("{}\n\n", anatomy.ceiling.text());
  TextTable table({"operation", "shape", "calls", "ms", "least ms", "of ceiling"});
  for (size_t i = 0; i < std::min(anatomy.operations.size(), rows_shown); ++i) {
    const auto& operation = anatomy.operations[i];
    const double least = anatomy.least_ms(operation);
    table.row({operation.name, operation.shape, fmt::format("{}", operation.calls),
               fmt::format("{:.3f}", operation.milliseconds), fmt::format("{:.3f}", least),
               fmt::format("{:.0f} %", least / operation.milliseconds * 100)});
  }
  const auto& others = anatomy.others;
  table.row({"others", "LibTorch's kernels, copies", fmt::format("{}", others.launches),
             fmt::format("{:.3f}", others.milliseconds), "", ""});
  fmt::print("{}\n", table.text());
  print_shares("kernel", anatomy.kernels);
}

// What the verbs of this file differ in.
struct Subject {
  const char* name;
  const char* configurations;
  int64_t text;
  bool watch = false, pairs = false, takes_files = false;
};

int profile(Arguments arguments, Options options, const Subject& subject) {
  const char* samples = subject.pairs ? "PAIRS" : "SAMPLES";
  with_training_peer_option(with_training_options(options))
      .value("configurations", "LIST",
             fmt::format("SHAPE:{0}, and :checkpointing, :light or :light-vision behind it; default {1}", samples,
                         subject.configurations))
      .value("frames", "N", "of each sample; default 8")
      .value("text", "N", fmt::format("tokens of each text; default {}", subject.text))
      .value("repeat", "N", "measured steps; default 10")
      .value("warmup", "N", "steps before that; default 3");
  if (subject.takes_files)
    options.value("model", "DIR", "a model directory in place of a made one, with --batch")
        .value("batch", "FILE", "a batch as `trace` reads it: the same in each step")
        .value("rate", "X", "AdamW's learning rate; default 1e-5")
        .value("numbers", "FILE", "where losses, norms and the last step's gradients go, safetensors");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  bench::ProfileRequest request;
  request.watch = subject.watch;
  request.pairs = subject.pairs;
  request.model = parsed->value_or("model", "");
  request.batch = parsed->value_or("batch", "");
  request.numbers = parsed->value_or("numbers", "");
  request.rate = parsed->number_or("rate", request.rate);
  const bool files = !request.model.empty() || !request.batch.empty();
  if (files && parsed->value("configurations"))
    throw Error(ErrorKind::usage, "--configurations makes models, --model names one: give one of them");
  if (!files) request.configurations = split(parsed->value_or("configurations", subject.configurations), ',');
  request.frames = parsed->integer_or("frames", request.frames);
  request.text = parsed->integer_or("text", subject.text);
  request.warmup = parsed->integer_or("warmup", request.warmup);
  request.repeat = parsed->integer_or("repeat", request.repeat);
  request.peer = training_peer_of(*parsed);
  read_training_options(*parsed, request);

  const auto registry = open_registry(*parsed);
  Progress progress("measuring");
  const auto report = bench::measure_profile(request, *registry, [&](const auto&... told) { progress.steps(told...); });
  progress.finish();
  if (!parsed->flag("json")) {
    print_table(report, subject.pairs);
    for (const auto& row : report.rows)
      if (row.anatomy) print_anatomy(row);
    return 0;
  }
  Json document{{"bench", subject.name},
                {"device", request.device},
                {"frames", request.frames},
                {"text", request.text},
                {"peer", request.peer}};
  document.update(report.json());
  fmt::print("{}", dump(document));
  return 0;
}

} // namespace

int bench_profile(Arguments arguments) {
  return profile(
      arguments,
      Options(
          "bench profile [--device D] [--configurations LIST | --model DIR --batch FILE] [--peer HOW] [--json]",
          "Times whole training steps, forward, backward, clip and AdamW, on made samples that lie on the\n"
          "device, or on a batch of one's own. Where steps are recorded, kernels counts what one of them launches.\n"
          "ratio: the peer's median over the engine's; above 1 the engine is faster. Their first losses have to\n"
          "agree within 1 %, or it is an error.",
          "bench profile --device cuda --configurations 135m:8,135m:64"),
      {.name = "profile", .configurations = all_configurations, .text = 128, .takes_files = true});
}

int bench_step(Arguments arguments) {
  return profile(
      arguments,
      Options("bench step [--configurations LIST] [--json]",
              "What the GPU does in a training step: how long it is at work and how long it waits, and, operation by\n"
              "operation, its time by part, by operation and by kernel. The steps of bench profile. copies: a pack's\n"
              "way to the device. Operations come by what they take beyond their least time: to move each tensor of\n"
              "their calls once as fast as the device copies, or to multiply as fast as in one large product, both\n"
              "measured here. In a cache it may be less.",
              "bench step --configurations 135m:8"),
      {.name = "step", .configurations = "135m:8", .text = 128, .watch = true});
}

int bench_dpo(Arguments arguments) {
  return profile(
      arguments,
      Options(
          "bench dpo [--device D] [--configurations LIST] [--peer HOW] [--json]",
          "Times steps of preference training, as `bench profile` times others: pairs of answers behind the same\n"
          "frames. Each configuration twice: with a reference that is remembered, as cache_reference has it, where\n"
          "asking it about the pack's pairs comes once and before training; and with one that is asked in each\n"
          "step. pairs/s, all: with asking it once.",
          "bench dpo --device cuda --configurations 135m:8"),
      {.name = "dpo", .configurations = "135m:8,135m:32", .text = 256, .pairs = true});
}

} // namespace fvlm::cli
