// ring_probe: attention over rows that several ranks have a part of each, against attention over all of them, in
// float64. It is one of the ranks that the environment tells of, and prints the largest difference of each case.
#include "base/error.h"
#include "dist/ranks.h"
#include "model/context_part.h"
#include "ops/operations.h"
#include "ops/reference.h"
#include "ops/reference_manifest.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdio>

using namespace fvlm;
using ops::Heads, ops::Segments, ops::Tape, ops::Value;

namespace {

struct Case {
  std::vector<int64_t> lengths; // of the sequences
  int64_t padding = 0;          // rows behind them
  bool causal = true;
  int64_t heads_q = 2, heads_kv = 2, head_dim = 8, rotary = 0;
  bool is_packed = true; // q, k and v are columns of one value

  std::string text() const {
    return fmt::format("sequences of {}, {} rows of padding, {}:{} heads of {}{}{}{}", fmt::join(lengths, " "), padding,
                       heads_q, heads_kv, head_dim, causal ? ", causal" : "", rotary ? ", rotary" : "",
                       is_packed ? "" : ", k and v apart");
  }
};

// Output and gradients, by row: [rows, columns].
struct Result {
  at::Tensor y, d_q, d_k, d_v;
};

Result attend(ops::Operations& operations, const Case& c, const Segments& segments, const at::Tensor& qkv,
              const at::Tensor& d_y) {
  const int64_t of_q = c.heads_q * c.head_dim, of_kv = c.heads_kv * c.head_dim;
  Tape tape;
  const Value all(qkv.clone(), true), q(qkv.narrow(1, 0, of_q).contiguous(), true),
      kv(qkv.narrow(1, of_q, 2 * of_kv).contiguous(), true);
  const Heads heads_q{c.is_packed ? all : q, 0, c.heads_q},
      heads_k{c.is_packed ? all : kv, c.is_packed ? of_q : 0, c.heads_kv},
      heads_v{c.is_packed ? all : kv, (c.is_packed ? of_q : 0) + of_kv, c.heads_kv};
  const Value y = operations.attention(tape, heads_q, heads_k, heads_v, segments, segments,
                                       {c.head_dim, c.causal, {.dimensions = c.rotary}});
  y.gradient->add(d_y);
  tape.backward();
  const at::Tensor d = c.is_packed ? all.gradient->take() : at::concat({q.gradient->take(), kv.gradient->take()}, 1);
  return {y.data, d.narrow(1, 0, of_q), d.narrow(1, of_q, of_kv), d.narrow(1, of_q + of_kv, of_kv)};
}

double difference(ops::Operations& operations, const Case& c, const ops::ContextGroup& context) {
  int64_t used = 0, longest = 0;
  for (const int64_t length : c.lengths) used += length, longest = std::max(longest, length);
  const int64_t rows = model::divisible_rows(used + c.padding, context);
  const int64_t columns = (c.heads_q + 2 * c.heads_kv) * c.head_dim;
  const at::Tensor qkv = at::randn({rows, columns}, at::kDouble),
                   d_y = at::randn({rows, c.heads_q * c.head_dim}, at::kDouble);
  qkv.narrow(0, used, rows - used).fill_(std::nan("")); // no result depends on padding
  d_y.narrow(0, used, rows - used).fill_(std::nan(""));

  const int64_t spare_segments = 2;
  const Segments whole = model::segments_of(c.lengths, std::ssize(c.lengths) + spare_segments, rows, longest, at::kCPU);
  const auto own = [&](const at::Tensor& all) { return ops::RingBounds::own(all, context); };
  Segments part{{}, own(whole.positions), longest};
  part.ring = ops::RingBounds::of(whole.cu_seqlens, rows, context.ranks);
  part.cu_seqlens = part.ring[context.rank][ops::RingBounds::both_chunks];

  const Result expected = attend(operations, c, whole, qkv, d_y);
  const Result found = attend(operations, c, part, own(qkv), own(d_y));
  double most = 0;
  for (const auto& [name, one, other] : {std::tuple("the output", expected.y, found.y),
                                         {"d_q", expected.d_q, found.d_q},
                                         {"d_k", expected.d_k, found.d_k},
                                         {"d_v", expected.d_v, found.d_v}}) {
    const double largest = (own(one) - other).abs().max().item<double>();
    if (!(largest < 1e-6))
      throw Error(ErrorKind::internal, fmt::format("{}: {} differs by {}", c.text(), name, largest));
    most = std::max(most, largest);
  }
  return most;
}

int run() {
  const c10::InferenceMode without_autograd;
  at::set_num_threads(1);
  const auto launch = dist::launch_of_environment();
  if (!launch) throw Error(ErrorKind::usage, "the probe is one of several ranks");
  const auto ranks = dist::Ranks::join(*launch, at::kCPU, std::chrono::seconds(60), launch->ranks);
  const auto context = ops::ContextGroup::of(*ranks);
  Registry registry(RegistryOptions{});
  registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
  ops::OperationsOptions options;
  options.dtype = at::kDouble;
  options.context = context;
  ops::Operations operations(registry, options);

  std::vector<Case> cases;
  for (const bool causal : {true, false})
    for (const int64_t heads_kv : {4, 2, 1}) {
      const auto add = [&](std::vector<int64_t> lengths, int64_t padding, int64_t rotary = 0, bool is_packed = true) {
        cases.push_back({std::move(lengths), padding, causal, 4, heads_kv, 8, rotary, is_packed});
      };
      add({64}, 0);                     // one sequence over all chunks
      add({13, 1, 30, 20}, 0, 8);       // cuts within sequences
      add({5, 0, 3, 40}, 9, 4);         // an empty one, and padding in the last chunks
      add({7}, 50);                     // all in one chunk: other ranks have nothing
      add({8, 8, 8, 8, 8, 8, 8, 8}, 0); // cuts between sequences
      add({29, 34}, 1, 8, false);
    }
  at::manual_seed(3); // the same on every rank
  for (const Case& c : cases) {
    const double most = difference(operations, c, context);
    if (ranks->is_first()) fmt::print("{}: within {:.2g}\n", c.text(), most);
  }
  return 0;
}

} // namespace

int main() {
  try {
    return run();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.text().c_str());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
