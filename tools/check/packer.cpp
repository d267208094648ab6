#include "check/packer.h"

#include "check/families.h"
#include "check/workbench.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace fvlm::check {
namespace {

fvlm_packer_query query_of(const PackerCase& c, const int64_t* capacity) {
  fvlm_packer_query query{};
  query.struct_size = sizeof query;
  query.dimensions = static_cast<int32_t>(c.dimensions());
  query.max_items = c.max_items;
  query.capacity = capacity;
  return query;
}

Run run(Context& context, const PackerCase& c, const Variation& variation) {
  const auto& table = context.table<fvlm_packer_v1>();
  Workbench bench(context, variation);
  Operand& capacity = bench.input("capacity", at::tensor(c.capacity, at::kLong), Rows::contiguous);
  Operand& sizes = bench.input("sizes", at::tensor(c.sizes, at::kLong).reshape({-1, c.dimensions()}), Rows::contiguous);
  Operand& bins = bench.output("bin_of_item", {c.items()}, at::kInt);
  Operand& count = bench.output("bin_count", {1}, at::kInt);
  auto* query = bench.guarded_query(query_of(c, static_cast<const int64_t*>(capacity.abi()->data)));
  fvlm_packer_pack pack{};
  pack.item_count = c.items();
  pack.sizes = static_cast<const int64_t*>(sizes.abi()->data);
  pack.seed = c.seed;
  pack.bin_of_item = static_cast<int32_t*>(bins.abi()->data);
  pack.bin_count = static_cast<int32_t*>(count.abi()->data);
  auto* arguments = bench.guarded_arguments(pack);
  bench.call("pack", 0,
             [&](const fvlm_call* call) { return table.pack(bench.instance(), query, arguments, call->error); });
  return bench.finish();
}

} // namespace

bool PackerCase::fits(int64_t item) const {
  for (int64_t d = 0; d < dimensions(); ++d)
    if (sizes[static_cast<size_t>(item * dimensions() + d)] > capacity[static_cast<size_t>(d)]) return false;
  return true;
}

fvlm_support packer_supports(Context& context, const PackerCase& c) {
  return query_support(context.table<fvlm_packer_v1>().supports, query_of(c, c.capacity.data()));
}

Trial packer_trial(const PackerCase& c) {
  Trial trial;
  trial.label =
      fmt::format("{} items of {} dimensions{}, capacity {}", c.items(), c.dimensions(),
                  c.max_items ? fmt::format(", at most {} a bin", c.max_items) : "", fmt::join(c.capacity, " "));
  trial.supports = [c](Context& context) { return packer_supports(context, c); };
  trial.run = [c](Context& context, const Variation& variation) { return run(context, c, variation); };
  trial.expect = [] { return Expectation{}; };
  return trial;
}

Bins pack(Context& context, const PackerCase& c, const Variation& variation) {
  Run done = run(context, c, variation);
  Bins bins;
  bins.failure = done.failure();
  if (!bins.failure.empty()) return bins;
  const at::Tensor& of_item = *done.output("bin_of_item");
  bins.of_item.assign(of_item.data_ptr<int32_t>(), of_item.data_ptr<int32_t>() + of_item.numel());
  bins.count = done.output("bin_count")->item<int32_t>();
  return bins;
}

PackerCase uniform_items(int64_t items, int dimensions, uint64_t seed) {
  PackerCase c;
  c.seed = seed;
  for (int d = 0; d < dimensions; ++d) c.capacity.push_back(d == 0 ? 1000 : 64);
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < items; ++i)
    for (int d = 0; d < dimensions; ++d)
      c.sizes.push_back(static_cast<int64_t>(1 + random() % static_cast<uint64_t>(d == 0 ? 600 : 32)));
  return c;
}

std::vector<int64_t> ragged_lengths(int64_t items, uint64_t seed) {
  std::mt19937_64 random(seed);
  auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  auto lognormal = [&](double median, double sigma, double least, double most) {
    const double z = std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform());
    return static_cast<int64_t>(std::clamp(std::round(median * std::exp(sigma * z)), least, most));
  };
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < items; ++i) {
    const double kind = uniform();
    if (kind < 0.47)
      lengths.push_back(8 + lognormal(150, 0.8, 24, 1024));
    else if (kind < 0.86)
      lengths.push_back(lognormal(12, 0.8, 1, 64) + lognormal(110, 0.6, 24, 1024));
    else
      lengths.push_back(lognormal(400, 0.6, 24, 1024));
  }
  return lengths;
}

std::vector<Trial> packer_sets() {
  std::vector<Trial> trials;
  PackerCase one{.capacity = {4096}, .sizes = ragged_lengths(300, 7)};
  // The same count, sum, first and last item.
  PackerCase other = one;
  std::reverse(other.sizes.begin() + 1, other.sizes.end() - 1);
  PackerCase seeded = one;
  seeded.seed = 12345;
  for (const PackerCase& c : {one, other, seeded, uniform_items(500, 2, 31), uniform_items(90, 3, 5)})
    trials.push_back(packer_trial(c));
  return trials;
}

std::vector<Trial> packer_parallel_trials(Context&) {
  return {packer_trial({.capacity = {4096}, .sizes = ragged_lengths(20000, 8)}),
          packer_trial({.capacity = {3000}, .sizes = ragged_lengths(20000, 9)})};
}

std::vector<Trial> packer_trials(Context&) {
  PackerCase some_oversized = uniform_items(90, 1, 12);
  for (size_t i = 0; i < some_oversized.sizes.size(); i += 7) some_oversized.sizes[i] = 1001 + static_cast<int64_t>(i);
  return {packer_trial(uniform_items(200, 1, 3)), packer_trial(uniform_items(60, 2, 4)), packer_trial(some_oversized)};
}

} // namespace fvlm::check
