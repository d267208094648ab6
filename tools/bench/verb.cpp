// fvlm-engine bench: the group of benchmarks, and `bench cpu-step`, a training step on the CPU.
#include "bench/verb.h"

#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "bench/cpu_step.h"
#include "bench/synthetic_model.h"
#include "bench/verb_peer.h"
#include "bench/verb_report.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

int cpu_step(Arguments arguments);

constexpr const char* step_peer = "tools/oracle/bench-step";

constexpr Verb subjects[] = {
    {"cpu-step", "time a training step on the CPU, against PyTorch", cpu_step},
    {"profile", "time whole training steps on a device", bench_profile},
    {"end-to-end", "time training from JPEGs in shards, beside the device's steps alone", bench_end_to_end},
    {"step", "profile the kernels of a training step on a GPU", bench_step},
    {"op", "time single operations: plugins against each other and the roofline", bench_op},
    {"dpo", "time whole steps of preference training", bench_dpo},
    {"quant", "compare a model with its quantized forms: bytes, product times, losses", bench_quant},
    {"ragged", "time training on samples of all lengths, end to end", bench_ragged},
    {"generate", "time the generation of answers, against transformers", bench_generate},
    {"serve", "measure the server under load, against the engine without one", bench_serve},
    {"data", "measure the data loader, against webdataset and PIL", bench_data},
};

void print_cpu_step(const bench::CpuStepReport& report) {
  TextTable table({"batch", "side", "median ms", "min ms", "CPU ms", "samples/s", "loss", "ratio", "of min", "of CPU"});
  for (const auto& row : report.rows) {
    const auto line = [&](const std::string& name, const char* who, const bench::CpuStepSide& side,
                          std::vector<std::string> ratios) {
      std::vector<std::string> cells{
          name,
          who,
          fmt::format("{:.2f}", side.times.median()),
          fmt::format("{:.2f}", side.times.min()),
          fmt::format("{:.2f}", side.times.median_cpu()),
          fmt::format("{:.4g}", static_cast<double>(row.samples) / side.times.median() * 1e3),
          fmt::format("{:.6f}", side.loss)};
      ratios.resize(3);
      cells.insert(cells.end(), ratios.begin(), ratios.end());
      table.row(cells);
    };
    line(row.batch, "engine", row.engine, {});
    if (row.peer)
      line("", "peer", *row.peer,
           {fmt::format("{:.2f}", row.ratio()), fmt::format("{:.2f}", row.ratio_of_min()),
            fmt::format("{:.2f}", row.ratio_of_cpu())});
  }
  fmt::print("{}\n", table.text());
  for (const auto& row : report.rows)
    fmt::print("{}: {} samples, {} frames, {} decoder rows packed, {} padded; {} steps, {} threads\n", row.batch,
               row.samples, row.frames, row.rows, row.padded_rows, row.engine.times.count(), report.threads);
}

int cpu_step(Arguments arguments) {
  std::vector<std::string> shapes;
  for (const bench::Shape& shape : bench::shapes())
    shapes.push_back(fmt::format("{} ({}{})", shape.name, shape.summary, shapes.empty() ? ", default" : ""));
  Options options(
      "bench cpu-step [--shape NAME | --model DIR --batch FILE] [--mode M] [--repeat N] [--json]",
      "Time whole training steps on the CPU, forward and backward in float32, without an optimizer: from the\n"
      "samples to every gradient. The peer does the same in PyTorch, alternating with the engine, on as many\n"
      "threads. The losses of both must agree. ratio: the peer's median over the engine's; above 1 the engine\n"
      "is faster.",
      "bench cpu-step --shape tiny --repeat 100");
  with_peer_option(with_plugin_options(options), step_peer)
      .value("shape", "NAME", "a synthetic model and two synthetic batches: " + join(shapes, " or "))
      .value("model", "DIR", "a model directory, with --batch")
      .value("batch", "FILE", "a batch as `trace` reads it, safetensors")
      .value("mode", "MODE", "coarse_fine (default), coarse_only or shallow")
      .value("repeat", "N", "measured steps per side; default 30")
      .value("warmup", "N", "warm-up steps; default 3")
      .value("threads", "N", "threads of both sides; default: those of LibTorch")
      .value("recompute", "WHICH", "activation checkpointing: none (default), light, all, every:2 or layers:0,3")
      .value("kernels", "NAMES", "plugins to use, in order of preference: 'reference', 'cpu,reference'")
      .flag("json", "print one JSON document on standard output");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  bench::CpuStepRequest request;
  request.model = parsed->value_or("model", "");
  request.batch = parsed->value_or("batch", "");
  if (!request.model.empty() && parsed->value("shape"))
    throw Error(ErrorKind::usage, "--shape and --model are mutually exclusive");
  request.shape = parsed->value_or("shape", "tiny");
  request.mode = parsed->value_or("mode", request.mode);
  request.recompute = parsed->value_or("recompute", request.recompute);
  request.threads = parsed->integer_or("threads", request.threads);
  request.warmup = parsed->integer_or("warmup", request.warmup);
  request.repeat = parsed->integer_or("repeat", request.repeat);
  if (const auto names = parsed->value("kernels")) request.kernels = split(*names, ',');
  request.peer = peer_of(*parsed, step_peer);

  const auto registry = open_registry(*parsed);
  const auto report =
      with_progress([&](const auto& progress) { return bench::measure_cpu_step(request, *registry, progress); });
  return show(*parsed,
              {{"bench", "cpu-step"},
               {"model", request.model.empty() ? request.shape : request.model.string()},
               {"mode", request.mode},
               {"dtype", "fp32"},
               {"recompute", request.recompute},
               {"peer", request.peer}},
              report, print_cpu_step);
}

} // namespace

int bench_subject(Arguments arguments) {
  return run_group("bench", "Measure how fast the engine is on this machine.", subjects, arguments);
}

} // namespace fvlm::cli
