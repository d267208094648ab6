// `--bench`: speed and memory against the reference, on the shapes that the engine's own plugins are held to.
#include "check/attention.h"
#include "check/families.h"
#include "check/generic.h"
#include "check/kernels.h"
#include "check/loss.h"
#include "check/optimizer.h"
#include "check/packer.h"
#include "check/quantizer.h"
#include "check/reference.h"
#include "plugin/kinds.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <thread>

namespace fvlm::check {
namespace {

int all_threads() {
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Measures the plugin and the reference in turn, so that other load on the machine affects both: wall-clock time on all
// threads, then CPU time on one thread. The fastest call of each function counts, because other load only slows it
// down.
class SpeedComparison {
 public:
  using Maker = std::function<Trial(Context&)>;

  SpeedComparison(Context& context, const Maker& make, int repeat, int rounds = 3) {
    reference_ = context.subject.built_in() ? nullptr : reference_context(context);
    Trial own = make(context);
    if (!refusal(context, own).empty()) return;
    std::optional<Trial> other;
    if (reference_) {
      other = make(*reference_);
      if (!refusal(*reference_, *other).empty()) other.reset();
    }
    for (int round = 0; round < rounds; ++round)
      for (const bool alone : {false, true}) {
        if (alone && repeat == 0) break; // nothing is timed
        const int threads = alone ? 1 : all_threads();
        at::set_num_threads(threads);
        const Variation variation{
            .flags = 0, .unguarded = true, .repeat = repeat, .host = &TestHost::with_threads(threads)};
        play(own, context, variation, alone, own_);
        if (other) play(*other, *reference_, variation, alone, other_);
      }
    at::set_num_threads(1);
  }

  bool done() const { return own_.run.has_value(); }
  int64_t peak() const { return peak_of(*own_.run); }
  int64_t reference_peak() const { return other_.run ? peak_of(*other_.run) : 0; }

  // One figure a function, and one for all of them.
  void times(std::vector<Measurement>& figures, const std::string& what) const {
    if (own_.times.empty()) return;
    Measurement sum = together(what + " together");
    if (own_.times.size() > 1)
      for (const auto& [call, time] : own_.times) {
        auto found = other_.times.find(call);
        const Time reference = found == other_.times.end() ? Time{} : found->second;
        figures.push_back(
            {fmt::format("{} {}", what, call), "s", time.seconds, reference.seconds, time.cpu, reference.cpu});
      }
    else
      sum.name = what + " " + own_.times.begin()->first;
    figures.push_back(sum);
  }

  Measurement together(const std::string& what) const {
    const Time own = own_.sum(), other = other_.sum();
    return {what, "s", own.seconds, other.seconds, own.cpu, other.cpu};
  }

 private:
  struct Time {
    double seconds = 0; // on all threads
    double cpu = 0;     // on one
  };
  struct Side {
    std::map<std::string, Time> times; // by function
    std::optional<Run> run;            // the last on all threads

    Time sum() const {
      Time sum;
      for (const auto& [call, time] : times) sum.seconds += time.seconds, sum.cpu += time.cpu;
      return sum;
    }
  };

  // Bytes that became resident, or the requested bytes where those lay in pages that were resident already.
  static int64_t peak_of(const Run& run) { return std::max(run.peak, run.workspace + run.saved); }

  static void play(const Trial& trial, Context& context, const Variation& variation, bool alone, Side& side) {
    Run run = run_fully(context, trial, variation);
    for (const Timing& timing : run.timings) {
      Time& best = side.times[timing.call];
      double& kept = alone ? best.cpu : best.seconds;
      const double now = alone ? timing.cpu : timing.seconds;
      kept = kept > 0 ? std::min(kept, now) : now;
    }
    if (!alone) side.run = std::move(run);
  }

  std::unique_ptr<Context> reference_;
  Side own_, other_;
};

AttentionCase ragged_attention(int segments, at::ScalarType dtype, bool causal) {
  AttentionCase c{.dtype = dtype, .causal = causal, .heads_q = 9, .heads_kv = 3};
  c.lengths_q.clear();
  for (int s = 0; s < segments; ++s) c.lengths_q.push_back(64 + (s * 77) % 193); // 64 to 256
  return c;
}

std::vector<Measurement> attention_ragged(Context& context) {
  const auto dtype = attention_dtype(context);
  std::vector<Measurement> figures;
  for (bool causal : {true, false}) {
    SpeedComparison comparison(
        context, [&](Context&) { return attention_trial(ragged_attention(16, dtype, causal)); }, 7);
    if (comparison.done()) comparison.times(figures, causal ? "causal" : "full");
  }
  return figures;
}

// Memory (workspace, saved tensors, other resident pages) at two lengths, and its growth where the tokens double.
std::vector<Measurement> attention_memory(Context& context) {
  const auto dtype = attention_dtype(context);
  std::vector<Measurement> figures;
  for (int64_t tokens : {2048, 4096}) {
    AttentionCase c{.dtype = dtype, .causal = true, .heads_q = 9, .heads_kv = 3, .lengths_q = {tokens}};
    SpeedComparison comparison(
        context, [&](Context&) { return attention_trial(c); }, 0, 1);
    if (!comparison.done()) return {};
    figures.push_back({fmt::format("memory at one segment of {} tokens", tokens), "bytes",
                       static_cast<double>(comparison.peak()), static_cast<double>(comparison.reference_peak())});
  }
  const auto &shorter = figures[0], &longer = figures[1];
  if (shorter.plugin > 0)
    figures.push_back({"memory for twice the tokens", "times", longer.plugin / shorter.plugin,
                       shorter.reference > 0 ? longer.reference / shorter.reference : 0});
  return figures;
}

std::vector<Measurement> loss_large(Context& context) {
  const auto dtype = loss_dtype(context);
  const bool fused = context.table<fvlm_loss_v1>().fused;
  std::vector<Measurement> figures;
  for (bool both : {false, true}) {
    if (both && !fused) continue;
    auto make = [&](Context& other) {
      LossCase c{.dtype = dtype, .gradient_dtype = dtype, .tokens = 4096, .width = 576, .vocab = 49152};
      c.fused = both && other.table<fvlm_loss_v1>().fused;
      return loss_trial(c);
    };
    SpeedComparison comparison(context, make, 1, 1); // seconds a call, so once
    if (!comparison.done()) return {};
    figures.push_back(
        comparison.together(both ? "fused, 4096 x 576 x 49152" : "forward and backward, 4096 x 576 x 49152"));
    figures.push_back({both ? "fused, peak memory" : "forward and backward, peak memory", "bytes",
                       static_cast<double>(comparison.peak()), static_cast<double>(comparison.reference_peak())});
  }
  return figures;
}

std::vector<Measurement> optimizer_arena(Context& context) {
  const bool matrices = !takes_vectors(context);
  auto make = [&](Context& other) {
    OptimizerCase c{.parameter_dtype = at::kFloat};
    if (matrices)
      c.shapes = {{576, 576}, {576, 1536}, {1536, 576}};
    else
      c.shapes.assign(32, {512, 1024});
    return optimizer_trial(other, c);
  };
  SpeedComparison comparison(context, make, 5);
  std::vector<Measurement> figures;
  if (comparison.done()) comparison.times(figures, matrices ? "3 matrices of 576 x 1536," : "16.8 million elements,");
  return figures;
}

constexpr int64_t capacity = 4096; // of a pack, in tokens

// The engine's use of a packer: a window of items read ahead, bin 0 taken out of it, as many read again.
double fill_of(Context& context, size_t window) {
  const auto lengths = ragged_lengths(20000, 1);
  std::vector<int64_t> waiting;
  size_t read = 0;
  int64_t packs = 0, filled = 0;
  PackerCase c{.capacity = {capacity}};
  if (packer_supports(context, c).score <= 0) return 0;
  while (packs < 400) {
    while (waiting.size() < window && read < lengths.size()) waiting.push_back(std::min(lengths[read++], capacity));
    if (waiting.size() < window) break;
    c.sizes = waiting;
    c.seed = static_cast<uint64_t>(packs);
    Bins bins = pack(context, c);
    if (!bins.failure.empty()) throw RowAborted{State::failed, bins.failure};
    std::vector<int64_t> left;
    for (size_t i = 0; i < waiting.size(); ++i)
      if (bins.of_item[i] == 0)
        filled += waiting[i];
      else
        left.push_back(waiting[i]);
    if (left.size() == waiting.size()) throw RowAborted{State::failed, "bin 0 is empty"};
    waiting = std::move(left);
    ++packs;
  }
  return packs ? 100.0 * static_cast<double>(filled) / static_cast<double>(packs * capacity) : 0;
}

std::vector<Measurement> packer_fill(Context& context) {
  auto reference = context.subject.built_in() ? nullptr : reference_context(context);
  std::vector<Measurement> figures;
  for (size_t window : {128, 512}) {
    const double fill = fill_of(context, window);
    if (fill == 0) return {};
    // The larger the better: no ratio of times.
    figures.push_back({fmt::format("fill of 4,096-token packs, window {}", window), "%", fill, 0});
    if (reference)
      figures.push_back({fmt::format("the reference's, window {}", window), "%", fill_of(*reference, window), 0});
  }
  // The reference's time grows with the square of their number.
  const int64_t items = context.quick ? 10000 : 100000;
  PackerCase many{.capacity = {capacity}, .sizes = ragged_lengths(items, 2)};
  SpeedComparison comparison(
      context, [&](Context&) { return packer_trial(many); }, 3, 1);
  if (comparison.done()) comparison.times(figures, fmt::format("{},000 items,", items / 1000));
  return figures;
}

std::vector<Measurement> quantizer_weight(Context& context) {
  const auto dtype = quantizer_dtype(context);
  SpeedComparison comparison(
      context, [&](Context&) { return quantizer_trial({.dtype = dtype, .rows = 1536, .cols = 576, .tokens = 512}); },
      7);
  std::vector<Measurement> figures;
  if (comparison.done()) comparison.times(figures, "1536 x 576, 512 tokens,");
  return figures;
}

KernelCase typical_case(int op) {
  KernelCase c{.op = op, .rows = 2048, .width = 576, .inner = 576};
  if (op == FVLM_OP_SWIGLU || op == FVLM_OP_BIAS_GELU || op == FVLM_OP_LINEAR) c.width = 1536;
  if (op == FVLM_OP_FOLD_ROW_SCALE) c.rows = 12, c.width = 384, c.inner = 1536;
  if (op == FVLM_OP_ROPE) c.heads = 9, c.head_dim = c.rotary_dim = 64;
  if (op == FVLM_OP_SHORT_CONVOLUTION) c.width = 6144;
  if (op == FVLM_OP_DELTA_RULE) c.heads = 16;
  c.residual = is_norm(op);
  return c;
}

Benchmark kernel_benchmark(int op) {
  const auto speed = [op](Context& context) -> std::vector<Measurement> {
    if (!offered(context, op)) return {};
    KernelCase c = typical_case(op);
    c.dtype = c.gradient_dtype = kernel_dtype(context, op);
    SpeedComparison comparison(
        context, [&](Context&) { return kernel_trial(c); }, 15);
    std::vector<Measurement> figures;
    if (comparison.done()) comparison.times(figures, op_name(op));
    return figures;
  };
  return {op_name(op), typical_case(op).sizes(), speed};
}

} // namespace

std::vector<Benchmark> attention_benchmarks() {
  return {{"ragged", "16 segments of 64 to 256 tokens, 9:3 heads of 64", attention_ragged},
          {"memory", "memory at two lengths", attention_memory}};
}
std::vector<Benchmark> loss_benchmarks() {
  return {{"large", "4096 tokens, width 576, 49,152 words: time, and memory beside inputs and gradients", loss_large}};
}
std::vector<Benchmark> optimizer_benchmarks() {
  return {{"arena", "one step over an arena", optimizer_arena}};
}
std::vector<Benchmark> packer_benchmarks() {
  return {{"fill", "how full packs are on the ragged stream, and time", packer_fill}};
}
std::vector<Benchmark> quantizer_benchmarks() {
  return {{"weight", "one weight: each function", quantizer_weight}};
}
std::vector<Benchmark> kernels_benchmarks() {
  std::vector<Benchmark> all;
  for (const TableOperation& operation : kernel_operations()) all.push_back(kernel_benchmark(operation.op));
  return all;
}

} // namespace fvlm::check
