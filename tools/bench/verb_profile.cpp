// fvlm-engine bench profile, step and dpo: whole training steps on a device.
#include "base/error.h"
#include "base/log.h"
#include "base/table.h"
#include "base/text.h"
#include "bench/profile.h"
#include "bench/verb.h"
#include "bench/verb_peer.h"
#include "bench/verb_report.h"
#include "bench/verb_training.h"
#include "cli/plugin_options.h"
#include "dist/rendezvous.h"
#include "model/execution.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

namespace fvlm::cli {
namespace {

constexpr const char* all_configurations =
    "135m:8:checkpointing,135m:8,135m:16,135m:32,135m:64,135m:96,1.7b:8:checkpointing,1.7b:8,1.7b:32";

std::string rate_of(const bench::Times& times, int64_t samples) {
  return fmt::format("{:.1f}", static_cast<double>(samples) / times.median() * 1e3);
}

void print_table(const bench::ProfileReport& report, bool pairs) {
  std::vector<std::string> header{"configuration"};
  if (pairs) header.insert(header.end(), {"reference", "reference ms", "pairs/s, all"});
  const bool are_several = std::ranges::any_of(report.rows, [](const auto& row) { return row.alone.has_value(); });
  if (are_several) header.insert(header.end(), {"alone ms", "share"});
  header.insert(header.end(), {pairs ? "pairs/s" : "samples/s", "median ms", "min ms", "peak", "kernels", "MFU",
                               "first step s", "loss"});
  const bool has_peer = std::ranges::any_of(report.rows, [](const auto& row) { return row.peer.has_value(); });
  if (has_peer) header.insert(header.end(), {"peer's ms", "ratio", "peer's peak"});
  TextTable table(header);
  for (const auto& row : report.rows) {
    std::vector<std::string> cells{row.configuration};
    if (!row.problem.empty()) {
      cells.push_back(row.problem);
    } else {
      if (pairs) {
        const bool cached = row.caching.count() > 0;
        const double all = row.times.median() + (cached ? row.caching.median() : 0);
        cells.insert(cells.end(), {row.reference, cached ? fmt::format("{:.2f}", row.caching.median()) : "",
                                   fmt::format("{:.1f}", static_cast<double>(row.samples) / all * 1e3)});
      }
      if (are_several && !row.alone) cells.insert(cells.end(), {"out of memory", ""});
      if (row.alone)
        cells.insert(cells.end(),
                     {fmt::format("{:.2f}", row.slowest_alone()), fmt::format("{:.1f} %", row.share_of_alone() * 100)});
      cells.insert(cells.end(),
                   {rate_of(row.times, row.samples), fmt::format("{:.2f}", row.times.median()),
                    fmt::format("{:.2f}", row.times.min()), human_bytes(static_cast<uint64_t>(row.peak_bytes)),
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

// The steps that went on, beside the short figure of the same row.
void print_sustained(const bench::ProfileReport& report, double seconds) {
  TextTable table({"configuration", "side", "short ms", "sustained ms", "steps", "samples/s, sustained", "MHz", "W",
                   "ratio, sustained"});
  for (const auto& row : report.rows) {
    const auto line = [&](const std::string& name, const char* side, const bench::Times& times,
                          const bench::Sustained& sustained, const std::string& ratio) {
      std::vector<std::string> cells{name,
                                     side,
                                     fmt::format("{:.2f}", times.median()),
                                     fmt::format("{:.2f}", sustained.times.median()),
                                     fmt::format("{}", sustained.times.count()),
                                     fmt::format("{:.1f}", sustained.samples_per_second(row.samples))};
      for (const std::string& cell : bench::clock_cells(sustained.clocks)) cells.push_back(cell);
      cells.push_back(ratio);
      table.row(cells);
    };
    if (!row.sustained) continue;
    line(row.configuration + (row.reference.empty() ? "" : ", " + row.reference), "engine", row.times, *row.sustained,
         "");
    if (row.peer && row.peer->sustained)
      line("", "peer", row.peer->times, *row.peer->sustained, fmt::format("{:.2f}", row.sustained_ratio(*row.peer)));
  }
  fmt::print("\nsteps that went on for {:g} s, and the mean clock and power meanwhile:\n{}", seconds, table.text());
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
  fmt::print("\n{}: a step takes {:.2f} ms, {:.2f} under the profiler; of these the device is busy for {:.2f} ms, runs "
             "kernels concurrently for {:.2f} ms, and is idle for {:.2f} ms; {} launches\n\n",
             row.configuration, row.times.median(), flow.span, flow.busy, flow.beside, flow.gaps(), flow.launches);
  fmt::print("all operations, each timed alone: {:.2f} ms\n\n", anatomy.milliseconds());
  print_shares("part", anatomy.parts);
  fmt::print("{}\n\n", anatomy.ceiling.text());
  TextTable table({"operation", "shape", "calls", "ms", "min ms", "of ceiling"});
  for (size_t i = 0; i < std::min(anatomy.operations.size(), rows_shown); ++i) {
    const auto& operation = anatomy.operations[i];
    const double least = anatomy.minimal_ms(operation);
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

// How the verbs of this file differ.
struct Subject {
  const char* name;
  const char* configurations;
  int64_t text;
  bool with_anatomy = false, pairs = false, takes_files = false;
};

std::unique_ptr<dist::Ranks> join_ranks(const std::optional<dist::Launch>& launch, const std::string& device,
                                        int64_t context, bool peer_copies) {
  if (!launch) return std::make_unique<dist::Ranks>();
  if (launch->rank > 0) set_log_level(LogLevel::warning);
  auto ranks = dist::Ranks::join(*launch, model::device_named(device), std::chrono::minutes(2), context, peer_copies);
  if (ranks->are_several()) log_info("{} ranks, by {}", ranks->count(), ranks->group()->name());
  return ranks;
}

int profile(Arguments arguments, Options options, const Subject& subject) {
  const char* samples = subject.pairs ? "PAIRS" : "SAMPLES";
  with_peer_option(with_training_options(options), training_peer)
      .value("configurations", "LIST",
             fmt::format("SHAPE:{}, optionally followed by one of :{};\n                         default {}", samples,
                         fmt::join(bench::configuration_variants, ", :"), subject.configurations))
      .value("frames", "N", "frames per sample; default 8")
      .value("text", "N", fmt::format("tokens per text; default {}", subject.text))
      .value("repeat", "N", "measured steps; default 10")
      .value("warmup", "N", "warm-up steps; default 3")
      .value("sustained", "SECONDS",
             "then let the steps go on for so long, and the peer's; also show\n"
             "                    the clock and the power meanwhile")
      .optional_value(
          "zero", "1|2",
          "of several ranks: each keeps the optimizer's state of a share of the parameters (1, the default), "
          "and their gradients (2)")
      .value("context-parallel", "N", "of several ranks: N share the rows of each pack")
      .flag("no-peer-copies",
            "of several ranks on GPUs of one host: exchange by NCCL alone, and not by the GPUs' copy engines");
  if (subject.takes_files)
    options.value("model", "DIR", "a model directory in place of a synthetic model, with --batch")
        .value("batch", "FILE", "a batch as `trace` reads it, used in every step")
        .value("rate", "X", "AdamW's learning rate; default 1e-5")
        .value("numbers", "FILE", "write losses, norms and the last step's gradients to FILE, safetensors");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  bench::ProfileRequest request;
  request.with_anatomy = subject.with_anatomy;
  request.pairs = subject.pairs;
  request.model = parsed->value_or("model", "");
  request.batch = parsed->value_or("batch", "");
  request.numbers = parsed->value_or("numbers", "");
  request.rate = parsed->number_or("rate", request.rate);
  const bool files = !request.model.empty() || !request.batch.empty();
  if (files && parsed->value("configurations"))
    throw Error(ErrorKind::usage, "--configurations excludes --model and --batch");
  if (!files) request.configurations = split(parsed->value_or("configurations", subject.configurations), ',');
  request.frames = parsed->integer_or("frames", request.frames);
  request.text = parsed->integer_or("text", subject.text);
  request.warmup = parsed->integer_or("warmup", request.warmup);
  request.repeat = parsed->integer_or("repeat", request.repeat);
  request.sustained = parsed->number_or("sustained", request.sustained);
  request.peer = peer_of(*parsed, training_peer);
  const auto launch = dist::launch_of_environment();
  if (launch) dist::choose_gpu(*launch);
  read_training_options(*parsed, request);

  const auto ranks =
      join_ranks(launch, request.device, parsed->integer_or("context-parallel", 1), !parsed->flag("no-peer-copies"));
  request.sharing = train::Sharing::among(*ranks, parsed->integer_or("zero", 0), true);
  request.context = ops::ContextGroup::of(*ranks);

  const auto registry = open_registry(*parsed);
  const auto report = with_progress([&](const bench::Progress& progress) {
    return bench::measure_profile(request, *registry, [&](const auto&... step) {
      if (ranks->is_first()) progress(step...);
    });
  });
  if (!ranks->is_first()) return 0;
  const auto print = [&](const bench::ProfileReport& shown) {
    print_table(shown, subject.pairs);
    if (request.sustained > 0) print_sustained(shown, request.sustained);
    for (const auto& row : shown.rows)
      if (row.anatomy) print_anatomy(row);
  };
  return show(*parsed,
              {{"bench", subject.name},
               {"device", request.device},
               {"frames", request.frames},
               {"text", request.text},
               {"peer", request.peer}},
              report, print);
}

} // namespace

int bench_profile(Arguments arguments) {
  return profile(
      arguments,
      Options(
          "bench profile [--device D] [--configurations LIST | --model DIR --batch FILE] [--peer HOW] [--json]",
          "Time whole training steps of a device: forward, backward, clip and AdamW, on packs that are decoded, or on\n"
          "the batch of --batch. Pixels and tokens are random and differ from sample to sample and from step to step,\n"
          "since a GPU's power, and with it its clock, depend on the data. The table is the short figure: a few steps\n"
          "of a device that may be cold; --sustained adds what is left when it is warm. kernels: launches per step,\n"
          "where steps are captured as CUDA graphs. ratio: the peer's median over the engine's; above 1 the engine is\n"
          "faster. The peer takes the same packs in turn; the first losses of both must agree within 1 %. Started by\n"
          "torchrun or srun, each rank measures a configuration alone and then together with the others, all on packs\n"
          "of the same data. alone: the step of the slowest rank alone, since the others wait for it when they are\n"
          "together; share: the rate of a rank over that rank's.",
          "bench profile --device cuda --configurations 135m:8,135m:64 --sustained 30"),
      {.name = "profile", .configurations = all_configurations, .text = 128, .takes_files = true});
}

int bench_step(Arguments arguments) {
  return profile(
      arguments,
      Options("bench step [--configurations LIST] [--json]",
              "Profile the training steps of `bench profile` on a GPU: busy and idle time of the device, and time by\n"
              "part, by operation and by kernel. copies: the transfer of a pack to the device. Operations are sorted\n"
              "by time above their roofline: each tensor moved once at the speed of a copy, or FLOPs at the speed of\n"
              "one large matrix product, both measured here. With tensors in a cache an operation may be faster.",
              "bench step --configurations 135m:8"),
      {.name = "step", .configurations = "135m:8", .text = 128, .with_anatomy = true});
}

int bench_dpo(Arguments arguments) {
  return profile(
      arguments,
      Options(
          "bench dpo [--device D] [--configurations LIST] [--peer HOW] [--json]",
          "Time steps of preference training (DPO) on pairs of answers that share their frames. Pixels and tokens are\n"
          "random and differ, and --sustained is, as in `bench profile`. Each configuration is measured twice: with\n"
          "cached reference log-probabilities (cache_reference), which are computed once before training, and with a\n"
          "reference model that runs in every step. pairs/s, all: includes computing the cache.",
          "bench dpo --device cuda --configurations 135m:8"),
      {.name = "dpo", .configurations = "135m:8,135m:32", .text = 256, .pairs = true});
}

} // namespace fvlm::cli
